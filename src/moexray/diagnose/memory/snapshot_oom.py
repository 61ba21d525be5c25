"""Requests that failed, as the history of a snapshot tells them: records like those of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.analyse.snapshot import Shot, is_action, pools, shots
from moexray.analyse.snapshot_history import timeline
from moexray.core.finding import pairs
from moexray.core.tables.memory import OOM
from moexray.diagnose.memory.snapshot_words import expandable_is_on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moexray.core.run import Row, Run

__all__ = ["failed_requests"]

SHOWN = 8  # sizes of failed requests of one device, the newest ones
# What the allocator asks the device for. Source: c10 CUDACachingAllocator, get_allocation_size.
SMALL, SMALL_SEGMENT = 1 << 20, 2 << 20
MEDIUM, MEDIUM_SEGMENT = 10 << 20, 20 << 20
GRANULE = 2 << 20


def failed_requests(run: Run) -> list[Row]:
    """Rows as of the table `oom`, one per device and size, from the `oom` entries of snapshots.

    A failure that a message tells as well is left out: the message says more. Further keys:
    largest_free_bytes and stuck_bytes (null where the state of that moment is not the end state),
    expandable (the setting is on), allocator (its name in the settings, where it is not PyTorch's),
    survived (as large a request was served later).
    """
    told = [r for r in run.rows("oom") if r["kind"] == "record"]
    found = [row for shot in shots(run) for row in _of_shot(shot, run)]
    return [row for row in found if not any(_same(row, r) for r in told)]


def _same(row: Row, told: Row) -> bool:
    """A message prints what the device was asked for, to two decimals, and often no rank."""
    if told["request_bytes"] is None or any(
        told[k] is not None and row[k] is not None and told[k] != row[k] for k in ("rank", "device")
    ):
        return False
    rounding = (told["rounding"] or {}).get("request", 0.0) + GRANULE
    return bool(abs(told["request_bytes"] - row["request_bytes"]) <= rounding)


def _of_shot(shot: Shot, run: Run) -> Iterator[Row]:
    failed, events, line = shot.info["ooms"], shot.events, timeline(shot)
    if not failed or events is None or line is None:
        return
    at = np.flatnonzero(is_action(events, "oom"))
    served = np.where(is_action(events, "alloc"), events["size_bytes"], 0)
    best_later = np.maximum.accumulate(served[::-1])[::-1]
    changed = np.flatnonzero(~is_action(events, "oom", "snapshot", "unknown"))
    last_change = int(changed[-1]) if len(changed) else -1
    free = line.reserved - line.active
    held = int(shot.segments["free"].sum()) - int(free[-1])  # requests are not rounded, blocks are
    owner = (shot.info["settings"] or {}).get("allocator")  # not PyTorch's: it asks no device for segments
    newest = {entry["request_bytes"]: (int(i), entry) for i, entry in zip(at, failed, strict=False)}
    for size, (i, entry) in list(newest.items())[-SHOWN:]:
        if not size:
            continue
        fragments = int(free[i + 1]) + held
        values = {
            "request_bytes": size if owner else _asked(size),
            "free_bytes": entry["free_bytes"],
            "allocated_bytes": max(int(line.reserved[i + 1]) - fragments, 0),
            "reserved_bytes": int(line.reserved[i + 1]),
            "fragments_bytes": fragments,
        }
        yield {
            **{column.name: None for column in OOM.columns},
            **(values if fragments >= 0 else {k: values[k] for k in ("request_bytes", "free_bytes")}),
            **(_holes(shot, events, i) if last_change < i else {}),
            "source": shot.source,
            "where": f"device {shot.device}, event {i} of {len(served)}",
            "kind": "record",
            "t_s": None if entry["time_ns"] is None else entry["time_ns"] / 1e9,
            "rank": shot.rank,
            "device": shot.device,
            "repeats": sum(e["request_bytes"] == size for e in failed),
            "earlier": False,
            "text": pairs({"action": "oom", "size": size, "device_free": entry["free_bytes"]}),
            "expandable": expandable_is_on(run, shot),
            "allocator": str(owner)[:80] if owner else None,
            "survived": bool(best_later[i] >= size),
        }  # fmt: skip


def _asked(size: int) -> int:
    """Bytes of the segment that a request of this size needs."""
    if size <= SMALL:
        return SMALL_SEGMENT
    return MEDIUM_SEGMENT if size < MEDIUM else -(-size // GRANULE) * GRANULE


def _holes(shot: Shot, events: dict[str, Any], i: int) -> dict[str, int]:
    """The largest block that the request could have had, and what is stuck, at the end of the history."""
    code = int(events["pool"][i]) if "pool" in events else None
    mine = [
        p
        for p in pools(shot, by_stream=True)
        if p.stream == int(events["stream"][i])
        and (code is None or (p.id or (0, 0)) == (shot.pool_ids[code] or (0, 0)))
    ]
    return {
        "largest_free_bytes": max((p.largest_free_bytes for p in mine), default=0),
        "stuck_bytes": int(shot.segments["stuck"].sum()),
    }
