"""Benchmark results in tables: sweeps, A/B windows, repeated runs, percentile tables, metric lists."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moexray.readers.cells import BASE, base, column, is_number, number, split_unit, word_set, words
from moexray.readers.lines.stamp import iso_seconds
from moexray.readers.shapes.figures import LEVEL_ORDER, figure_of, is_level, is_run, scale_of, stat_of

if TYPE_CHECKING:
    from moexray.core.run import Reading
    from moexray.core.source import Source
    from moexray.readers.csv_file import Grid

__all__ = ["FROM", "TO", "bench_table", "card_table", "metric_table", "moment"]

FROM = word_set("t_from start t_start from begin t0 start_time window_start t_begin")
TO = word_set("t_to end t_end to stop t1 end_time window_end t_stop")
SERIES = word_set(
    "t time timestamp ts t_s step request_id request req_id id seq token token_index layer rank gpu device "
    "unix_s arrival arrival_s"
)
REPEAT = word_set("window repeat rep trial_index iteration attempt seed index idx round no nr")
NAME_COLUMN = word_set("metric statistic figure quantity name measure percentile quantile kpi")


@dataclass(slots=True)
class Roles:
    """What the columns of a table are for, by index."""

    figures: dict[int, tuple[str, float | None]] = field(default_factory=dict)
    levels: list[int] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    start: int | None = None
    end: int | None = None


def bench_table(grid: Grid, source: Source, out: Reading) -> bool:  # noqa: ARG001
    """A row per run, window or level; a column per figure."""
    if not grid.header:
        return False
    roles = _roles(grid)
    marked = any(stat_of(f)[0] or f.endswith("_per_s") for f, _ in roles.figures.values())
    if not roles.figures or not (marked or roles.runs or roles.levels or roles.start is not None):
        return False
    if not (roles.runs or roles.levels or roles.start is not None or len(roles.figures) > 1):
        return False
    before = out.rows
    keys = [_key(grid, roles, i) for i in range(len(grid.rows))]
    order = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    for index, (figure, factor) in roles.figures.items():
        values = column(grid, index, out)
        scale = scale_of(factor, values)
        for i, value in enumerate(values):
            if value is None:
                continue
            run, level, start, end, setting = keys[i]
            out.add(
                "bench",
                where=f"line {grid.numbers[i]}",
                run=run or None,
                level=number(level),
                order=order[keys[i]],
                setting=setting or None,
                t_from_s=moment(start, grid.header[roles.start] if roles.start is not None else ""),
                t_to_s=moment(end, grid.header[roles.end] if roles.end is not None else ""),
                figure=figure,
                value=base(value, scale),
            )
    out.rows = before + len(grid.rows)  # a record is a row of the table, not a figure in it
    return True


def card_table(grid: Grid, source: Source, out: Reading) -> bool:
    """A sweep over the load that gives speed, peak memory and the card's memory; else no."""
    roles = _roles(grid) if grid.header else Roles()
    figures = {f for f, _ in roles.figures.values()}
    sized = {"peak_memory_bytes", "memory_total_bytes"} <= figures
    return bool(sized and roles.levels and len(figures) > 2) and bench_table(grid, source, out)


def _roles(grid: Grid) -> Roles:
    roles = Roles()
    for i, name in enumerate(grid.header):
        plain, unit = split_unit(name)
        w = words(name)
        if w in SERIES:
            return Roles()
        if w in FROM or plain in FROM:
            roles.start = i
        elif w in TO or plain in TO:
            roles.end = i
        elif is_level(name) and not unit:
            roles.levels.append(i)
        elif is_run(name):
            roles.runs.append(i)
        elif (figure := figure_of(name)) is not None:
            roles.figures[i] = figure
        elif w not in REPEAT:
            roles.others.append(i)
    if len(roles.levels) > 1:
        rank = {w: i for i, w in enumerate(LEVEL_ORDER)}
        roles.levels.sort(key=lambda i: rank.get(words(grid.header[i]), len(rank)))
        roles.others += roles.levels[1:]
        del roles.levels[1:]
    return roles


def _key(grid: Grid, roles: Roles, i: int) -> tuple[str, str, str, str, str]:
    """(run, level, start, end, setting) of a row, as texts."""
    row = grid.rows[i]

    def cell(index: int | None) -> str:
        return row[index] if index is not None and index < len(row) else ""

    run = " ".join(c for c in map(cell, roles.runs) if c)
    level = cell(roles.levels[0]) if roles.levels else ""
    setting = " ".join(f"{words(grid.header[j])}={cell(j)}" for j in roles.others if cell(j))
    return run, level, cell(roles.start), cell(roles.end), setting


def moment(cell: object, name: str) -> float | None:
    """Seconds of a window's edge: a number in the unit of its name (epochs by size), or a date."""
    value = number(str(cell))
    if value is None:
        return iso_seconds(str(cell).strip())
    unit = split_unit(name)[1]
    if unit in BASE and BASE[unit][0] == "s":
        return value * BASE[unit][1]
    return value * next((f for limit, f in ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3)) if value >= limit), 1.0)


def metric_table(grid: Grid, source: Source, out: Reading) -> bool:  # noqa: ARG001
    """A row per figure; the columns are stats ("Metric,avg,p50,p99") or arms ("metric,before,after").

    Also percentile tables: a row per percentile, a column per quantity.
    """
    if not grid.header or not grid.rows or words(grid.header[0]) not in NAME_COLUMN | {""}:
        return _percentile_rows(grid, out)
    unit_at = next((i for i, h in enumerate(grid.header) if words(h) in ("unit", "units")), None)
    found = 0
    for row, line in zip(grid.rows, grid.numbers, strict=True):
        unit = row[unit_at] if unit_at is not None and unit_at < len(row) else None
        for i in range(1, min(len(row), len(grid.header))):
            if i == unit_at or not is_number(row[i]):
                continue
            stat, rest = stat_of(words(grid.header[i]))
            is_stat = bool(stat) and not rest
            name = f"{grid.header[i]} {row[0]}" if is_stat else row[0]
            figure = figure_of(name, unit)
            if figure is None:
                continue
            arm = None if is_stat or words(grid.header[i]) in ("value", "result") else grid.header[i]
            value = base(float(row[i]), scale_of(figure[1], [number(c) for c in row[1:]]))
            order = i if arm else 0
            out.add("bench", where=f"line {line}", run=arm, order=order, figure=figure[0], value=value)
            found += 1
    return found > 0 or _percentile_rows(grid, out)


def _percentile_rows(grid: Grid, out: Reading) -> bool:
    """"percentile,ttft_ms,itl_ms" with rows p50, 99, max."""
    if not grid.header or words(grid.header[0]) not in ("percentile", "quantile", "stat", "p", ""):
        return False
    figures = {i: f for i, h in enumerate(grid.header) if i and (f := figure_of(h)) and not stat_of(f[0])[0]}
    if not figures:
        return False
    found = 0
    for row, line in zip(grid.rows, grid.numbers, strict=True):
        name = row[0] if not is_number(row[0]) else f"p{float(row[0]) * (100 if float(row[0]) < 1 else 1):g}"
        stat, rest = stat_of(words(name))
        if not stat or rest:
            continue
        for i, (figure, factor) in figures.items():
            value = number(row[i]) if i < len(row) else None
            if value is None:
                continue
            scale = scale_of(factor, [number(r[i]) for r in grid.rows if i < len(r)])
            name = f"{stat}_{figure}"
            out.add("bench", where=f"line {line}", order=0, figure=name, value=base(value, scale))
            found += 1
    return found > 0
