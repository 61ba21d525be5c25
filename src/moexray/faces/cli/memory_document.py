"""The document `moexray.memory/1`: the figures of allocator snapshots as JSON, one row each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moexray.analyse.snapshot import figures, free_sizes, pools, servability
from moexray.analyse.snapshot_history import history
from moexray.analyse.snapshot_repeats import repeats
from moexray.analyse.snapshot_sites import hot_zones, owners

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moexray.analyse.snapshot import Figures, Pool, Shot
    from moexray.core.limits.snapshot import SnapshotLimits

__all__ = ["SCHEMA", "document", "place"]

SCHEMA = "moexray.memory/1"
SIZES = tuple(1 << power for power in range(9, 34))  # requests, 512 B to 8 GiB


def document(
    shots: Sequence[Shot], requests: Sequence[int], limits: SnapshotLimits, tensors: Mapping[str, Any]
) -> dict[str, Any]:
    """All figures of all devices; each row names its source, rank and device.

    Args:
        shots: Devices of snapshots.
        requests: Sizes in bytes for the servability; powers of two from 512 B to 8 GiB where empty.
        limits: Thresholds of the small-block filter and of churn.
        tensors: The parts of memory_tensors.rows.
    """
    sizes = tuple(sorted(set(requests))) or SIZES
    out: dict[str, Any] = {
        "schema": SCHEMA,
        "devices": [_device(shot) for shot in shots],
        "pools": [{**place(shot), **_pool(shot, p)} for shot in shots for p in pools(shot, by_stream=True)],
        "servability": [{**place(shot), **row} for shot in shots for row in _servability(shot, sizes)],
        "segments": [{**place(shot), **row} for shot in shots for row in _segments(shot)],
        "hot_zones": [{**place(shot), **row} for shot in shots for row in _zones(shot, limits)],
        "churn": [{**place(shot), **row} for shot in shots for row in _churn(shot, limits)],
        **tensors,
        "faults": [{**place(s), "where": where, "what": what} for s in shots for where, what in s.faults],
        "limits": {
            name: getattr(limits, name)
            for name in ("small_request_bytes", "small_alloc_free_ratio", "churn_steps", "churn_step_ratio")
        },
    }
    return out


def place(shot: Shot) -> dict[str, Any]:
    """What tells the rows of one device from those of others."""
    return {"source": shot.source, "rank": shot.rank, "device": shot.device}


def sizes_of(figures: Figures) -> dict[str, Any]:
    """The figures of some segments, in bytes and ratios."""
    return {
        "segments": figures.segments,
        "reserved_bytes": figures.reserved_bytes,
        "active_bytes": figures.active_bytes,
        "free_bytes": figures.free_bytes,
        "largest_free_bytes": figures.largest_free_bytes,
        "fragmentation_ratio": figures.ratio,
        "ratio_of_all": figures.ratio_of_all,
        "stuck_bytes": figures.stuck_bytes,
    }


def _device(shot: Shot) -> dict[str, Any]:
    past = history(shot)
    line = past.line
    return {
        **place(shot),
        **sizes_of(figures(shot, shot.sound)),
        "unsound_segments": int((~shot.sound).sum()),
        "version": shot.info["version"],
        "history": past.kind,
        "events": past.events,
        "peak_reserved_bytes": line.peak_reserved if line else None,
        "peak_live_bytes": line.peak_active if line else None,
    }


def _pool(shot: Shot, pool: Pool) -> dict[str, Any]:
    small = shot.segments["is_small"]
    return {
        "pool": None if pool.id is None else list(pool.id),
        "name": pool.name,
        "private": pool.private,
        "stream": pool.stream,
        **sizes_of(pool),
        "expandable_segments": int(shot.segments["is_expandable"][pool.rows].sum()),
        "small": sizes_of(figures(shot, pool.rows & small)),
        "large": sizes_of(figures(shot, pool.rows & ~small)),
    }


def _servability(shot: Shot, sizes: Sequence[int]) -> list[dict[str, Any]]:
    found = servability(free_sizes(shot, shot.sound), sizes)
    rows = zip(sizes, found, strict=True)
    return [{"size_bytes": size, "share": share, "count": count} for size, (share, count) in rows]


def _segments(shot: Shot) -> list[dict[str, Any]]:
    """Every segment, most stuck bytes first, with the call site that holds most of it."""
    s, blocks = shot.segments, shot.blocks
    largest: dict[int, tuple[int, int]] = {}
    live = blocks["state"] != 0
    for owner, size, stack in zip(
        blocks["segment"][live].tolist(), blocks["size_bytes"][live].tolist(), owners(shot)[live].tolist(),
        strict=True,
    ):  # fmt: skip
        if size > largest.get(owner, (-1, 0))[0]:
            largest[owner] = (size, stack)
    order = sorted(range(len(s["address"])), key=lambda i: (-int(s["stuck"][i]), -int(s["free"][i])))
    return [
        {
            "address": int(s["address"][i]),
            "pool": shot.pool_ids[s["pool"][i]],
            "stream": int(s["stream"][i]),
            "kind": "small" if s["is_small"][i] else "large",
            "expandable": bool(s["is_expandable"][i]),
            "total_bytes": int(s["total_bytes"][i]),
            "active_bytes": int(s["live"][i]),
            "free_bytes": int(s["free"][i]),
            "largest_free_bytes": int(s["largest_free"][i]),
            "stuck_bytes": int(s["stuck"][i]),
            "live_blocks": int(s["live_blocks"][i]),
            "largest_block_site": shot.sites[largest[i][1]] if i in largest else "",
            "sound": bool(shot.sound[i]),
        }
        for i in order
    ]


def _zones(shot: Shot, limits: SnapshotLimits) -> list[dict[str, Any]]:
    stuck = int(shot.segments["stuck"].sum())
    told = shot.events is not None
    small = {(z.site, z.operator): z for z in hot_zones(shot, limits.small_request_bytes)}
    rows = []
    for z in hot_zones(shot):
        tiny = small.get((z.site, z.operator))
        allocs, frees = (tiny.allocs, tiny.frees) if tiny else (0, 0)
        rows.append(
            {
                "site": z.site,
                "operator": z.operator or None,
                "stack": z.stack,
                "count": z.allocs if told else z.live_blocks,
                "allocs": z.allocs if told else None,
                "frees": z.frees if told else None,
                "mean_bytes": z.mean_bytes,
                "live_blocks": z.live_blocks,
                "live_bytes": z.live_bytes,
                "pinned_segments": len(z.segments),
                "stuck_bytes": z.stuck_bytes,
                "alone_bytes": z.alone_bytes,
                "fragmentation_index": z.stuck_bytes / stuck if stuck else 0.0,
                "small_allocs": allocs if told else None,
                "small_frees": frees if told else None,
                "small_blocks": allocs > 0 and allocs > limits.small_alloc_free_ratio * frees,
            }
        )
    return rows


def _churn(shot: Shot, limits: SnapshotLimits) -> list[Mapping[str, Any]]:
    if shot.info["broken_off"]:
        return []
    found = repeats(
        shot,
        least_ratio=limits.churn_step_ratio,
        least_steps=limits.churn_steps,
        warmup_ratio=limits.churn_warmup_ratio,
        paid_only=False,
    )
    return [
        {
            "site": r.site,
            "size_bytes": r.size_bytes,
            "marked_by": r.marked_by or None,
            "steps": r.steps,
            "steps_with": r.steps_with,
            "allocs": r.allocs,
            "frees": r.frees,
            "calls_saved": r.calls_saved,
            "bytes_saved": r.bytes_saved,
            "buffer_bytes": r.buffer_bytes,
            "together": r.together,
            "device_allocs": r.device_allocs,
            "device_frees": r.device_frees,
            "device_steps": r.device_steps,
        }
        for r in found
    ]
