"""Arithmetic over gaps and step logs, worked by hand."""

import numpy as np
import pytest

from moexray.analyse.requests import bench_runs, gap_summary, prefill_split, rank_quantile
from moexray.core.run import Batch


def gaps(request, gap, t=None):
    t = [np.nan] * len(gap) if t is None else t
    return Batch("gaps", "t", {"request": request, "gap_s": gap, "t_s": t}, {})


def test_pooled_gaps_against_means_of_requests():
    # request 0: 1 1 1 1 (mean 1); request 1: 1 1 1 21 (mean 6)
    g = gap_summary(gaps([0] * 4 + [1] * 4, [1, 1, 1, 1, 1, 1, 1, 21.0]), 10.0)
    assert (g.median_s, g.max_s, g.stalls, g.stalled_s, g.hit) == (1, 21, 1, 21, 1)
    assert (g.p99_mean_s, g.median_mean_s) == (6, 3.5)
    assert (g.p99_s, g.at_once) == (21, None)


def test_stalls_at_the_same_instant():
    g = gap_summary(gaps([0, 1, 2, 2, 0, 1, 2], [1, 1, 1, 1, 20, 20, 20.0], [1, 1, 1, 2, 30, 30.5, 90]), 10.0)
    assert (g.at_once, g.at_s) == (2, 30)


def test_too_little_says_nothing():
    assert gap_summary(gaps([0], [1.0]), 10.0) is None


def test_quantiles_are_values_that_occurred():
    assert rank_quantile(np.array([3.0, 1.0, 2.0, 4.0]), 0.5) == 2
    assert rank_quantile(np.array([3.0, 1.0]), 0.99) == 3


def test_steps_with_and_without_prefill():
    columns = {"dur_s": [1, 9, 1, 8, 2, np.nan], "prefill_tokens": [0, 5, 0, 5, 0, 5], "prefill_ranks": [0, 1, 0, 2, 0, 1]}
    split = prefill_split(Batch("steps", "s", columns, {}))
    assert (split.steps, split.with_prefill) == (5, 2)
    assert (split.median_with_s, split.median_without_s, split.median_s, split.ranks) == (8.5, 1, 2, 1.5)


def test_figures_of_one_run_are_put_together():
    row = {"source": "b", "run": "a", "level": 1.0, "setting": None, "order": 0, "where": "line 2"}
    [run] = bench_runs(({**row, "figure": "x_s", "value": 1.0}, {**row, "figure": "y_s", "value": 2.0}))
    assert {k: v for k, (v, _) in run.figures.items()} == pytest.approx({"x_s": 1.0, "y_s": 2.0})
    assert run.name == "a"
