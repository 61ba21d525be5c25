"""What is drawn beside the findings: who owns the memory, and how it went over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.analyse.snapshot import Shot, pools, shots
from moexray.analyse.snapshot_history import timeline
from moexray.analyse.snapshot_map import KINDS, memory_map
from moexray.analyse.snapshot_stuck import stuck_line
from moexray.analyse.thin import extremes
from moexray.core.sizes import human_bytes as size
from moexray.diagnose.memory.snapshot_words import by_subject, place

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moexray.core.run import Run

__all__ = ["ledger", "maps", "series"]

MAX_POINTS = 2000  # of one chart; extremes of each line are kept
LEAST_EVENTS = 3  # fewer make no line
MAX_LINES = 8  # ranks drawn


def ledger(run: Run) -> list[dict[str, Any]]:
    """Bytes of each device by owner, from the last snapshot of it; nothing where an OOM record says it.

    `of` keeps these rows apart from those of nvidia-smi, which hold the same bytes at another time.
    """
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
                    "device": shot.device, "rank": shot.rank, "owner": owner, "bytes": held,
                    "source": shot.source, "where": f"device {shot.device}", "note": note,
                    "of": "PyTorch's pools in its snapshot",
                }
                for owner, held, note in rows
                if held
            ]  # fmt: skip
    return out


def series(run: Run) -> list[dict[str, Any]]:
    """Reserved, live and stuck bytes over the history, rebuilt backwards from the end state."""
    out = []
    for group in by_subject(shots(run))[:MAX_LINES]:
        shot = max(group, key=lambda s: s.info["events"] or 0)
        line = None if shot.info["broken_off"] else timeline(shot)
        if line is None or len(line.active) < LEAST_EVENTS:
            continue
        lines = {"live (requested bytes)": line.active[1:]}
        if (stuck := stuck_line(shot)) is not None:
            lines["stuck"] = stuck
        x = np.arange(1.0, len(line.active)) if line.time_ns is None else line.time_ns / 1e9
        out.append(_lines(shot, x, line.reserved[1:], lines, timed=line.time_ns is not None))
    return out


def _lines(
    shot: Shot, x: NDArray[Any], reserved: NDArray[Any], more: dict[str, NDArray[Any]], *, timed: bool
) -> dict[str, Any]:
    share = MAX_POINTS // (1 + len(more))
    kept = sorted({row for y in (reserved, *more.values()) for row in extremes(y, share)})
    thinned = f" ({len(kept)} of {len(x)} points)" if len(kept) < len(x) else ""
    return {
        "name": f"PyTorch memory, {place(shot)}",
        "label": "reserved",
        "unit": "bytes",
        "x_unit": "s" if timed else "step",
        "x": x[kept].tolist(),
        "y": reserved[kept].tolist(),
        "also": [{"label": label, "y": y[kept].tolist()} for label, y in more.items()],
        "source": shot.source + thinned,
        "marks": [
            {"x": float(x[y.argmax()]), "text": f"most {name}: {size(int(y.max()))}", "finding": ""}
            for name, y in (("reserved", reserved), *more.items())
            if y.min() < y.max()
        ],
    }


def maps(run: Run) -> list[dict[str, Any]]:
    """The memory map of each device, from the last snapshot of it."""
    out = []
    for group in by_subject(shots(run))[:MAX_LINES]:
        shot = group[-1]
        found, s = memory_map(shot), shot.segments
        if not len(found.segments):
            continue
        pool_names = {code: _pool_word(shot.pool_ids[code]) for code in set(s["pool"].tolist())}
        out.append(
            {
                "name": place(shot),
                "source": shot.source,
                "rank": shot.rank,
                "device": shot.device,
                "segments_total": len(s["address"]),
                "total_bytes": int(s["total_bytes"].sum()),
                "blocks": found.blocks,
                "merged_below_bytes": found.merged_below,
                "kinds": list(KINDS),
                "sites": [
                    {"site": site or "no stack", "bytes": held}
                    for site, held in zip(found.sites, found.site_bytes, strict=True)
                ],
                "segments": [
                    {
                        "address": int(s["address"][i]),
                        "pool": pool_names[int(s["pool"][i])],
                        "stream": int(s["stream"][i]),
                        "kind": "small" if s["is_small"][i] else "large",
                        "bytes": int(s["total_bytes"][i]),
                        "active_bytes": int(s["live"][i]),
                        "free_bytes": int(s["free"][i]),
                        "largest_free_bytes": int(s["largest_free"][i]),
                        "stuck_bytes": int(s["stuck"][i]),
                        "live_blocks": int(s["live_blocks"][i]),
                        "held_by": held,
                    }
                    for i, held in zip(found.segments.tolist(), found.held_by, strict=True)
                ],
                "runs": np.stack(
                    [found.run_segment, found.run_bytes, found.run_kind, found.run_site], axis=1
                ).tolist(),
            }
        )
    return out


def _pool_word(id: tuple[int, int] | None) -> str:
    return "default" if id in (None, (0, 0)) else f"private {id}"
