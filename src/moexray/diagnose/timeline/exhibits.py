"""What the report draws from traces: who waits for whom, spans of the slowest steps, step times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.analyse.thin import extremes
from moexray.analyse.timeline_comm import survey
from moexray.analyse.timeline_host import alloc_calls, silences
from moexray.diagnose.timeline.waits import late_table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moexray.analyse.timeline import Profile
    from moexray.core.run import Run

__all__ = ["series", "spans", "spans_cut", "waits"]

SLOWEST = 3  # steps per rank whose spans are drawn
MOST = 400  # spans per rank
FIRST_GAP_NS = 1_000  # closed between neighbours where there are more; doubled until they fit
RANKS = 16  # of a capture, whose steps and spans are drawn


def waits(run: Run) -> list[dict[str, Any]]:
    """Per rank: how long it was waited for, how long it waited."""
    matched = [c.collectives for c in survey(run) if len(c.collectives)]
    return [row for collectives in matched for row in late_table(collectives)]


def series(run: Run) -> list[dict[str, Any]]:
    """Step times of every rank."""
    out: list[dict[str, Any]] = []
    for capture in survey(run):
        ranks = len(capture.profiles)
        for profile in capture.profiles[:RANKS]:
            steps = profile.steps
            if len(steps) < 3:
                continue
            kept = extremes(steps.duration)
            notes = [f"{len(kept)} of {len(steps)} steps, extremes kept"] if len(kept) < len(steps) else []
            notes += [f"one of {ranks} ranks, {RANKS} shown"] if ranks > RANKS else []
            out.append(
                {
                    "name": f"step time, {profile.who}",
                    "unit": "s",
                    "x_unit": "step",
                    "x": kept,
                    "y": (steps.duration[kept] / 1e9).tolist(),
                    "source": f"{profile.source} ({'; '.join(notes)})" if notes else profile.source,
                    "marks": [],
                }
            )
    return out


def spans(run: Run) -> list[dict[str, Any]]:
    """Computation, communication, allocator calls and silences in the slowest steps, clocks aligned.

    `capture` tells traces apart that were not taken together: their clocks have nothing in common.
    """
    return [row for one in run.once(_drawn) for row in one.rows]


def spans_cut(run: Run) -> list[dict[str, Any]]:
    """Per capture of `spans`: how many ranks are not among them, and gaps up to which length are closed."""
    return [
        {"capture": one.capture, "ranks": one.ranks_cut, "closed_s": one.closed_ns / 1e9}
        for one in run.once(_drawn)
        if one.ranks_cut or one.closed_ns
    ]


_Span = tuple[int, int, str, str, int]  # start and end in ns, kind, name, step


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Spans of one capture, and what they leave out."""

    capture: int
    rows: list[dict[str, Any]]
    ranks_cut: int
    closed_ns: int


def _drawn(run: Run) -> list[_Drawn]:
    out = []
    for number, capture in enumerate(survey(run)):
        c = capture.collectives
        offsets = {c.profiles[o.rank].source: o.offset_ns for o in c.offsets} if len(c) else {}
        slowest = _slowest(capture.profiles)
        names = [p.who for p in capture.profiles]
        rows: list[dict[str, Any]] = []
        closed = 0
        for profile in capture.profiles[:RANKS]:
            twice = names.count(profile.who) > 1
            who = f"{profile.who}, {profile.source}" if twice else profile.who
            found, gap = _spans_of(profile, slowest, offsets.get(profile.source, 0.0))
            rows += [{"capture": number, "who": who, **row} for row in found]
            closed = max(closed, gap)
        out.append(_Drawn(number, rows, max(0, len(capture.profiles) - RANKS), closed))
    return out


def _slowest(profiles: list[Profile]) -> list[int]:
    """Positions of the slowest steps of the rank with the longest step."""
    with_steps = [p for p in profiles if len(p.steps)]
    if not with_steps:
        return []
    longest = max(with_steps, key=lambda p: int(p.steps.duration.max()))
    order = np.argsort(-longest.steps.duration, kind="stable")
    return [int(i) for i in order[:SLOWEST]]


def _spans_of(
    profile: Profile, positions: list[int], offset_ns: float
) -> tuple[list[dict[str, Any]], int]:
    """Spans of one rank, the longest first, and the gap that was closed between neighbours, ns."""
    steps = profile.steps
    found: list[_Span] = []
    calls = alloc_calls(profile) if len(steps) else None
    for position in positions:
        if position >= len(steps):
            continue
        low, high = int(steps.start[position]), int(steps.end[position])
        label = int(steps.label[position])
        found += _clip(profile.compute.start, profile.compute.end, low, high, ("compute", "kernels", label))
        rows = profile.comm_rows
        found += _clip(profile.start[rows], profile.end[rows], low, high, ("comm", "collective", label))
        if calls is not None and len(calls.row):
            begin, end = profile.start[calls.row], profile.end[calls.row]
            found += _clip(begin, end, low, high, ("alloc", "allocator", label))
        still = silences(profile, steps.median_ns)
        found += _clip(still.start, still.end, low, high, ("host", "no host call", label))
    found, gap = _fitting(found)
    found.sort(key=lambda s: s[0] - s[1])
    told = [
        {
            "rank": profile.rank,
            "lane": kind,
            "name": f"{name}, step {label}",
            "kind": kind,
            "start_s": (start - offset_ns) / 1e9,
            "dur_s": (end - start) / 1e9,
            "step": label,
            "source": profile.source,
        }
        for start, end, kind, name, label in found
    ]
    return told, gap


def _fitting(found: list[_Span]) -> tuple[list[_Span], int]:
    """At most `MOST` spans: neighbours of a kind and step become one across growing gaps.

    What is short is not left out: a blank would read as idle time.
    """
    gap = 0
    while len(found) > MOST:
        gap = gap * 2 or FIRST_GAP_NS
        joined: list[_Span] = []
        for span in sorted(found, key=lambda s: (s[2], s[4], s[0])):
            last = joined[-1] if joined else None
            if last and last[2:] == span[2:] and span[0] - last[1] <= gap:
                joined[-1] = (last[0], max(last[1], span[1]), *span[2:])
            else:
                joined.append(span)
        found = joined
    return found, gap


def _clip(
    start: NDArray[np.int64], end: NDArray[np.int64], low: int, high: int, what: tuple[str, str, int]
) -> list[_Span]:
    inside = (start < high) & (end > low)
    starts, ends = np.maximum(start[inside], low).tolist(), np.minimum(end[inside], high).tolist()
    return [(a, b, *what) for a, b in zip(starts, ends, strict=True)]

