"""Memory findings from the history of allocator snapshots: churn and small blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.analyse.snapshot import Shot, shots
from moexray.analyse.snapshot_repeats import Repeat, repeats
from moexray.analyse.snapshot_sites import Zone, hot_zones
from moexray.core.finding import Evidence, Finding, pairs
from moexray.core.remedies import remedy
from moexray.core.sizes import human_bytes as size
from moexray.diagnose.memory.snapshot_words import by_subject, place, subject

if TYPE_CHECKING:
    from moexray.core.limits import Limits
    from moexray.core.limits.snapshot import SnapshotLimits
    from moexray.core.run import Run

__all__ = ["churn", "small_blocks"]

SHOWN = 6


def churn(run: Run, limits: Limits) -> list[Finding]:
    """mem.churn: a temporary of every step for which the allocator calls the device in steady state."""
    lim, out = limits.snapshot, []
    for group in by_subject(shots(run)):
        found = [(shot, _costly(shot, lim)) for shot in group]
        shot, guilty = max(found, key=lambda f: sum(r.device_allocs + r.device_frees for r in f[1]))
        if guilty:
            out.append(_churn(shot, guilty, lim))
    return out


def _costly(shot: Shot, lim: SnapshotLimits) -> list[Repeat]:
    if shot.info["broken_off"]:
        return []
    found = repeats(
        shot,
        least_ratio=lim.churn_step_ratio,
        least_steps=lim.churn_steps,
        warmup_ratio=lim.churn_warmup_ratio,
    )
    # Without marked steps a history that only grows may be a start-up: give-backs prove a steady state.
    return [
        r
        for r in found
        if r.device_steps >= max(2, lim.churn_device_ratio * r.late_steps)
        and (r.marked or r.device_frees >= lim.churn_device_ratio * r.late_steps)
    ]


def _churn(shot: Shot, guilty: list[Repeat], lim: SnapshotLimits) -> Finding:
    first = guilty[0]
    calls = sum(r.device_allocs + r.device_frees for r in guilty)
    buffer = sum(r.buffer_bytes for r in guilty)
    unit = "steps" if first.marked else "periods of its call site"
    more = f" ({len(guilty) - 1} more temporaries do the same)" if len(guilty) > 1 else ""
    return Finding(
        id="mem.churn",
        severity="warn",
        confidence=0.9 if first.marked else 0.75,
        claim=(
            f"{first.site or 'A call site without a stack'} allocates and frees {size(first.size_bytes)}"
            f" ({first.size_bytes:,} B) in {first.steps_with} of {first.steps} {unit} on {place(shot)},"
            f" and the allocator asks the device each time: {first.device_allocs} device mallocs and"
            f" {first.device_frees} frees after warm-up{more}. A buffer of {size(buffer)} that is kept would"
            f" save all {calls} calls."
        ),
        subject=subject(shot),
        value=first.steps_with / first.steps,
        limit=lim.churn_step_ratio,
        unit="ratio",
        evidence=tuple(
            Evidence(
                shot.source,
                f"history of {r.site or 'no stack'}",
                pairs(
                    {
                        "size_bytes": r.size_bytes,
                        "steps": r.steps,
                        "steps_with": r.steps_with,
                        "device_mallocs": r.device_allocs,
                        "device_frees": r.device_frees,
                        "steps_with_device_calls": r.device_steps,
                        "buffer_bytes": r.buffer_bytes,
                    }
                ),
            )
            for r in guilty[:SHOWN]
        ),
        remedies=(remedy("snapshot-pooled-buffer", site=first.site or "that site", bytes=f"{buffer:,}"),),
        cost=float(buffer),
    )


def small_blocks(run: Run, limits: Limits) -> list[Finding]:
    """mem.small_blocks: many tiny blocks that are rarely freed hold the segments with the stuck bytes."""
    lim, out = limits.snapshot, []
    for group in by_subject(shots(run)):
        found = [(shot, zones) for shot in group if (zones := _pinning_zones(shot, lim))]
        if found:
            shot, zones = max(found, key=lambda f: _held(f[0], f[1]))
            out.append(_small(shot, zones, lim))
    return out


def _pinning_zones(shot: Shot, lim: SnapshotLimits) -> list[Zone]:
    """All zones together if they pass the limits, else a single one that does, else none."""
    stuck = int(shot.segments["stuck"][shot.sound].sum())
    if stuck < lim.small_stuck_bytes or shot.info["broken_off"]:
        return []
    zones = hot_zones(shot, lim.small_request_bytes)
    for some in (zones, *([z] for z in zones[:SHOWN])):
        allocs, frees = sum(z.allocs for z in some), sum(z.frees for z in some)
        held = _held(shot, some)
        if (
            allocs >= lim.small_allocs
            and allocs > lim.small_alloc_free_ratio * frees
            and held >= max(lim.small_stuck_bytes, lim.small_stuck_ratio * stuck)
        ):
            return some
    return []


def _held(shot: Shot, zones: list[Zone]) -> int:
    """Stuck bytes in the segments that hold a live block of these zones."""
    rows = sorted({row for zone in zones for row in zone.segments})
    return int(shot.segments["stuck"][rows].sum())


def _small(shot: Shot, zones: list[Zone], lim: SnapshotLimits) -> Finding:
    allocs, frees = sum(z.allocs for z in zones), sum(z.frees for z in zones)
    stuck, held = int(shot.segments["stuck"][shot.sound].sum()), _held(shot, zones)
    ratio = f"{allocs / frees:.1f}:1" if frees else "none freed"
    segments = len({row for zone in zones for row in zone.segments})
    return Finding(
        id="mem.small_blocks",
        severity="info",
        confidence=0.8,
        claim=(
            f"Blocks below {lim.small_request_bytes} B were allocated {allocs} times and freed {frees} times"
            f" ({ratio}) on {place(shot)}; they pin {segments} segments that hold {size(held)} of the"
            f" {size(stuck)} stuck ({held / stuck:.0%}). Most come from {zones[0].site or 'no stack'}."
        ),
        subject=subject(shot),
        value=float(allocs / frees) if frees else float(allocs),
        limit=lim.small_alloc_free_ratio,
        unit="ratio",
        evidence=(
            Evidence(
                shot.source,
                f"device {shot.device}",
                pairs({"stuck_bytes": stuck, "held_bytes": held, "allocs": allocs, "frees": frees}),
            ),
            *(
                Evidence(
                    shot.source,
                    f"hot zone {z.site or 'without a stack'}",
                    pairs(
                        {
                            "allocs": z.allocs,
                            "frees": z.frees,
                            "mean_bytes": z.mean_bytes,
                            "live_blocks": z.live_blocks,
                            "stuck_bytes": z.stuck_bytes,
                            "fragmentation_index_ratio": z.stuck_bytes / stuck,
                        }
                    ),
                )
                for z in zones[:SHOWN]
            ),
        ),
        remedies=(remedy("snapshot-batch-small", site=zones[0].site or "that call site"),),
        cost=float(held),
    )
