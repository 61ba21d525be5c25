"""Series and balance: thinned data for the drawing script, and a table for each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from moexray.analyse.thin import extremes
from moexray.faces.numbers import human, human_moment
from moexray.faces.report.fields import Fields, each, listed, named, number
from moexray.faces.report.safe import clean, fold, short_id
from moexray.faces.report.tables import Table, table

__all__ = ["Chart", "Mark", "balances", "clock", "joined", "origin_of", "series"]

MAX_POINTS = 4000
_TABLE_POINTS = 1000
_TABLE_CELLS = 20_000
_EPOCH_S = 1e8  # later than 1973 when counted from 1970; runs are shorter
_LINES = 5  # further lines of one chart: as many as there are colours
_ORIGIN_PAST_SPANS = 2  # an axis that begins later than this many of its own lengths starts at 0


_Point = tuple[float, list[float | None]]  # x, and y of each line


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment marked in a series, with the anchor of the finding it belongs to, if any."""

    number: int
    at: str
    text: str
    href: str | None


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart: its words, its table, and the JSON data its script draws from."""

    title: str
    note: str
    table: Table
    data: dict[str, Any]
    marks: tuple[Mark, ...] = ()


def series(document: Fields, anchors: dict[str, str]) -> tuple[Chart, ...]:
    """Give a chart for each time line that has at least one point.

    Args:
        document: the diagnosis document.
        anchors: finding id -> anchor on the page.
    """
    charts = (_line(fields, anchors) for fields in each(document, "series"))
    return tuple(chart for chart in charts if chart is not None)


def _line(fields: Fields, anchors: dict[str, str]) -> Chart | None:
    raw_x, raw_y = listed(fields, "x"), listed(fields, "y")
    more = each(fields, "also")[:_LINES]
    columns = [raw_y, *(_as_long(listed(line, "y"), len(raw_y)) for line in more)]
    rows = ((number(x), [number(y) for y in ys]) for x, *ys in zip(raw_x, *columns, strict=False))
    points = sorted(((x, ys) for x, ys in rows if x is not None), key=lambda point: point[0])
    if not points:
        return None
    notes = [_from(fields)]
    lost = max(len(raw_x), len(raw_y)) - len(points)
    if lost:
        notes.append(f"left out, without a usable position: {lost:,} points")
    unit, x_unit = named(fields, "unit", "count"), named(fields, "x_unit", "s")
    origin = 0.0 if x_unit == "step" else origin_of(points[0][0], points[-1][0])
    if origin:
        notes.append(f"time counts from {clock(origin)}")
    kept = _kept(points, MAX_POINTS)
    if len(kept) < len(points):
        notes.append(f"thinned: {len(kept):,} of {len(points):,} points drawn, extremes kept")
    drawn = [(points[index][0] - origin, points[index][1]) for index in kept]
    marks = _marks(fields, anchors, origin, x_unit)
    labels = [str(fold(line.get("label") or "value", at=60)) for line in (fields, *more)]
    data = {
        "unit": unit,
        "xUnit": x_unit,
        "x": [x for x, _ in drawn],
        "lines": [{"label": label, "y": [ys[i] for _, ys in drawn]} for i, label in enumerate(labels)],
        "marks": [[x, mark.number] for x, mark in marks if x is not None],
    }
    title = str(fold(fields.get("name") or "(unnamed series)", at=120))
    words = _line_rows(drawn, labels, unit, x_unit)
    return Chart(title, joined(notes), words, data, tuple(mark for _, mark in marks))


def _as_long(values: Sequence[Any], count: int) -> list[Any]:
    """As many values as there are points; what is missing is a gap."""
    return [*values[:count], *[None] * (count - len(values))]


def _kept(points: Sequence[_Point], most: int) -> list[int]:
    """Rows to keep, the extremes of each line among them."""
    if len(points) <= most:
        return list(range(len(points)))
    lines = len(points[0][1])
    rows = (extremes([ys[i] for _, ys in points], most // lines) for i in range(lines))
    return sorted({row for kept in rows for row in kept})


def _line_rows(drawn: Sequence[_Point], labels: list[str], unit: str, x_unit: str) -> Table:
    kept = _kept(drawn, _TABLE_POINTS)
    rows = [
        (_position(drawn[index][0], x_unit), *(human(y, unit) for y in drawn[index][1])) for index in kept
    ]
    caption = f"{len(rows):,} points"
    if len(rows) < len(drawn):
        caption = f"{len(rows):,} of {len(drawn):,} drawn points"
    head = ("Step" if x_unit == "step" else "Time", *(f"{label[:1].upper()}{label[1:]}" for label in labels))
    return table(caption, head, rows, numeric=range(len(head)))


def _marks(
    fields: Fields, anchors: dict[str, str], origin: float, x_unit: str
) -> list[tuple[float | None, Mark]]:
    out: list[tuple[float | None, Mark]] = []
    known = [(number(mark.get("x")), mark) for mark in each(fields, "marks")[:99]]
    known.sort(key=lambda pair: math.inf if pair[0] is None else pair[0])
    for index, (raw_x, fields_of_mark) in enumerate(known, start=1):
        x = None if raw_x is None else raw_x - origin
        anchor = anchors.get(short_id(fields_of_mark.get("finding")))
        at = "position unknown" if x is None else _position(x, x_unit)
        text = str(fold(fields_of_mark.get("text"), at=300))
        out.append((x, Mark(index, at, text, f"#{anchor}" if anchor else None)))
    return out


def balances(document: Fields) -> tuple[Chart, ...]:
    """Give a heat map for each balance matrix that has at least one cell."""
    charts = (_heat_map(fields) for fields in each(document, "balance"))
    return tuple(chart for chart in charts if chart is not None)


def _heat_map(fields: Fields) -> Chart | None:
    lines = [line if isinstance(line, (list, tuple)) else () for line in listed(fields, "values")]
    width = max((len(line) for line in lines), default=0)
    if not width:
        return None
    cells = [[number(cell) for cell in line] + [None] * (width - len(line)) for line in lines]
    axis, line_name = named(fields, "axis", "rank")[:20], named(fields, "line", "layer")[:20]
    columns = [str(fold(name, at=40)) for name in listed(fields, "columns")][:width]
    columns += [str(index) for index in range(len(columns), width)]
    layers = [clean(name) for name in listed(fields, "layers")][: len(lines)]
    layers += [str(index) for index in range(len(layers), len(lines))]
    scores = [number(score) for score in listed(fields, "balancedness")][: len(lines)]
    scores += [None] * (len(lines) - len(scores))
    unit = named(fields, "unit", "tokens")
    data = {
        "axis": axis, "line": line_name, "columns": columns, "layers": layers, "values": cells,
        "scores": scores, "unit": unit,
    }  # fmt: skip
    scored = any(score is not None for score in scores)
    rows = [
        (layer, *([human(score, "ratio")] if scored else []), *(human(cell, "count") for cell in line))
        for layer, score, line in zip(layers, scores, cells, strict=True)
    ]
    limit = max(1, _TABLE_CELLS // width)
    title = str(fold(fields.get("title") or f"{unit} per {line_name} and {axis}", at=120))
    scores_head = ["Balancedness"] if scored else []
    head = (line_name.capitalize(), *scores_head, *(f"{axis} {name}" for name in columns))
    cells_table = table(title, head, rows, numeric=range(width + 2), limit=limit)
    return Chart(title, joined([_from(fields)]), cells_table, data)


def _position(x: float, x_unit: str) -> str:
    return f"step {human(x, 'count')}" if x_unit == "step" else human(x, x_unit)


def origin_of(first: float, last: float) -> float:
    """Give what to take off a time axis so that its numbers stay short; 0 for nothing."""
    return first if first > _ORIGIN_PAST_SPANS * (last - first) else 0.0


def clock(seconds: float) -> str:
    """Give a time in s as a UTC clock time when it counts from 1970, else in plain seconds."""
    if seconds > _EPOCH_S:
        return human_moment(seconds)
    return f"{human(seconds, 'count')} s of the source's clock"


def _from(fields: Fields) -> str:
    source = named(fields, "source")
    return f"from {source}" if source else ""


def joined(notes: list[str]) -> str:
    """Join notes into one sentence that begins with a capital letter."""
    text = "; ".join(str(fold(note, at=300)) for note in notes if note)
    return f"{text[0].upper()}{text[1:]}." if text else ""
