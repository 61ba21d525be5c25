"""What the lab's engine leaves behind, as a real one would: the folder that `moexray diagnose` is given."""

from __future__ import annotations

import json
import pickle
import time
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from moexray.verify.lab.cluster import Measured
    from moexray.verify.lab.pressure import Pressure

__all__ = ["WINDOW", "snapshot", "write_memory", "write_rest"]

Frames = list[dict[str, Any]]

BASE = 0x7F00_0000_0000  # where the arena seems to lie: an address would tell nothing
WINDOW = 4  # steps in a row of the expert counts
KV = [{"filename": "kv_cache.py", "line": 1, "name": "new_sequence"}]  # what lives when a request fails


def write_memory(folder: Path, rank: int, pressure: Pressure) -> None:
    """Writes the arena of a rank in the format of PyTorch's allocator: a snapshot and its counters.

    The snapshot is that of the last request that no hole served (else of the end), its history leads there.
    """
    (folder / "memory").mkdir(parents=True, exist_ok=True)
    blocks, upto = pressure.failed or (pressure.blocks(), len(pressure.events))
    capacity = pressure.arena.capacity
    used = sum(size for _, size in blocks)
    tiles = [(at, size, KV) for at, size in blocks]
    document = snapshot(capacity, "first-fit", tiles, pressure.events[:upto], pressure.began_ns)
    (folder / "memory" / f"snapshot_rank{rank}.pickle").write_bytes(pickle.dumps(document, protocol=4))
    figures = pressure.arena.figures()
    stats = {
        "allocated_bytes.all.current": used, "allocated_bytes.all.peak": figures.peak_bytes,
        "reserved_bytes.all.current": capacity, "reserved_bytes.all.peak": capacity,
        "num_alloc_retries": len(pressure.compactions), "num_ooms": 0, "segment.all.current": 1,
    }  # fmt: skip
    (folder / "memory" / f"memory_stats_rank{rank}.json").write_text(json.dumps(stats, indent=1) + "\n")
    lines = "".join(
        f"{_stamp(c.time_ns)} WARNING [arena.py] rank {rank}: no hole for {c.request_bytes} bytes "
        f"({c.free_bytes} free, largest hole {c.largest_free_bytes}); moved {c.moved_bytes} bytes in "
        f"{c.took_ns / 1e6:.1f} ms\n"
        for c in pressure.compactions
    )
    (folder / "logs").mkdir(exist_ok=True)
    ready = f"{_stamp(pressure.began_ns)} INFO [engine.py] rank {rank}: ready, an arena of {capacity} bytes\n"
    (folder / "logs" / f"engine_rank{rank}.log").write_text(ready + lines)


def snapshot(
    capacity: int, policy: str, blocks: list[tuple[int, int, Frames]],
    events: list[tuple[int, str, int, int]], began_ns: int,
) -> dict[str, Any]:  # fmt: skip
    """An arena as PyTorch's allocator would write it.

    Args:
        capacity: Bytes.
        policy: Its name.
        blocks: (offset, bytes, call stack) of what is given, by offset.
        events: (time_ns, action, offset, bytes); actions "alloc", "free", "oom".
        began_ns: When it was taken.
    """
    taken = {"action": "segment_alloc", "addr": BASE, "size": capacity, "stream": 0,
             "time_us": began_ns // 1000, "frames": []}  # fmt: skip
    return {
        "segments": [_segment(blocks, capacity)],
        "device_traces": [[taken, *(entry for event in events for entry in _entries(event))]],
        "allocator_settings": {"allocator": "moexray.runtime.arena", "policy": policy,
                               "expandable_segments": False},
    }  # fmt: skip


def _segment(blocks: list[tuple[int, int, Frames]], capacity: int) -> dict[str, Any]:
    tiles: list[dict[str, Any]] = []
    at = 0
    for offset, size, frames in [*blocks, (capacity, 0, [])]:
        if offset > at:
            tiles.append(_tile(at, offset - at, "inactive", []))
        if size:
            tiles.append(_tile(offset, size, "active_allocated", frames))
        at = offset + size
    used = sum(size for _, size, _ in blocks)
    return {
        "device": 0, "address": BASE, "total_size": capacity, "allocated_size": used, "active_size": used,
        "requested_size": used, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
        "is_expandable": False, "frames": [], "blocks": tiles,
    }  # fmt: skip


def _tile(offset: int, size: int, state: str, frames: Frames) -> dict[str, Any]:
    return {"address": BASE + offset, "size": size, "requested_size": size, "state": state, "frames": frames}


def _entries(event: tuple[int, str, int, int]) -> list[dict[str, Any]]:
    when, action, offset, size = event
    entry = {"addr": BASE + offset, "size": size, "stream": 0, "time_us": when // 1000, "frames": []}
    if action == "oom":
        return [{"action": "oom", "device_free": 0, "size": size, "stream": 0, "time_us": when // 1000,
                 "frames": []}]  # fmt: skip
    if action == "alloc":
        return [{"action": "alloc", **entry}]
    return [{"action": "free_requested", **entry}, {"action": "free_completed", **entry}]


def write_rest(folder: Path, measured: Measured, slots: np.ndarray, ranks: int, first: int = 0) -> None:
    """Writes expert counts, latencies, a scrape and the manifest.

    Args:
        folder: Of the bundle; traces and memory are there.
        measured: Of the recorded steps.
        slots: int64 [layers, experts], the placement in force.
        ranks: EP ranks.
        first: Number of the first step.
    """
    for name in ("routing", "latency", "metrics"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    many = len(measured) // WINDOW
    shape = measured.counts.shape[1:]
    counts = measured.counts[: many * WINDOW].reshape(many, WINDOW, *shape).sum(axis=1).astype(np.int32)
    np.savez_compressed(
        folder / "routing" / "expert_counts.npz", logical_count=counts,
        steps=first + (np.arange(many) + 1) * WINDOW - 1, ep_size=ranks, physical_to_logical_map=slots,
    )  # fmt: skip
    zero = int(measured.begin_ns[0])
    rows = [
        f"r{first + i:05d},{(begin - zero) / 1e9:.6f},{latency * 1e3:.3f},{latency * 1e3:.3f},1,ok"
        for i, (begin, latency) in enumerate(
            zip(measured.begin_ns.tolist(), measured.latency_s.tolist(), strict=True)
        )
    ]
    head = "request_id,arrival_s,ttft_ms,e2e_ms,output_tokens,status"
    (folder / "latency" / "requests.csv").write_text("\n".join((head, *rows)) + "\n")
    if not any((folder / "metrics").iterdir()):  # the engine had no page of its own
        (folder / "metrics" / "metrics.prom").write_text(_metrics(measured))
    files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    manifest = {
        "schema": "moexray.bundle/1", "made_by": "moexray lab run", "ranks": ranks, "files": files,
        "clocks": {"traces": "epoch", "memory": "epoch", "logs": "UTC", "latency": "relative"},
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def _metrics(measured: Measured) -> str:
    """Totals of the recorded steps as a scrape."""
    lines = []
    totals = {
        "lab_requests_total": len(measured),
        "lab_step_seconds_sum": float(measured.wall_s.sum()),
        "lab_step_seconds_count": len(measured),
    }
    for name, value in totals.items():
        lines += [f"# TYPE {name} counter", f"{name} {value:g}"]
    return "\n".join(lines) + "\n"


def _stamp(time_ns: int) -> str:
    part = time_ns % 1_000_000_000 // 1_000_000
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(time_ns / 1e9))}.{part:03d}"
