"""Errors of mean scores, worked by hand."""

import math

import pytest

from moexray.analyse.numerics import arms, difference_error, largest_difference


def row(arm, score, questions=None, stderr=None):
    return {"source": "s", "set": None, "arm": arm, "score": score, "questions": questions, "stderr": stderr, "where": "x"}


def test_binomial_error_and_spread():
    [arm] = arms([row("a", 0.5, 100), row("a", 0.7, 100)])
    assert arm.mean == pytest.approx(0.6)
    assert arm.binomial == pytest.approx(math.sqrt(0.24 / 200))
    assert arm.spread == pytest.approx(0.1)  # stdev 0.1414 / sqrt(2)


def test_the_larger_error_counts():
    a, b = arms([row("a", 0.5, 100), row("a", 0.7, 100), row("b", 0.6, 100), row("b", 0.6, 100)])
    assert difference_error(a, b) == pytest.approx(0.1)
    a, b = arms([row("a", 0.5), row("b", 0.6)])
    assert difference_error(a, b) is None


def test_a_printed_error_stands_in_for_the_count():
    [arm] = arms([row("a", 0.5, stderr=0.02), row("a", 0.5, stderr=0.02)])
    assert arm.binomial == pytest.approx(0.02 / math.sqrt(2))


def test_differences_between_batches():
    def one(arm, prompt, *values):
        return {"source": "s", "prompt": prompt, "arm": arm, "values": list(values), "where": arm}

    rows = [one("bs1", "p", -1, -2), one("bs8", "p", -1, -2.5), one("bs1", "q", -1), one("bs8", "q", -1), one("bs1", "r", -1)]
    diff, differ, compared, a, b = largest_difference(rows)
    assert (diff, differ, compared, a["arm"], b["arm"]) == (0.5, 1, 2, "bs1", "bs8")
    assert largest_difference(rows[:1]) is None
