"""What is drawn beside the findings: who owns the memory, and how it went over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.analyse.snapshot import Shot, pools, shots
from moexray.analyse.snapshot_history import timeline
from moexray.analyse.thin import extremes
from moexray.diagnose.snapshot_words import by_subject, place

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moexray.core.run import Run

__all__ = ["ledger", "series"]

MAX_POINTS = 2000  # of one line; extremes are kept
MAX_LINES = 8  # ranks drawn


def ledger(run: Run) -> list[dict[str, Any]]:
    """Bytes of each device by owner, from the last snapshot of it; nothing where an OOM record says it."""
    if run.rows("oom"):
        return []
    out: list[dict[str, Any]] = []
    for group in by_subject(shots(run)):
        shot = group[-1]
        for pool in pools(shot):
            rows = (
                (f"live, {pool.name}", pool.active_bytes, "allocated, or waiting for a stream"),
                (f"stuck, {pool.name}", pool.stuck_bytes, "free beside live blocks: cannot go back"),
                (f"cached, {pool.name}", pool.free_bytes - pool.stuck_bytes, "free segments or pages"),
            )
            out += [
                {
                    "device": shot.device, "rank": shot.rank, "owner": owner, "bytes": size,
                    "source": shot.source, "where": f"device {shot.device}", "note": note,
                }
                for owner, size, note in rows
                if size
            ]  # fmt: skip
    return out


def series(run: Run) -> list[dict[str, Any]]:
    """Reserved and live bytes over the history, rebuilt backwards from the end state."""
    out = []
    for group in by_subject(shots(run))[:MAX_LINES]:
        shot = max(group, key=lambda s: s.info["events"] or 0)
        line = None if shot.info["broken_off"] else timeline(shot)
        if line is None:
            continue
        x = np.arange(1.0, len(line.active)) if line.time_ns is None else line.time_ns / 1e9
        timed = line.time_ns is not None
        for name, values in (("reserved", line.reserved), ("live (requested bytes)", line.active)):
            out.append(_line(f"PyTorch {name}, {place(shot)}", shot, x, values[1:], timed=timed))
    return out


def _line(
    name: str, shot: Shot, x: NDArray[Any], y: NDArray[Any], *, timed: bool
) -> dict[str, Any]:
    kept = extremes(y, MAX_POINTS)
    peak = int(np.argmax(y))
    return {
        "name": name,
        "unit": "bytes",
        "x_unit": "s" if timed else "step",
        "x": x[kept].tolist(),
        "y": y[kept].tolist(),
        "source": shot.source if len(kept) == len(y) else f"{shot.source} ({len(kept)} of {len(y)} points)",
        "marks": [{"x": float(x[peak]), "text": "peak of the recorded part", "finding": ""}],
    }
