"""Quantiles by rank, pairs resampled together, intervals that cover, verdicts that do not overreach."""

import math

import numpy as np
import pytest

from moexray.core.errors import UsageError
from moexray.verify.ab import Interval, Margin, judge, outcome, paired_means, paired_outcomes, quantile, stats
from moexray.verify.ab.stats import needed, shortfall, t_quantile, unpaired_outcomes


def _by_name(outcomes):
    return {o.figure: o for o in outcomes}


def test_a_quantile_is_a_value_that_occurred():
    values = np.arange(1, 1001)
    assert quantile(values, 0.99) == 990
    assert quantile(values, 0.5) == 500
    assert quantile([7.0], 0.99) == 7.0
    assert math.isnan(quantile([], 0.5))


def test_students_t_agrees_with_the_printed_table():
    for p, degrees, value in ((0.975, 1, 12.706), (0.975, 4, 2.776), (0.975, 9, 2.262), (0.95, 30, 1.697)):
        assert t_quantile(p, degrees) == pytest.approx(value, rel=1e-3)


def test_values_wanted_for_a_quantile():
    assert [needed(f) for f in ("p50", "p90", "p99", "p99.9", "mean_max")] == [20, 100, 1000, 10000, 0]
    assert "1,000" in shortfall("p99", 999, 5000)
    assert shortfall("p99", 1000, 1000, 5) == "6 pairs are wanted, there are 5"
    assert not shortfall("p99", 1000, 1000, 6)


def test_a_shift_is_found_pair_by_pair_under_a_drift_many_times_larger():
    rng = np.random.default_rng(0)
    level = np.linspace(0.05, 0.5, 20)
    before = [x + rng.normal(0, 0.001, 60) for x in level]
    after = [x + 0.010 + rng.normal(0, 0.001, 60) for x in level]
    found = _by_name(paired_outcomes(before, after, margin=Margin(0.005)))
    p50, peak = found["p50_s"], found["mean_max_s"]
    assert peak.verdict == "worse"
    assert peak.difference.low == pytest.approx(0.010, abs=0.001)
    assert peak.difference.high == pytest.approx(0.010, abs=0.001)
    assert p50.pairs == 20
    assert p50.n_before == p50.n_after == 1200
    assert p50.before.value == quantile(np.concatenate(before), 0.5)
    longest = found["max_s"]
    assert longest.before.value == np.concatenate(before).max()
    assert (longest.verdict, longest.before.low, longest.difference.low) == ("cannot tell", None, None)


def test_equal_arms_are_no_change_and_few_values_are_cannot_tell():
    rng = np.random.default_rng(1)
    pairs = [rng.normal(0.05, 0.003, 100) for _ in range(24)]
    found = _by_name(paired_outcomes(pairs[::2], pairs[1::2], margin=Margin(0.005)))
    assert found["p99_s"].verdict == "no change"
    few = _by_name(paired_outcomes(pairs[:8:2], pairs[1:8:2], margin=Margin(0.005)))
    assert few["p99_s"].verdict == "cannot tell"
    assert "1,000 values per arm, there are 400" in few["p99_s"].reason
    assert few["p99_s"].difference.low is not None
    assert "pairs" in few["p50_s"].reason


@pytest.mark.parametrize("pairs", [6, 20])
def test_the_intervals_of_identical_arms_hold_zero(pairs):
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(30):
        sides = [[0.1 * rng.lognormal(0, 0.3, 1200 // pairs) for _ in range(pairs)] for _ in "AB"]
        [p99] = paired_outcomes(*sides, figures=("p99",))
        held += p99.difference.low <= 0 <= p99.difference.high
    assert held >= 25  # 95 % of 30 is 28 or 29; fewer than 25 happen once in 300


def test_values_counted_in_cells_give_the_same_answer(monkeypatch):
    rng = np.random.default_rng(3)
    sides = [[rng.lognormal(0, 0.3, 400) + shift for _ in range(10)] for shift in (0.0, 0.2)]
    exact = paired_outcomes(*sides, figures=("p50", "p99"))
    monkeypatch.setattr(stats, "CELLS", 1000)
    for fine, coarse in zip(exact, paired_outcomes(*sides, figures=("p50", "p99")), strict=True):
        assert coarse.difference.value == fine.difference.value
        for end in ("low", "high"):
            assert getattr(coarse.before, end) == pytest.approx(getattr(fine.before, end), rel=0.02)


def test_pairs_with_an_empty_side_are_left_out():
    found = paired_outcomes([np.ones(5), np.zeros(0)], [np.ones(5), np.ones(5)], figures=("p50",))
    assert found[0].pairs == 1
    assert found[0].verdict == "cannot tell"
    nothing = paired_outcomes([], [], figures=("p50", "mean_max", "max"))
    assert {o.verdict for o in nothing} == {"cannot tell"}


def test_a_noisy_machine_withholds_the_verdict_not_the_figures():
    sides = [[np.full(200, v) for _ in range(8)] for v in (0.1, 0.2)]
    [p50] = paired_outcomes(*sides, figures=("p50",), missing="the machine is too noisy: load 7")
    assert (p50.verdict, p50.reason) == ("cannot tell", "the machine is too noisy: load 7")
    assert p50.ratio.value == 2.0


def test_numbers_of_repetitions_compare_by_their_means():
    drawn = paired_means([1.2, 1.1, 1.3, 1.2, 1.1, 1.2], [5.7, 5.6, 5.8, 5.5, 5.9, 5.6])
    found = outcome("largest_free_bytes", drawn, better="higher", unit="bytes")
    assert found.verdict == "better"
    assert found.ratio.low > 4
    assert found.ratio.inverse.high < 0.25
    with pytest.raises(ValueError, match="no pairs"):
        paired_means([1.0], [1.0, 2.0])
    single = outcome("ratio", paired_means([0.2], [0.4]), unit="ratio")
    assert (single.verdict, single.difference.low) == ("cannot tell", None)


@pytest.mark.parametrize(
    ("low", "high", "margin", "verdict"),
    [
        (-1.0, 1.0, 2.0, "no change"),
        (0.5, 1.0, 2.0, "no change"),
        (0.5, 3.0, 2.0, "worse"),
        (-3.0, -2.5, 2.0, "better"),
        (-1.0, 3.0, 2.0, "cannot tell"),
        (-1.0, 1.0, None, "cannot tell"),
        (None, None, 2.0, "cannot tell"),
        (np.nan, np.nan, 2.0, "cannot tell"),
        (np.nan, np.nan, None, "cannot tell"),
        (-1.0, np.nan, 2.0, "cannot tell"),
    ],
)
def test_verdicts(low, high, margin, verdict):
    assert judge(Interval(0.0, low, high), margin, "lower")[0] == verdict
    other = {"worse": "better", "better": "worse"}.get(verdict, verdict)
    assert judge(Interval(0.0, low, high), margin, "higher")[0] == other


def test_unpaired_runs_keep_what_neighbours_share():
    rng = np.random.default_rng(4)
    held = 0
    for _ in range(20):
        sides = [rng.normal(0.05, 0.002, 1500) + np.repeat(rng.normal(0, 0.004, 100), 15) for _ in "AB"]
        [p50] = unpaired_outcomes(*sides, figures=("p50",))
        held += p50.difference.low <= 0 <= p50.difference.high
    assert held >= 16
    [shifted] = unpaired_outcomes(rng.normal(0.05, 0.002, 2000), rng.normal(0.06, 0.002, 2000), figures=("p99",))
    assert shifted.verdict == "worse"
    assert shifted.pairs == 0
    [short] = unpaired_outcomes(np.ones(30), np.ones(30), figures=("mean_max",))
    assert "too few" in short.reason


def test_values_that_are_not_numbers_do_not_count():
    values = np.r_[np.full(100, 0.05), np.nan]
    [p50] = unpaired_outcomes(values, values, figures=("p50",))
    assert (p50.n_before, p50.before.value) == (100, 0.05)


def test_the_longest_of_a_block_does_not_grow_with_the_length_of_the_run():
    false = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        sides = (rng.normal(20, 1, n) for n in (500, 10_000))
        found = _by_name(unpaired_outcomes(*sides, figures=("mean_max", "max"), seed=seed))
        false += found["mean_max_s"].verdict in ("better", "worse")
        assert found["max_s"].after.value > found["mean_max_s"].after.value
    assert false <= 2  # nominally 5 %


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("better", ["lower", "higher"])
@pytest.mark.parametrize("margin", [None, 0.005])
def test_what_is_no_number_gets_no_verdict(value, better, margin):
    for difference in (Interval(value, value, value), Interval(1.0, value, 2.0), Interval(1.0, 0.5, value)):
        assert judge(difference, margin, better)[0] == "cannot tell"


@pytest.mark.parametrize("size", [-1.0, math.nan, math.inf])
def test_a_margin_is_a_number_from_0(size):
    with pytest.raises(UsageError, match="is none"):
        Margin(size)
