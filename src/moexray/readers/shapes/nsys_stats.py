"""Reports of `nsys stats` (CSV, JSON, or the GUI's copy): events into `trace`, sums into `profile_sum`.

A report of events is cuda_gpu_trace, cuda_api_trace or nvtx_pushpop_trace; those of one file become one
trace, on the clock of the capture. A report of sums (cuda_gpu_kern_sum, cuda_api_sum, cuda_gpu_mem_time_sum,
nvtx_sum and their kin) has no times: it can say what took long, never who waited for whom.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.core.rank_name import rank_in_name
from moexray.core.tables.timeline import CATEGORIES
from moexray.readers.cells import BASE, base, is_placeholder, quantity, split_unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Reading
    from moexray.core.source import Source
    from moexray.readers.csv_file import Grid

__all__ = ["stats_json", "stats_table"]

NAMES = ("name", "range", "operation")
COUNTS = {"instances": "kernel", "num_calls": "call", "count": "copy"}
SUMS = {"total": "total_s", "total_time": "total_s", "avg": "mean_s", "med": "median_s", "min": "least_s",
        "max": "most_s", "std_dev": "std_s", "stddev": "std_s"}  # fmt: skip
UNITS = {**BASE, "nanosec": ("s", 1e-9), "microsec": ("s", 1e-6), "millisec": ("s", 1e-3)}
DEVICE = lazy(r"\((\d+)\)\s*$")  # "NVIDIA H100 80GB HBM3 (0)"
COPY = lazy(r"\[?CUDA memcpy ([A-Za-z]\w*)-to-([A-Za-z]\w*)|\[?CUDA memcpy (\w+)")
LETTERS = {"host": "H", "device": "D", "peer": "P", "array": "A", "unified": "U"}  # CUDA's own: HtoD, PtoP
MB = 1_000_000  # of the reports; GUI copies name their own unit
MOST_NS = 1e18
FORMAT = "nsys stats"
COLUMNS = ("ts_ns", "dur_ns", "category", "name", "lane", "device", "stream", "correlation", "bytes")


def stats_json(document: Any, source: Source, out: Reading) -> bool:
    """The same from `--format json`: a list of rows, or several such lists."""
    from moexray.readers.csv_file import Grid

    if not isinstance(document, list) or not document:
        return False
    tables = document if all(isinstance(part, list) for part in document) else [document]
    taken = False
    for rows in tables:
        good = [row for row in rows if isinstance(row, dict)]
        header = tuple(str(key) for key in good[0]) if good else ()
        if not {"start", "total", "total_time"} & {split_unit(h)[0] for h in header}:
            continue
        cells = tuple(tuple("" if row.get(h) is None else str(row[h]) for h in header) for row in good)
        taken = stats_table(Grid(header, cells, tuple(range(1, len(good) + 1))), source, out) or taken
    return taken


def stats_table(grid: Grid, source: Source, out: Reading) -> bool:
    """Adds the events or the sums of one report."""
    at: dict[str, tuple[int, str]] = {}
    for i, title in enumerate(grid.header):
        word, unit = split_unit(title)
        at.setdefault(word, (i, unit))
    if {"start", "duration", "name"} <= at.keys() and UNITS.get(at["start"][1], ("",))[0] == "s":
        return _events(grid, at, source, out)
    counted = next((c for c in COUNTS if c in at), None)
    named = next((n for n in NAMES if n in at), None)
    if counted and named and "time" in at and {"total_time", "total"} & at.keys():
        return _sums(grid, at, (counted, named), out)
    return False


def _sums(
    grid: Grid, at: dict[str, tuple[int, str]], keys: tuple[str, str], out: Reading
) -> bool:
    counted, named = keys
    kind = "range" if named == "range" or "style" in at else COUNTS[counted]
    bad = []
    for row, line in zip(grid.rows, grid.numbers, strict=True):
        number = _number(row, at[counted])
        name = row[at[named][0]] if at[named][0] < len(row) else ""
        found = {SUMS[word]: _seconds(row, place) for word, place in at.items() if word in SUMS}
        if number is None or not name or found.get("total_s") is None:
            bad.append(line)
            continue
        out.add("profile_sum", where=f"line {line}", kind=kind, name=name, count=int(number), **found)
    _told(bad, out)
    return len(bad) < len(grid.rows) or not grid.rows


def _number(row: Sequence[str], place: tuple[int, str]) -> float | None:
    cell = row[place[0]].replace(",", "") if place[0] < len(row) else ""
    found = None if is_placeholder(cell) else quantity(cell)
    return found[0] if found and abs(found[0]) < 1 << 62 else None


def _seconds(row: Sequence[str], place: tuple[int, str]) -> float | None:
    """A time of a cell; its own unit ("94.6 ms") goes before that of the header."""
    cell = row[place[0]].replace(",", "") if place[0] < len(row) else ""
    found = None if is_placeholder(cell) else quantity(cell)
    if found is None:
        return None
    kind, factor = UNITS.get(found[1].lower() or place[1], ("s", 1e-9))
    return base(found[0], factor) if kind == "s" and abs(found[0]) < 1 << 62 else None


def _told(bad: list[int], out: Reading) -> None:
    if bad:
        shown = ", ".join(f"line {n}" for n in bad[:5])
        shown += f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        out.problem("input.dirty_table", f"rows without a name or a number ({shown}) are left out",
                    where=f"line {bad[0]}", lost=len(bad))  # fmt: skip


def _events(grid: Grid, at: dict[str, tuple[int, str]], source: Source, out: Reading) -> bool:
    scale = {key: UNITS[at[key][1]][1] * 1e9 for key in ("start", "duration")}
    on_device = "strm" in at
    host = "runtime" if "result" in at else "annotation"
    names: dict[str, int] = {}
    lanes: dict[tuple[int, int, str], int] = {}
    made: list[tuple[int, ...]] = []
    bad = []
    for row, line in zip(grid.rows, grid.numbers, strict=True):
        start, length = _number(row, at["start"]), _number(row, at["duration"])
        name = row[at["name"][0]] if at["name"][0] < len(row) else ""
        if start is None or length is None or min(start, length) < 0 or max(start, length) > MOST_NS:
            bad.append(line)
            continue
        category, device, stream, size = host, -1, -1, -1
        lane = (_whole(row, at, "pid"), _whole(row, at, "tid"), "")
        if on_device:
            category, name = _device_name(name)
            device, stream = _device(row, at), _whole(row, at, "strm")
            amount = _number(row, at["bytes"]) if "bytes" in at else None
            size = -1 if amount is None else round(amount * UNITS.get(at["bytes"][1], ("bytes", MB))[1])
            lane = (0, -1 - stream, f"GPU {device}")
        made.append(
            (
                round(start * scale["start"]), round(length * scale["duration"]), CATEGORIES.index(category),
                names.setdefault(name, len(names)), lanes.setdefault(lane, len(lanes)), device, stream,
                _whole(row, at, "corr_id", "corrid"), size,
            )
        )  # fmt: skip
    _told(bad, out)
    if made:
        _batch(made, list(names), list(lanes), source, out)
    return bool(made)


def _device_name(name: str) -> tuple[str, str]:
    """Category and name of an operation of the device; copies get the names that the exports have."""
    if (match := COPY.match(name)) is not None:
        ends = [LETTERS.get((match[i] or "").lower(), "") for i in (1, 2)]
        return "memcpy", f"Memcpy {match[3] or 'to'.join(ends)}"
    return ("memset", "Memset") if "CUDA memset" in name[:20] else ("kernel", name)


def _device(row: Sequence[str], at: dict[str, tuple[int, str]]) -> int:
    """The index in "NVIDIA H100 (0)"; 0 where a report names the device only."""
    cell = row[at["device"][0]] if "device" in at and at["device"][0] < len(row) else ""
    found = DEVICE.search(cell)
    return min(int(found[1]), 30_000) if found and len(found[1]) < 9 else 0


def _whole(row: Sequence[str], at: dict[str, tuple[int, str]], *keys: str) -> int:
    """A whole number of the first of the columns that is there; -1 for none."""
    place = next((at[key] for key in keys if key in at), None)
    found = _number(row, place) if place else None
    return -1 if found is None or not 0 <= found < 1 << 31 else int(found)


def _batch(
    made: list[tuple[int, ...]], names: list[str], lanes: list[tuple[int, int, str]], source: Source,
    out: Reading,
) -> None:  # fmt: skip
    """Adds the events; those of an earlier report of the same file come into the same trace."""
    import numpy as np

    table = np.array(made, np.int64)
    before = [b for b in out.batches if b.table == "trace" and b.attrs.get("report") == FORMAT]
    if before:
        old = before[0]
        out.batches.remove(old)
        table[:, COLUMNS.index("name")] += len(old.attrs["names"])
        table[:, COLUMNS.index("lane")] += len(old.attrs["lanes"])
        names, lanes = [*old.attrs["names"], *names], [*old.attrs["lanes"], *lanes]
        table = np.concatenate([np.stack([old.columns[c] for c in COLUMNS], axis=1), table])
    table = table[np.argsort(table[:, 0], kind="stable")]
    out.add_columns(
        "trace",
        {name: table[:, i] for i, name in enumerate(COLUMNS)},
        source=source.path,
        rows=len(made),
        names=names,
        lanes=lanes,
        rank=rank_in_name(source.path),
        world_size=None,
        groups=[],
        devices=[],
        format="nsys",
        report=FORMAT,
        base_ns=0,
        resolution_ns=1,
    )
