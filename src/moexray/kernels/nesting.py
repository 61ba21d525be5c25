"""Compiled twin of algorithms/nesting.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

__all__ = ["innermost"]


@njit(cache=True)
def innermost(start: Any, end: Any, spread: Any) -> Any:
    """Twin of algorithms.nesting.innermost."""
    count = len(start)
    edges = np.empty(2 * count + 1, np.int64)
    owner = np.empty(2 * count + 1, np.int64)
    until = np.empty(count + 1, np.int64)
    holder = np.empty(count + 1, np.int64)
    used = depth = 0
    for i in range(count + 1):
        now = start[i] if i < count else np.iinfo(np.int64).max
        while depth and until[depth - 1] <= now:
            depth -= 1
            used = _put(edges, owner, used, until[depth], holder[depth - 1] if depth else -1)
        if i == count:
            break
        who = holder[depth - 1] if depth and spread[holder[depth - 1]] else i
        last = min(end[i], until[depth - 1]) if depth else end[i]
        if last > now:
            used = _put(edges, owner, used, now, who)
            until[depth], holder[depth] = last, who
            depth += 1
    return edges[:used].copy(), owner[: max(used - 1, 0)].copy()


@njit
def _put(edges: Any, owner: Any, used: int, at: int, who: int) -> int:
    if used and edges[used - 1] == at:
        owner[used - 1] = who
        if used > 1 and owner[used - 2] == who:
            used -= 1
    elif not used or owner[used - 1] != who:
        edges[used], owner[used] = at, who
        used += 1
    return used
