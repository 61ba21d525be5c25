from itertools import permutations

import numpy as np
import pytest

from moexray.algorithms.partition import partition


def heaviest(load, parts):
    return load[parts].sum(axis=1).max()


@pytest.mark.parametrize(("groups", "nodes"), [(8, 4), (8, 2), (6, 3), (6, 2), (4, 4)])
def test_no_parts_are_better(groups, nodes):
    rng = np.random.default_rng(groups + nodes)
    layouts = {tuple(p) for p in permutations(range(groups))} if groups <= 6 else {
        tuple(rng.permutation(groups)) for _ in range(20_000)}  # fmt: skip
    layouts = np.array(sorted(layouts)).reshape(-1, nodes, groups // nodes)
    for _ in range(10):
        load = rng.lognormal(0, 1, groups)
        parts, best = partition(load, np.arange(groups).reshape(nodes, -1), 0.0, 10_000)
        assert best
        assert sorted(parts.ravel().tolist()) == list(range(groups))
        assert heaviest(load, parts) <= load[layouts].sum(axis=2).max(axis=1).min() * (1 + 1e-12)


def test_it_stops_when_told():
    load = np.arange(16.0)
    start = np.arange(16).reshape(4, 4)
    good = heaviest(load, start)
    parts, best = partition(load, start, good, 100)
    assert parts is start
    assert not best
    assert not partition(np.random.default_rng(0).lognormal(0, 1, 16), start, 0.0, 1)[1]


def test_too_many_ways_are_not_tried():
    start = np.arange(64).reshape(2, 32)
    parts, best = partition(np.ones(64), start, 0.0, 10)
    assert parts is start
    assert not best
