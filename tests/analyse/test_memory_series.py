"""Arithmetic over series of memory."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moexray.analyse.memory_series import growth, like_load, load_at, rank_correlation, windows

NUMBERS = st.lists(st.floats(-1e9, 1e9), min_size=4, max_size=40)


def test_windows_are_medians_of_equal_parts():
    assert windows([1, 2, 3, 10, 20, 30, 40, 50], 4) == [1.5, 6.5, 25, 45]
    assert windows([1, 2, 3]) == []


def test_growth_by_hand():
    g = growth([0, 0, 10, 10, 20, 20, 30, 30, 40, 40, 50, 50])
    assert (g.first, g.last, g.rises, g.settles) == (0, 50, 5, False)


@given(NUMBERS)
def test_a_series_and_its_reverse_grow_oppositely(values):
    a, b = growth(values), growth(values[::-1])
    if len(values) % len(a.medians) == 0:
        assert a.first == b.last
    assert a.rises <= len(a.medians) - 1


def test_like_load_is_the_largest_set():
    assert like_load([8, 8, 16, 30, 31, 32, 33, None, math.nan], 0.15) == [3, 4, 5, 6]
    assert like_load([None], 0.15) == []


@given(st.lists(st.floats(0, 1000), max_size=30), st.floats(0, 1))
def test_like_load_keeps_its_promise(loads, tolerance):
    kept = [loads[i] for i in like_load(loads, tolerance)]
    if kept:
        low = min(kept)
        assert max(kept) <= max(low * (1 + tolerance), low + (1 if low >= 1 else 0))


def test_rank_correlation_by_hand():
    assert rank_correlation([1, 2, 3, 4], [10, 100, 1000, 10000]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 2, 3], [5, 5, 5]) is None


@given(NUMBERS, st.randoms())
def test_rank_correlation_is_symmetric_and_bounded(values, random):
    other = values[:]
    random.shuffle(other)
    r = rank_correlation(values, other)
    assert r == rank_correlation(other, values) or r == pytest.approx(rank_correlation(other, values))
    assert r is None or -1.000001 <= r <= 1.000001


def test_load_of_the_same_clock_and_of_one_that_starts_at_zero():
    load = [(0.0, 8.0), (10.0, 9.0), (20.0, 16.0)]
    assert load_at([0, 9, 21], load) == [8, 9, 16]
    assert load_at([1e9, 1e9 + 10, 1e9 + 20], load) == [8, 9, 16]
    assert load_at([1e9, 1e9 + 500], load) == [None, None]
    assert load_at([], load) == []
