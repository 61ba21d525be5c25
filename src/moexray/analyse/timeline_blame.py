"""Whom a collective waited for: the rank that came last, or the one that it had waited for itself.

A rank that comes last because it sat in a collective of another group passes the blame on. Waits for one
rank that overlap (its own group's and those of the groups behind it) are one lateness, counted once. What
all others wait behind compute costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.timeline import Cover

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moexray.analyse.timeline_comm import Collectives

__all__ = ["blame"]

MOSTLY = 0.5  # share of a lateness that the rank must have waited itself


def blame(c: Collectives) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(position of the rank that each column waited for, what that costs beyond waits before it, ns)."""
    cause, fresh = c.late.copy(), c.costly.copy()
    passed: dict[int, int] = {}
    for rank in range(len(c.profiles)):
        passed |= _passed_on(c, rank)
    for column in passed:
        root, seen = column, {column}
        while (root := passed.get(root, root)) not in seen:
            seen.add(root)
        cause[column] = c.late[root]
        fresh[column] = max(0.0, c.costly[column] - c.costly[root])
    own = np.ones(len(c), np.bool_)
    own[list(passed)] = False
    for rank in range(len(c.profiles)):
        mine = np.flatnonzero(own & (c.late == rank))
        mine = mine[np.argsort(c.start[rank, mine], kind="stable")]
        since = np.diff(c.start[rank, mine], prepend=np.iinfo(np.int64).min // 2)
        fresh[mine] = np.minimum(c.costly[mine], since)
    return cause, fresh


def _passed_on(c: Collectives, rank: int) -> dict[int, int]:
    """Column to which a rank came last -> column in which it had waited for most of that time."""
    here = np.flatnonzero(c.present[rank])
    here = here[np.argsort(c.start[rank, here], kind="stable")]
    start = c.start[rank, here]
    waited = start + (c.duration[rank, here] - c.transfer[here]).astype(np.int64)
    mine = np.flatnonzero((c.late[here] == rank) & (c.lateness[here] > 0))
    until, lateness = start[mine], c.lateness[here[mine]]
    since = until - lateness.astype(np.int64)
    covered = Cover(start, waited).within(since, until)
    low = np.searchsorted(np.maximum.accumulate(waited), since, side="right")  # below, waits ended earlier
    high = np.searchsorted(start, until)  # from here on, they begin later; this one is the first of these
    out = {}
    for i in np.flatnonzero((covered >= MOSTLY * lateness) & (high > low)).tolist():
        near = slice(low[i], high[i])
        shared = np.minimum(waited[near], until[i]) - np.maximum(start[near], since[i])
        out[int(here[mine[i]])] = int(here[low[i] + np.argmax(shared)])
    return out
