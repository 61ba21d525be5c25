"""Nsight Compute tables: `--csv --page raw` (a column per metric) and `--page details` (a row per metric).

Thousands separators are the tool's own here. Times of these reports are those of serialised,
replayed kernels: never merged with a trace's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.core.pattern import lazy
from moexray.readers.cells import BASE, base, number, words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moexray.core.run import Reading
    from moexray.core.source import Source
    from moexray.readers.csv_file import Grid

__all__ = ["Launches", "add_launches", "ncu_table", "take"]

CONFLICTS = lazy(r"l1tex__data_bank_conflicts_pipe_lsu_mem_shared(?P<op>_op_\w+)?\.sum$")
WAVEFRONTS = lazy(r"l1tex__data_pipe_lsu_wavefronts_mem_shared(?P<op>_op_\w+)?(?:\.sum)?$")
SOURCE_WAVES = lazy(r"memory_l1_wavefronts_shared$")
IDEAL = lazy(r"memory_l1_wavefronts_shared_ideal$")
DURATION = lazy(r"gpu__time_duration(?:\.sum|\.avg)?$|^duration$")
GROUPED = lazy(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")

Launch = tuple[str, str]  # id, kernel
Launches = dict[Launch, tuple[str, dict[str, float]]]  # place and figures of each


def ncu_table(grid: Grid, source: Source, out: Reading) -> bool:  # noqa: ARG001
    """Adds a row to `kernels` per launch that has a duration or shared-memory counters."""
    names = [words(h) for h in grid.header]
    if "kernel_name" not in names:
        return False
    details = "metric_name" in names and "metric_value" in names
    samples = _details(grid, names) if details else _raw(grid, names)
    launches: Launches = {}
    for launch, where, metric, unit, cell in samples:
        take(launches.setdefault(launch, (where, {}))[1], metric, unit, cell)
    add_launches(launches, out)
    return bool(launches)


def take(found: dict[str, float], metric: str, unit: str, cell: str) -> None:
    """Keeps a metric if it is one of those that are used."""
    value = number(GROUPED.sub(lambda m: m[0].replace(",", ""), cell))
    if value is None or not (key := _key(metric)):
        return
    found[key] = base(value, BASE.get(unit.lower(), ("s", 1e-9))[1]) if key == "dur_s" else value


def add_launches(launches: Launches, out: Reading) -> None:
    """Adds a row to `kernels` per launch."""
    for (id, kernel), (where, found) in launches.items():
        out.add(
            "kernels",
            where=where,
            launch=id,
            kernel=kernel,
            dur_s=found.get("dur_s"),
            wavefronts=_total(found, "waves") or found.get("source_waves"),
            conflicts=_total(found, "conflicts"),
            ideal=found.get("ideal"),
        )


def _key(metric: str) -> str:
    """A short key of the metrics that are used, "" for all others."""
    name = metric.strip()
    if m := CONFLICTS.search(name):
        return f"conflicts{m['op'] or ''}"
    if m := WAVEFRONTS.search(name):
        return f"waves{m['op'] or ''}"
    if IDEAL.search(name):
        return "ideal"
    if SOURCE_WAVES.search(name):
        return "source_waves"
    return "dur_s" if DURATION.search(name.lower()) else ""


def _total(found: dict[str, float], key: str) -> float | None:
    """The sum over all operations where the report has it, else loads plus stores plus atomics."""
    if key in found:
        return found[key]
    parts = [v for k, v in found.items() if k.startswith(f"{key}_op_")]
    return sum(parts) if parts else None


def _details(grid: Grid, names: list[str]) -> Iterator[tuple[Launch, str, str, str, str]]:
    """(launch, place, metric, unit, value) of the long form."""
    at = {n: names.index(n) for n in ("kernel_name", "metric_name", "metric_value")}
    unit = names.index("metric_unit") if "metric_unit" in names else None
    id = names.index("id") if "id" in names else None
    for row, line in zip(grid.rows, grid.numbers, strict=True):
        if len(row) < len(names):
            continue
        launch = (row[id] if id is not None else "", row[at["kernel_name"]])
        yield (
            launch, f"line {line}", row[at["metric_name"]], row[unit] if unit is not None else "",
            row[at["metric_value"]],
        )


def _raw(grid: Grid, names: list[str]) -> Iterator[tuple[Launch, str, str, str, str]]:
    """The same of the wide form; the row below the header holds the units."""
    kernel = names.index("kernel_name")
    id = names.index("id") if "id" in names else None
    units: tuple[str, ...] = ()
    for row, line in zip(grid.rows, grid.numbers, strict=True):
        if len(row) < len(names):
            continue
        if not row[kernel] and (id is None or not row[id]):
            units = row
            continue
        launch = (row[id] if id is not None else str(line), row[kernel])
        for i, name in enumerate(grid.header):
            head, _, unit = name.partition(" [")
            given = unit.rstrip("]") or (units[i] if i < len(units) else "")
            yield launch, f"line {line}", head, given, row[i]
