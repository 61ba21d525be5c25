"""Which points of a long series, or which of many spans, to keep so that they look the same when drawn.

Standard library only: series of nvidia-smi and of the report pass here, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MOST", "extremes", "longest"]

MOST = 4_000  # points of a series that are handed on
KEPT_PER_STRETCH = 3


def extremes(values: Sequence[float | None] | NDArray[Any], most: int = MOST) -> list[int]:
    """Rows to keep: the lowest, the highest and the first gap of equal stretches, the ends of all.

    Args:
        values: In order of x; None is a gap, none of them is NaN.
        most: Rows to keep at most; 5 or more.

    Returns:
        Ascending rows; all of them when there are no more than `most`.
    """
    count = len(values)
    if count <= most:
        return list(range(count))
    line: list[float | None] = list(values) if isinstance(values, Sequence) else values.tolist()
    width = math.ceil(count / ((most - 2) // KEPT_PER_STRETCH))
    kept = {0, count - 1}
    for start in range(0, count, width):
        part = line[start : start + width]
        known = [v for v in part if v is not None]
        if len(known) < len(part):
            kept.add(start + part.index(None))
        if known:
            kept |= {start + part.index(min(known)), start + part.index(max(known))}
    return sorted(kept)


def longest(durations: Sequence[float], most: int) -> list[int]:
    """The rows of the `most` longest spans, in their first order."""
    if len(durations) <= most:
        return list(range(len(durations)))
    return sorted(sorted(range(len(durations)), key=lambda row: -durations[row])[:most])
