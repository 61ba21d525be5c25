import numpy as np
import pytest

from moexray.algorithms.placement import Shape, place
from moexray.algorithms.replication import token_costs
from moexray.algorithms.splitting import split, split_loads


def test_by_hand():
    # expert 0 lies on both ranks, rank 1 carries expert 1 as well
    parts = split(np.array([10.0, 4.0]), np.array([0, -1, 0, 1])[[0, 2, 3]][[0, 1, 2]], 3)
    assert parts.sum() == pytest.approx(2)
    slots = np.array([0, 2, 0, 1])
    parts = split(np.array([10.0, 4, 0]), slots, 2)
    assert parts.tolist() == pytest.approx([0.7, 1, 0.3, 1])
    assert split_loads(np.array([10.0, 4, 0]), slots, parts, 2).tolist() == pytest.approx([7, 7])


def test_a_replica_may_get_nothing():
    parts = split(np.array([2.0, 9, 0]), np.array([0, 2, 0, 1]), 2)
    assert parts.tolist() == pytest.approx([1, 1, 0, 1])


@pytest.mark.parametrize("seed", range(5))
def test_every_expert_uses_its_lightest_ranks(seed):
    """The condition that no tokens can be moved to a lighter rank: then no division has a lighter maximum."""
    rng = np.random.default_rng(seed)
    shape = Shape(32, 40, 8)
    load = rng.lognormal(0, 1, 32)
    slots = place(token_costs(load, shape.most), shape)
    load = rng.permutation(load)
    parts = split(load, slots, 8)
    on = split_loads(load, slots, parts, 8)
    assert on.sum() == pytest.approx(load.sum())
    rank_of = np.arange(40) // 5
    for expert in range(32):
        mine = np.flatnonzero(slots == expert)
        assert parts[mine].sum() == pytest.approx(1)
        used = mine[parts[mine] * load[expert] > 1e-3]
        assert on[rank_of[used]].max() <= on[rank_of[mine]].min() + 1e-3 * on.max()
    equal = split_loads(load, slots, 1 / np.bincount(slots)[slots], 8)
    assert on.max() <= equal.max() * (1 + 1e-12)


def test_idle_experts_keep_equal_parts():
    assert split(np.zeros(2), np.array([0, 1, 0, 1]), 2).tolist() == [0.5] * 4
