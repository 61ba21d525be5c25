"""Who runs at each instant of a thread: the innermost of nested slices.

Glossary: a *piece* is a stretch of time with one owner, a slice or nobody (-1).
"""

from __future__ import annotations

import numpy as np

__all__ = ["innermost"]


def innermost(start: np.ndarray, end: np.ndarray, spread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pieces of one thread in order of time. Twin in kernels/nesting.py.

    Args:
        start: [slices] ns, ascending; of slices that begin together the longest first.
        end: [slices] ns, not before start. A slice that outlives the one around it is cut there.
        spread: [slices], True: the slice owns what runs inside it, too.

    Returns:
        (edges [pieces + 1] ns, owner [pieces]); neighbouring pieces have different owners; empty
        arrays for no slice.
    """
    edges: list[int] = []
    owner: list[int] = []

    def put(at: int, who: int) -> None:
        if edges and edges[-1] == at:
            owner[-1] = who
            if len(owner) > 1 and owner[-2] == who:
                edges.pop()
                owner.pop()
        elif not owner or owner[-1] != who:
            edges.append(at)
            owner.append(who)

    stack: list[tuple[int, int]] = []  # (end, owner)
    for i in range(len(start)):
        while stack and stack[-1][0] <= start[i]:
            done, _ = stack.pop()
            put(done, stack[-1][1] if stack else -1)
        who = stack[-1][1] if stack and spread[stack[-1][1]] else i
        last = min(int(end[i]), stack[-1][0]) if stack else int(end[i])
        if last > start[i]:
            put(int(start[i]), who)
            stack.append((last, who))
    while stack:
        done, _ = stack.pop()
        put(done, stack[-1][1] if stack else -1)
    if not edges:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.array(edges, np.int64), np.array(owner[:-1], np.int64)
