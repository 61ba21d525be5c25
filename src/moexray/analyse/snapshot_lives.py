"""Allocations of a history, each with its end, and the steps that they lie in.

Glossary: a *miss* is an alloc event right behind a segment_alloc or segment_map: it had to ask the
device; a *step* is a range that the program marked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.snapshot import Columns, Shot, is_action
from moexray.analyse.snapshot_history import killers
from moexray.core.pattern import lazy
from moexray.core.scopes import STEP_WORDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Lives", "Steps", "lives_of", "steps_in", "steps_of"]

DIGITS = lazy(r"\d+")
LEAST_MARKERS = 3  # snapshot events that count as marks of steps


@dataclass(frozen=True, slots=True)
class Lives:
    """Allocations of a history in order, shape [allocations] each.

    Args:
        born: Index of the alloc event.
        died: Index of the event that ended it, -1 if none.
        stack: Row of the call stacks.
        size: Requested bytes.
        device_calls: Device events right before it.
        freed_segments: Index of the event that freed the segment it began, or -1.
    """

    born: NDArray[np.int64]
    died: NDArray[np.int64]
    stack: NDArray[np.int64]
    size: NDArray[np.int64]
    device_calls: NDArray[np.int64]
    freed_segments: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Steps:
    """The marked steps of a history.

    Args:
        of_event: The step that each event lies in, from 0; -1 between steps.
        marked_by: annotations, user_metadata or snapshot events.
        first: The first step with an event.
        count: Steps from it to the last one with an event.
    """

    of_event: NDArray[np.int64]
    marked_by: str
    first: int
    count: int


def lives_of(events: Columns) -> Lives:
    """Joins the allocations of a history with their ends."""
    births, ends = is_action(events, "alloc"), killers(events)
    born = np.flatnonzero(births)
    gone = is_action(events, "segment_free", "segment_unmap")
    return Lives(
        born=born,
        died=_next_at(events["address"], births, ends),
        stack=events["stack"][born],
        size=events["size_bytes"][born],
        device_calls=_calls_before(events)[born],
        freed_segments=_next_at(events["address"], births, gone),
    )


def _calls_before(events: Columns) -> NDArray[np.int64]:
    """For each event, how many segment_alloc or segment_map events stand right before it."""
    asks = is_action(events, "segment_alloc", "segment_map")
    index = np.arange(len(asks))
    last_other = np.maximum.accumulate(np.where(asks, -1, index))
    out = np.zeros(len(asks), dtype=np.int64)
    out[1:] = index[:-1] - last_other[:-1]
    return out


def _next_at(
    address: NDArray[np.int64], starts: NDArray[np.bool_], stops: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """For each start the next stop at its address, before the next start there; else -1."""
    index = np.flatnonzero(starts | stops)
    order = np.argsort(address[index], kind="stable")
    place, event = address[index][order], index[order]
    start = starts[event]
    out = np.full(len(address), -1, dtype=np.int64)
    follows = (place[1:] == place[:-1]) & start[:-1] & ~start[1:]
    out[event[:-1][follows]] = event[1:][follows]
    return out[starts]


def steps_in(shot: Shot) -> Steps | None:
    """The steps that the program marked: by annotations, else user_metadata, else snapshot events.

    A text of user_metadata marks a step if it speaks of steps; all events with the same text, or with
    the same number behind such a word, are one step. Between two snapshot events lies one step, if
    there are LEAST_MARKERS of them.
    """
    events = shot.events
    if events is None:
        return None
    time, spans = events.get("time_ns"), steps_of(shot.marks)
    if time is not None and spans is not None:
        step = np.searchsorted(spans[:, 0], time, side="right") - 1
        inside = (step >= 0) & (time <= spans[np.maximum(step, 0), 1])
        if inside.any():
            return _steps(np.where(inside, step, -1), "annotations")
    if "note" in events:
        step = _by_first(_step_notes(shot.notes)[events["note"]])
        if step.max(initial=-1) > 0:
            return _steps(step, "user_metadata")
    markers = is_action(events, "snapshot")
    if markers.sum() >= LEAST_MARKERS:
        step = np.cumsum(markers) - 1
        return _steps(np.where(step < step[-1], step, -1), "snapshot events")
    return None


def _step_notes(notes: tuple[str, ...]) -> NDArray[np.int64]:
    """For each note a number of the step that it names, -1 for none."""
    known: dict[str, int] = {}
    codes = np.full(len(notes), -1, dtype=np.int64)
    for row, note in enumerate(notes):
        if word := STEP_WORDS.search(note):
            number = DIGITS.search(note, word.end())
            codes[row] = known.setdefault(number[0] if number else note, len(known))
    return codes


def _steps(of_event: NDArray[np.int64], marked_by: str) -> Steps:
    used = of_event[of_event >= 0]
    return Steps(of_event, marked_by, int(used.min()), int(used.max() - used.min() + 1))


def _by_first(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Codes from 0 on, in the order of their first occurrence; -1 stays."""
    known, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    rank = np.empty(len(known), dtype=np.int64)
    first = np.where(known < 0, -1, first)  # unknown before all
    rank[np.argsort(first, kind="stable")] = np.arange(len(known)) - int((known < 0).any())
    return rank[inverse.reshape(-1)]


def steps_of(marks: Columns) -> NDArray[np.int64] | None:
    """Starts and ends (ns) of the annotated steps, shape [steps, 2]; None where nothing looks like a step.

    Names that differ in a number only, or occur again and again, form a group; the group whose name
    speaks of steps wins, then the most frequent; nested ones are left out.
    """
    groups: dict[str, list[int]] = {}
    for row, name in enumerate(marks.get("name", ())):
        groups.setdefault(DIGITS.sub("#", str(name)), []).append(row)
    best: list[int] = []
    named = False
    for name, rows in groups.items():
        speaks = STEP_WORDS.search(name) is not None
        if (speaks, len(rows)) > (named, len(best)):
            best, named = rows, speaks
    if len(best) < 2:
        return None
    spans = np.stack([np.asarray(marks["start_ns"])[best], np.asarray(marks["end_ns"])[best]], axis=1)
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    apart = np.ones(len(spans), dtype=bool)
    apart[1:] = spans[1:, 0] >= np.maximum.accumulate(spans[:, 1])[:-1]
    return np.asarray(spans[apart], dtype=np.int64)
