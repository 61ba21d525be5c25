"""Samples of `torch.cuda.memory_stats()` and the like: JSON (flat, nested, one or many), JSON lines, CSV."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.core.rank_name import rank_in_name
from moexray.readers.gpu_samples import quantity, size, when

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from moexray.core.run import Reading
    from moexray.core.source import Source
    from moexray.readers.csv_file import Grid

__all__ = ["load_csv", "memory_stats", "memory_stats_csv"]

# column of table memory_stats -> names, in lower case with underscores; ".all.current" is left off
NAMES: dict[str, tuple[str, ...]] = {
    "allocated_bytes": ("allocated_bytes", "memory_allocated", "allocated", "torch_allocated"),
    "allocated_peak_bytes": ("allocated_bytes_peak", "max_memory_allocated", "peak_allocated_bytes",
                             "allocated_peak_bytes", "peak_memory_allocated", "peak_allocated", "peak_mem",
                             "peak_memory", "peak", "max_memory", "peak_bytes", "mem_peak"),
    "reserved_bytes": ("reserved_bytes", "memory_reserved", "reserved", "torch_reserved", "memory_cached"),
    "reserved_peak_bytes": ("reserved_bytes_peak", "max_memory_reserved", "peak_reserved_bytes",
                            "reserved_peak_bytes", "peak_reserved", "max_reserved", "max_memory_cached"),
    "active_bytes": ("active_bytes",),
    "inactive_split_bytes": ("inactive_split_bytes", "inactive_split"),
    "segments": ("segment", "segments", "num_segments"),
    "num_alloc_retries": ("num_alloc_retries", "alloc_retries"),
    "num_ooms": ("num_ooms", "ooms"),
}  # fmt: skip
TIME = (
    "t_s",
    "t",
    "time_s",
    "time",
    "timestamp",
    "ts",
    "unix_s",
    "wall_time",
    "elapsed_s",
    "datetime",
    "date",
)
STEP = ("step_s", "step_time_s", "step_ms", "step_time_ms", "iter_ms", "iteration_ms", "latency_ms", "itl_ms",
        "step_time", "step_us", "decode_ms", "tpot_ms", "iter_time", "iteration_time")  # fmt: skip
LOAD = ("num_requests_running", "requests_running", "running", "num_running", "running_requests",
        "batch_size",
        "num_running_reqs", "running_reqs", "load", "concurrency", "num_running_requests", "active_requests",
        "running_req", "num_running_req")  # fmt: skip
RATE = ("tokens_per_s", "tok_per_s", "tokens_s", "tok_s", "throughput", "tokens_per_sec", "tokens_per_second",
        "output_tokens_per_s", "samples_per_s", "tps", "throughput_tok_s")  # fmt: skip
DEVICE = ("device", "device_id", "gpu", "gpu_id", "device_index", "cuda_device")
SCALES = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}
UNIT = lazy(r"_(mib|mb|gib|gb|kib|kb)$")
PLACE = lazy(r"(?:(rank|cuda|gpu|device)[\s:_-]?)?(\d+)")
MAX_SAMPLES = 200_000
MAX_DEPTH = 4


def memory_stats(document: Any, source: Source, out: Reading) -> bool:
    """Reads statistics of one or many times, ranks and devices; False if there are none."""
    rank = rank_in_name(source.path)
    count = 0
    lost = 0
    for where, fields, place in _records(document, {}, "", 0):
        row = _row(fields)
        if row is None:
            continue
        row = {**place, **row}
        if row.get("rank") is None and rank is not None:
            row["rank"] = rank
        if count >= MAX_SAMPLES:
            lost += 1
            continue
        out.add("memory_stats", where=where or "top", **row)
        count += 1
    if lost:
        text = f"only the first {MAX_SAMPLES} samples were kept"
        out.problem("input.huge", text, lost=lost)
    return count > 0


def _records(
    node: Any, place: Mapping[str, int], where: str, depth: int
) -> Iterator[tuple[str, dict[str, Any], Mapping[str, int]]]:
    """Yields (where, flat fields, rank and device of the keys above) of each object with statistics."""
    if isinstance(node, list):
        if depth < MAX_DEPTH:
            for i, item in enumerate(node):
                if isinstance(item, dict):
                    yield from _records(
                        item, place, f"{where}[{i}]" if where else f"record {i + 1}", depth + 1
                    )
        return
    if not isinstance(node, dict) or depth > MAX_DEPTH:
        return
    fields = _flat(node)
    if _known(fields):
        yield where, fields, place
        return
    own = {k: v for k, v in fields.items() if not isinstance(v, (dict, list))}
    for key, item in node.items():
        inner = dict(place)
        if m := PLACE.fullmatch(str(key)):
            inner["rank" if m[1] == "rank" else "device"] = int(m[2])
        label = f"{where}.{key}" if where else str(key)
        for found, given, at in _records(item, inner, label, depth + 1):
            yield found, {**own, **given}, at


def _flat(node: Mapping[str, Any]) -> dict[str, Any]:
    """One level of names: {"allocated_bytes": {"all": {"current": 1}}} -> allocated_bytes."""
    out: dict[str, Any] = {}
    for key, value in node.items():
        name = str(key)
        if isinstance(value, dict) and isinstance(value.get("all"), dict):
            for kind in ("current", "peak"):
                if kind in value["all"]:
                    out[_name(f"{name}.all.{kind}")] = value["all"][kind]
        elif isinstance(value, dict) and set(value) & {"current", "peak"}:
            for kind in ("current", "peak"):
                if kind in value:
                    out[_name(f"{name}.{kind}")] = value[kind]
        else:
            out[_name(name)] = value
    return out


@lru_cache(maxsize=4096)
def _name(key: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "_", key.strip().lower()).strip("_")
    name = name.removeprefix("torch_cuda_").removeprefix("cuda_").removeprefix("torch_memory_stats_")
    if name.endswith(("_all_current", "_all_peak")):
        name = name.replace("_all_", "_")
    return name.removesuffix("_current")


def _known(fields: Mapping[str, Any]) -> bool:
    """Statistics of the allocator: its own dotted names, or both an allocated and a reserved size."""
    bare = {UNIT.sub("", name) for name, v in fields.items() if isinstance(v, int | float | str)}
    sizes = [c for c in ("allocated_bytes", "reserved_bytes", "allocated_peak_bytes", "reserved_peak_bytes")
             if bare & {*NAMES[c], c.removesuffix("_bytes")}]  # fmt: skip
    counts = bool(bare & {"num_alloc_retries", "num_ooms"})
    speed = bool(set(fields) & {*RATE, *STEP}) and "allocated_peak_bytes" in sizes
    split = "inactive_split_bytes" in bare
    return len(sizes) > 1 or (bool(sizes) and (counts or speed)) or (counts and split)


def _row(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    row: dict[str, Any] = {}
    for column, names in NAMES.items():
        value = _value(fields, (*names, column.removesuffix("_bytes")), is_size=column.endswith("_bytes"))
        if value is not None and value >= 0:
            row[column] = int(value)
    if not row:
        return None
    beside = (("t_s", TIME), ("step_s", STEP), ("running", LOAD), ("per_s", RATE))
    for column, names in beside:
        for name in names:
            value = fields.get(name)
            number = when(str(value)) if column == "t_s" and value is not None else _number(value)
            if number is not None:
                scale = SCALES.get(name.rsplit("_", 1)[-1], 1.0) if column == "step_s" else 1.0
                row[column] = number * scale
                break
    for column, names in (("rank", ("rank", "global_rank", "local_rank")), ("device", DEVICE)):
        for name in names:
            value = fields.get(name)
            m = PLACE.fullmatch(str(value).strip()) if value is not None else None
            if m and not isinstance(value, bool):
                row[column] = int(m[2])
                break
    return row


def _value(fields: Mapping[str, Any], names: tuple[str, ...], *, is_size: bool) -> float | None:
    for name in names:
        if (value := _number(fields.get(name))) is not None:
            return value
        if is_size and isinstance(fields.get(name), str) and (value := size(fields[name], "b")) is not None:
            return value
        for unit in ("mib", "mb", "gib", "gb", "kib", "kb") if is_size else ():
            for given in (f"{name}_{unit}", f"{name.removesuffix('_bytes')}_{unit}"):
                if (value := _number(fields.get(given))) is not None:
                    return size(f"{value} {unit}")
    return None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value) if value == value and abs(value) < 1e19 else None  # noqa: PLR0124 (NaN)
    found = quantity(value) if isinstance(value, str) else None
    return found[0] if found and not found[1] else None


def memory_stats_csv(grid: Grid, source: Source, out: Reading) -> bool:
    """A table with a column for each statistic."""
    if not grid.header or not _known({_name(h): 1 for h in grid.header}):
        return False
    names = [_name(re.sub(r"\s*\[(\w+)\]$", r"_\1", h)) for h in grid.header]
    records = [dict(zip(names, row, strict=False)) for row in grid.rows]
    rank = rank_in_name(source.path)
    for record, line in zip(records, grid.numbers, strict=True):
        row = _row(record)
        if row is not None:
            if rank is not None:
                row.setdefault("rank", rank)
            out.add("memory_stats", where=f"line {line}", **row)
    return out.rows > 0


def load_csv(grid: Grid, source: Source, out: Reading) -> bool:  # noqa: ARG001
    """Times and running requests alone: the load beside a series of memory."""
    names = [_name(h) for h in grid.header]
    t = next((i for i, n in enumerate(names) if n in TIME), None)
    running = next((i for i, n in enumerate(names) if n in LOAD), None)
    if t is None or running is None or len(names) > 4:
        return False
    before = out.rows
    for row, line in zip(grid.rows[:MAX_SAMPLES], grid.numbers, strict=False):
        if len(row) > max(t, running) and (value := _number(row[running])) is not None:
            out.add("memory_stats", where=f"line {line}", t_s=when(row[t]), running=value)
    return out.rows > before
