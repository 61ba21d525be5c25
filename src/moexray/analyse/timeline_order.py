"""Collectives without sequence numbers: matched by their order on each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moexray.analyse.timeline import Profile

__all__ = ["MIN_TOLERANCE_NS", "by_order"]

MAX_SHIFT = 64  # traces of one capture start at most this many collectives apart
LEAST_PAIRS = 3
SAME_NS = 1_000  # spreads below this are the resolution of old traces
MIN_TOLERANCE_NS = 50_000  # ends of a collective that lie apart by less agree


def by_order(profiles: list[Profile], by_rank: dict[int, list[int]]) -> list[dict[int, int]]:
    """Columns of one operation without sequence numbers: order, shifted where traces start apart."""
    if len(by_rank) < 2:
        return []
    reference = min(by_rank)
    rows = np.array(by_rank[reference])
    ends = profiles[reference].end[rows]
    columns: list[dict[int, int]] = [{reference: int(row)} for row in rows]
    pace = float(np.median(np.diff(ends))) if len(ends) > 1 else float("inf")
    for rank, other in by_rank.items():
        if rank == reference:
            continue
        other_ends = profiles[rank].end[np.array(other)]
        shift = _shift(ends, other_ends, max(0.25 * pace, MIN_TOLERANCE_NS))
        if shift is None:
            continue
        for index in range(max(0, -shift), min(len(rows), len(other) - shift)):
            columns[index][rank] = other[index + shift]
    return columns


def _shift(a: NDArray[np.int64], b: NDArray[np.int64], tolerance: float) -> int | None:
    """By how many places b is ahead of a, so that the ends differ by a constant; None if it never fits.

    Where steps are alike many shifts fit about as well; the clocks of ranks agree better than the starts of
    their traces, so the one with the smallest difference is taken.
    """
    fits: list[tuple[float, float, int]] = []
    reach = min(MAX_SHIFT, max(len(a), len(b)) - 1)
    fewer = min(len(a), len(b))
    needed = min(fewer, max(LEAST_PAIRS, fewer // 2))  # one pair fits at any shift
    for shift in range(-reach, reach + 1):
        low, high = max(0, -shift), min(len(a), len(b) - shift)
        if high - low < needed:
            continue
        difference = (b[low + shift : high + shift] - a[low:high]).astype(np.float64)
        middle = float(np.median(difference))
        spread = float(np.median(np.abs(difference - middle)))
        if spread <= tolerance:
            fits.append((spread, abs(middle), shift))
    best = min((spread for spread, _, _ in fits), default=0.0)
    near = [fit for fit in fits if fit[0] <= max(2 * best, SAME_NS)]
    return min(near, key=lambda fit: fit[1])[2] if near else None
