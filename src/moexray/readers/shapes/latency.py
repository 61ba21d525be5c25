"""Series of latencies: step times, inter-token latencies, single latencies over time."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.readers.cells import BASE, base, column, number, split_unit, word_set, words
from moexray.readers.lines.stamp import CLOCK, iso_seconds
from moexray.readers.shapes.figures import figure_of, scale_of, stat_of

if TYPE_CHECKING:
    from moexray.core.run import Reading
    from moexray.core.source import Source
    from moexray.readers.csv_file import Grid

__all__ = ["guess_json", "guess_series", "latency_json", "latency_series"]

TIMES = word_set(
    "t time timestamp ts epoch unix unix_time wall_time wall clock date datetime date_time at end t_end "
    "end_time finished_at t_rel t_wall elapsed since_start offset rel_time"
)
STARTS = word_set("start t_start start_time began_at begin t_begin")
STEPS = word_set(
    "step steps step_id step_idx iter iteration iter_id token token_index token_idx idx index i n seq no "
    "decode_step engine_step forward_pass_id tick"
)
RANKS = word_set("rank worker gpu device rank_id ep_rank tp_rank dp_rank global_rank")
REQUEST = word_set("request request_id req req_id rid request_idx session user prompt_id uid id")
PREFERRED = ("itl", "step", "tpot", "latency", "e2e", "ttft")
DURATION_WORDS = lazy(
    r"(?:decode|gap|dt|delta|value|lat|dur|time|interval|token_gap|pause|wait)(?:_time)?"
)
OTHER = lazy(r"prefill|expert|layer|expected|limit")
ENTRIES = word_set("entries max_entries history_entries trace_entries num_entries")
SNAPSHOT = lazy(r"trace|snapshot|dump|history")
LIKE_TIME = lazy(r"(?:^|_)(?:ts|times?|timestamp|at|end|start|date|datetime|clock|utc|when|epoch)(?:_|$)")
LIKE_START = lazy(r"(?:^|_)(?:start|begin|sent|arriv\w*)(?:_|$)")
LIKE_VALUE = lazy(r"(?:^|_)(?:latency|duration|delay|gap|dt|(?:step|iter\w*|forward|token)_time)(?:_|$)")
PER = lazy(r"(ms|us|s)_per_(?:step|token|iter\w*)")
LEAST_ROWS = 12  # fewer are a table of results, not a series
DAY = lazy(CLOCK)
PARTS = (dict, list)
RANKS_KEPT = 1024


def latency_series(grid: Grid, source: Source, out: Reading) -> bool:
    """One duration per row, with its time or step, of one server or of several ranks."""
    if _snapshot_cost(grid, out):
        return True
    if not grid.header or len(grid.rows) < LEAST_ROWS or len(grid.header) > 12:
        return False
    names = [split_unit(h)[0] or words(h) for h in grid.header]
    if any(n in REQUEST for n in names) or any(OTHER.search(n) for n in names):
        return False
    bare = [not split_unit(h)[1] for h in grid.header]  # "step_ms" is a duration, "step" an index
    at = {
        role: next(
            (i for i, n in enumerate(names) if n in known and (bare[i] or known in (TIMES, STARTS))), None
        )
        for role, known in (("time", TIMES), ("start", STARTS), ("step", STEPS), ("rank", RANKS))
    }
    if at["time"] is None and at["step"] is None and at["start"] is None:
        return False
    value = _value(grid, {i for i in at.values() if i is not None})
    if value is None:
        return False
    index, what, factor = value
    values = column(grid, index, out)
    scale = scale_of(factor, values)
    clock_at = at["time"] if at["time"] is not None else at["start"]
    times, clock = _times(grid, clock_at)
    steps = _numbers(grid, at["step"])
    if at["time"] is None and at["start"] is not None:  # we keep when it ended
        times = [t if t is None or v is None else t + v * scale for t, v in zip(times, values, strict=True)]
    ranks = _numbers(grid, at["rank"])
    if len(set(ranks)) > RANKS_KEPT:
        ranks = _numbers(grid, None)
    lines: list[float | None] = [float(n) for n in grid.numbers]
    for rank in dict.fromkeys(ranks):
        rows = [i for i, r in enumerate(ranks) if r == rank and values[i] is not None]
        _add(out, source, rows, (times, steps, values, lines), scale,
             what=what, clock=clock, rank=None if rank is None else int(rank))
    return True


def latency_json(document: Any, source: Source, out: Reading) -> bool:
    """The same as JSON: a list of flat objects (or JSON lines), or an object of lists of one length."""
    grid = _grid(document)
    return grid is not None and latency_series(grid, source, out)


def guess_json(document: Any, source: Source, out: Reading) -> bool:
    """As guess_series, for JSON."""
    grid = _grid(document)
    return grid is not None and guess_series(grid, source, out)


def guess_series(grid: Grid, source: Source, out: Reading) -> bool:
    """A table that nobody knows, with one rising column named like a time and one duration beside it."""
    if not grid.header or len(grid.rows) < LEAST_ROWS or len(grid.header) > 12:
        return False
    plain = [split_unit(h) for h in grid.header]
    times = [i for i, (n, _) in enumerate(plain) if (LIKE_TIME.search(n) or n in STEPS) and _rises(grid, i)]
    values = [
        i for i, (n, u) in enumerate(plain)
        if i not in times and not OTHER.search(n)
        and (BASE.get(u, ("", 0))[0] == "s" or LIKE_VALUE.search(n) or PER.fullmatch(words(grid.header[i])))
    ]  # fmt: skip
    if not times or len(values) != 1:
        return False
    (value,) = values
    per = PER.fullmatch(words(grid.header[value]))
    unit = per[1] if per else plain[value][1]
    header = list(grid.header)
    header[value] = f"latency_{unit}" if unit else "latency"
    name, unit = plain[times[0]]
    if name not in STEPS:
        header[times[0]] = f"{'start' if LIKE_START.search(name) else 'time'}{f'_{unit}' if unit else ''}"
    return latency_series(replace(grid, header=tuple(header)), source, out)


def _rises(grid: Grid, index: int) -> bool:
    """Whether a column of numbers or dates mostly rises."""
    known = [t for t in _times(grid, index)[0] if t is not None]
    ups = sum(b >= a for a, b in pairwise(known))
    return 2 * len(known) >= len(grid.rows) and len(set(known)) > 1 and ups >= 0.9 * (len(known) - 1)


def _grid(document: Any) -> Grid | None:
    """Objects of a document as a table; None where they are no rows of one."""
    from moexray.readers.csv_file import Grid

    inner = document
    if isinstance(document, dict):
        lists = [v for v in document.values() if isinstance(v, list) and len(v) >= LEAST_ROWS]
        if len(lists) == 1 and isinstance(lists[0][0], dict):
            inner = lists[0]
        else:
            plain = {k: v for k, v in document.items() if isinstance(v, list) and len(v) >= LEAST_ROWS}
            if len({len(v) for v in plain.values()}) != 1 or any(isinstance(v[0], PARTS) for v in lists):
                return None
            inner = [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]
    if not isinstance(inner, list) or len(inner) < LEAST_ROWS or not isinstance(inner[0], dict):
        return None
    if not all(isinstance(r, dict) for r in inner):
        return None
    rows = [_flat(r) for r in inner]
    names = list(dict.fromkeys(k for r in rows[:100] for k in r))
    if len(names) < 2:
        return None
    cells = tuple(tuple(r.get(k, "") for k in names) for r in rows)
    return Grid(tuple(names), cells, tuple(range(1, len(cells) + 1)))


def _flat(record: dict[str, Any]) -> dict[str, str]:
    """Numbers and texts of an object and of the objects right below it, as cells."""
    out: dict[str, str] = {}
    for key, value in record.items():
        for k, v in value.items() if isinstance(value, dict) else ((key, value),):
            if isinstance(v, str | int | float) and not isinstance(v, bool):
                out.setdefault(str(k), str(v))
    return out


def _add(out: Reading, source: Source, rows: list[int], columns: tuple[list[float | None], ...],
         scale: float, **attrs: object) -> None:
    """Adds the chosen rows; negative durations are left out with a note."""
    import numpy as np

    times, steps, values, numbers = (
        np.array([np.nan if c[i] is None else c[i] for i in rows], dtype=float) for c in columns
    )
    sound = np.isfinite(values) & (values >= 0)
    if (lost := int((~sound).sum())):
        first = int(numbers[~sound][0])
        text = f"{lost} durations are negative or not finite; these rows are left out"
        out.problem("input.dirty_table", text, where=f"line {first}", lost=lost)
    out.add_columns(
        "latency",
        {"t_s": times[sound], "step": steps[sound], "value_s": values[sound] * scale,
         "line": numbers[sound].astype(np.int64)},
        source=source.path,
        rows=int(sound.sum()),
        **attrs,
    )


def _value(grid: Grid, taken: set[int]) -> tuple[int, str, float | None] | None:
    """(column, what, factor to seconds) of the duration, the most telling one if there are several."""
    found: dict[str, tuple[int, str, float | None]] = {}
    for i, name in enumerate(grid.header):
        if i in taken:
            continue
        plain, unit = split_unit(name)
        figure = figure_of(name)
        if figure is not None:
            stat, _ = stat_of(plain)
            what = figure[0].removesuffix("_s")
            if not stat and what in PREFERRED:
                found.setdefault(what, (i, what, figure[1]))
        elif DURATION_WORDS.fullmatch(plain) and BASE.get(unit, ("", 0))[0] == "s":
            found.setdefault("latency", (i, "latency", BASE[unit][1]))
    return next((found[w] for w in PREFERRED if w in found), None)


def _snapshot_cost(grid: Grid, out: Reading) -> bool:
    """Entries of the allocator's history against the time of a snapshot with and without them."""
    names = [split_unit(h) for h in grid.header]
    entries = next((i for i, (w, _) in enumerate(names) if w in ENTRIES), None)
    costs = [(i, BASE[u][1], re.search(r"without|no_|off", w) is None)
             for i, (w, u) in enumerate(names) if BASE.get(u, ("", 0))[0] == "s" and SNAPSHOT.search(w)]
    if entries is None or not costs:
        return False
    before = out.rows
    for i, count in enumerate(column(grid, entries, out)):
        for at, factor, traces in costs:
            taken = number(grid.rows[i][at]) if at < len(grid.rows[i]) else None
            if count is not None and taken is not None:
                out.add("snapshot_cost", where=f"line {grid.numbers[i]}", entries=int(count), traces=traces,
                        seconds=base(taken, factor))
    out.rows = before + len(grid.rows)
    return True


def _numbers(grid: Grid, index: int | None) -> list[float | None]:
    """A column of indices; "TP3" or "rank 3" give their number, a cell without one gives None."""
    if index is None:
        return [None] * len(grid.rows)
    out: list[float | None] = []
    for row in grid.rows:
        cell = row[index] if index < len(row) else ""
        value = number(cell)
        if value is None and (m := re.search(r"\d+", cell)):
            value = float(m[0])
        out.append(value)
    return out


def _times(grid: Grid, index: int | None) -> tuple[list[float | None], str]:
    """Times in seconds and what they count from: "epoch", "day", "relative", or "none"."""
    if index is None:
        return [None] * len(grid.rows), "none"
    cells = [row[index] if index < len(row) else "" for row in grid.rows]
    values = [number(c) for c in cells]
    known = [v for v in values if v is not None]
    if 2 * len(known) < len(cells):
        dated = [iso_seconds(c) for c in cells]
        if 2 * sum(t is not None for t in dated) >= len(cells):
            return dated, "epoch"
        return [_of_day(c) for c in cells], "day"
    unit = split_unit(grid.header[index])[1]
    kind, factor = BASE.get(unit, ("", 1.0))
    top = max(known, default=0.0)
    if kind != "s":
        factor = next((f for limit, f in ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3)) if top >= limit), 1.0)
    return [None if v is None else v * factor for v in values], "epoch" if top * factor > 1e9 else "relative"


def _of_day(cell: str) -> float | None:
    m = DAY.match(cell)
    if not m:
        return None
    fraction = float(f"0.{m[4]}") if m[4] else 0.0
    return int(m[1]) * 3600 + int(m[2]) * 60 + int(m[3]) + fraction
