"""The timelines: a chart for the traces that were taken together, with what it leaves out."""

from moexray.analyse.thin import longest
from moexray.faces.numbers import counted, human
from moexray.faces.report.charts import Chart, clock, joined, origin_of
from moexray.faces.report.fields import Fields, each, listed, named, number, whole
from moexray.faces.report.safe import fold
from moexray.faces.report.tables import Table, table

__all__ = ["timelines"]

MAX_SPANS = 5000  # of all charts together, about
MAX_CHARTS = 8
_TABLE_SPANS = 500  # the same
_KINDS = ("compute", "comm", "alloc", "host", "wait")

_Span = tuple[float, float, Fields]  # duration, start in s, and what else is known


def timelines(document: Fields) -> tuple[Chart, ...]:
    """Give a chart for each `capture` that has a usable span: clocks of two captures share no axis."""
    groups: dict[str, list[_Span]] = {}
    lost = len(listed(document, "spans")) - len(each(document, "spans"))
    for fields in each(document, "spans"):
        start, length = number(fields.get("start_s")), number(fields.get("dur_s"))
        if start is None or length is None:
            lost += 1
        else:
            groups.setdefault(named(fields, "capture"), []).append((max(length, 0), start, fields))
    cut = {named(row, "capture"): row for row in each(document, "spans_cut")}
    shown = list(groups.items())[:MAX_CHARTS]
    notes = [f"left out, without start or duration: {counted(lost, 'span')}"] if lost else []
    if len(groups) > len(shown):
        notes.append(f"not drawn: {counted(len(groups) - len(shown), 'further capture')}")
    charts: list[Chart] = []
    left = MAX_SPANS
    for name, spans in shown:
        charts.append(_chart(spans, cut.get(name, {}), max(left, _TABLE_SPANS), _TABLE_SPANS // len(shown)))
        left -= len(charts[-1].data["spans"])
    if charts and notes:
        charts[0] = _with_note(charts[0], joined(notes))
    return tuple(charts)


def _chart(spans: list[_Span], cut: Fields, most: int, rows: int) -> Chart:
    """At most so many spans, and so many rows of the table."""
    notes = [_of_steps(spans)]
    if left := whole(cut.get("ranks")):
        notes.append(f"not drawn: {counted(left, 'further rank')}")
    if closed := number(cut.get("closed_s")):
        notes.append(f"gaps up to {human(closed, 's')} are drawn closed")
    kept = longest([length for length, _, _ in spans], most)
    if len(kept) < len(spans):
        notes.append(f"thinned: the {len(kept):,} longest of {len(spans):,} spans drawn")
    drawn = [spans[index] for index in kept]
    edges = (min(start for _, start, _ in drawn), max(start + length for length, start, _ in drawn))
    origin = origin_of(*edges)
    if origin:
        notes.append(f"time counts from {clock(origin)}")
    lanes = sorted({_lane(fields) for _, _, fields in drawn})
    rows_of = {lane: index for index, lane in enumerate(lanes)}
    data = {
        "lanes": [lane[-1] for lane in lanes],
        "kinds": list(_KINDS),
        "spans": [
            [rows_of[_lane(fields)], start - origin, length, _kind(fields), _name(fields)]
            for length, start, fields in drawn
        ],
    }
    return Chart(_title(spans), joined(notes), _span_table(drawn, origin, rows), data)


def _with_note(chart: Chart, note: str) -> Chart:
    return Chart(chart.title, f"{note} {chart.note}".strip(), chart.table, chart.data)


def _title(spans: list[_Span]) -> str:
    """The files a chart is drawn from, which tells it from the next one."""
    files = list(dict.fromkeys(name for _, _, fields in spans if (name := named(fields, "source"))))
    if not files:
        return "All ranks"
    more = f" and {counted(len(files) - 1, 'more file')}" if len(files) > 1 else ""
    return f"{fold(files[0], at=120)}{more}"


def _of_steps(spans: list[_Span]) -> str:
    """Which steps are drawn, where it is not all."""
    steps = sorted({step for _, _, fields in spans if (step := whole(fields.get("step"))) is not None})
    if not steps:
        return ""
    if len(steps) == 1:
        return f"only the slowest step is drawn, {steps[0]:,}"
    last = f"{steps[-1]:,}"
    named_ = f"{', '.join(f'{step:,}' for step in steps[:-1][:20])} and {last}"
    return f"only the slowest steps are drawn, {named_}; others are left blank"


def _span_table(drawn: list[_Span], origin: float, most: int) -> Table:
    kept = longest([length for length, _, _ in drawn], most)
    rows = [
        (
            _lane(fields)[-1],
            _name(fields),
            _KINDS[_kind(fields)],
            human(start - origin, "s"),
            human(length, "s"),
        )
        for length, start, fields in (drawn[index] for index in kept)
    ]
    caption = f"{len(rows):,} spans"
    if len(rows) < len(drawn):
        caption = f"The {len(rows):,} longest of {len(drawn):,} drawn spans"
    return table(caption, ("Lane", "Name", "Kind", "Start", "Duration"), rows, numeric=(3, 4))


def _lane(fields: Fields) -> tuple[float, str, str, str]:
    """What a lane is sorted by, and its label."""
    rank, lane = whole(fields.get("rank")), str(fold(fields.get("lane"), at=40))
    who = str(fold(fields.get("who"), at=80)) or ("" if rank is None else f"rank {rank}")
    label = " · ".join(part for part in (who, lane) if part)
    return (float("inf") if rank is None else rank, who, lane, label or "no rank")


def _kind(fields: Fields) -> int:
    kind = named(fields, "kind")
    return _KINDS.index(kind) if kind in _KINDS else _KINDS.index("host")


def _name(fields: Fields) -> str:
    return str(fold(fields.get("name") or "(unnamed)", at=120))
