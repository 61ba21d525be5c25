import numpy as np
import pytest

from moexray.algorithms.placement import Shape, floor, least, moved, place, top, trivial
from moexray.algorithms.replication import token_costs
from moexray.core.errors import UsageError


def loads(count, experts, sigma, seed):
    return np.random.default_rng(seed).lognormal(0, sigma, (count, experts)) * 1000


def balance(load, slots, shape):
    costs = token_costs(load, shape.most)
    return floor(costs, shape.gpus) / top(costs, slots, shape.gpus)


@pytest.mark.parametrize(
    ("shape", "words", "hint"),
    [
        ((64, 60, 4), "60 slots cannot hold 64 experts", "--slots 64 or more"),
        ((64, 70, 8), "70 slots are no multiple of 8 GPUs", "--slots 64 or 72"),
        ((65, 70, 8), "no multiple", "--slots 72"),
        ((4, 64, 8), "twice on a GPU", "--slots 32 or fewer"),
        ((64, 72, 8, 3), "8 GPUs do not divide over 3 nodes", "--nodes"),
        ((64, 72, 8, 2, 6), "64 experts in 6 groups on 2 nodes do not divide", "n_group"),
        ((64, 72, 8, 4, 2), "do not divide", "n_group"),
        ((64, 0, 8), "each must be at least 1", ""),
    ],
)
def test_shapes_that_cannot_be_say_why(shape, words, hint):
    with pytest.raises(UsageError, match=words) as why:
        Shape(*shape)
    assert hint in why.value.hint


def test_the_trivial_plan_is_that_of_the_engines():
    assert trivial(Shape(4, 6, 3)).tolist() == [0, 1, 2, 3, 0, 1]
    assert trivial(Shape(4, 8, 4, 2, 2)).tolist() == [0, 1, 0, 1, 2, 3, 2, 3]


def test_by_hand():
    load = np.array([6.0, 1, 1, 4])
    shape = Shape(4, 6, 2)
    slots = place(token_costs(load, shape.most), shape)
    # 12 tokens, 6 per GPU: the halves of expert 0 and of expert 3 on both, 1 and 1
    assert sorted(np.bincount(slots).tolist()) == [1, 1, 2, 2]
    assert balance(load, slots, shape) == 1


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_plans_are_near_the_bound(nodes, sigma):
    for shape in (Shape(64, 80, 16, nodes), Shape(128, 144, 16, nodes), Shape(64, 64, 8, min(nodes, 2))):
        gaps = []
        for load in loads(6, shape.experts, sigma, 1):
            costs = token_costs(load, shape.most)
            gaps.append(1 - least(costs, shape) / top(costs, place(costs, shape), shape.gpus))
        assert min(gaps) >= -1e-12
        assert np.mean(gaps) < 0.002


def test_groups_stay_on_a_node_and_the_parts_are_the_best():
    shape = Shape(64, 80, 16, 4, 8)
    for load in loads(6, 64, 1.0, 2):
        costs = token_costs(load, shape.most)
        slots = place(costs, shape)
        groups = slots.reshape(4, -1) // 8
        assert sorted(g for row in groups for g in set(row.tolist())) == list(range(8))
        weights = np.sort(load.reshape(8, -1).sum(axis=1))
        best = (weights[:4] + weights[:3:-1]).max()  # two per node: heaviest with lightest
        assert least(costs, shape) >= best / 4 * (1 - 1e-12)
        assert top(costs, slots, 16) <= best / 4 * 1.02


def test_few_replicas_move():
    shape = Shape(64, 80, 16)
    for load in loads(4, 64, 0.7, 3):
        costs = token_costs(load, shape.most)
        now = place(costs, shape)
        assert place(costs, shape, current=now, slack=0.01) is not now
        assert np.array_equal(place(costs, shape, current=now, slack=0.01), now)
        later = token_costs(load * np.random.default_rng(1).lognormal(0, 0.2, 64), shape.most)
        fresh = place(later, shape)
        near = place(later, shape, current=now, slack=0.02)
        assert top(later, near, 16) <= max(top(later, fresh, 16), least(later, shape) * 1.001) * 1.02
        assert moved(now, near, 16).sum() < moved(now, fresh, 16).sum() / 2


def test_a_current_plan_of_another_size_or_with_holes_is_grown():
    shape = Shape(32, 40, 8)
    costs = token_costs(loads(1, 32, 0.5, 4)[0], shape.most)
    for now in (np.arange(32), np.append(np.arange(32), [-1] * 16).reshape(2, 24).T.ravel(), np.arange(48) % 32):
        near = place(costs, shape, current=now, slack=0.05)
        assert set(near.tolist()) == set(range(32))
        assert moved(now, near, 8).sum() < 40


def test_node_limited_plans_keep_what_lies_right():
    shape = Shape(64, 80, 16, 4, 8)
    load = loads(1, 64, 0.7, 5)[0]
    costs = token_costs(load, shape.most)
    now = place(costs, shape)
    later = token_costs(load * np.random.default_rng(2).lognormal(0, 0.1, 64), shape.most)
    near, fresh = place(later, shape, current=now, slack=0.05), place(later, shape)
    assert moved(now, near, 16).sum() < moved(now, fresh, 16).sum()
    assert sorted(g for row in near.reshape(4, -1) // 8 for g in set(row.tolist())) == list(range(8))


def test_no_load_at_all_is_planned():
    shape = Shape(8, 12, 4)
    slots = place(token_costs(np.zeros(8), shape.most), shape)
    assert np.bincount(slots, minlength=8).min() >= 1
