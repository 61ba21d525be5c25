"""Stuck bytes over the history: when fragmentation began.

For every segment, live blocks and bytes are rebuilt backwards from its end state; while a block lives in
it, the rest of it is stuck. Glossary: a *place* is a segment by address and size; the same place may be
taken and given back many times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.snapshot import Columns, Shot, is_action
from moexray.analyse.snapshot_history import killers

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["stuck_line"]

BLOCK = 512  # bytes; blocks are multiples of it (c10 kMinBlockSize)
MOST_LAYERS = 64  # places that overlap in address, one after the other in time


def stuck_line(shot: Shot) -> NDArray[np.int64] | None:
    """Stuck bytes after each event, shape [events].

    Sizes of events are rounded up to 512 B; what a block holds beyond that (up to 1 MiB in the large
    pool) is known of the blocks at the end only, and counts as free of earlier ones.

    Returns:
        None without events, with expandable segments (their pages come and go inside one place), and
        where more than MOST_LAYERS segments overlap in address over time.
    """
    events = shot.events
    if events is None or is_action(events, "segment_map", "segment_unmap").any():
        return None
    if shot.segments["is_expandable"].any():
        return None
    births, ends = is_action(events, "alloc"), killers(events)
    rows = np.flatnonzero(births | ends)
    places = _places(shot, events)
    home = _homes(events, rows, places)
    if home is None:
        return None
    rows, home = rows[home >= 0], home[home >= 0]
    sign = np.where(births[rows], 1, -1)
    moved = sign * (-(-events["size_bytes"][rows] // BLOCK) * BLOCK)
    order = np.argsort(home, kind="stable")
    rows, home, sign, moved = rows[order], home[order], sign[order], moved[order]
    first = np.ones(len(home), dtype=bool)
    first[1:] = home[1:] != home[:-1]
    at_end = _at_end(shot, places)
    count = _running(sign, home, first, at_end[0])
    held = np.clip(_running(moved, home, first, at_end[1]), 0, places[1][home])
    stuck = np.where(count > 0, places[1][home] - held, 0)
    change = np.diff(stuck, prepend=0)
    start = first.nonzero()[0]
    before = _before(sign, moved, start, home, at_end, places[1])
    change[start] = stuck[start] - before
    out = np.zeros(len(events["action"]), dtype=np.int64)
    np.add.at(out, rows, change)
    line = np.cumsum(out)
    return np.asarray(line - line[-1] + int(shot.segments["stuck"].sum()) if len(line) else line, np.int64)


Places = tuple["NDArray[np.int64]", "NDArray[np.int64]"]


def _places(shot: Shot, events: Columns) -> Places:
    """Address and size of every segment that there ever was, by address, then size."""
    moved = is_action(events, "segment_alloc", "segment_free")
    address = np.concatenate([shot.segments["address"], events["address"][moved]])
    size = np.concatenate([shot.segments["total_bytes"], events["size_bytes"][moved]])
    both = np.unique(np.stack([address, size], axis=1), axis=0)
    return both[:, 0], both[:, 1]


def _homes(events: Columns, rows: NDArray[np.int64], places: Places) -> NDArray[np.int64] | None:
    """The place that each event lies in, -1 for none: of several the one that was taken last before it."""
    start, size = places
    layer = _layers(start, size)
    if layer.max(initial=0) >= MOST_LAYERS:
        return None
    address = events["address"][rows]
    best, taken = np.full(len(rows), -1, dtype=np.int64), np.full(len(rows), -2, dtype=np.int64)
    births = np.flatnonzero(is_action(events, "segment_alloc"))
    born_at = _index_of(places, events["address"][births], events["size_bytes"][births])
    for number in range(int(layer.max(initial=-1)) + 1):
        mine = np.flatnonzero(layer == number)
        at = np.maximum(np.searchsorted(start[mine], address, side="right") - 1, 0)
        place = mine[at]
        inside = (start[place] <= address) & (address < start[place] + size[place])
        since = _last_before(births, born_at, rows, place)
        better = inside & (since > taken)
        best[better], taken[better] = place[better], since[better]
    return best


def _layers(start: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.int64]:
    """A layer for each place so that those of one layer do not overlap."""
    layer = np.zeros(len(start), dtype=np.int64)
    reach: list[int] = []
    for i, (at, length) in enumerate(zip(start.tolist(), size.tolist(), strict=True)):
        free = next((k for k, end in enumerate(reach) if end <= at), len(reach))
        if free == len(reach):
            if free == MOST_LAYERS:
                layer[i] = free
                return layer
            reach.append(0)
        reach[free] = at + length
        layer[i] = free
    return layer


def _index_of(
    places: Places, address: NDArray[np.int64], size: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The rows of known places."""
    known = {key: row for row, key in enumerate(zip(places[0].tolist(), places[1].tolist(), strict=True))}
    return np.array([known[k] for k in zip(address.tolist(), size.tolist(), strict=True)], dtype=np.int64)


def _last_before(
    births: NDArray[np.int64], born_at: NDArray[np.int64], rows: NDArray[np.int64], place: NDArray[np.int64]
) -> NDArray[np.int64]:
    """When each place was last taken before an event; -1 before the history."""
    if not len(births):
        return np.full(len(rows), -1, dtype=np.int64)
    span = int(max(births[-1], rows[-1] if len(rows) else 0)) + 2
    keys = np.sort(born_at * span + births)
    found = np.searchsorted(keys, place * span + rows) - 1
    hit = (found >= 0) & (keys[np.maximum(found, 0)] // span == place)
    return np.asarray(np.where(hit, keys[np.maximum(found, 0)] % span, -1), dtype=np.int64)


def _at_end(shot: Shot, places: Places) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Live blocks and bytes of each place at the end."""
    row = _index_of(places, shot.segments["address"], shot.segments["total_bytes"])
    count, held = np.zeros(len(places[0]), dtype=np.int64), np.zeros(len(places[0]), dtype=np.int64)
    count[row], held[row] = shot.segments["live_blocks"], shot.segments["live"]
    return count, held


def _running(
    change: NDArray[np.int64], home: NDArray[np.int64], first: NDArray[np.bool_], at_end: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Values after each change of a place, so that its last one is that at the end."""
    sums = np.cumsum(change)
    last = np.flatnonzero(np.append(first[1:], True)) if len(home) else np.zeros(0, dtype=np.int64)
    group = np.cumsum(first) - 1
    return np.asarray(sums - sums[last][group] + at_end[home], dtype=np.int64)


def _before(
    sign: NDArray[np.int64], moved: NDArray[np.int64], start: NDArray[np.int64], home: NDArray[np.int64],
    at_end: tuple[NDArray[np.int64], NDArray[np.int64]], size: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Stuck bytes of each place before its first event."""
    sums = [np.add.reduceat(values, start) if len(start) else values for values in (sign, moved)]
    mine = home[start]
    count, held = (end[mine] - total for end, total in zip(at_end, sums, strict=True))
    return np.asarray(np.where(count > 0, size[mine] - np.clip(held, 0, size[mine]), 0), dtype=np.int64)
