"""Thinning keeps extremes, gaps and ends, and never more than asked for."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moexray.analyse.thin import MOST, extremes, longest


@given(st.lists(st.none() | st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(5, 60))
def test_extremes_gaps_and_ends_stay(values, most):
    kept = extremes(values, most)
    assert len(kept) <= most
    assert all(a < b for a, b in pairwise(kept))
    assert (kept[0], kept[-1]) == (0, len(values) - 1)
    drawn, known = [values[i] for i in kept], [v for v in values if v is not None]
    assert (None in drawn) == (None in values)
    if known:
        there = [v for v in drawn if v is not None]
        assert (min(there), max(there)) == (min(known), max(known))


def test_a_spike_in_a_long_array_stays():
    y = np.full(800_000, 0.02)
    y[123_456] = 3.0
    kept = extremes(y)
    assert 123_456 in kept
    assert len(kept) <= MOST


def test_the_longest_spans_stay_in_their_order():
    assert longest([1, 9, 3, 7], 2) == [1, 3]
    assert longest([1, 2], 5) == [0, 1]
