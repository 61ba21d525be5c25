"""Unequal parts of an expert's tokens for its replicas: the parts that leave the busiest rank lightest.

Dispatchers of engines split equally (by chance, by token index, or by a fixed table per source rank);
unequal parts need a dispatcher with weights, such as DeepSeek's LPLB.
"""

from __future__ import annotations

import numpy as np

__all__ = ["split", "split_loads"]

ROUNDS = 500  # over all replicated experts; real layers need about 20
STILL = 1e-7  # relative change of the busiest rank over STRIDE rounds that counts as none
STRIDE = 10


def split(load: np.ndarray, slots: np.ndarray, ranks: int) -> np.ndarray:
    """The part of its expert's tokens that each slot should get.

    One expert after another levels the ranks that hold it, as water fills vessels. No step makes the
    busiest rank busier, and the rounds converge to the least sum of squares, which among all divisions
    has the lightest busiest rank, too.

    Args:
        load: [experts], tokens per logical expert.
        slots: [slots], the logical expert in each slot, ranks one after another.
        ranks: EP size.

    Returns:
        [slots], parts that sum up to 1 for each expert that has a slot.

    Source: least-squares point of a polymatroid is its least majorised (Fujishige 1980).
    """
    counts = np.bincount(slots, minlength=len(load))
    parts: np.ndarray = 1.0 / counts[slots]
    rank_of = np.arange(len(slots)) // (len(slots) // ranks)
    carried = split_loads(load, slots, parts, ranks)
    shared = [np.flatnonzero(slots == e) for e in np.flatnonzero((counts > 1) & (load > 0))]
    before = np.inf
    for number in range(ROUNDS):
        for mine in shared:
            tokens, where = load[slots[mine[0]]], rank_of[mine]
            np.subtract.at(carried, where, parts[mine] * tokens)
            fill = _level(carried[where], tokens)
            parts[mine] = fill / tokens
            np.add.at(carried, where, fill)
        if number % STRIDE == STRIDE - 1:
            top = float(carried.max())
            if before - top <= STILL * top:
                break
            before = top
    return parts


def split_loads(load: np.ndarray, slots: np.ndarray, parts: np.ndarray, ranks: int) -> np.ndarray:
    """[ranks], tokens per rank with these parts [slots] of each expert's load."""
    return np.asarray((load[slots] * parts).reshape(ranks, -1).sum(axis=1))


def _level(others: np.ndarray, amount: float) -> np.ndarray:
    """[vessels], what each gets if the amount levels them out from what they hold already."""
    order = np.sort(others)
    levels = (amount + np.cumsum(order)) / np.arange(1, len(order) + 1)
    # the level with n vessels wet is the true one where the next vessel stands above it
    above = np.append(order[1:], np.inf) >= levels
    fill = np.maximum(levels[int(above.argmax())] - others, 0.0)
    return np.asarray(fill * (amount / fill.sum()))
