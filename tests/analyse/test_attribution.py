"""The innermost range around a moment, against looking at all of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moexray.analyse.attribution import Labels, enclosing
from moexray.core.scopes import NOTHING, scope_of

RANGE = st.tuples(st.integers(0, 30), st.integers(0, 30))


@given(st.lists(RANGE, max_size=12), st.lists(st.integers(-3, 70), max_size=12))
def test_the_innermost_range_began_last(ranges, at):
    start = np.array([a for a, _ in ranges], np.int64)
    end = np.array([a + n for a, n in ranges], np.int64)
    found, _ = enclosing(np.array(at, np.int64), start, end)
    for t, got in zip(at, found.tolist(), strict=True):
        held = [i for i in range(len(ranges)) if start[i] <= t <= end[i]]
        if not held:
            assert got == -1
        else:
            last = max(start[i] for i in held)
            assert got in held
            assert start[got] == last


def test_ranges_know_the_one_around_them():
    start, end = np.array([0, 10, 12, 50]), np.array([100, 40, 20, 60])
    found, parent = enclosing(np.array([15, 30, 45, 55, 101]), start, end)
    assert found.tolist() == [2, 1, 0, 3, -1]
    assert parent.tolist() == [-1, 0, 1, 0]


def test_labels_are_filled_up_pair_by_pair():
    a = Labels(np.array([0, 1, 1]), (NOTHING, scope_of("expert_5")))
    b = Labels(np.array([1, 1, 0]), (NOTHING, scope_of("layer_3")))
    layer, expert, _ = a.within(b).columns()
    assert layer.tolist() == [3, 3, -1]
    assert expert.tolist() == [-1, 5, 5]
