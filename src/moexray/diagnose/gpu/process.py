"""Which process of nvidia-smi's list is the one that a record or a statistic speaks of."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Row, Run

__all__ = ["own_process", "with_process"]

# What the driver keeps for itself beside a process. Source: as GpuLimits.driver_share_bytes.
DRIVER_BYTES = 1536 << 20


def own_process(listed: Sequence[Row], reserved: float) -> Row | None:
    """The process that holds `reserved` bytes of PyTorch: the smallest that is large enough."""
    large = [p for p in listed if p["used_bytes"] >= reserved]
    return min(large, key=lambda p: p["used_bytes"]) if large else None


def with_process(record: Row, run: Run) -> Row:
    """An out-of-memory record without a process clause, completed from nvidia-smi's list of processes.

    The process itself is the one that can hold what PyTorch reserved; it holds what the others and the
    free memory leave of the total, the driver's share included. Where that is far more than the list
    says, others are hidden from the list (containers), and the list's own number counts.
    """
    total, free = record["total_bytes"], record["free_bytes"]
    if record["process_bytes"] is not None or total is None or free is None:
        return record
    reserved = record["reserved_bytes"]
    if reserved is None:
        if record["allocated_bytes"] is None:
            return record
        reserved = record["allocated_bytes"] + (record["fragments_bytes"] or 0)
    rows = [p for p in run.rows("gpu_process") if p["used_bytes"] is not None and p["instance"] is None]
    places = {(p["source"], p["device"], p["key"]) for p in rows}
    mine = [p for p in rows if p["device"] == record["device"]] if len(places) > 1 else rows
    listed = list({p["pid"]: p for p in mine}.values())
    if not listed or len({p["source"] for p in listed}) > 1 or sum(p["used_bytes"] for p in listed) > total:
        return record
    own = own_process(listed, reserved)
    others = [{"pid": p["pid"], "bytes": p["used_bytes"]} for p in listed if p is not own]
    left = total - free - sum(o["bytes"] for o in others)
    process = left if own is None or left - own["used_bytes"] <= DRIVER_BYTES else own["used_bytes"]
    if process < reserved:
        return record
    return {**record, "process_bytes": process, "others": record["others"] or others}
