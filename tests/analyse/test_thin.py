"""Thinning keeps extremes and ends, and never more than asked for."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moexray.analyse.thin import MOST, extremes


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(4, 60))
def test_extremes_and_ends_stay(values, most):
    y = np.array(values)
    kept = extremes(y, most)
    assert len(kept) <= max(most, 4)
    assert (np.diff(kept) > 0).all()
    assert (kept[0], kept[-1]) == (0, len(y) - 1)
    assert (y[kept].min(), y[kept].max()) == (y.min(), y.max())


def test_a_spike_in_a_long_series_stays():
    y = np.full(800_000, 0.02)
    y[123_456] = 3.0
    kept = extremes(y)
    assert 123_456 in kept
    assert len(kept) <= MOST
