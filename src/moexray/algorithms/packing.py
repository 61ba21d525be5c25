"""Placement of experts on EP ranks: greedy replication and packing, with the bound of any plan.

Glossary: *load* is tokens per logical expert; a *slot* holds a copy of one logical expert; slots
of a rank are consecutive; a replica of an expert takes an equal share of its load.
"""

from __future__ import annotations

import numpy as np

__all__ = ["balancedness", "bound", "pack", "rank_loads", "replicate", "swap_duplicate"]

SWAPS = 4  # swaps per rank at most; most layers are done after a few


def balancedness(loads: np.ndarray) -> float:
    """Mean / max of the loads of ranks; 1 is perfect; NaN where nothing was loaded."""
    top = float(loads.max()) if loads.size else 0.0
    return float(loads.mean()) / top if top > 0 else float("nan")


def replicate(load: np.ndarray, slots: int) -> np.ndarray:
    """Gives each extra slot to the expert whose replicas carry most.

    Args:
        load: [experts], tokens per logical expert.
        slots: Physical slots in all, at least one per expert.

    Returns:
        [experts], replicas of each expert.

    Source: greedy replication by load per replica, as in DeepSeek EPLB.
    """
    counts = np.ones(len(load), np.int64)
    for _ in range(slots - len(load)):
        counts[int(np.argmax(load / counts))] += 1
    return counts


def pack(load: np.ndarray, counts: np.ndarray, ranks: int) -> np.ndarray:
    """Puts replicas on ranks, heaviest first, each to the lightest rank that has room and lacks it.

    Args:
        load: [experts], tokens per logical expert.
        counts: [experts], replicas of each; their sum is a multiple of `ranks`.
        ranks: EP size.

    Returns:
        [slots], the logical expert in each slot, ranks one after another.
    """
    slots = int(counts.sum())
    room = slots // ranks
    share = load / counts
    replicas = np.repeat(np.arange(len(load)), counts)
    order = replicas[np.argsort(-share[replicas], kind="stable")]
    placed: list[list[int]] = [[] for _ in range(ranks)]
    carried = np.zeros(ranks)
    for expert in order:
        free = [r for r in range(ranks) if len(placed[r]) < room]
        best = min(free, key=lambda r: (int(expert) in placed[r], carried[r]))
        placed[best].append(int(expert))
        carried[best] += share[expert]
    slots_of = np.array(placed, np.int64)
    _swap(share, slots_of, carried)
    return slots_of.reshape(-1)


def _swap(share: np.ndarray, placed: np.ndarray, carried: np.ndarray) -> None:
    """Swaps a slot of the busiest rank for a lighter one elsewhere, as long as both end below its load.

    Args:
        share: [experts], tokens of one replica.
        placed: [ranks, slots of a rank], changed in place.
        carried: [ranks], tokens of each rank, changed in place.
    """
    ranks = len(placed)
    for _ in range(SWAPS * ranks):
        hot = int(carried.argmax())
        mine, others = placed[hot], np.flatnonzero(np.arange(ranks) != hot)
        # [slots of the busiest, other ranks, their slots]: what a swap would take off the busiest
        gain = share[mine][:, None, None] - share[placed[others]][None]
        top = np.maximum(carried[hot] - gain, carried[others][None, :, None] + gain)
        twice = (placed[others][None] == mine[:, None, None]).any(axis=2, keepdims=True)
        twice = twice | np.isin(placed[others], mine)[None]
        top = np.where((gain > 0) & ~twice, top, np.inf)
        at = int(top.argmin())
        if not top.flat[at] < carried[hot] * (1 - 1e-9):
            return
        i, r, j = np.unravel_index(at, top.shape)
        other = int(others[r])
        carried[hot] -= gain[i, r, j]
        carried[other] += gain[i, r, j]
        placed[hot, i], placed[other, j] = placed[other, j], placed[hot, i]


def rank_loads(load: np.ndarray, slots: np.ndarray, ranks: int) -> np.ndarray:
    """[ranks], tokens per rank if each expert's load is split equally over its slots (-1: empty)."""
    used = slots >= 0
    counts = np.bincount(slots[used], minlength=len(load))
    share = np.where(counts > 0, load / np.maximum(counts, 1), 0.0)
    per_slot = np.where(used, share[np.maximum(slots, 0)], 0.0)
    return np.asarray(per_slot.reshape(ranks, -1).sum(axis=1))


def bound(load: np.ndarray, counts: np.ndarray, ranks: int) -> float:
    """The best balancedness that any placement of these replicas can have.

    The hottest replica shares its rank with as many others as a rank has slots, at best the lightest.
    """
    mean = float(load.sum()) / ranks
    replicas = np.sort(np.repeat(load / counts, counts))
    fullest = float(replicas[-1] + replicas[: len(replicas) // ranks - 1].sum())
    return mean / max(mean, fullest) if fullest > 0 else float("nan")


def swap_duplicate(
    load: np.ndarray, slots: np.ndarray, ranks: int, rank: int, expert: int
) -> tuple[int, int] | None:
    """The swap of two slots that takes one of two equal replicas off a rank and balances best.

    Args:
        load: [experts], tokens per logical expert (ones where unknown).
        slots: [slots], logical expert per slot.
        ranks: EP size.
        rank: The rank that holds `expert` twice.
        expert: The logical expert.

    Returns:
        (slot on `rank`, slot on another rank), or None if no swap avoids duplicates.
    """
    room = len(slots) // ranks
    mine = slots[rank * room : (rank + 1) * room]
    source = rank * room + int(np.flatnonzero(mine == expert)[-1])
    best: tuple[float, int] | None = None
    for target in range(len(slots)):
        other = target // room
        theirs = slots[other * room : (other + 1) * room]
        if other == rank or expert in theirs or slots[target] in mine:
            continue
        trial = slots.copy()
        trial[source], trial[target] = trial[target], trial[source]
        score = balancedness(rank_loads(load, trial, ranks))
        if best is None or score > best[0]:
            best = (score, target)
    return None if best is None else (source, best[1])
