"""Arithmetic of series, stalls, clocks and arms, by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_samples import series
from moexray.analyse.alignment import align
from moexray.analyse.arms import arms, compare, time_ratio
from moexray.analyse.latency import load_series, percentile, stalls
from text_runs import run_of


def test_spikes_and_percentiles():
    (s,) = load_series(run_of(x=series([10.0, 20.0], spike=0.9, n=1000)))
    assert len(s.spikes) == 2
    assert s.stalled_s == pytest.approx(1.8)
    assert s.median_s == pytest.approx(0.03)
    assert percentile(s, 0.99) < 0.032  # 2 of 1,000 do not reach P99
    assert percentile(s, 0.999) == pytest.approx(0.9)
    assert not s.sampled


def test_sampled_rows_stand_for_their_steps():
    # every 10th of 400 steps, and one spike between: 41 rows, 400 steps; the spike is one of them
    rows = [(i, 30.0) for i in range(0, 400, 10)] + [(205, 900.0)]
    text = "step,itl_ms\n" + "".join(f"{i},{v}\n" for i, v in sorted(rows))
    (s,) = load_series(run_of(x=text))
    assert (s.steps, s.sampled, len(s.value_s)) == (391, True, 41)
    assert percentile(s, 1 - 1.5 / 391) == pytest.approx(0.03)
    assert percentile(s, 1 - 0.5 / 391) == pytest.approx(0.9)


def test_spikes_of_many_requests_at_one_moment_are_one_stall():
    rows = [(i, 0.03 * i, 30.0) for i in range(200)]
    rows += [(300 + k, 9.0 + 0.001 * k, 800.0) for k in range(5)]
    text = "token,t_s,itl_ms\n" + "".join(f"{k},{t:.4f},{v}\n" for k, t, v in rows)
    (s,) = load_series(run_of(x=text))
    (stall,) = stalls(s)
    assert (stall.count, stall.value_s) == (5, 0.8)


def test_short_and_flat_series_have_no_spikes():
    assert load_series(run_of(x=series([], n=20))) == []
    assert stalls(load_series(run_of(x=series([], n=50)))[0]) == []


@pytest.mark.parametrize(
    ("log", "series_", "offset"),
    [
        (("relative", [5.0]), ("relative", (0.0, 9.0)), 0.0),
        (("epoch", [1e9 + 5]), ("epoch", (1e9, 1e9 + 9)), 0.0),
        (("year", [40 * 86400.0]), ("epoch", (1767225600.0 + 40 * 86400 - 9, 1767225600.0 + 40 * 86400 + 9)), 1767225600.0),
        (("epoch", [86400.0 * 20000 + 3600]), ("day", (3500.0, 3700.0)), -86400.0 * 20000),
        (("epoch", [1e9 + 3600 * 2]), ("epoch", (1e9 - 60, 1e9 + 60)), -7200.0),
        (("epoch", [2e9]), ("epoch", (1e9, 1e9 + 9)), None),
        (("none", []), ("epoch", (1e9, 1e9 + 9)), None),
        (("epoch", [1e9]), ("none", (0.0, 1.0)), None),
        (("epoch", [1e9]), ("relative", (0.0, 1.0)), None),
    ],
)
def test_alignment(log, series_, offset):
    assert align(log, series_, [series_[1][0] + 1]).offset_s == offset


@given(
    st.lists(st.floats(30, 90), min_size=5, max_size=20),
    st.floats(-1e6, 1e6),
)
def test_a_pattern_is_found_whatever_the_offset(gaps, offset):
    stalls_ = np.cumsum(gaps)
    a = align(("epoch", list(stalls_ - offset + 1.7e9)), ("relative", (0.0, float(stalls_[-1] + 1))), list(stalls_))
    assert a.offset_s == pytest.approx(offset - 1.7e9, abs=0.5)
    assert not a.certain


def test_arms_are_named_by_a_column_or_by_their_files():
    run = run_of(x="build,concurrency,mean_ttft_ms,tok_s\nold,1,200,60\nold,1,210,62\nnew,1,300,61\n")
    old, new = arms(run)
    assert (old.label, old.named) == ("old", True)
    ttft = next(d for d in compare(old, new) if d.figure == "mean_ttft_s")
    assert ttft.ratio == pytest.approx(300 / 205)
    assert ttft.noise == pytest.approx(10 / 205)
    assert time_ratio(old, new)[0] == pytest.approx(61 / 61)
    a, b = arms(run_of(a="concurrency,duration_s\n1,600\n2,700\n", b="concurrency,duration_s\n1,630\n2,770\n"))
    assert (a.label, a.named) == ("a", False)
    assert time_ratio(a, b)[0] == pytest.approx((1.05 + 1.1) / 2)
    assert time_ratio(a, arms(run_of(a="concurrency,failed_requests\n1,2\n"))[0]) is None
