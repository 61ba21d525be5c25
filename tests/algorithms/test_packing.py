import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moexray.algorithms.packing import balancedness, bound, pack, rank_loads, replicate, swap_duplicate

loads = hnp.arrays(np.float64, st.integers(4, 24), elements=st.integers(0, 1000))


def test_by_hand():
    load = np.array([6.0, 1, 1, 4])
    assert rank_loads(load, np.array([0, 1, 2, 3]), 2).tolist() == [7, 5]
    assert balancedness(np.array([7.0, 5])) == pytest.approx(6 / 7)
    assert replicate(load, 6).tolist() == [2, 1, 1, 2]
    assert rank_loads(load, np.array([0, 1, -1, 0, 2, 3]), 2).tolist() == [4, 8]
    assert sorted(rank_loads(load, pack(load, np.ones(4, int), 2), 2).tolist()) == [5, 7]
    assert bound(load, np.ones(4, int), 3) == pytest.approx(4 / 6)


@given(loads, st.integers(2, 4))
def test_no_token_is_lost_and_no_plan_beats_the_bound(load, ranks):
    slots = -(-len(load) // ranks) * ranks + ranks
    counts = replicate(load, slots)
    placed = pack(load, counts, ranks)
    assert np.array_equal(np.bincount(placed, minlength=len(load)), counts)
    on_ranks = rank_loads(load, placed, ranks)
    assert on_ranks.sum() == pytest.approx(load.sum())
    if load.sum():
        assert balancedness(on_ranks) <= bound(load, counts, ranks) + 1e-9


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


def test_swaps_mend_what_greedy_packing_leaves():
    rng = np.random.default_rng(0)
    for _ in range(20):
        load = rng.lognormal(0, 1, 64)
        counts = replicate(load, 64)
        slots = pack(load, counts, 8)
        assert sorted(slots.tolist()) == list(range(64))
        assert balancedness(rank_loads(load, slots, 8)) > 0.99 * bound(load, counts, 8)
