"""Exhibit: latency series with the happenings of the log marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.analyse import engine_log
from moexray.analyse.latency import load_series, stalls
from moexray.analyse.meeting import on_clock_of
from moexray.analyse.thin import extremes

if TYPE_CHECKING:
    from moexray.core.run import Run

__all__ = ["latency_series"]

MAX_SERIES = 16  # those with most stalled time


def latency_series(run: Run) -> list[dict[str, Any]]:
    """Exhibit: each series with marks where the log tells of a rearrangement, compilation or dump."""
    kinds = (
        ("ep.rearrange_stall", engine_log.rearrangements(run, serving=False)),
        ("jit.compile_in_hot_path", engine_log.compilations(run)),
        ("mem.snapshot_overhead", engine_log.snapshots(run)),
    )
    out: list[dict[str, Any]] = []
    found = sorted(load_series(run), key=lambda s: -s.stalled_s)
    for s in found[:MAX_SERIES]:
        first, last = s.span
        timed = np.isfinite(first)
        keep = extremes(s.value_s)
        notes = []
        if len(keep) < len(s.value_s):
            notes.append(f"{len(keep)} of {len(s.value_s)} points, extremes kept")
        if len(found) > MAX_SERIES:
            notes.append(f"one of {len(found)} series, {MAX_SERIES} shown")
        x = s.end_s[keep] if timed else np.cumsum(s.weight)[keep] - 1
        marks: list[dict[str, Any]] = []
        for id, episodes in kinds:
            where = on_clock_of(s, stalls(s), episodes)
            for e, offset in where:
                if first - 1 <= e.start_s + offset <= last + 1:
                    marks.append(
                        {"x": e.start_s + offset, "text": f"{e.kind}: {e.row['text'][:160]}", "finding": id}
                    )
        out.append(
            {
                "name": f"{s.what} of {s.source}" + ("" if s.rank is None else f", rank {s.rank}"),
                "unit": "s",
                "x_unit": "s" if timed else "step",
                "x": [float(v) for v in x],
                "y": [float(v) for v in s.value_s[keep]],
                "source": f"{s.source} ({'; '.join(notes)})" if notes else s.source,
                "marks": sorted(marks, key=lambda m: m["x"])[:99],
            }
        )
    return out
