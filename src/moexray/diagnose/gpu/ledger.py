"""Exhibits of devices: the ledger of who holds the memory, and memory and utilisation over time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from moexray.analyse.gpu import devices, processes_of
from moexray.analyse.thin import extremes
from moexray.diagnose.memory.pairs import shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.analyse.gpu import Device
    from moexray.core.run import Row, Run
    from moexray.diagnose.memory.pairs import Share

__all__ = ["ledger", "series"]

MAX_DEVICES = 64
MAX_SERIES = 32
MAX_POINTS = 2000  # of one series
LEAST_POINTS = 4
COLUMNS = (
    ("used_bytes", "memory in use", "bytes"),
    ("util_ratio", "utilisation", "ratio"),
    ("sm_mhz", "SM clock", "MHz"),
)


def ledger(run: Run) -> list[dict[str, Any]]:
    """One row per owner and device, from nvidia-smi and allocator statistics; they add up to the total.

    Devices of an out-of-memory record are left to the ledger of that record. Rows: device, rank, owner,
    bytes, source, where, note.
    """
    failed = {r["device"] for r in run.rows("oom") if r["kind"] == "record"}
    found = [d for d in devices(run) if d.last("used_bytes") is not None]
    split = {id(s.pair.device): s for s in shares(run, found)}
    rows: list[dict[str, Any]] = []
    told: set[tuple[int | None, int | None]] = set()
    for d in [*(d for d in found if id(d) in split), *(d for d in found if id(d) not in split)][:MAX_DEVICES]:
        s = split.get(id(d))
        rank = s.pair.stats[-1]["rank"] if s else None
        if d.device in failed or (rank, d.device) in told or (s is None and _told(d, told, split)):
            continue
        told.add((rank, d.device))
        rows += _of_device(d, s, processes_of(run, d), rank)
    return rows


def _told(d: Device, told: set[tuple[int | None, int | None]], split: dict[int, Share]) -> bool:
    """Another file has told of this device already, with statistics beside it."""
    one_host = len({s.pair.device.source for s in split.values()}) == 1
    return one_host and d.device in {device for _, device in told}


def _of_device(d: Device, s: Share | None, listed: Sequence[Row], rank: int | None) -> list[dict[str, Any]]:
    used = d.last("used_bytes") or 0.0
    total, reserved, free = d.last("total_bytes"), d.last("reserved_bytes"), d.last("free_bytes")
    where = d.where(len(d) - 1)
    smi = (d.source, where)
    owners: list[tuple[str, float, tuple[str, str], str]] = []
    if s is not None:
        row = s.pair.stats[-1]
        place = (row["source"], row["where"])
        note = "" if s.pair.sure else "paired with the device by order: check it"
        if s.cached is not None and s.allocated is not None:
            owners.append(("torch allocated", s.allocated, place, note))
            owners.append(("torch cached", s.cached, place, "reserved but unallocated"))
        else:
            owners.append(("torch reserved", s.reserved, place, note))
        if s.non_torch > 0:
            note = "in use - reserved" + (" - other processes" if s.others else "")
            owners.append(("non-torch", s.non_torch, smi, note))
        owners += [_process(p) for p in s.others[:8]]
    elif listed:
        owners += [_process(p) for p in sorted(listed, key=lambda p: -p["used_bytes"])[:8]]
        left = used - sum(p["used_bytes"] for p in listed)
        if left > 0:
            owners.append(("unknown", left, smi, "in use - listed processes"))
    else:
        owners.append(("in use", used, smi, "nvidia-smi does not say by whom"))
    if reserved:
        owners.append(("driver reserved", reserved, smi, ""))
    if total is not None and free is None:
        free = max(total - used - (reserved or 0), 0)
        owners.append(("free", free, smi, "total - used" + (" - reserved" if reserved else "")))
    elif free is not None:
        owners.append(("free", free, smi, "in sum: nvidia-smi cannot show its largest piece"))
        if total is not None and not reserved and total - used - free > 0:
            owners.append(("driver reserved", total - used - free, smi, "total - used - free"))
    return [
        {"device": d.device, "rank": rank, "owner": owner, "bytes": int(size), "source": source, "where": at,
         "note": note}
        for owner, size, (source, at), note in owners
    ]  # fmt: skip


def _process(p: Row) -> tuple[str, float, tuple[str, str], str]:
    return f"process {p['pid']}", float(p["used_bytes"]), (p["source"], p["where"]), p["name"] or ""


def series(run: Run) -> list[dict[str, Any]]:
    """Memory in use, utilisation and clock of each device over time; long ones thinned, extremes kept."""
    out: list[dict[str, Any]] = []
    for d in devices(run):
        times = d.numbers["t_s"]
        if len(d) < LEAST_POINTS:
            continue
        timed = not any(math.isnan(t) for t in times)
        for column, name, unit in COLUMNS:
            values = d.numbers[column]
            points = [(times[i] if timed else float(i), v) for i, v in enumerate(values) if not math.isnan(v)]
            if len(points) < LEAST_POINTS or len(out) >= MAX_SERIES:
                continue
            kept = [points[i] for i in extremes([y for _, y in points], MAX_POINTS)]
            out.append(
                {
                    "name": f"{name}, {d.label}",
                    "unit": unit,
                    "x_unit": "s" if timed else "step",
                    "x": [x for x, _ in kept],
                    "y": [y for _, y in kept],
                    "source": d.source,
                    "where": f"{len(points)} samples",
                    "marks": [],
                }
            )
    return [*out, *_reserved(run)[: MAX_SERIES - len(out)]]


def _reserved(run: Run) -> list[dict[str, Any]]:
    """Reserved and allocated memory of PyTorch over time."""
    groups: dict[tuple[Any, Any, str], list[tuple[float, float]]] = {}
    sources: dict[tuple[Any, Any, str], str] = {}
    for row in run.rows("memory_stats"):
        for name in ("reserved", "allocated"):
            value = row[f"{name}_bytes"]
            if row["t_s"] is not None and value is not None:
                key = (row["rank"], row["device"], name)
                groups.setdefault(key, []).append((row["t_s"], float(value)))
                sources.setdefault(key, row["source"])
    out = []
    for (rank, device, name), points in groups.items():
        if len(points) < LEAST_POINTS:
            continue
        points.sort()
        kept = [points[i] for i in extremes([y for _, y in points], MAX_POINTS)]
        place = "".join(f", {n} {v}" for n, v in (("rank", rank), ("device", device)) if v is not None)
        out.append(
            {
                "name": f"torch {name}{place}",
                "unit": "bytes",
                "x_unit": "s",
                "x": [x for x, _ in kept],
                "y": [y for _, y in kept],
                "source": sources[rank, device, name],
                "where": f"{len(points)} samples",
                "marks": [],
            }
        )
    return out
