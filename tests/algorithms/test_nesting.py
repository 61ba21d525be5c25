"""Innermost slices: by hand, against a painted line, and the compiled twin."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moexray.algorithms.nesting import innermost

slices = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30), st.booleans()), max_size=12)


def ordered(found):
    """Arrays in the order that `innermost` asks for."""
    found = sorted(found, key=lambda s: (s[0], -s[1]))
    start = np.array([s for s, _, _ in found], np.int64)
    end = np.array([s + n for s, n, _ in found], np.int64)
    return start, end, np.array([x for _, _, x in found], np.bool_)


def line_of(edges, owner):
    line = np.full(100, -1)
    for a, b, who in zip(edges, edges[1:], owner, strict=False):
        line[a:b] = who
    return line


def naive(start, end, spread):
    """Owner of each unit of time: the youngest open slice, cut by what is around it."""
    line = np.full(100, -1)
    for t in range(100):
        stack = []
        for i in range(len(start)):
            if start[i] > t:
                break
            while stack and stack[-1][0] <= start[i]:
                stack.pop()
            last = min(end[i], stack[-1][0]) if stack else end[i]
            if last > start[i]:
                holder = stack[-1][1] if stack and spread[stack[-1][1]] else i
                stack.append((last, holder))
        while stack and stack[-1][0] <= t:
            stack.pop()
        line[t] = stack[-1][1] if stack else -1
    return line


def test_by_hand():
    # a thread: 0..10 outer, 2..5 inner, 5..7 inner again, nothing 10..12, 12..13 alone
    edges, owner = innermost(np.array([0, 2, 5, 12]), np.array([10, 5, 7, 13]), np.zeros(4, np.bool_))
    assert edges.tolist() == [0, 2, 5, 7, 10, 12, 13]
    assert owner.tolist() == [0, 1, 2, 0, -1, 3]


def test_a_slice_may_own_what_runs_inside():
    edges, owner = innermost(np.array([0, 2]), np.array([10, 5]), np.array([True, False]))
    assert edges.tolist() == [0, 10]
    assert owner.tolist() == [0]


def test_nothing():
    edges, owner = innermost(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_))
    assert len(edges) == len(owner) == 0


@given(slices)
def test_against_a_naive_line(found):
    start, end, spread = ordered(found)
    edges, owner = innermost(start, end, spread)
    assert np.array_equal(line_of(edges, owner), naive(start, end, spread))
    assert (np.diff(edges) > 0).all()
    assert (np.diff(owner) != 0).all()


@given(slices)
def test_the_twin_agrees(found):
    from moexray.kernels.nesting import innermost as fast

    slow, quick = innermost(*ordered(found)), fast(*ordered(found))
    assert np.array_equal(slow[0], quick[0])
    assert np.array_equal(slow[1], quick[1])
