"""Placement of experts on EP ranks: greedy replication and packing, with the bound of any plan.

Glossary: *load* is tokens per logical expert; a *slot* holds a copy of one logical expert; slots
of a rank are consecutive; a replica of an expert takes an equal share of its load.
"""

from __future__ import annotations

import numpy as np

__all__ = ["balancedness", "bound", "pack", "rank_loads", "replicate", "swap_duplicate"]


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
    return np.array([e for rank in placed for e in rank], np.int64)


def rank_loads(load: np.ndarray, slots: np.ndarray, ranks: int) -> np.ndarray:
    """[ranks], tokens per rank if each expert's load is split equally over its slots (-1: empty)."""
    used = slots >= 0
    counts = np.bincount(slots[used], minlength=len(load))
    share = np.where(counts > 0, load / np.maximum(counts, 1), 0.0)
    per_slot = np.where(used, share[np.maximum(slots, 0)], 0.0)
    return np.asarray(per_slot.reshape(ranks, -1).sum(axis=1))


def bound(load: np.ndarray, counts: np.ndarray, ranks: int) -> float:
    """The best balancedness that any placement of these replicas can have."""
    mean = float(load.sum()) / ranks
    hottest = float((load / counts).max())
    return mean / max(mean, hottest) if hottest > 0 else float("nan")


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
