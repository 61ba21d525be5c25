"""How far the history of a snapshot goes, and the timeline rebuilt backwards from its end state.

The end state is exact. Walking the events backwards from it gives the bytes in use at every event
without knowing what was there before the first one; a forward sum would begin at an unknown offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.analyse.snapshot import INACTIVE, Columns, Shot, is_action, segment_lists_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["History", "Timeline", "history", "killers", "last_at", "timeline"]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Bytes before the first event (entry 0) and after each event (entries 1...).

    Args:
        active: Requested bytes of live blocks.
        reserved: Bytes of segments.
        time_ns: Time of each event; None in old files.
    """

    active: NDArray[np.int64]
    reserved: NDArray[np.int64]
    time_ns: NDArray[np.int64] | None

    @property
    def peak_reserved(self) -> int:
        """Most bytes reserved at any recorded moment."""
        return int(self.reserved.max())

    @property
    def peak_active(self) -> int:
        """Most bytes live at any recorded moment."""
        return int(self.active.max())


@dataclass(frozen=True, slots=True)
class History:
    """How far the events reach back.

    Args:
        kind: absent (the file has no place for it), never (no events), state (one entry, "state" mode),
            wrapped, late (recording began after blocks existed), unknown (no flag tells which, or
            an old format that cannot tell), broken_off, contradiction, complete, endless (the file lists no
            segments, or some without blocks: there is no end state to walk back from).
        proven: False where only the missing flag of an old format is the reason.
        live_without_alloc: Live blocks whose allocation is not among the events.
        frees_without_alloc: Frees of blocks whose allocation is not among the events.
        segments_without_alloc: Segments whose device allocation is not among the events.
    """

    kind: str
    proven: bool = True
    events: int = 0
    live_without_alloc: int = 0
    frees_without_alloc: int = 0
    segments_without_alloc: int = 0
    line: Timeline | None = None


def killers(events: Columns) -> NDArray[np.bool_]:
    """Events that end the life of a block: free_completed, or free_requested where none is recorded."""
    done = is_action(events, "free_completed")
    return done if done.any() else is_action(events, "free_requested")


def timeline(shot: Shot) -> Timeline | None:
    """Rebuilds the timeline backwards from the final segments; None without events or end state."""
    if shot.events is None or not _has_end(shot):
        return None
    events = shot.events
    size = events["size_bytes"]
    active = np.where(is_action(events, "alloc"), size, 0) - np.where(killers(events), size, 0)
    grown = is_action(events, "segment_alloc", "segment_map")
    gone = is_action(events, "segment_free", "segment_unmap")
    reserved = np.where(grown, size, 0) - np.where(gone, size, 0)
    ends = (int(shot.segments["requested"].sum()), int(shot.segments["total_bytes"].sum()))
    lines = [_backwards(delta, end) for delta, end in zip((active, reserved), ends, strict=True)]
    return Timeline(lines[0], lines[1], events.get("time_ns"))


def _has_end(shot: Shot) -> bool:
    """Whether the file says what its history ends in: all segments, each with its blocks."""
    lists = segment_lists_blocks(shot.segments, shot.blocks)
    return shot.info["segments"] is not None and bool(lists.all())


def _backwards(delta: NDArray[np.int64], end: int) -> NDArray[np.int64]:
    """Values before the first change and after each, given the last one."""
    sums = np.concatenate(([0], np.cumsum(delta)))
    return np.asarray(end - sums[-1] + sums, dtype=np.int64)


def last_at(events: Columns, chosen: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The last chosen event at each address.

    Returns:
        (addresses in ascending order, index of the event).
    """
    index = np.flatnonzero(chosen)
    index = index[np.argsort(events["address"][index], kind="stable")]
    address = events["address"][index]
    last = np.ones(len(index), dtype=bool)
    last[:-1] = address[1:] != address[:-1]
    return address[last], index[last]


def _missing(
    events: Columns, births: NDArray[np.bool_], ends: NDArray[np.bool_], wanted: NDArray[Any]
) -> int:
    """How many of the addresses that live at the end have no birth as their last event."""
    address, index = last_at(events, births | ends)
    if not len(address):
        return len(wanted)
    place = np.minimum(np.searchsorted(address, wanted), len(address) - 1)
    known = (address[place] == wanted) & births[index[place]]
    return int((~known).sum())


def _orphans(events: Columns, births: NDArray[np.bool_], ends: NDArray[np.bool_]) -> int:
    """Ends whose previous event at the same address is no birth."""
    index = np.flatnonzero(births | ends)
    index = index[np.argsort(events["address"][index], kind="stable")]
    address, born = events["address"][index], births[index]
    before = np.zeros(len(index), dtype=bool)
    before[1:] = (address[1:] == address[:-1]) & born[:-1]
    return int((~born & ~before).sum())


def history(shot: Shot) -> History:
    """Judges nothing: names what kind of history it is, with the counts behind it."""
    info = shot.info
    if info["broken_off"]:
        return History("broken_off", events=info["events"] or 0)
    if info["events"] is None:
        return History("absent")
    if shot.events is None:
        return History("never")
    events, count = shot.events, len(shot.events["action"])
    if not _has_end(shot):
        return History("endless", events=count)
    births, ends = is_action(events, "alloc"), killers(events)
    grown, gone = is_action(events, "segment_alloc"), is_action(events, "segment_free")
    full = info["overflowed"] or (info["max_entries"] is not None and count >= info["max_entries"] > 0)
    if not (births | ends | grown | gone).any() and count <= 1 and not full:
        return History("state", events=count)
    live = shot.blocks["address"][shot.blocks["state"] != INACTIVE]
    plain = shot.segments["address"][~shot.segments["is_expandable"]]
    found = History(
        "complete",
        events=count,
        live_without_alloc=_missing(events, births, ends, live),
        frees_without_alloc=_orphans(events, births, ends),
        segments_without_alloc=_missing(events, grown, gone, plain),
        line=timeline(shot),
    )
    return _named(found, shot, full=bool(full))


def _tolerance(shot: Shot) -> int:
    """Blocks may carry rounded sizes where events carry requested ones."""
    return 512 * len(shot.blocks["size_bytes"]) + int(shot.segments["live"].sum()) // 100


def _named(found: History, shot: Shot, *, full: bool) -> History:
    from dataclasses import replace

    info, line = shot.info, found.line
    gaps = found.live_without_alloc or found.frees_without_alloc or found.segments_without_alloc
    old = info["settings"] is None and info["overflowed"] is None
    if full:
        return replace(found, kind="wrapped")
    if gaps:
        known_whole = info["overflowed"] is False
        return replace(found, kind="late" if known_whole else "unknown")
    if line is not None and (line.active.min() < -_tolerance(shot) or line.reserved.min() < 0):
        return replace(found, kind="contradiction")
    if old:
        return replace(found, kind="unknown", proven=False)
    return found
