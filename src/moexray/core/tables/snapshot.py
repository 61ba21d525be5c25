"""Tables about allocator snapshots of PyTorch: segments, blocks, the event history, call stacks.

Glossary: a *segment* is one device allocation, a *block* a piece of it; *inactive* blocks are free
inside PyTorch; a *pool* is (0, 0) for the default one, else a private one (CUDA graph, MemPool).
The array tables have one batch a file, with attrs `file` (joins the batches of one file), `rank` and
`pools`; a column that a schema version lacks is left out.
"""

from __future__ import annotations

from moexray.core.schema import Column, Table

__all__ = [
    "ACTIONS",
    "ANNOTATIONS",
    "BLOCKS",
    "EVENTS",
    "SEGMENTS",
    "SNAPSHOT",
    "STACKS",
    "STATES",
    "TABLES",
]

# Codes of the columns `action` and `state`: the position in the tuple. The last one is unknown.
ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "unknown",
)
STATES = ("inactive", "active_allocated", "active_pending_free", "unknown")

SNAPSHOT = Table(
    "snapshot",
    "One row for each device of an allocator snapshot: what the file is and how far its history goes.",
    (
        Column("file", "str", "", "Joins the batches of one file: their attrs['file']."),
        Column("rank", "int", "", "Rank, from the content or from the name of the dump."),
        Column("device", "int", "", "Device index."),
        Column("version", "str", "", "Release of torch that its keys point to (a guess), e.g. 2.5+."),
        Column("segments", "int", "", "Segments of this device; null where the file lists none at all."),
        Column("events", "int", "", "Events of its history; null where the file has no place for one."),
        Column("overflowed", "bool", "", "The history has wrapped; null where the file has no such flag."),
        Column("max_entries", "int", "", "Length of the ring, where written."),
        Column("broken_off", "bool", "", "The file ends early: the last events are missing."),
        Column("settings", "object", "", "allocator_settings as written; null in old files."),
        Column("ooms", "object", "", "oom events: list of {time_ns, request_bytes, free_bytes}."),
        Column("faults", "object", "", "Values that cannot be: list of (place, what)."),
    ),
)

SEGMENTS = Table(
    "snapshot_segments",
    "Segments at the end of the recording.",
    (
        Column("device", "int", "", "Device index."),
        Column("address", "int", "", "First byte."),
        Column("total_bytes", "int", "bytes", "Size of the device allocation."),
        Column("active_bytes", "int", "bytes", "active_size as written; -1 where it is missing."),
        Column("stream", "int", "", "Stream handle, 0 is the default stream."),
        Column("is_small", "bool", "", "From the pool of requests up to 1 MiB."),
        Column("is_expandable", "bool", "", "A mapped run of an expandable segment."),
        Column("pool", "int", "", "Index into attrs['pools'], a tuple of (a, b) or None (not written)."),
        Column("stack", "int", "", "Who allocated it; row of snapshot_stacks."),
    ),
)

BLOCKS = Table(
    "snapshot_blocks",
    "Blocks of the segments, in address order.",
    (
        Column("segment", "int", "", "Row of snapshot_segments."),
        Column("address", "int", "", "First byte; summed up where the schema has no addresses."),
        Column("size_bytes", "int", "bytes", "Rounded size."),
        Column("requested_bytes", "int", "bytes", "Requested size; stale for free blocks; size if missing."),
        Column("state", "int", "", "Position in core.tables.snapshot.STATES."),
        Column("stack", "int", "", "Who allocated it; row of snapshot_stacks."),
    ),
)

EVENTS = Table(
    "snapshot_events",
    "The allocator's history, oldest first for each device.",
    (
        Column("device", "int", "", "Device index."),
        Column("action", "int", "", "Position in core.tables.snapshot.ACTIONS."),
        Column("address", "int", "", "Block or segment; 0 where the action has none."),
        Column("size_bytes", "int", "bytes", "Requested size (alloc, free) or segment size."),
        Column("stream", "int", "", "Stream handle."),
        Column("time_ns", "int", "ns", "Epoch time; left out by old schemas."),
        Column("pool", "int", "", "Index into attrs['pools']; left out by all but the newest schema."),
        Column("stack", "int", "", "Row of snapshot_stacks."),
        Column("note", "int", "", "Index into attrs['notes']: metadata that names a layer, step, ..."),
    ),
)

STACKS = Table(
    "snapshot_stacks",
    "Distinct call stacks; row 0 is the empty one.",
    (
        Column("site", "str", "", "The innermost frame of the user's own code: file:line function."),
        Column("text", "str", "", "The innermost Python frames, joined by ' < '."),
        Column("scopes", "str", "", "Frames that name a layer, expert, router or token, joined by ' < '."),
        Column("operator", "str", "", "Operator that Python called, aten::mm; empty without native frames."),
    ),
)

ANNOTATIONS = Table(
    "snapshot_annotations",
    "Ranges that the program marked (record_function, ProfilerStep), start and end joined.",
    (
        Column("device", "int", "", "Device index."),
        Column("name", "str", "", "As written."),
        Column("start_ns", "int", "ns", "Epoch time of the start."),
        Column("end_ns", "int", "ns", "Epoch time of the end."),
    ),
)

TABLES = (SNAPSHOT, SEGMENTS, BLOCKS, EVENTS, STACKS, ANNOTATIONS)
