"""Hot zones: what each call site allocates, keeps alive and pins.

Glossary: a *call site* is the innermost frame outside PyTorch and other machinery; it *pins* the
segments in which a live block of it lies: their free bytes are stuck as long as one such block lives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.snapshot import INACTIVE, Shot
from moexray.analyse.snapshot_lives import Lives, lives_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Zone", "hot_zones", "owners"]

BLOCK = 512  # bytes, the smallest block (c10 kMinBlockSize)


@dataclass(frozen=True, slots=True)
class Zone:
    """What one call site and operator allocates and pins.

    Args:
        stack: Frames of its first live block, else of its first allocation.
        allocs: Allocations in the history; 0 without one.
        frees: How many of them were freed again.
        mean_bytes: Mean requested size of the allocations; of the live blocks without a history.
        stuck_bytes: Stuck bytes of the segments that it pins. Several sites may pin the same segment.
        alone_bytes: Those of the segments that it alone pins: moving its blocks away frees them.
        segments: Rows of the segments that it pins.
    """

    site: str
    operator: str
    stack: str
    allocs: int
    frees: int
    mean_bytes: float
    live_blocks: int
    live_bytes: int
    stuck_bytes: int
    alone_bytes: int
    segments: tuple[int, ...]


def hot_zones(shot: Shot, below_bytes: int | None = None) -> list[Zone]:
    """Zones, most stuck bytes first.

    Args:
        shot: The snapshot.
        below_bytes: Only blocks requested below this size, and only with a history; all where None.
    """
    if shot.events is None and below_bytes is not None:
        return []
    lives = None if shot.events is None else lives_of(shot.events)
    names, zone_of_stack = _zone_names(shot)
    blocks, count = shot.blocks, len(names)
    rows = np.flatnonzero(blocks["state"] != INACTIVE)
    if below_bytes is not None:
        rows = rows[blocks["requested_bytes"][rows] < below_bytes]
    stack = _owners(shot, lives)[rows]
    zone = zone_of_stack[stack]
    live = np.bincount(zone, minlength=count)
    held = np.bincount(zone, weights=blocks["size_bytes"][rows], minlength=count).astype(np.int64)
    pairs, shared = np.unique(
        np.stack([zone, blocks["segment"][rows]], axis=1), axis=0, return_counts=True
    )
    pinned, alone = _pinned(shot, pairs, shared, count)
    allocs, frees, summed, first = _counts(shot, lives, zone_of_stack, below_bytes)
    asked = np.bincount(zone, weights=blocks["requested_bytes"][rows], minlength=count)
    mean = np.where(allocs > 0, summed / np.maximum(allocs, 1), asked / np.maximum(live, 1))
    first[zone[::-1]] = stack[::-1]
    edges = np.searchsorted(pairs[:, 0], np.arange(count + 1))
    zones = [
        Zone(
            site=names[i][0],
            operator=names[i][1],
            stack=shot.texts[first[i]],
            allocs=int(allocs[i]),
            frees=int(frees[i]),
            mean_bytes=float(mean[i]),
            live_blocks=int(live[i]),
            live_bytes=int(held[i]),
            stuck_bytes=int(pinned[i]),
            alone_bytes=int(alone[i]),
            segments=tuple(pairs[edges[i] : edges[i + 1], 1].tolist()),
        )
        for i in np.flatnonzero((allocs > 0) | (live > 0)).tolist()
    ]
    return sorted(zones, key=lambda z: (-z.stuck_bytes, -z.live_bytes, -z.allocs))


def owners(shot: Shot) -> NDArray[np.int64]:
    """The stack that allocated each block, shape [blocks]: its own, else that of its event; 0 is unknown."""
    return _owners(shot, None if shot.events is None else lives_of(shot.events))


def _owners(shot: Shot, lives: Lives | None) -> NDArray[np.int64]:
    stack = np.asarray(shot.blocks["stack"]).copy()
    if lives is not None:
        rows, which = _still_open(shot, lives, np.ones(len(lives.born), dtype=bool))
        bare = stack[rows] == 0
        stack[rows[bare]] = lives.stack[which[bare]]
    return stack


def _zone_names(shot: Shot) -> tuple[list[tuple[str, str]], NDArray[np.int64]]:
    """The distinct (call site, operator), and which of them each stack is."""
    known: dict[tuple[str, str], int] = {}
    of_stack = [known.setdefault(key, len(known)) for key in zip(shot.sites, shot.operators, strict=True)]
    return list(known), np.array(of_stack, dtype=np.int64)


def _pinned(
    shot: Shot, pairs: NDArray[np.int64], shared: NDArray[np.int64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Stuck bytes of the segments that each zone pins, and of those that it alone pins.

    Args:
        shot: The snapshot.
        pairs: Distinct (zone, segment) with a live block, shape [pairs, 2].
        shared: Live blocks of each pair.
        count: Number of zones.
    """
    stuck = shot.segments["stuck"][pairs[:, 1]]
    alone = shared == shot.segments["live_blocks"][pairs[:, 1]]
    sums = [np.bincount(pairs[:, 0], weights=w, minlength=count) for w in (stuck, np.where(alone, stuck, 0))]
    return sums[0].astype(np.int64), sums[1].astype(np.int64)


def _counts(
    shot: Shot, lives: Lives | None, zone_of_stack: NDArray[np.int64], below_bytes: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Allocations, frees and summed bytes of each zone in the history, and the stack of its first one."""
    count = int(zone_of_stack.max()) + 1
    first = np.zeros(count, dtype=np.int64)
    if lives is None:
        return first, first, np.zeros(count), first.copy()
    mine = slice(None) if below_bytes is None else _small(shot, lives, below_bytes)
    zone = zone_of_stack[lives.stack]
    first[zone[::-1]] = lives.stack[::-1]
    chosen, size, freed = zone[mine], lives.size[mine], lives.died[mine] >= 0
    summed = np.bincount(chosen, weights=size, minlength=count).astype(np.float64)
    counts = [np.bincount(some, minlength=count).astype(np.int64) for some in (chosen, chosen[freed])]
    return counts[0], counts[1], summed, first


def _small(shot: Shot, lives: Lives, below_bytes: int) -> NDArray[np.bool_]:
    """Allocations requested below a size; where events carry rounded sizes, the blocks tell."""
    small = lives.size < below_bytes
    rounded = ~small & (lives.size <= BLOCK)
    rows, which = _still_open(shot, lives, rounded)
    asked = shot.blocks["requested_bytes"][rows]
    sites = np.array(shot.sites, dtype=object)
    telling = which[(asked > 0) & (asked < below_bytes)]
    told = set(sites[lives.stack[telling]])
    if told:
        small |= rounded & np.array([site in told for site in shot.sites])[lives.stack]
    return np.asarray(small)


def _still_open(
    shot: Shot, lives: Lives, chosen: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of live blocks whose allocation is among the chosen ones, and which allocation that is."""
    address = (shot.events or {})["address"][lives.born]
    open_lives = np.flatnonzero(chosen & (lives.died < 0))
    open_lives = open_lives[np.argsort(address[open_lives], kind="stable")]
    rows = np.flatnonzero(shot.blocks["state"] != INACTIVE)
    if not len(open_lives):
        return rows[:0], rows[:0]
    wanted, known = shot.blocks["address"][rows], address[open_lives]
    place = np.maximum(np.searchsorted(known, wanted, side="right") - 1, 0)
    hit = known[place] == wanted
    return rows[hit], open_lives[place[hit]]
