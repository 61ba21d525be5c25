"""The end state of an allocator snapshot: what is held, what is free, what is stuck.

Glossary: *free* bytes are inactive blocks; *stuck* bytes are free bytes that `empty_cache` cannot
give back, because their segment holds a live block (in an expandable segment whole free pages can be
unmapped, so only the rest counts); *live* blocks are allocated or wait for a stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.algorithms import conf
from moexray.core.pattern import lazy
from moexray.core.tables.snapshot import ACTIONS, STATES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from moexray.core.run import Row, Run

__all__ = [
    "Columns", "Figures", "Pool", "Shot", "faults", "figures", "free_sizes", "is_action", "pools",
    "segment_lists_blocks", "segment_state", "servability", "shots",
]  # fmt: skip

Columns = dict[str, "NDArray[Any]"]

INACTIVE, UNKNOWN_STATE = STATES.index("inactive"), len(STATES) - 1
SMALL_PAGE = 2 << 20  # bytes mapped at once in the small pool (c10 kSmallBuffer)
LARGE_PAGE = 20 << 20  # in the large pool (c10 kLargeBuffer)
LARGE_SEGMENT = lazy(r"large_segment_size_mb\s*:\s*(\d{1,6})")
SLACK = 512  # bytes; sizes that differ by rounding only


@dataclass(frozen=True, slots=True)
class Shot:
    """One device of one snapshot file.

    Args:
        info: Its row of the table `snapshot`.
        segments: Columns of the segments; `free`, `live` (bytes and count of blocks) and `stuck` are added.
        blocks: Columns of the blocks; `segment` counts within `segments`.
        events: Columns of the events, or None.
        marks: Columns of the annotations.
        sites: Call site of each stack.
        texts: Frames of each stack.
        operators: Operator that each stack names, or "".
        notes: Texts of user_metadata that name a scope or a step, by number.
        pool_ids: Pool ids by number; None is unknown.
        sound: Which segments do not contradict themselves.
        faults: (place, what) of each contradiction.
    """

    source: str
    rank: int | None
    device: int
    info: Row
    segments: Columns
    blocks: Columns
    events: Columns | None
    marks: Columns
    sites: list[str]
    texts: list[str]
    operators: list[str]
    notes: tuple[str, ...]
    pool_ids: tuple[tuple[int, int] | None, ...]
    sound: NDArray[np.bool_]
    faults: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of some segments of one device, sound ones only. Sizes in bytes.

    Args:
        largest_free_bytes: The largest free block.
        stuck_bytes: Free bytes that empty_cache cannot give back.
    """

    segments: int
    reserved_bytes: int
    active_bytes: int
    free_bytes: int
    largest_free_bytes: int
    stuck_bytes: int

    @property
    def ratio(self) -> float:
        """1 - largest free block / free; 0 when nothing is free. Above 0.9 on healthy dumps."""
        return 1 - self.largest_free_bytes / self.free_bytes if self.free_bytes else 0.0

    @property
    def ratio_of_all(self) -> float:
        """1 - largest free block / sum of all blocks, the incident report's variant."""
        return 1 - self.largest_free_bytes / self.reserved_bytes if self.reserved_bytes else 0.0


@dataclass(frozen=True, slots=True)
class Pool(Figures):
    """Figures of one pool, or of one stream of it.

    Args:
        id: None where the file names no pools: then all segments count as the default pool.
        stream: Stream handle; None for all streams together.
        rows: Which segments these are.
    """

    id: tuple[int, int] | None
    stream: int | None
    rows: NDArray[np.bool_]

    @property
    def private(self) -> bool:
        """A pool of a CUDA graph or a MemPool: its blocks serve nobody else."""
        return self.id is not None and self.id != (0, 0)

    @property
    def name(self) -> str:
        """The pool in words."""
        return f"private pool {self.id}" if self.private else "the default pool"


def shots(run: Run) -> list[Shot]:
    """Every device of every snapshot, in the order of the files."""
    per_file: dict[str, dict[str, Any]] = {}
    for table in ("segments", "blocks", "events", "stacks", "annotations"):
        for batch in run.batches(f"snapshot_{table}"):
            per_file.setdefault(batch.attrs["file"], {})[table] = batch
    return [_shot(row, per_file[row["file"]]) for row in run.rows("snapshot") if row["file"] in per_file]


def _shot(info: Row, tables: Mapping[str, Any]) -> Shot:
    device = info["device"]
    all_segments, all_blocks = tables["segments"].columns, tables["blocks"].columns
    mine = np.asarray(all_segments["device"]) == device
    segments = {k: np.asarray(v)[mine] for k, v in all_segments.items()}
    owner = np.asarray(all_blocks["segment"])
    inside = mine[owner]
    blocks = {k: np.asarray(v)[inside] for k, v in all_blocks.items()}
    blocks["segment"] = (np.cumsum(mine) - 1)[blocks["segment"]]
    segments |= segment_state(segments, blocks, _large_page(info["settings"]))
    found, sound = faults(segments, blocks)
    stacks, events, marks = tables.get("stacks"), tables.get("events"), tables.get("annotations")
    holder = events or tables["segments"]
    return Shot(
        source=info["source"],
        rank=info["rank"],
        device=device,
        info=info,
        segments=segments,
        blocks=blocks,
        events=_of_device(events, device),
        marks=_of_device(marks, device) or {},
        sites=list(stacks.columns["site"]) if stacks else [""],
        texts=list(stacks.columns["text"]) if stacks else [""],
        operators=list(stacks.columns["operator"]) if stacks else [""],
        notes=tuple(holder.attrs.get("notes", ("",))),
        pool_ids=tuple(holder.attrs.get("pools", tables["segments"].attrs.get("pools", ()))),
        sound=sound,
        faults=(*found, *(info["faults"] or ())),
    )


def _large_page(settings: Any) -> int:
    """The page of expandable segments in the large pool: the setting where it is recorded."""
    found = LARGE_SEGMENT.search(conf.recorded(settings))
    return max(1, int(found[1])) << 20 if found else LARGE_PAGE


def _of_device(batch: Any, device: int) -> Columns | None:
    if batch is None:
        return None
    mine = np.asarray(batch.columns["device"]) == device
    if not mine.any():
        return None
    if mine.all():
        return {k: np.asarray(v) for k, v in batch.columns.items()}
    return {k: np.asarray(v)[mine] for k, v in batch.columns.items()}


def segment_state(segments: Columns, blocks: Columns, large_page: int = LARGE_PAGE) -> Columns:
    """Per segment: bytes of free and live blocks, number of live blocks, largest free block, stuck.

    Args:
        segments: Columns of the segments.
        blocks: Columns of their blocks.
        large_page: Bytes that expandable segments of the large pool map at once.
    """
    count, owner = len(segments["total_bytes"]), blocks["segment"]
    size, free = blocks["size_bytes"], blocks["state"] == INACTIVE

    def total(values: NDArray[Any]) -> NDArray[Any]:
        out = np.zeros(count, dtype=np.int64)
        np.add.at(out, owner, values)
        return out

    largest = np.zeros(count, dtype=np.int64)
    np.maximum.at(largest, owner, np.where(free, size, 0))
    live_blocks = total(~free)
    page = np.where(segments["is_small"], SMALL_PAGE, large_page)[owner]
    start = blocks["address"] - segments["address"][owner]
    pages = np.maximum((start + size) // page - -(-start // page), 0) * page
    kept = np.where(segments["is_expandable"][owner], size - pages, size)
    return {
        "free": total(np.where(free, size, 0)),
        "live": total(np.where(free, 0, size)),
        "live_blocks": live_blocks,
        "largest_free": largest,
        "stuck": np.where(live_blocks > 0, total(np.where(free, kept, 0)), 0),
        "blocks_total": total(size),
        "requested": total(np.where(free, 0, blocks["requested_bytes"])),
    }


def segment_lists_blocks(segments: Columns, blocks: Columns) -> NDArray[np.bool_]:
    """Per segment: whether the file says what is in it (one of no bytes has nothing to say)."""
    total = segments["total_bytes"]
    return np.asarray((np.bincount(blocks["segment"], minlength=len(total)) > 0) | (total == 0))


def faults(segments: Columns, blocks: Columns) -> tuple[list[tuple[str, str]], NDArray[np.bool_]]:
    """Contradictions of segments and blocks.

    Returns:
        (place, what) for each, and which segments have none.
    """
    total, start = segments["total_bytes"], segments["address"]
    found: list[tuple[str, str]] = []
    bad = np.zeros(len(total), dtype=bool)

    def note(index: int, what: str) -> None:
        bad[index] = True
        found.append((f"segment at {int(start[index])}", what))

    listed = segment_lists_blocks(segments, blocks)
    for i in np.flatnonzero(~listed).tolist():
        note(i, "it lists no blocks, only its size is known")
    for i in np.flatnonzero((segments["blocks_total"] != total) & listed).tolist():
        note(i, f"its blocks add up to {segments['blocks_total'][i]} B, its size is {total[i]} B")
    active = segments["active_bytes"]
    wrong = (active != segments["live"]) & (active >= 0) & (np.abs(active - segments["requested"]) > SLACK)
    for i in np.flatnonzero(wrong & listed & ~_only_pending(segments, blocks)).tolist():
        note(i, f"active_size is {active[i]} B, its live blocks add up to {segments['live'][i]} B")
    negative = np.zeros(len(total), dtype=bool)
    odd = (blocks["size_bytes"] < 0) | (blocks["state"] == UNKNOWN_STATE)
    np.logical_or.at(negative, blocks["segment"], odd)
    bad |= negative | (active < -1)
    found += _overlaps(start, total, bad)
    found += _gaps(blocks, start, bad)
    return found, ~bad


def _only_pending(segments: Columns, blocks: Columns) -> NDArray[np.bool_]:
    """Segments whose active_size leaves out the blocks that wait for a stream (both are written)."""
    held = np.zeros(len(segments["total_bytes"]), dtype=np.int64)
    np.add.at(held, blocks["segment"], np.where(blocks["state"] == 1, blocks["size_bytes"], 0))
    return np.asarray(held == segments["active_bytes"])


def _overlaps(start: NDArray[Any], total: NDArray[Any], bad: NDArray[np.bool_]) -> Iterator[tuple[str, str]]:
    known = np.flatnonzero(start != 0)
    order = known[np.argsort(start[known], kind="stable")]
    if len(order) < 2:
        return
    reach = np.maximum.accumulate((start + total)[order])
    for k in np.flatnonzero(start[order][1:] < reach[:-1]):
        first, second = order[: k + 1][np.argmax((start + total)[order[: k + 1]])], order[k + 1]
        bad[first] = bad[second] = True
        yield f"segment at {int(start[second])}", f"overlaps the segment at {int(start[first])}"


def _gaps(blocks: Columns, start: NDArray[Any], bad: NDArray[np.bool_]) -> Iterator[tuple[str, str]]:
    """Blocks that do not begin where the one before ends."""
    owner, address, size = blocks["segment"], blocks["address"], blocks["size_bytes"]
    if not len(owner):
        return
    first = np.ones(len(owner), dtype=bool)
    first[1:] = owner[1:] != owner[:-1]
    expected = np.empty_like(address)
    expected[first] = start[owner[first]]
    expected[1:][~first[1:]] = (address + size)[:-1][~first[1:]]
    for k in np.flatnonzero(address != expected):
        if not bad[owner[k]]:
            bad[owner[k]] = True
            what = f"its block at {int(address[k])} leaves a gap or overlaps"
            yield f"segment at {int(start[owner[k]])}", what


def pools(shot: Shot, *, by_stream: bool = False) -> list[Pool]:
    """Figures of each pool of the device, or of each stream of each; the default pool (or unknown ids) first.

    Pools lend nothing to each other, nor do the streams of one pool.
    """
    segments, out = shot.segments, []
    streams = segments["stream"] if by_stream else np.zeros_like(segments["stream"])
    keys = set(zip(segments["pool"][shot.sound].tolist(), streams[shot.sound].tolist(), strict=True))
    for code, stream in sorted(keys, key=lambda k: (shot.pool_ids[k[0]] or (0, 0), k[1])):
        mine = shot.sound & (segments["pool"] == code) & (streams == stream)
        known = _figures(segments, mine)
        out.append(Pool(*known, id=shot.pool_ids[code], stream=stream if by_stream else None, rows=mine))
    return out


def figures(shot: Shot, rows: NDArray[np.bool_]) -> Figures:
    """Figures of some segments.

    Args:
        shot: The snapshot.
        rows: Which segments, shape [segments]; unsound ones are left out.
    """
    return Figures(*_figures(shot.segments, rows & shot.sound))


def _figures(segments: Columns, rows: NDArray[np.bool_]) -> tuple[int, int, int, int, int, int]:
    reserved, free, stuck = (int(segments[k][rows].sum()) for k in ("total_bytes", "free", "stuck"))
    largest = int(segments["largest_free"][rows].max(initial=0))
    return int(rows.sum()), reserved, reserved - free, free, largest, stuck


def free_sizes(shot: Shot, rows: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Sizes of the free blocks of some segments, in bytes."""
    mine = (shot.blocks["state"] == INACTIVE) & (rows & shot.sound)[shot.blocks["segment"]]
    return np.asarray(shot.blocks["size_bytes"][mine], dtype=np.int64)


def servability(free: NDArray[np.int64], requests: Sequence[int]) -> list[tuple[float, int]]:
    """How well free blocks serve requests of a size.

    Args:
        free: Sizes of free blocks in bytes.
        requests: Request sizes in bytes, above 0.

    Returns:
        For each request (share of the free bytes that lies in blocks of at least its size, how many
        such requests fit at once); 0.0 where nothing is free.
    """
    total = int(free.sum())
    served = [(int(free[free >= size].sum()), int((free // size).sum())) for size in requests]
    return [(large / total if total else 0.0, count) for large, count in served]


def is_action(events: Columns, *names: str) -> NDArray[np.bool_]:
    """Which events have one of these actions."""
    found = np.zeros(len(events["action"]), dtype=bool)
    for name in names:
        found |= events["action"] == ACTIONS.index(name)
    return found
