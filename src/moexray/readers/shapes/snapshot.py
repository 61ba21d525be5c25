"""Allocator snapshots of PyTorch: the dict of `_dump_snapshot`, or the bare list of segments.

The same layout comes from pickle (tuples) and from JSON (lists). All versions: keys that one lacks
leave their column out, values that cannot be are named in the column `faults` and cost their segment
only. Nothing is judged here.
"""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moexray.core.errors import LimitError
from moexray.core.rank_name import rank_in_name
from moexray.core.tables.snapshot import STATES
from moexray.readers.shapes.snapshot_events import MAX_INT, Pools, Stacks, fill_events, marked_ranges, whole
from moexray.readers.shapes.snapshot_tape import TapeSegments, TapeTrace, top_of

if TYPE_CHECKING:
    from moexray.core.run import Reading
    from moexray.core.source import Source
    from moexray.readers.safe_pickle_tape import Tape

__all__ = ["from_tape", "is_snapshot", "shape"]

MAX_RECORDS = 8_000_000  # segments, blocks and events of one file: about 60 bytes each as columns
MAX_FAULTS = 200
LOOKED_AT = 16  # segments, to know the shape
BLOCK_COLUMNS = ("segment", "address", "size_bytes", "requested_bytes", "state", "stack")
DEVICE_KEYS = ("device", "address", "total_size", "blocks")
STATE_CODES = {name: code for code, name in enumerate(STATES)} | {"active_awaiting_free": 2}


@dataclass(slots=True)
class _Columns:
    """Segments and blocks as they are gathered, and what was wrong with them."""

    segments: list[tuple[int, ...]] = field(default_factory=list)
    blocks: array[int] = field(default_factory=lambda: array("q"))  # BLOCK_COLUMNS of one after the other
    faults: list[tuple[int, str, str]] = field(default_factory=list)

    def fault(self, device: int, where: str, what: str) -> None:
        if len(self.faults) < MAX_FAULTS:
            self.faults.append((device, where, what))


def is_snapshot(document: Any) -> bool:
    """A dict with a list of segments or with a history, or a list of segments; an empty list is none."""
    segments = document.get("segments", []) if isinstance(document, dict) else document
    if not isinstance(segments, list):
        return False
    if not segments:
        return isinstance(document, dict) and isinstance(document.get("device_traces"), list)
    # a damaged one among them costs itself only
    return any(isinstance(s, dict) and "total_size" in s and _has_shape(s) for s in segments[:LOOKED_AT])


def _has_shape(segment: dict[str, Any]) -> bool:
    """Blocks, or at least the keys that only a segment has."""
    return isinstance(segment.get("blocks"), list) or ("address" in segment and "segment_type" in segment)


def shape(document: Any, source: Source, out: Reading) -> bool:
    """Fills the snapshot tables; see core/tables/snapshot.py."""
    if not is_snapshot(document):
        return False
    _fill(document if isinstance(document, dict) else {"segments": document}, source, out)
    return True


def from_tape(tape: Tape, source: Source, out: Reading) -> bool:
    """The same for a large pickle: its history stays on the tape until it is columns."""
    top = top_of(tape)
    if top is None:
        return False
    first = top.get("segments", [])
    first = first[:LOOKED_AT] if isinstance(first, TapeSegments) else first
    if not is_snapshot({**top, "segments": first, "device_traces": []}):
        return False
    _fill(top, source, out)
    return True


def _fill(top: dict[str, Any], source: Source, out: Reading) -> None:
    """Fills the snapshot tables from the top-level dict."""
    traces = top.get("device_traces")
    if isinstance(traces, list):
        traces = [t if isinstance(t, (list, TapeTrace)) else [] for t in traces]
    else:
        traces = None
    stacks, pools, columns = Stacks(), Pools(), _Columns()
    events = sum(map(len, traces or []))
    for index, segment in enumerate(top.get("segments", [])):
        _segment(segment, index, columns, stacks, pools)
        _check_size(events + index + len(columns.blocks) // len(BLOCK_COLUMNS))
    _check_size(events)
    if "segments" not in top:
        out.notes.append("it holds no segments: its history was read, the end state is unknown")
    rank = _rank(top, source)
    attrs: dict[str, Any] = {"source": source.path, "file": _digest(source), "rank": rank}
    marks = marked_ranges(top.get("external_annotations"))
    ooms, bad_events = fill_events(traces or [], out, stacks, pools, attrs)
    for device, what in bad_events:
        columns.fault(device, f"history of device {device}", what)
    _add_end_state(columns, pools, out, attrs)
    if marks is not None and len(marks["name"]):
        out.add_columns("snapshot_annotations", marks, rows=0, **attrs)
    out.add_columns("snapshot_stacks", stacks.columns(), rows=0, **attrs)
    _devices(top, traces, columns, ooms, out, source, attrs)


def _digest(source: Source) -> str:
    """Tells files of the same name apart."""
    data = source.data()
    mark = hashlib.blake2s(source.path.encode("utf-8", "replace"), digest_size=8)
    for piece in (str(len(data)).encode(), data[:65_536], data[-65_536:]):
        mark.update(piece)
    return mark.hexdigest()


def _check_size(records: int) -> None:
    if records > MAX_RECORDS:
        raise LimitError(
            f"the snapshot holds more than {MAX_RECORDS:,} records",
            hint="record with a smaller max_entries",
        )


def _segment(segment: Any, index: int, columns: _Columns, stacks: Stacks, pools: Pools) -> None:
    blocks = segment.get("blocks", []) if isinstance(segment, dict) else None
    if not isinstance(blocks, list):
        columns.fault(0, f"segment {index}", "is no segment")
        return
    device, address, total = (whole(segment.get(k)) for k in DEVICE_KEYS[:3])
    device = 0 if device is None else device
    if total is None or total < 0:
        columns.fault(device, f"segment {index}", f"total_size is {segment.get('total_size')!r:.40}")
        return
    row = len(columns.segments)
    here = address or 0
    sound = _blocks(blocks, (row, index, device, here), columns, stacks)
    active = whole(segment.get("active_size"))
    columns.segments.append(
        (
            device,
            here,
            total,
            -1 if active is None else active,
            whole(segment.get("stream")) or 0,
            segment.get("segment_type") == "small",
            segment.get("is_expandable") is True,
            pools.code(segment.get("segment_pool_id")),
            stacks.code(segment.get("frames")),
        )
    )
    if not sound or (active is not None and active < 0):
        columns.fault(device, f"segment at {here}", "holds a size below zero or no size at all")


def _blocks(
    blocks: list[Any], place: tuple[int, int, int, int], columns: _Columns, stacks: Stacks
) -> bool:
    """Adds the blocks of a segment; returns False where a size is missing or below zero."""
    row, index, device, address = place
    sound = True
    for block in blocks:
        size = whole(block.get("size")) if isinstance(block, dict) else None
        if size is None:
            sound = False
            continue
        sound = sound and size >= 0
        state = STATE_CODES.get(block.get("state"), len(STATES) - 1) if _plain(block) else len(STATES) - 1
        if state == len(STATES) - 1:
            columns.fault(device, f"segment {index}", f"unknown block state {block.get('state')!r:.40}")
        frames, at, requested = block.get("frames"), whole(block.get("address")), block.get("requested_size")
        history = block.get("history")
        if isinstance(history, list) and history and isinstance(history[-1], dict):
            frames = history[-1].get("frames") if frames is None else frames
        address = address if at is None else at
        asked = whole(requested)
        asked = size if asked is None else asked
        columns.blocks.extend((row, address, size, asked, state, stacks.code(frames)))
        address = min(address + max(size, 0), MAX_INT)
    return sound


def _plain(block: dict[str, Any]) -> bool:
    return isinstance(block.get("state"), str)


def _add_end_state(columns: _Columns, pools: Pools, out: Reading, attrs: dict[str, Any]) -> None:
    import numpy as np

    names = ("device", "address", "total_bytes", "active_bytes", "stream", "is_small", "is_expandable",
             "pool", "stack")  # fmt: skip
    table = np.array(columns.segments, dtype=np.int64).reshape(-1, len(names))
    segments = {name: table[:, i].copy() for i, name in enumerate(names)}
    for name in ("is_small", "is_expandable"):
        segments[name] = segments[name].astype(bool)
    out.add_columns("snapshot_segments", segments, rows=len(table), pools=pools.seen(), **attrs)
    table = np.frombuffer(columns.blocks, dtype=np.int64).reshape(-1, len(BLOCK_COLUMNS))
    blocks = {name: table[:, i].copy() for i, name in enumerate(BLOCK_COLUMNS)}
    out.add_columns("snapshot_blocks", blocks, rows=0, **attrs)


def _devices(
    top: dict[str, Any], traces: list[Any] | None, columns: _Columns,
    ooms: list[dict[str, Any]], out: Reading, source: Source, attrs: dict[str, Any],
) -> None:  # fmt: skip
    """One row for each device that has a segment or an event."""
    held: dict[int, int] = {}
    for row in columns.segments:
        held[row[0]] = held.get(row[0], 0) + 1
    used = {device for device, trace in enumerate(traces or []) if len(trace)}
    settings = top.get("allocator_settings")
    broken = any(p.id in ("input.truncated", "input.gzip_damaged") for p in [*out.problems, *source.problems])
    for device in sorted(held.keys() | used | {d for d, *_ in columns.faults}) or [0]:
        trace = traces[device] if traces is not None and 0 <= device < len(traces) else []
        out.add(
            "snapshot",
            where=f"device {device}",
            file=attrs["file"],
            rank=attrs["rank"],
            device=device,
            version=_version(top, traces),
            segments=held.get(device, 0) if "segments" in top else None,
            events=None if traces is None else len(trace),
            overflowed=_per_device(top.get("trace_alloc_overflowed"), device, bool),
            max_entries=_per_device(top.get("trace_alloc_max_entries"), device, int),
            broken_off=broken,
            settings=settings if isinstance(settings, dict) else None,
            ooms=[o for o in ooms if o["device"] == device] or None,
            faults=[(where, what) for d, where, what in columns.faults if d == device] or None,
        )


def _per_device(value: Any, device: int, kind: type) -> Any:
    if isinstance(value, list):
        value = value[device] if 0 <= device < len(value) else None
    if kind is bool:
        return value if isinstance(value, bool) else None
    return whole(value)


def _rank(top: dict[str, Any], source: Source) -> int | None:
    """From the content first, then from the name."""
    for holder in (top, top.get("metadata"), top.get("distributed")):
        if isinstance(holder, dict) and (rank := whole(holder.get("rank"))) is not None and rank >= 0:
            return rank
    return rank_in_name(source.path)


def _version(top: dict[str, Any], traces: list[Any] | None) -> str | None:
    """The release that the keys point to; boundaries within one release are estimates."""
    heads = (event for trace in traces or [] for event in trace[:1])
    event: dict[str, Any] = next((e for e in heads if isinstance(e, dict)), {})
    first: dict[str, Any] = next((s for s in top.get("segments", []) if isinstance(s, dict)), {})
    if "pool_id" in event:
        return "2.12+"
    if "user_metadata" in event or "compile_context" in event:
        return "2.8+"
    if "external_annotations" in top:
        return "2.5+"
    if "allocator_settings" in top:
        return "2.3-2.4"
    if "time_us" in event:
        return "2.2"
    if "is_expandable" in first:
        return "2.1"
    if traces is not None:
        return "2.0"
    return "before 2.0" if "stream" not in first else None
