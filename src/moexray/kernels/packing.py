"""Compiled twins of `replicate` (algorithms/replication.py) and `pack` (algorithms/packing.py)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

__all__ = ["pack", "replicate"]

SWAPS, STEP = 8, 1e-9  # as in algorithms/packing.py: compiled code sees no other module


class _Board(NamedTuple):
    """As in algorithms/packing.py; `holds` and `near` lie by expert, `node` is that of each rank."""

    share: np.ndarray
    placed: np.ndarray
    carried: np.ndarray
    holds: np.ndarray
    near: np.ndarray
    most: np.ndarray
    node: np.ndarray
    free: np.ndarray


@njit(cache=True)
def replicate(costs: np.ndarray, slots: int) -> np.ndarray:
    """See algorithms/replication.py."""
    experts, most = costs.shape
    counts = np.ones(experts, np.int64)
    share = costs[:, 0].copy()
    for _ in range(slots - experts):
        expert = share.argmax()
        counts[expert] += 1
        share[expert] = costs[expert, counts[expert] - 1] if counts[expert] < most else -1.0
    return counts


@njit(cache=True)
def _put(b: _Board, rank: int, expert: int) -> None:
    slot = 0
    while b.placed[rank, slot] >= 0:
        slot += 1
    b.placed[rank, slot] = expert
    b.carried[rank] += b.share[expert]
    b.holds[expert, rank] = True
    b.near[expert, b.node[rank]] += 1
    b.free[rank] -= 1


@njit(cache=True)
def _exchange(b: _Board, rank: int, slot: int, new: int) -> None:
    old = b.placed[rank, slot]
    b.placed[rank, slot] = new
    b.carried[rank] += b.share[new] - b.share[old]
    b.holds[old, rank], b.holds[new, rank] = False, True
    b.near[old, b.node[rank]] -= 1
    b.near[new, b.node[rank]] += 1


@njit(cache=True)
def _lightest(b: _Board, expert: int) -> tuple[int, int]:
    """(lightest rank that has room and lacks the expert, the same on nodes that may have it); -1: none."""
    best, spread = -1, -1
    for rank in range(len(b.carried)):
        if b.free[rank] == 0 or b.holds[expert, rank]:
            continue
        if best < 0 or b.carried[rank] < b.carried[best]:
            best = rank
        if b.near[expert, b.node[rank]] < b.most[expert] and (
            spread < 0 or b.carried[rank] < b.carried[spread]
        ):
            spread = rank
    return best, spread


@njit(cache=True)
def _way(b: _Board, expert: int, spread: bool) -> tuple[int, int, int]:  # noqa: FBT001
    """(rank with room, full rank, its slot): the full one takes the expert, gives up what lies there."""
    ranks, room = b.placed.shape
    rank = -1
    for r in range(ranks):
        if b.free[r] and (rank < 0 or b.carried[r] < b.carried[rank]):
            rank = r
    best, other, slot = np.inf, -1, -1
    here = b.node[rank]
    for r in range(ranks):
        there = b.node[r]
        if b.holds[expert, r] or b.free[r] or (spread and b.near[expert, there] >= b.most[expert]):
            continue
        for j in range(room):
            given = b.placed[r, j]
            if b.holds[given, rank] or (spread and here != there and b.near[given, here] >= b.most[given]):
                continue
            top = max(b.carried[rank] + b.share[given], b.carried[r] + (b.share[expert] - b.share[given]))
            if top < best:
                best, other, slot = top, r, j
    return rank, other, slot


@njit(cache=True)
def _add(b: _Board, expert: int) -> None:
    rank, spread = _lightest(b, expert)
    if spread >= 0:
        _put(b, spread, expert)
        return
    roomy, other, slot = _way(b, expert, True)  # noqa: FBT003
    if other < 0 and rank >= 0:
        _put(b, rank, expert)
        return
    if other < 0:
        roomy, other, slot = _way(b, expert, False)  # noqa: FBT003
    _put(b, roomy, b.placed[other, slot])
    _exchange(b, other, slot, expert)


@njit(cache=True)
def _one(b: _Board, hot: int) -> tuple[int, int, int]:
    """(other rank, slot of hot, slot of other) of the best swap; rank -1: none helps."""
    ranks, room = b.placed.shape
    share, placed, carried, holds, near, most = b.share, b.placed, b.carried, b.holds, b.near, b.most
    best = carried[hot] * (1 - STEP)
    found = (-1, -1, -1)
    here, cold = b.node[hot], int(carried.argmin())
    for k in range(-1, ranks):  # the lightest rank first: then most others cannot be better
        r = cold if k < 0 else k
        if r == hot or (carried[hot] + carried[r]) / 2 >= best:
            continue
        there = b.node[r]
        for i in range(room):
            mine = placed[hot, i]
            if holds[mine, r] or (here != there and near[mine, there] >= most[mine]):
                continue
            for j in range(room):
                theirs = placed[r, j]
                gain = share[mine] - share[theirs]
                if gain <= 0 or carried[hot] - gain >= best or carried[r] + gain >= best:
                    continue
                if holds[theirs, hot] or (here != there and near[theirs, here] >= most[theirs]):
                    continue
                best = max(carried[hot] - gain, carried[r] + gain)
                found = (r, i, j)
    return found


@njit(cache=True)
def _two(b: _Board, hot: int) -> tuple[int, int, int, int, int]:
    """(other rank, two slots of hot, two of other) of the best swap of pairs; rank -1: none helps."""
    ranks, room = b.placed.shape
    share, placed, carried, holds, near, most = b.share, b.placed, b.carried, b.holds, b.near, b.most
    best = carried[hot] * (1 - STEP)
    found = (-1, -1, -1, -1, -1)
    here, cold = b.node[hot], int(carried.argmin())
    may, can = np.zeros(room, np.bool_), np.zeros(room, np.bool_)
    for k in range(-1, ranks):
        r = cold if k < 0 else k
        if r == hot or (carried[hot] + carried[r]) / 2 >= best:
            continue
        there = b.node[r]
        for i in range(room):
            mine, theirs = placed[hot, i], placed[r, i]
            may[i] = not holds[mine, r] and (here == there or near[mine, there] < most[mine])
            can[i] = not holds[theirs, hot] and (here == there or near[theirs, here] < most[theirs])
        for i in range(room):
            for j in range(i + 1, room):
                if not (may[i] and may[j]):
                    continue
                two = share[placed[hot, i]] + share[placed[hot, j]]
                for m in range(room):
                    if not can[m]:
                        continue
                    rest = two - share[placed[r, m]]
                    for n in range(m + 1, room):
                        gain = rest - share[placed[r, n]]
                        if gain <= 0 or carried[hot] - gain >= best or carried[r] + gain >= best:
                            continue
                        if can[n]:
                            best = max(carried[hot] - gain, carried[r] + gain)
                            found = (r, i, j, m, n)
    return found


@njit(cache=True)
def pack(
    share: np.ndarray, counts: np.ndarray, ranks: int, nodes: int, start: np.ndarray, target: float
) -> np.ndarray:
    """See algorithms/packing.py."""
    experts, room = len(share), start.shape[1]
    placed = np.full((ranks, room), -1, np.int64)
    holds, near = np.zeros((experts, ranks), np.bool_), np.zeros((experts, nodes), np.int64)
    node = np.arange(ranks) * nodes // ranks
    b = _Board(share, placed, np.zeros(ranks), holds, near, -(-counts // nodes), node, np.full(ranks, room))
    left = counts.copy()
    for rank in range(ranks):
        for slot in range(room):
            expert = start[rank, slot]
            if expert >= 0:
                placed[rank, slot] = expert
                b.carried[rank] += share[expert]
                holds[expert, rank] = True
                near[expert, node[rank]] += 1
                b.free[rank] -= 1
                left[expert] -= 1
    for expert in np.argsort(-share, kind="mergesort"):
        for _ in range(left[expert]):
            _add(b, expert)
    for _ in range(SWAPS * ranks):
        hot = int(b.carried.argmax())
        if b.carried[hot] <= target:
            break
        rank, i, j = _one(b, hot)
        if rank >= 0:
            given, taken = placed[hot, i], placed[rank, j]
            _exchange(b, hot, i, taken)
            _exchange(b, rank, j, given)
            continue
        rank, i, j, m, n = _two(b, hot)
        if rank < 0:
            break
        one, two, three, four = placed[hot, i], placed[hot, j], placed[rank, m], placed[rank, n]
        _exchange(b, hot, i, three)
        _exchange(b, hot, j, four)
        _exchange(b, rank, m, one)
        _exchange(b, rank, n, two)
    return placed.ravel()
