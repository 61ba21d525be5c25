from itertools import combinations_with_replacement, permutations

import numpy as np
import pytest

from moexray.algorithms.replication import (
    active_costs,
    least_top,
    replicate,
    replicate_active,
    shares,
    shift,
    token_costs,
)


def test_extra_slots_go_to_the_heaviest_replica():
    load = np.array([6.0, 1, 1, 4])
    assert replicate(token_costs(load, 4), 6).tolist() == [2, 1, 1, 2]
    assert replicate(token_costs(load, 2), 7).tolist() == [2, 2, 1, 2]  # at most 2 each; ties to the first


def test_no_counts_have_a_lower_maximum():
    rng = np.random.default_rng(1)
    for _ in range(30):
        load = rng.integers(0, 50, 4).astype(float)
        costs = token_costs(load, 4)
        found = shares(costs, replicate(costs, 7)).max()
        every = (
            np.ones(4, int) + np.bincount(extra, minlength=4)
            for extra in combinations_with_replacement(range(4), 3)
        )
        assert found == min(shares(costs, c).max() for c in every if c.max() <= 4)


def test_active_experts_by_hand():
    # expert 0: one token in every second step; expert 1: two tokens in every step
    costs = active_costs(np.array([[1, 2], [0, 2]]), 2)
    assert costs.tolist() == [[0.5, 0.25], [1.0, 0.75]]
    # the total of expert 0 stays at 0.5 with two replicas; that of expert 1 grows to 1.5
    assert replicate_active(costs, 3).tolist() == [2, 1]
    assert replicate(costs, 3).tolist() == [1, 2]


def test_counts_move_no_further_than_asked():
    costs = token_costs(np.array([8.0, 1, 1, 9]), 3)
    now = np.array([1, 2, 2, 1])
    assert shift(costs, now, 6, 0).tolist() == [1, 2, 2, 1]
    assert shift(costs, now, 6, 1).tolist() == [1, 1, 2, 2]
    assert shift(costs, now, 6, 9).tolist() == [2, 1, 1, 2]
    assert shift(costs, now, 8, 0).tolist() == [2, 2, 2, 2]
    assert shift(costs, now, 4, 0).tolist() == [1, 1, 1, 1]
    assert shift(costs, np.array([0, 4, 1, 1]), 6, 0).sum() == 6


@pytest.mark.parametrize(("experts", "ranks"), [(6, 3), (6, 2), (8, 4), (4, 4)])
def test_the_bound_without_redundancy_is_below_the_best_of_all_layouts(experts, ranks):
    rng = np.random.default_rng(experts)
    layouts = np.array(list(permutations(range(experts)))) if experts <= 6 else np.array(
        [rng.permutation(experts) for _ in range(20_000)])  # fmt: skip
    for _ in range(20):
        load = rng.lognormal(0, 1, experts)
        tops = load[layouts].reshape(len(layouts), ranks, -1).sum(axis=2).max(axis=1)
        bound = least_top(token_costs(load, 1), np.ones(experts, int), ranks)
        assert bound <= tops.min() * (1 + 1e-12)
        if experts in (2 * ranks, ranks):  # pairs: heaviest with lightest is the best, and the bound knows
            assert bound == pytest.approx(tops.min(), rel=0.05 if experts == 8 else 1e-12)


def test_the_bound_with_redundancy_is_below_every_plan():
    rng = np.random.default_rng(3)
    for _ in range(10):
        load = rng.lognormal(0, 1.5, 4)
        costs = token_costs(load, 3)
        best = np.inf
        rows = [r for r in combinations_with_replacement(range(4), 2) if r[0] != r[1]]
        for plan in combinations_with_replacement(rows, 3):
            counts = np.bincount(np.ravel(plan), minlength=4)
            if counts.min() >= 1 and counts.max() <= 3:
                best = min(best, shares(costs, counts)[np.array(plan)].sum(axis=1).max())
        assert least_top(costs, replicate(costs, 6), 3) <= best * (1 + 1e-12)
        assert least_top(costs, replicate(costs, 6), 3, split=True) <= best * (1 + 1e-12)


def test_one_slot_per_rank_is_bound_by_the_heaviest_replica():
    load = np.array([10.0, 2, 2, 2])
    costs = token_costs(load, 3)
    assert least_top(costs, replicate(costs, 6), 6) == pytest.approx(10 / 3)
