import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moexray.algorithms.packing import balancedness, pack, rank_loads, swap_duplicate
from moexray.core.errors import UsageError

loads = hnp.arrays(np.float64, st.integers(4, 24), elements=st.integers(0, 1000))


def packed(load, counts, ranks, nodes=1, start=None, target=0.0):
    if start is None:
        start = np.full((ranks, int(counts.sum()) // ranks), -1)
    return pack(load / counts, counts, ranks, nodes, start, target)


def test_by_hand():
    load = np.array([6.0, 1, 1, 4])
    assert rank_loads(load, np.array([0, 1, 2, 3]), 2).tolist() == [7, 5]
    assert balancedness(np.array([7.0, 5])) == pytest.approx(6 / 7)
    assert rank_loads(load, np.array([0, 1, -1, 0, 2, 3]), 2).tolist() == [4, 8]
    assert sorted(rank_loads(load, packed(load, np.ones(4, int), 2), 2).tolist()) == [5, 7]


def test_two_for_two_where_no_single_swap_helps():
    load = np.array([9.0, 9, 1, 1, 5, 5, 5, 5])
    start = np.array([[0, 1, 2, 3], [4, 5, 6, 7]])
    # 20 and 20 already; with 9+9+5+5 against 1+1+5+5 a single swap of 9 and 1 ends at 20 too
    assert rank_loads(load, packed(load, np.ones(8, int), 2, 1, start), 2).tolist() == [20, 20]
    load = np.array([8.0, 8, 3, 3, 7, 7, 2, 2])
    start = np.array([[0, 1, 4, 6], [2, 3, 5, 7]])  # 25 and 15: 8 for 3 gives 20 and 20
    assert rank_loads(load, packed(load, np.ones(8, int), 2, 1, start), 2).tolist() == [20, 20]
    load = np.array([6.0, 6, 0, 4, 4, 0])
    start = np.array([[0, 1, 2], [3, 4, 5]])  # 12 and 8: one 6 for a 4 is even
    assert rank_loads(load, packed(load, np.ones(6, int), 2, 1, start), 2).tolist() == [10, 10]
    load = np.array([10.0, 10, 7, 7])
    start = np.array([[0, 2], [1, 3]])
    assert rank_loads(load, packed(load, np.ones(4, int), 2, 1, start), 2).tolist() == [17, 17]


def test_pairs_leave_a_local_optimum():
    # 11 + 7 + 0 against 9 + 7 + 0: swaps of one change the sum by 2 or 4, or not at all
    load = np.array([12.0, 12, 0, 9, 13, 0])
    start = np.array([[0, 1, 2], [3, 4, 5]])  # 24 and 22; 12+12 for 13+9 is 22 and 24; no single swap helps
    assert sorted(rank_loads(load, packed(load, np.ones(6, int), 2, 1, start), 2)) == [22, 24]
    load = np.array([10.0, 10, 1, 6, 13, 0])
    start = np.array([[0, 1, 2], [3, 4, 5]])  # 21 and 19; 10+10 for 6+13 is 20 and 20
    assert rank_loads(load, packed(load, np.ones(6, int), 2, 1, start), 2).tolist() == [20, 20]


def test_a_start_is_kept_where_the_target_is_met():
    load = np.array([5.0, 4, 3, 2])
    start = np.array([[0, 3], [-1, -1]])
    assert packed(load, np.ones(4, int), 2, 1, start, 7.0).tolist() == [0, 3, 1, 2]


def test_replicas_that_do_not_fit_are_refused():
    with pytest.raises(UsageError, match="3 replicas of one expert do not fit on 2 ranks"):
        packed(np.array([3.0, 1]), np.array([3, 1]), 2)


@given(loads, st.integers(2, 4), st.data())
def test_replicas_lie_on_different_ranks_and_none_is_lost(load, ranks, data):
    counts = np.array([data.draw(st.integers(1, ranks)) for _ in load])
    counts[0] = max(1, counts[0] - counts.sum() % ranks)
    while counts.sum() % ranks:
        counts[int(np.flatnonzero(counts < ranks)[0])] += 1
    slots = packed(load, counts, ranks)
    assert np.array_equal(np.bincount(slots, minlength=len(load)), counts)
    assert all(len(set(row)) == len(row) for row in slots.reshape(ranks, -1).tolist())
    assert rank_loads(load, slots, ranks).sum() == pytest.approx(load.sum())


@given(loads)
def test_replicas_are_spread_over_nodes(load):
    load = load[: len(load) // 4 * 4] + 1
    counts = np.ones(len(load), int)
    counts[:4] = 2
    slots = packed(load, counts, 4, 2)
    for expert in range(4):
        nodes = np.flatnonzero((slots.reshape(2, -1) == expert).any(axis=1))
        assert len(nodes) == 2


@given(loads, st.permutations(range(3)))
def test_permuting_ranks_permutes_the_loads(load, order):
    slots = np.arange(len(load) // 3 * 3)
    load = load[: len(slots)]
    moved = slots.reshape(3, -1)[list(order)].ravel()
    assert rank_loads(load, moved, 3).tolist() == rank_loads(load, slots, 3)[list(order)].tolist()


@pytest.mark.parametrize("factor", [2, 7, 1000])
def test_even_loads_and_scaling(factor):
    load = np.full(12, 5.0)
    assert balancedness(rank_loads(load, np.arange(12), 4)) == 1
    uneven = np.arange(1.0, 13)
    first = balancedness(rank_loads(uneven, np.arange(12), 4))
    assert balancedness(rank_loads(uneven * factor, np.arange(12), 4)) == pytest.approx(first)


def test_a_swap_takes_the_duplicate_off():
    load = np.array([8.0, 2, 2, 2])
    slots = np.array([0, 0, 1, 2, 3, -1])
    slot, other = swap_duplicate(load, slots, 3, 0, 0)
    slots[[slot, other]] = slots[[other, slot]]
    assert all(len(set(r[r >= 0])) == len(r[r >= 0]) for r in slots.reshape(3, -1))
    assert swap_duplicate(load, np.array([0, 0, 0, 1]), 2, 0, 0) is None
    assert np.isnan(balancedness(np.zeros(3)))
