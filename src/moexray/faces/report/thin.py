"""Thinning: fewer points for a chart, with the extremes kept and the loss said in words."""

import math
from collections.abc import Sequence

__all__ = ["keep_extremes", "keep_longest"]

_KEPT_PER_BUCKET = 3


def keep_extremes(values: Sequence[float | None], limit: int) -> list[int]:
    """Choose which points of a line to draw: each bucket's minimum, maximum and first gap.

    Args:
        values: the y values in order of x; None is a gap.
        limit: the most points to keep, at least 5.

    Returns:
        Ascending indices, at most `limit`; all of them when there are no more than `limit`. The
        first and the last point are always among them.
    """
    count = len(values)
    if count <= limit:
        return list(range(count))
    size = math.ceil(count / ((limit - 2) // _KEPT_PER_BUCKET))
    kept = {0, count - 1}
    for start in range(0, count, size):
        gap, low, high = -1, -1, -1
        low_y, high_y = math.inf, -math.inf
        for index in range(start, min(start + size, count)):
            y = values[index]
            if y is None:
                gap = index if gap < 0 else gap
                continue
            if y < low_y:
                low, low_y = index, y
            if y > high_y:
                high, high_y = index, y
        kept.update(index for index in (gap, low, high) if index >= 0)
    return sorted(kept)


def keep_longest(durations: Sequence[float], limit: int) -> list[int]:
    """Choose the `limit` longest spans; indices in their first order."""
    if len(durations) <= limit:
        return list(range(len(durations)))
    longest = sorted(range(len(durations)), key=lambda index: -durations[index])[:limit]
    return sorted(longest)
