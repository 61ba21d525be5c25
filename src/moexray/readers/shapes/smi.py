"""CSV of `nvidia-smi --query-gpu` and `--query-compute-apps`, and JSON records with the same fields.

Any fields in any order, with or without units, header or times, repeated headers, placeholders.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.readers.gpu_samples import Sample, Samples, fault_of, flags_of, quantity, size, when
from moexray.readers.shapes.smi_bare import name_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Reading
    from moexray.core.source import Source
    from moexray.readers.csv_file import Grid

__all__ = ["query_apps", "query_gpu", "query_json"]

BRACKETS = lazy(r"\s*[\[(]([^\])]*)[\])]\s*$")
# field as nvidia-smi names it, dots as underscores -> (column of table gpu, factor of a bare number)
FIELDS: dict[str, tuple[str, float]] = {
    "memory_total": ("total_bytes", 1), "memory_reserved": ("reserved_bytes", 1),
    "memory_used": ("used_bytes", 1), "memory_free": ("free_bytes", 1),
    "utilization_gpu": ("util_ratio", 0.01), "gpu_utilization": ("util_ratio", 0.01),
    "utilization_memory": ("mem_util_ratio", 0.01), "memory_utilization": ("mem_util_ratio", 0.01),
    "clocks_sm": ("sm_mhz", 1), "clocks_current_sm": ("sm_mhz", 1), "clocks_max_sm": ("sm_max_mhz", 1),
    "power_draw": ("power_w", 1), "power_draw_instant": ("power_w", 1), "power_draw_average": ("power_w", 1),
    "power_limit": ("power_limit_w", 1), "enforced_power_limit": ("power_limit_w", 1),
    "temperature_gpu": ("temp_c", 1),
}  # fmt: skip
# Names of exporters' own tables; they count where a column of memory has a unit.
FALLBACKS = {
    "used": ("used_bytes", 1), "mem_used": ("used_bytes", 1), "fb_used": ("used_bytes", 1),
    "gpu_memory_used": ("used_bytes", 1), "total": ("total_bytes", 1), "mem_total": ("total_bytes", 1),
    "fb_total": ("total_bytes", 1), "gpu_memory_total": ("total_bytes", 1), "mem_free": ("free_bytes", 1),
    "fb_free": ("free_bytes", 1), "util": ("util_ratio", 0.01), "gpu_util": ("util_ratio", 0.01),
    "sm_util": ("util_ratio", 0.01), "util_gpu": ("util_ratio", 0.01), "utilization": ("util_ratio", 0.01),
    "sm_clock": ("sm_mhz", 1), "clock_sm": ("sm_mhz", 1), "sm": ("sm_mhz", 1), "power": ("power_w", 1),
    "clocks_gr": ("sm_mhz", 1), "clocks_current_graphics": ("sm_mhz", 1), "clocks_max_gr": ("sm_max_mhz", 1),
    "clocks_max_graphics": ("sm_max_mhz", 1),
}  # fmt: skip
REASONS = lazy(r"clocks_(?:throttle|event)_reasons?_(.+)")
ACTIVE = ("active", "supported")
KEYS = {
    "index": "index", "gpu": "index", "gpu_index": "index", "gpu_id": "index", "device": "index",
    "uuid": "uuid", "gpu_uuid": "uuid", "pci_bus_id": "bus", "gpu_bus_id": "bus", "pci_bus": "bus",
    "name": "name", "gpu_name": "name", "timestamp": "time", "time": "time", "date_time": "time",
    "driver_version": "driver", "mig_mode_current": "mig", "hostname": "host", "host": "host", "node": "host",
    "t": "time", "t_s": "time", "ts": "time", "datetime": "time", "query_time": "time", "unix_s": "time",
}  # fmt: skip
APPS = {
    "pid": "pid", "process_name": "name", "name": "name", "used_memory": "bytes", "used_gpu_memory": "bytes",
    "gpu_uuid": "key", "gpu_bus_id": "key", "pci_bus_id": "key", "gpu_serial": "serial", "timestamp": "time",
    "gpu_name": "product", "type": "kind", "gpu_index": "index",
}  # fmt: skip
# A table is nvidia-smi's if it has one of these.
MARKS = lazy(
    r"(?:memory|utilization|clocks|power|temperature|ecc|pcie|fan|enforced|mig|encoder|retired_pages)_\w+|pstate"
)
SHOWN = 6
MAX_RECORDS = 200_000  # of a JSON file
LOOKED_AT = 64  # records whose keys name the columns
MAX_DEVICES = 16  # rows without any mark of a device: up to so many are one sample of a node


@dataclass(slots=True)
class _Layout:
    """Which column is what."""

    numbers: dict[int, tuple[str, float, str]] = field(default_factory=dict)  # column, factor, unit
    flags: dict[int, str] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)  # every column, as written without its unit


def query_gpu(grid: Grid, source: Source | None, out: Reading) -> bool:  # noqa: ARG001
    """Reads a table of devices; False if its columns are not nvidia-smi's."""
    header = grid.header or name_columns(grid)
    layout = _layout(header)
    if not layout.numbers and not layout.flags:
        return False
    if not any(MARKS.fullmatch(_bare(n)[0]) for n in header) and not _own_table(layout):
        return False
    samples = Samples("query")
    placeholders: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    previous: str | None = None
    for cells, line in zip(grid.rows, grid.numbers, strict=True):
        if len(cells) < len(header):
            continue  # ragged: reported by the container
        stamp = _cell(cells, layout.keys.get("time"))
        if stamp != previous and stamp:
            seen.clear()
        previous = stamp
        sample = _sample(cells, layout, line, len(samples) if len(grid.rows) <= MAX_DEVICES else 0, seen)
        _placeholders(cells, layout, placeholders)
        _facts(cells, layout, sample, samples)
        samples.add(sample, when(stamp) if stamp else None)
    if not len(samples):
        out.notes.append("a table of nvidia-smi without rows")
        return True
    samples.flush(out, "")
    _report(samples, placeholders, header, grid, out)
    return True


def _own_table(layout: _Layout) -> bool:
    """Memory in use with its unit and one more quantity of a device, by whatever names."""
    columns = {column: unit for column, _, unit in layout.numbers.values()}
    others = {"total_bytes", "util_ratio", "free_bytes"} & set(columns)
    return bool(columns.get("used_bytes") and others)


def _bare(name: str) -> tuple[str, str]:
    """A column's name, lower case with underscores, and its unit."""
    unit = ""
    if m := BRACKETS.search(name):
        unit, name = m[1].strip().lower(), name[: m.start()]
    name = re.sub(r"[^a-z0-9]+", "_", name.strip().lower()).strip("_")
    for ending in ("mib", "mb", "gib", "bytes", "mhz", "w", "percent", "pct", "c"):
        if not unit and name.endswith("_" + ending):
            return name[: -len(ending) - 1], ending
    return name, unit


def _layout(header: Sequence[str]) -> _Layout:
    layout = _Layout()
    taken: set[str] = set()
    for known in (FIELDS, FALLBACKS):
        for i, raw in enumerate(header):
            name, unit = _bare(raw)
            column = known.get(name)
            if column and column[0] not in taken:
                taken.add(column[0])
                layout.numbers[i] = (*column, unit)
    for i, raw in enumerate(header):
        name, _ = _bare(raw)
        layout.names[i] = BRACKETS.sub("", raw)
        if m := REASONS.fullmatch(name):
            layout.flags[i] = m[1]
        elif name in KEYS and i not in layout.numbers:
            layout.keys.setdefault(KEYS[name], i)
    return layout


def _cell(cells: Sequence[str], index: int | None) -> str:
    return cells[index] if index is not None and index < len(cells) else ""


def _sample(cells: Sequence[str], layout: _Layout, line: int, order: int, seen: Counter[str]) -> Sample:
    """One row; devices without a mark of their own are told apart by their order within a time."""
    keys = {k: _cell(cells, i) for k, i in layout.keys.items() if not fault_of(_cell(cells, i))}
    index = keys.get("index", "")
    device = int(index) if index.isdigit() else None
    key = next((keys[k] for k in ("index", "uuid", "bus") if keys.get(k)), "")
    if not key:
        if "time" in keys:
            order = seen["row"]
            seen["row"] += 1
        device, key = order, str(order)
    host = keys.get("host", "")
    sample = Sample(f"{host}/{key}" if host else key, device, line)
    for i, (column, factor, unit) in layout.numbers.items():
        text = cells[i]
        fault = fault_of(text)
        if fault:
            sample.note(column, fault)
        elif column.endswith("_bytes"):
            if (value := size(text, unit)) is not None:
                sample.numbers[column] = value
        elif found := quantity(text):
            sample.numbers[column] = found[0] * factor
    for i, reason in layout.flags.items():
        text = cells[i]
        if reason in ACTIVE:
            named = flags_of(text) if reason == "active" else None
            if named is not None:
                sample.flags = [*(sample.flags or ()), *named.split()]
        else:
            sample.flag(reason, text)
        if (fault := fault_of(text)) and fault in ("lost", "error"):
            sample.note(f"reason_{reason}", fault)
    return sample


def _placeholders(cells: Sequence[str], layout: _Layout, counts: Counter[str]) -> None:
    for i, text in enumerate(cells):
        if not fault_of(text):
            continue
        sure = i in layout.numbers or text[:1] == "[" or text.upper() in ("N/A", "ERR!")
        if sure and i in layout.names:
            counts[f"{layout.names[i]} = {text or 'empty'}"] += 1


def _facts(cells: Sequence[str], layout: _Layout, sample: Sample, samples: Samples) -> None:
    name, driver = _cell(cells, layout.keys.get("name")), _cell(cells, layout.keys.get("driver"))
    if name and not fault_of(name):
        samples.names[sample.key] = name
    if driver and not fault_of(driver):
        samples.driver = driver
    mig = _cell(cells, layout.keys.get("mig")).lower()
    if mig in ("enabled", "disabled"):
        samples.mig[sample.key] = mig == "enabled"


def _report(
    samples: Samples, placeholders: Counter[str], header: Sequence[str], grid: Grid, out: Reading
) -> None:
    """What counts as missing; a table of unified memory is told by its own rule."""
    if not grid.header:
        named = ", ".join(header)
        out.problem("input.dialect", f"a table without a header was read as: {named}")
    names = {_bare(h)[0] for h in header}
    asked = {name for name in ("total", "used", "free") if f"memory_{name}" in names}
    if len(asked) > 1:
        memory = all(asked <= set(m.split()) for m in samples.words["missing"])
        if memory:
            placeholders = Counter({k: n for k, n in placeholders.items() if not k.startswith("memory.")})
    if not placeholders:
        return
    shown = "; ".join(f"{k} ({n}x)" if n > 1 else k for k, n in placeholders.most_common(SHOWN))
    more = f" and {len(placeholders) - SHOWN} more" if len(placeholders) > SHOWN else ""
    out.problem(
        "input.missing_values",
        f"placeholders count as missing, never as 0: {shown}{more}",
        values={"placeholders": sum(placeholders.values())},
    )


def query_apps(grid: Grid, source: Source | None, out: Reading) -> bool:  # noqa: ARG001
    """Reads a table of processes; False if its columns are not nvidia-smi's."""
    columns: dict[str, tuple[int, str]] = {}
    if grid.header:
        for i, raw in enumerate(grid.header):
            name, unit = _bare(raw)
            if name in APPS:
                columns.setdefault(APPS[name], (i, unit))
    else:
        columns = {k: (i, "") for k, i in _bare_apps(grid).items()}
    if "pid" not in columns or not {"bytes", "key"} & set(columns):
        return False
    count = 0
    missing = 0
    for cells, line in zip(grid.rows, grid.numbers, strict=True):
        get = {k: cells[i] for k, (i, _) in columns.items() if i < len(cells)}
        used = size(get.get("bytes", ""), columns.get("bytes", (0, ""))[1])
        pid = get.get("pid", "")
        if not pid.isdigit() and used is None:
            missing += 1
            continue
        missing += bool("bytes" in get and used is None)
        index = get.get("index", "")
        out.add(
            "gpu_process",
            where=f"line {line}",
            t_s=when(get["time"]) if "time" in get else None,
            device=int(index) if index.isdigit() else None,
            key=get.get("key", ""),
            pid=int(pid) if pid.isdigit() else None,
            kind=get.get("kind", "C"),
            name=get.get("name", ""),
            used_bytes=None if used is None else int(used),
        )
        count += 1
    if missing:
        out.problem(
            "input.missing_values",
            f"{missing} processes without a size or pid: these count as unknown, never as 0",
            values={"placeholders": missing},
        )
    if not count:
        out.notes.append("a list of processes without rows")
    return True


UUID = lazy(r"(?:GPU|MIG)-[0-9a-f-]{8,}")


def _bare_apps(grid: Grid) -> dict[str, int]:
    """Columns of a list of processes without a header, told by their content."""
    if not grid.rows or not 3 <= grid.width <= 6:
        return {}
    columns: dict[str, int] = {}
    numbers = []
    for i, text in enumerate(grid.rows[0]):
        if UUID.fullmatch(text):
            columns["key"] = i
        elif text.isdigit() or size(text) is not None or fault_of(text) == "missing":
            numbers.append(i)
        elif "time" not in columns and when(text) is not None:
            columns["time"] = i
        elif "name" not in columns:
            columns["name"] = i
    if "key" not in columns or "name" not in columns or not numbers:
        return {}
    if not grid.rows[0][numbers[0]].isdigit():
        return {}
    columns["pid"] = numbers[0]
    if len(numbers) > 1:
        columns["bytes"] = numbers[1]
    return columns


def query_json(document: Any, source: Source, out: Reading) -> bool:
    """Reads records of devices, JSON lines or an array, each device flat or in the one list of a record."""
    records = [r for r in (document if isinstance(document, list) else [document]) if isinstance(r, dict)]
    flat: list[dict[str, Any]] = []
    for record in records[:MAX_RECORDS]:
        inner = [v for v in record.values() if isinstance(v, list) and v and isinstance(v[0], dict)]
        outer = {k: v for k, v in record.items() if not isinstance(v, (dict, list))}
        flat += [{**outer, **x} for x in inner[0] if isinstance(x, dict)] if len(inner) == 1 else [outer]
    values = [(k, v) for r in flat[:LOOKED_AT] for k, v in r.items()]
    names = tuple(dict.fromkeys(k for k, v in values if not isinstance(v, (dict, list))))
    if not flat or not names:
        return False
    from moexray.readers.csv_file import Grid

    rows = tuple(tuple("" if r.get(n) is None else str(r[n]) for n in names) for r in flat)
    grid = Grid(names, rows, tuple(range(1, len(rows) + 1)))
    return query_apps(grid, source, out) or query_gpu(grid, source, out)
