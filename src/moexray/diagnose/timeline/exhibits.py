"""What the report draws from traces: who waits for whom, spans of the slowest steps, step times."""

from __future__ import annotations

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

__all__ = ["series", "spans", "waits"]

SLOWEST = 3  # steps per rank whose spans are drawn
MOST = 400  # spans per rank


def waits(run: Run) -> list[dict[str, Any]]:
    """Per rank: how long it was waited for, how long it waited."""
    matched = [c.collectives for c in survey(run) if len(c.collectives)]
    return [row for collectives in matched for row in late_table(collectives)]


def series(run: Run) -> list[dict[str, Any]]:
    """Step times of every rank."""
    out: list[dict[str, Any]] = []
    for capture in survey(run):
        for profile in capture.profiles[:16]:
            steps = profile.steps
            if len(steps) < 3:
                continue
            kept = extremes(steps.duration)
            thinned = f" ({len(kept)} of {len(steps)} steps, extremes kept)" if len(kept) < len(steps) else ""
            out.append(
                {
                    "name": f"step time, {profile.who}",
                    "unit": "s",
                    "x_unit": "step",
                    "x": kept,
                    "y": (steps.duration[kept] / 1e9).tolist(),
                    "source": f"{profile.source}{thinned}",
                    "marks": [],
                }
            )
    return out


def spans(run: Run) -> list[dict[str, Any]]:
    """Computation, communication, allocator calls and silences in the slowest steps, clocks aligned."""
    out: list[dict[str, Any]] = []
    for capture in survey(run):
        c = capture.collectives
        offsets = {c.profiles[o.rank].source: o.offset_ns for o in c.offsets} if len(c) else {}
        slowest = _slowest(capture.profiles)
        for profile in capture.profiles[:16]:
            out += _spans_of(profile, slowest, offsets.get(profile.source, 0.0))
    return out


def _slowest(profiles: list[Profile]) -> list[int]:
    """Positions of the slowest steps of the rank with the longest step."""
    with_steps = [p for p in profiles if len(p.steps)]
    if not with_steps:
        return []
    longest = max(with_steps, key=lambda p: int(p.steps.duration.max()))
    order = np.argsort(-longest.steps.duration, kind="stable")
    return [int(i) for i in order[:SLOWEST]]


def _spans_of(profile: Profile, positions: list[int], offset_ns: float) -> list[dict[str, Any]]:
    steps = profile.steps
    found: list[tuple[int, int, str, str, int]] = []
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
    found.sort(key=lambda s: s[0] - s[1])
    return [
        {
            "rank": profile.rank,
            "lane": kind,
            "name": f"{name}, step {label}",
            "kind": kind,
            "start_s": (start - offset_ns) / 1e9,
            "dur_s": (end - start) / 1e9,
            "source": profile.source,
        }
        for start, end, kind, name, label in found[:MOST]
    ]


def _clip(
    start: NDArray[np.int64], end: NDArray[np.int64], low: int, high: int, what: tuple[str, str, int]
) -> list[tuple[int, int, str, str, int]]:
    inside = (start < high) & (end > low)
    starts, ends = np.maximum(start[inside], low).tolist(), np.minimum(end[inside], high).tolist()
    return [(a, b, *what) for a, b in zip(starts, ends, strict=True)]

