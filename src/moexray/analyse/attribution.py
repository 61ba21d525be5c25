"""Which layer, expert, router or token an allocation belongs to, from whatever names stand around it.

Snapshots: the event's own metadata, else the innermost marked range of its time, else the frames of
its stack, innermost first; each fills what the one before leaves open. Profiles: the ranges, operators
and Python frames of the same thread that enclose the event, innermost first. How a name is read stands
in core/scopes.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.core.scopes import NOTHING, Scope, inside, scope_of
from moexray.core.tables.timeline import CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["Labels", "enclosing", "of_profile", "of_snapshot"]

FRAMES = " < "  # between the frames of a stack, see core.tables.snapshot.STACKS
SPEAKING = tuple(CATEGORIES.index(c) for c in ("operator", "annotation", "python"))
OPERATOR = CATEGORIES.index("operator")


@dataclass(frozen=True, slots=True)
class Labels:
    """A scope for each event: row `code` of `scopes`; row 0 says nothing."""

    code: Ints
    scopes: tuple[Scope, ...]

    def within(self, outer: Labels) -> Labels:
        """These, filled up from outer ones."""
        pairs, inverse = np.unique(np.stack([self.code, outer.code], axis=1), axis=0, return_inverse=True)
        joined = [inside(self.scopes[a], outer.scopes[b]) for a, b in pairs.tolist()]
        known = {NOTHING: 0}
        number = np.array([known.setdefault(s, len(known)) for s in joined], np.int64)
        return Labels(number[inverse.reshape(-1)] if len(pairs) else self.code, tuple(known))

    def columns(self) -> tuple[Ints, Ints, Ints]:
        """(layer, expert, kind) of each event; -1 and the last code of SCOPES where unknown."""
        table = np.array([(s.layer, s.expert, s.kind) for s in self.scopes], np.int64)
        layer, expert, kind = table[self.code].T
        return layer, expert, kind


def _labels(code: Ints, texts: Sequence[str]) -> Labels:
    """The scopes of texts that are numbered by `code` (-1: none); frames are joined from the inside out."""
    scopes = [NOTHING] + [_of_frames(text.split(FRAMES)) for text in texts]
    return Labels(code + 1, tuple(scopes))


def _of_frames(frames: Iterable[str]) -> Scope:
    out = NOTHING
    for frame in frames:
        out = inside(out, scope_of(frame))
    return out


def of_snapshot(
    events: Mapping[str, Any], notes: Sequence[str], stacks: Sequence[str], marks: Mapping[str, Any]
) -> Labels:
    """Scopes of the events of a snapshot.

    Args:
        events: Columns of snapshot_events of one device.
        notes: attrs['notes'] of that table.
        stacks: Column `scopes` of snapshot_stacks.
        marks: Columns of snapshot_annotations of the device; may be empty.
    """
    none = np.full(len(events["action"]), -1, np.int64)
    labels = _labels(none if "note" not in events else np.asarray(events["note"]), notes)
    if len(marks.get("name", ())) and "time_ns" in events:
        speaking = [i for i, n in enumerate(marks["name"]) if scope_of(str(n)) is not NOTHING]
        start, end = (np.asarray(marks[k], np.int64)[speaking] for k in ("start_ns", "end_ns"))
        own = [scope_of(str(marks["name"][i])) for i in speaking]
        inner, parent = enclosing(np.asarray(events["time_ns"]), start, end)
        labels = labels.within(_nested(inner, parent, own))
    return labels.within(_labels(np.asarray(events["stack"]), stacks))


def of_profile(trace: Mapping[str, Any], names: Sequence[str], lanes: Ints, at: Ints) -> tuple[Labels, Ints]:
    """Scopes of moments on threads of a profile.

    Args:
        trace: Columns of the table trace.
        names: attrs['names'] of the trace.
        lanes: Thread of each moment, as in column `lane`.
        at: Time of each moment, ns.

    Returns:
        (scopes, site): site is the innermost operator, an index into `names`, -1 if there is none.
    """
    own = {i: s for i, n in enumerate(names) if (s := scope_of(str(n))) is not NOTHING}
    speaks = np.zeros(len(names), bool)
    speaks[list(own)] = True
    category, name = np.asarray(trace["category"]), np.asarray(trace["name"])
    chosen = np.isin(category, SPEAKING)
    code, site = np.full(len(at), -1, np.int64), np.full(len(at), -1, np.int64)
    scopes: list[Scope] = []
    for lane in np.unique(lanes).tolist():
        mine = np.flatnonzero(lanes == lane)
        here = np.flatnonzero(chosen & (np.asarray(trace["lane"]) == lane))
        start = np.asarray(trace["ts_ns"])[here]
        end = start + np.asarray(trace["dur_ns"])[here]
        times = np.sort(at[mine])
        used = np.searchsorted(times, end, side="right") > np.searchsorted(times, start)
        here, start, end = here[used], start[used], end[used]
        is_operator = category[here] == OPERATOR
        inner, _ = enclosing(at[mine], start[is_operator], end[is_operator])
        site[mine] = np.where(inner >= 0, name[here[is_operator]][inner], -1) if is_operator.any() else -1
        telling = speaks[name[here]]
        inner, parent = enclosing(at[mine], start[telling], end[telling])
        nested = _nested(inner, parent, [own[n] for n in name[here[telling]].tolist()])
        code[mine] = np.where(nested.code > 0, nested.code - 1 + len(scopes), -1)
        scopes += nested.scopes[1:]
    return Labels(code + 1, (NOTHING, *scopes)), site


def enclosing(at: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The innermost range around each moment: of those that hold it, the one that began last.

    Args:
        at: [moments].
        start: [ranges].
        end: [ranges]; a range holds both its ends. Of equal starts the shorter one is inside.

    Returns:
        (range of each moment, range around each range); -1 for none.
    """
    order = np.lexsort((-end, start))
    starts, ends = start[order].tolist(), end[order].tolist()
    parent = np.full(len(order) + 1, -1, np.int64)  # the last entry lets -1 point to itself
    held: list[int] = []
    for i, begin in enumerate(starts):
        while held and ends[held[-1]] < begin:
            held.pop()
        parent[i] = held[-1] if held else -1
        held.append(i)
    until = np.append(end[order], np.iinfo(np.int64).max)
    found = np.searchsorted(start[order], at, side="right") - 1
    while (outside := until[found] < at).any():
        found[outside] = parent[found[outside]]
    rows = np.append(order, -1)
    around = np.full(len(order), -1, np.int64)
    around[order] = rows[parent[:-1]]
    return rows[found], around


def _nested(inner: Ints, parent: Ints, own: Sequence[Scope]) -> Labels:
    """Scopes of ranges within their enclosing ranges, for the moments whose innermost range is known."""
    full: list[Scope | None] = [None] * len(own)
    around = parent.tolist()
    for i in range(len(own)):
        chain, at = [], i
        while at >= 0 and full[at] is None:
            chain.append(at)
            at = around[at]
        scope = full[at] if at >= 0 else NOTHING
        for row in reversed(chain):
            scope = inside(own[row], scope or NOTHING)
            full[row] = scope
    return Labels(inner + 1, (NOTHING, *(s or NOTHING for s in full)))
