"""Finishes the columns of a trace: absolute times, impossible events out, order, facts, problems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from moexray.core.run import Reading
    from moexray.core.source import Source
    from moexray.readers.kineto_columns import Columns

__all__ = ["add_trace", "fill", "input_problems"]

HOUR_US = 3.6e9
LATEST_US = 9e15  # the year 2255; integers of ns end there
EPOCH_US = 1e15  # times above this are microseconds of the epoch (2001 and later)
HOST = 0  # "Device Type" of host memory; CUDA is 1, HIP 6, XPU 12 (c10/core/DeviceType.h)
SLICE_KEYS = ("category", "name", "lane", "device", "stream", "correlation", "bytes")


def fill(columns: Columns, facts: Mapping[str, Any], rank: int | None, source: Source, out: Reading) -> int:
    """Adds the tables of one trace.

    Returns:
        How many slices had impossible times and were left out.
    """
    parts = columns.slices
    ts = _joined(parts, "ts_us", np.float64)
    dur = _joined(parts, "dur_us", np.float64)
    good = _possible(ts, dur)
    base = _base(facts, ts)
    order = np.flatnonzero(good)
    order = order[np.argsort(ts[order], kind="stable")]
    table: dict[str, NDArray[Any]] = {
        "ts_ns": _ns(ts[order], base),
        "dur_ns": np.rint(dur[order] * 1000).astype(np.int64),
    }
    for key in SLICE_KEYS:
        table[key] = _joined(parts, key, np.int64)[order]
    new_row = np.full(len(ts), -1, np.int64)
    new_row[order] = np.arange(len(order))
    attrs = _attrs(columns, facts, rank, base)
    comm = _comm(columns, new_row)
    memory = _memory(columns, base)
    add_trace(out, source.path, columns.events, table, attrs)
    if len(comm["row"]):
        out.add_columns("trace_comm", comm, source=source.path, rows=0, rank=rank)
    if len(memory["ts_ns"]):
        out.add_columns("trace_memory", memory, source=source.path, rows=0, rank=rank)
    return int(len(ts) - len(order))


def add_trace(
    out: Reading, path: str, events: int, table: Mapping[str, Any], attrs: Mapping[str, Any]
) -> None:
    """Adds one batch to the table trace; `events` is what counts as rows."""
    out.add_columns("trace", table, source=path, rows=events, **attrs)


def _joined(parts: list[dict[str, NDArray[Any]]], key: str, kind: type) -> NDArray[Any]:
    return np.concatenate([p[key] for p in parts]) if parts else np.empty(0, kind)


def _possible(ts: NDArray[np.float64], dur: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Slices with a start, a length >= 0, and an end within an hour of the capture."""
    good = (np.abs(ts) < LATEST_US) & np.isfinite(dur) & (dur >= 0)
    if not good.any():
        return good
    if np.median(ts[good]) > HOUR_US:
        good &= ts > 0
    with np.errstate(invalid="ignore"):
        return good & (ts + dur <= np.max(ts[good], initial=0.0) + HOUR_US)


def _base(facts: Mapping[str, Any], ts: NDArray[np.float64]) -> int:
    try:
        base = int(facts.get("baseTimeNanoseconds") or 0)
    except (TypeError, ValueError):
        return 0
    finite = ts[np.isfinite(ts)]
    absolute = len(finite) and float(np.median(finite)) > EPOCH_US
    return 0 if absolute or not 0 < base < 2**62 else base


def _ns(us: NDArray[np.float64], base: int) -> NDArray[np.int64]:
    """Microseconds as floats -> integer nanoseconds, exact for whole microseconds."""
    floor = np.floor(us)
    return floor.astype(np.int64) * 1000 + np.rint((us - floor) * 1000).astype(np.int64) + base


def _attrs(columns: Columns, facts: Mapping[str, Any], rank: int | None, base: int) -> dict[str, Any]:
    info = facts.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    groups = info.get("pg_config")
    devices = facts.get("deviceProperties")
    world = info.get("world_size")
    whole = columns.timed and columns.whole_times == columns.timed
    labels = columns.labels
    return {
        "names": ["" if n is None else n for n in columns.names],
        "lanes": [(p, t, labels.get((p, t)) or labels.get((p, None)) or "") for p, t in columns.lanes],
        "rank": rank,
        "world_size": world if isinstance(world, int) and world > 0 else None,
        "groups": [g for g in groups if isinstance(g, dict)] if isinstance(groups, list) else [],
        "devices": [d for d in devices if isinstance(d, dict)] if isinstance(devices, list) else [],
        "format": "kineto",
        "base_ns": base,
        "resolution_ns": 1000 if whole else 1,
        "with_stack": bool(facts.get("with_stack")),
        "left_out": columns.left_out,
    }


def _comm(columns: Columns, new_row: NDArray[np.int64]) -> dict[str, Any]:
    from moexray.readers.kineto_columns import whole

    rows = [(int(new_row[i]), a) for i, a in columns.comm if new_row[i] >= 0]
    args = [a for _, a in rows]
    return {
        "row": np.array([i for i, _ in rows], np.int64),
        "collective": [str(a.collective) for a in args],
        "group": [None if a.group is None else str(a.group) for a in args],
        "group_size": whole([a.group_size for a in args]),
        "ranks": [None if a.ranks is None else str(a.ranks) for a in args],
        "seq": whole([a.seq for a in args]),
        "in_elements": whole([a.in_elements for a in args]),
        "out_elements": whole([a.out_elements for a in args]),
        "dtype": [None if a.dtype is None else str(a.dtype) for a in args],
        "in_splits": [None if a.in_splits is None else str(a.in_splits) for a in args],
        "out_splits": [None if a.out_splits is None else str(a.out_splits) for a in args],
    }


def _memory(columns: Columns, base: int) -> dict[str, NDArray[Any]]:
    parts = columns.memory
    ts = _joined(parts, "ts_us", np.float64)
    good = np.abs(ts) < LATEST_US
    kind = _joined(parts, "type", np.int64)
    out: dict[str, NDArray[Any]] = {"ts_ns": _ns(ts[good], base)}
    for key in ("lane", "device", "address", "bytes", "allocated_bytes", "reserved_bytes"):
        out[key] = _joined(parts, key, np.int64)[good]
    out["device"] = np.where(kind[good] > HOST, out["device"], -1)
    return out


def input_problems(
    columns: Columns, dropped: int, out: Reading, *, array: bool, size: int, huge_bytes: int
) -> None:
    """Names unusual forms, impossible times and great size."""
    if dropped:
        out.problem(
            "input.negative_duration",
            f"{dropped} of {columns.kept} slices have impossible times (negative, missing, or an end more "
            "than an hour beyond the capture); they were left out",
            lost=dropped,
            values={"dropped": dropped, "slices": columns.kept},
        )
    forms = [
        ("the list of events stands at the top level", array),
        (f"{columns.text_times} times are text; they were read as numbers", columns.text_times),
        (f"{columns.pairs} slices were made of begin/end pairs", columns.pairs),
    ]
    if said := [text for text, holds in forms if holds]:
        out.problem("input.dialect", "; ".join(said))
    if size > huge_bytes:
        left = f"; {columns.left_out} short Python frames were counted, not kept" if columns.left_out else ""
        out.problem(
            "input.huge",
            f"{size / (1 << 20):.0f} MiB of trace with {columns.events} events, read as a stream{left}",
            values={"raw_bytes": size, "events": columns.events},
        )
