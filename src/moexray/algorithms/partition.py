"""Groups of experts on nodes: groups are few, hence all ways that can still be the best are tried."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np

__all__ = ["partition"]

WAYS = 5_000  # ways to fill one node up to which all are looked at; DeepSeek-V3 has 35 at most


def partition(load: np.ndarray, parts: np.ndarray, good: float, looks: int) -> tuple[np.ndarray, bool]:
    """Parts of equal size whose heaviest is as light as can be.

    The heaviest group left goes to the next node, with every company that leaves that node below the
    best plan so far and can leave the others below it, too: near balance these are few.

    Args:
        load: [groups].
        parts: [nodes, groups of a node], a plan to begin with.
        good: Stop once no node carries more.
        looks: Nodes to fill, over all tries, before it is given up.

    Returns:
        [nodes, groups of a node], and whether no other parts are better.
    """
    nodes, room = parts.shape
    best = float(load[parts].sum(axis=1).max())
    if room == 1:
        return parts, True
    if best <= good or comb(len(load) - 1, room - 1) > WAYS:
        return parts, False
    stack: list[tuple[np.ndarray, list[np.ndarray], float]] = []
    stack.append((np.argsort(-load, kind="stable"), [], 0.0))
    while stack:
        left, taken, high = stack.pop()
        if high >= best:
            continue
        if len(left) == room:
            top = max(high, float(load[left].sum()))
            if top < best:
                best, parts = top, np.array([*taken, left])
            if best <= good:
                return parts, False
            continue
        looks -= 1
        if looks < 0:
            return parts, False
        ways = _ways(len(left) - 1, room - 1) + 1
        weight = load[left]
        sums = weight[0] + weight[ways].sum(axis=1)
        rest, others = float(weight.sum()), nodes - len(taken) - 1
        open_ = np.flatnonzero((sums < best) & ((rest - sums) / others < best))
        # last in, first out: the way nearest to the mean is looked at first
        for way in open_[np.argsort(-np.abs(sums[open_] - rest / (others + 1)), kind="stable")]:
            mine = np.concatenate([[0], ways[way]])
            stack.append((np.delete(left, mine), [*taken, left[mine]], max(high, float(sums[way]))))
    return parts, True


@lru_cache(maxsize=64)
def _ways(count: int, size: int) -> np.ndarray:
    """[ways, size], all choices of `size` out of `count`."""
    return np.array(list(combinations(range(count), size)), np.int64).reshape(-1, size)
