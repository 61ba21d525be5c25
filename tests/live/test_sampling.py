"""What is kept, and the bound on it."""

import pytest

from moexray.live.sampling import REASONS, Decider, Keep


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0  # a trace a second
        return self.now


def decider(alert=None, **keep):
    return Decider(Keep(**{"most_per_s": 1e6, **keep}), alert, Clock())


def test_an_error_is_kept_and_an_alert_keeps_all():
    firing = [False]
    decide = decider(lambda: firing[0])
    assert decide(1, 0.1) == "no"
    assert decide(1, 0.1, error=True) == "error"
    firing[0] = True
    assert decide(1, 0.1) == "alert"
    assert decide(1, 0.1, error=True) == "error"


def test_above_the_objective():
    decide = decider(slo_s=0.2)
    assert (decide(1, 0.2), decide(1, 0.21)) == ("no", "slo")


def test_above_the_rolling_quantile():
    decide = decider(quantile=0.99, window=128)
    assert {decide(1, 0.01 + i % 10 / 1000) for i in range(256)} == {"no"}
    assert decide(1, 0.0195) == "slow"
    assert decide(1, 0.0189) == "no"


def test_a_slowdown_that_lasts_is_still_seen():
    """The rolling quantile gets used to it; the reference does not."""
    decide = decider(quantile=0.99, window=128)
    for _ in range(256):
        decide(1, 0.01)
    said = [decide(1, 0.03) for _ in range(1024)]
    assert said[0] == "slow"
    assert set(said[512:]) == {"reference"}
    assert decide(1, 0.01) == "no"


@pytest.mark.parametrize("ratio", [0.0, 0.25, 1.0])
def test_the_head_ratio_is_decided_by_the_trace_alone(ratio):
    import random

    ids = [random.Random(i).getrandbits(128) for i in range(4000)]
    first, second = (([decider(ratio=ratio)(i, 0.1) for i in ids]) for _ in range(2))
    assert first == second
    assert first.count("ratio") / len(ids) == pytest.approx(ratio, abs=0.03)


def test_no_more_than_the_rate_is_kept():
    decide = Decider(Keep(slo_s=0.1, most_per_s=0.5), clock=Clock())
    said = [decide(1, 1.0) for _ in range(1000)]
    assert set(said) == {"slo", "rate"}
    assert said.count("slo") == pytest.approx(0.5 * 1000, abs=6)
    assert set(said) <= set(REASONS)
