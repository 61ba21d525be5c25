"""Which histories of a run can be replayed, made from its tables, and which cannot, and why.

Allocator snapshots give exact histories; `[memory]` events of a profile give streams (whatif/profiles.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from moexray.algorithms import conf
from moexray.algorithms.replay import Action, Check, Event, History, SegmentState
from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moexray.algorithms.blocks import Settings
    from moexray.core.run import Batch, Run

__all__ = ["MOST_EVENTS", "LeftOut", "Recording", "collect", "logged_capacity", "recordings", "total_memory"]

MOST_EVENTS = 1_500_000  # of all devices together: about 600 bytes each while they are replayed


@dataclass(frozen=True, slots=True)
class Recording:
    """One device's history of one file.

    Args:
        source: The file.
        device: Device index; -1 is the host (profile of a CPU run).
        rank: Rank, if known.
        history: What is replayed.
        conf: The allocator settings as recorded, "" if none were set.
        notes: What limits it, in words.
        kind: snapshot, cpu_profile, gpu_profile; only a snapshot can be checked against itself.
        free_at_oom: For each oom event the driver's free bytes; None where not written.
        version: Release of torch that the file points to, e.g. "2.8+"; None if unknown.
        stated_peak: Most bytes reserved as a profile states it; None if it does not.
        owner: Another allocator than PyTorch's, which made the history and wrote it in this format; else "".
    """

    source: str
    device: int
    rank: int | None
    history: History
    conf: str
    notes: tuple[str, ...] = ()
    kind: str = "snapshot"
    free_at_oom: tuple[int | None, ...] = ()
    version: str | None = None
    stated_peak: int | None = None
    owner: str = ""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A snapshot's device that cannot be replayed; with a check where its history contradicts itself."""

    source: str
    device: int
    reason: str
    check: Check | None = None


def collect(run: Run) -> tuple[list[Recording], list[LeftOut]]:
    """The histories of all snapshots of a run; of its profiles where it holds no snapshot."""
    from moexray.whatif.profiles import streams

    out: list[Recording] = []
    left: list[LeftOut] = []
    most = MOST_EVENTS // max(sum(1 for row in run.rows("snapshot") if row["events"]), 1)
    for row in run.rows("snapshot"):
        recording, reason = _recording(run, row, most)
        if recording is None:
            left.append(LeftOut(row["source"], row["device"], reason))
        else:
            out.append(recording)
    return (out, left) if run.rows("snapshot") else (streams(run), left)


def recordings(run: Run) -> list[Recording]:
    """The histories that can be replayed.

    Raises:
        UsageError: there is none; the message says what was missing.
    """
    found, left = collect(run)
    if not found:
        said = "; ".join(f"{x.source}, device {x.device}: {x.reason}" for x in left[:3])
        raise UsageError(
            "no history to replay",
            where=said or f"no allocator snapshot, no profile with memory events: {run.nothing_found()}",
            hint="record with torch.cuda.memory._record_memory_history(); see docs/capture.md",
        )
    return found


def total_memory(run: Run) -> int | None:
    """The largest card that the artefacts name, bytes: nvidia-smi, OOM messages, traces."""
    import numpy as np

    seen = [row["total_bytes"] for row in run.rows("oom") if row["total_bytes"]]
    for batch in run.batches("gpu"):
        if "total_bytes" in batch.columns:
            column = np.asarray(batch.columns["total_bytes"], dtype=float)
            seen += column[np.isfinite(column)].tolist()
    for batch in run.batches("trace"):
        for device in batch.attrs.get("devices") or ():
            size = device.get("totalGlobalMem") if isinstance(device, dict) else None
            seen += [size] if isinstance(size, int) else []
    return int(max(seen)) if seen else None


def logged_capacity(run: Run) -> int | None:
    """What PyTorch could have of a card by the out-of-memory messages of a run, bytes: held and free."""
    pairs = ((row["reserved_bytes"], row["free_bytes"]) for row in run.rows("oom"))
    return max((held + free for held, free in pairs if held and free is not None), default=None)


def _recording(run: Run, row: Mapping[str, Any], most: int) -> tuple[Recording | None, str]:
    """The last `most` events of one device of a snapshot, or why there is none."""
    events = _batch(run, "snapshot_events", row)
    found = () if events is None else _events(events, row["device"], most)
    if len(found) < 2:
        why = "it ran in state mode, which keeps one event" if found else "recording was never switched on"
        return None, f"it holds no allocation history ({why})"
    kinds = {e.action for e in found}
    if Action.ALLOC not in kinds and Action.FREE_COMPLETED not in kinds:
        return None, "its history holds no allocation and no free"
    if Action.FREE_REQUESTED in kinds and Action.FREE_COMPLETED not in kinds:
        return None, "its history was recorded without free_completed entries"
    written = row["settings"] or {}
    text = conf.recorded(written)
    try:
        settings, notes = conf.parse(text, strict=False)
        settings = _as_written(settings, written)
    except ValueError as reason:
        return None, f"its settings cannot be replayed ({reason})"
    total = total_memory(run)
    history = History(found, _segments(run, row), settings, va_bytes=total and total + total // 8)
    free = tuple(o.get("free_bytes") for o in row["ooms"] or ())
    if row["overflowed"]:
        notes = (*notes, "the ring of the recorder was full: the oldest events are missing")
    if (row["events"] or 0) > most:
        notes = (*notes, f"the history is long: only its last {most:,} events are replayed")
    if row["broken_off"]:
        notes = (*notes, "the file ends early: the last events are missing")
    known = (row["source"], row["device"], row["rank"], history, text, notes, "snapshot", free)
    return Recording(*known, version=row["version"], owner=str(written.get("allocator") or "")[:80]), ""


def _as_written(settings: Settings, written: Mapping[str, Any]) -> Settings:
    """The settings in force: what a program set at run time stands beside the text of the variable."""
    split, table = written.get("max_split_size"), written.get("roundup_power2_divisions")
    if isinstance(split, int) and not isinstance(split, bool):
        settings = replace(settings, max_split=split if split > 0 else None)
    if isinstance(table, dict) and len(table) == len(settings.roundup):
        values = [table.get(str(1 << i)) for i in range(len(settings.roundup))]
        if numbers := tuple(v for v in values if isinstance(v, int)):
            settings = replace(settings, roundup=numbers) if len(numbers) == len(values) else settings
    share = written.get("garbage_collection_threshold")
    if isinstance(share, float) and 0 <= share < 1:
        settings = replace(settings, gc_threshold=share)
    return replace(settings, expandable=settings.expandable or written.get("expandable_segments") is True)


def _batch(run: Run, table: str, row: Mapping[str, Any]) -> Batch | None:
    """The arrays of a table that belong to a row of `snapshot`."""
    same = (b for b in run.batches(table) if b.source == row["source"] and b.attrs["file"] == row["file"])
    return next(same, None)


def _events(batch: Batch, device: int, most: int) -> tuple[Event, ...]:
    import numpy as np

    columns, pools = batch.columns, batch.attrs.get("pools") or ()
    chosen = np.flatnonzero(np.asarray(columns["device"]) == device)[-most:]

    def take(name: str) -> list[int]:
        return np.asarray(columns[name])[chosen].tolist()  # type: ignore[no-any-return]

    numbers = take("pool") if "pool" in columns else [-1] * len(chosen)
    rows = zip(take("action"), take("address"), take("size_bytes"), take("stream"), numbers, strict=True)
    return tuple(Event(Action(a), at, n, s, _pool(pools, p)) for a, at, n, s, p in rows)


def _pool(pools: Any, index: int) -> tuple[int, int] | None:
    found = pools[index] if 0 <= index < len(pools) else None
    return tuple(found) if found is not None else None


def _segments(run: Run, row: Mapping[str, Any]) -> tuple[SegmentState, ...]:
    """The segments of one device at the end of the recording, with their blocks."""
    import numpy as np

    segments, blocks = _batch(run, "snapshot_segments", row), _batch(run, "snapshot_blocks", row)
    if segments is None or blocks is None:
        return ()
    inside: dict[int, list[tuple[int, int, int, bool]]] = {}
    names = ("segment", "address", "size_bytes", "requested_bytes", "state")
    columns = [np.asarray(blocks.columns[n]).tolist() for n in names]
    for owner, address, size, requested, state in zip(*columns, strict=True):
        inside.setdefault(owner, []).append((address, size, requested, state != 0))
    c, pools = segments.columns, segments.attrs.get("pools") or ()
    out = []
    for i in np.flatnonzero(np.asarray(c["device"]) == row["device"]).tolist():
        pool = _pool(pools, int(c["pool"][i])) if "pool" in c else None
        place = (int(c["address"][i]), int(c["total_bytes"][i]), int(c["stream"][i]), bool(c["is_small"][i]))
        parts = tuple(inside.get(i, ()))
        out.append(SegmentState(*place, pool or (0, 0), parts, expandable=bool(c["is_expandable"][i])))
    return tuple(out)
