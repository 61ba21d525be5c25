"""The always-valid test: false alarms at most as stated, a shift of 10 ms found, its interval an interval."""

from collections import Counter

import numpy as np
import pytest

from ab_arms import SHAPES, quads
from moexray.verify.ab import Margin, Place, Shift, Turn, Watch

ALPHA = 0.05


def _verdict(shape, seed, *, shift, margin):
    watch = Watch(("p50", "p99", "errors"), Margin(margin), ALPHA)
    verdict = "cannot tell"
    for quad in quads(shape, seed, shift=shift):
        verdict = watch.add(quad)
        if verdict in ("worse", "better"):
            break
    return verdict


def _rates(shape, runs, **how):
    seen = Counter(_verdict(shape, seed, **how) for seed in range(runs))
    return {k: v / runs for k, v in seen.items()}


def _alarms(rates):
    return rates.get("worse", 0) + rates.get("better", 0)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_sample_of_aa_runs_raises_few_alarms(shape):
    # 20 runs at a rate of 5 %: more than 4 happen once in 400
    assert _alarms(_rates(shape, 20, shift=0.0, margin=0.0)) <= 4 / 20


@pytest.mark.soak
@pytest.mark.parametrize("shape", SHAPES)
def test_a_thousand_aa_runs_keep_the_stated_rate(shape):
    assert _alarms(_rates(shape, 1000, shift=0.0, margin=0.0)) <= ALPHA


@pytest.mark.parametrize("shape", SHAPES)
def test_ten_ms_more_are_found(shape):
    assert _rates(shape, 10, shift=0.010, margin=0.005).get("worse", 0) >= 0.9


@pytest.mark.soak
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("margin", [0.0, 0.005])
def test_ten_ms_more_are_found_95_times_in_100(shape, margin):
    assert _rates(shape, 1000, shift=0.010, margin=margin).get("worse", 0) >= 0.95


def test_ten_ms_less_are_better():
    assert _verdict("normal", 3, shift=-0.010, margin=0.005) == "better"


def test_identical_arms_are_equivalent_within_the_margin():
    watch = Watch(("p50", "errors"), Margin(0.005), ALPHA)
    verdicts = [watch.add(quad) for quad in quads("normal", 1)]
    assert verdicts[0] == "cannot tell"
    assert verdicts[-1] == "no change"
    interval = watch.decision().intervals["p50"]
    assert -0.005 < interval.low <= 0 <= interval.high < 0.005


def test_a_share_is_tested_as_a_ratio():
    watch = Watch(("p50",), Margin(0.05, is_share=True), ALPHA)
    for quad in quads("normal", 2, shift=0.010):
        watch.add(quad)
    decision = watch.decision()
    assert decision.verdict == "worse"
    assert decision.intervals["p50"].low > 0.05
    assert decision.intervals["p50"].low < 0.2 < decision.intervals["p50"].high + 0.02


def test_the_interval_misses_a_shift_seldom():
    missed = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        shift = Shift(0.1, 0.0, 1.0)
        for _ in range(40):
            shift.add(3.0 + float(rng.standard_t(1.5)))
        found = shift.interval()
        missed += not found.low <= 3.0 <= found.high
    assert missed <= 4


def test_one_spike_does_not_decide():
    shift = Shift(0.05, 0.0, 0.001)
    for i in range(30):
        shift.add(0.0001 * (-1) ** i)
    shift.add(100.0)
    assert shift.verdict() == "cannot tell"


def test_too_few_quads_bound_nothing():
    shift = Shift(0.05, 0.0, 1.0)
    for _ in range(4):
        shift.add(5.0)
    found = shift.interval()
    assert (found.low, found.high) == (None, None)


def _turn(place, errors, n=20):
    return Turn(place, 0.0, np.linspace(0, 0.9, n), np.full(n, 0.01), errors=errors)


def test_an_arm_that_answers_nothing_is_worse():
    watch = Watch(("p50", "p99", "errors"), Margin(0.005), ALPHA)
    for q in range(20):
        order = "ABBA" if q % 2 else "BAAB"
        quad = [_turn(Place(q, a, control=False), 20 * (a == "B"), 20 * (a == "A")) for a in order]
        verdict = watch.add(quad)
        if verdict == "worse":
            break
    assert (verdict, watch.decision().figure) == ("worse", "errors")
    assert q < 12
