"""Which points of a long series to keep so that it looks the same when drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MOST", "extremes"]

MOST = 4_000  # points of a series that are handed on


def extremes(y: NDArray[Any], most: int = MOST) -> NDArray[np.int64]:
    """Rows to keep: the lowest and the highest of equal stretches, the first and the last row.

    Args:
        y: Values, none of them NaN.
        most: Rows to keep at most; 4 or more.
    """
    if len(y) <= most:
        return np.arange(len(y))
    width = -(-len(y) // (most // 2 - 1))
    whole = len(y) // width * width
    starts = np.arange(0, whole, width)
    body = y[:whole].reshape(-1, width)
    rest = y[whole:]
    tail = [whole + int(rest.argmin()), whole + int(rest.argmax())] if len(rest) else []
    kept = np.r_[0, starts + body.argmin(1), starts + body.argmax(1), tail, len(y) - 1]
    return np.unique(kept.astype(np.int64))
