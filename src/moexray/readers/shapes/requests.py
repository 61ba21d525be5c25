"""What a load test recorded per request, per token and per engine step, as tables and JSON."""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.readers.cells import BASE, base, column, split_unit, word_set, words
from moexray.readers.shapes.figures import figure_of, scale_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from moexray.core.run import Reading
    from moexray.core.source import Source
    from moexray.readers.csv_file import Grid

__all__ = ["request_table", "token_json", "token_table"]

NAN = float("nan")
ID = word_set("request_id request req_id req rid id request_idx request_index prompt_id prompt idx")
TOKEN = word_set("token token_index token_idx token_id position pos tok i index output_index n")
ARRIVAL = word_set("arrival arrival_time start start_time sent sent_at send_time begin")
CLOCK = word_set("t time timestamp ts t_s at emitted received recv_time wall token_time")
OUTPUT = word_set("output_tokens output_len out_tokens completion_tokens generated_tokens")
STATUS = word_set("status success ok error result state finish_reason")
GOOD = word_set("ok success true 1 200 completed finished stop length done")
FIGURES = {"ttft_s": "ttft_s", "e2e_s": "e2e_s", "latency_s": "e2e_s", "p50_itl_s": "itl_p50_s",
           "max_itl_s": "itl_max_s", "tpot_s": "tpot_s", "mean_itl_s": "tpot_s", "mean_tpot_s": "tpot_s"}
RECORDS = ("requests", "records", "results", "profiles")
MEMBERS = ("experiments", "benchmarks", "runs", *RECORDS)
MAX_GAPS = 20_000_000
_UNIT = r"(?:_(ms|s|us|ns))?"
LISTS = lazy(
    r"(?:itls?|inter_(?:token|chunk)_latency|inter_(?:token|chunk)_latencies|(?:token_)?gaps?|tbts?)" + _UNIT
)
TIMES = lazy(
    r"(?:(?:output_)?(?:token|response|chunk)_?(?:times?|timestamps?|arrivals?)|emit_times?)" + _UNIT
)


def request_table(grid: Grid, source: Source, out: Reading) -> bool:
    """A row per request: arrival, time to first token, total time, gaps between tokens."""
    names = [split_unit(h) for h in grid.header]
    found: dict[str, int] = {}
    for i, ((plain, unit), head) in enumerate(zip(names, grid.header, strict=True)):
        figure = figure_of(head)
        if words(head) in OUTPUT:
            found.setdefault("output_tokens", i)
        elif plain in ARRIVAL:
            found.setdefault("arrival_s", i)
        elif figure is not None and figure[0] in FIGURES:
            found.setdefault(FIGURES[figure[0]], i)
        elif plain in CLOCK and unit == "s":
            found.setdefault("arrival_s", i)
    one = any(plain in ID for plain, _ in names)
    timed = found.keys() & {"ttft_s", "e2e_s", "itl_max_s", "itl_p50_s", "tpot_s"}
    if any(plain in TOKEN - ID for plain, _ in names) or not timed:
        return False
    if not (one and len(grid.rows) > 1) and "arrival_s" not in found:
        return False
    plain_series = not one and len(found) == len(names) == 2  # a time and a duration: no word of requests
    if plain_series and not names[found["arrival_s"]][0].startswith(("arriv", "sen")):
        return False
    columns: dict[str, list[float]] = {}
    for name, i in found.items():
        values = column(grid, i, out)
        factor = 1.0 if name == "output_tokens" else _factor(grid.header[i], values)
        columns[name] = [NAN if v is None else round(v * factor, 12) for v in values]
    status = next((i for i, (plain, _) in enumerate(names) if plain in STATUS), None)
    bad: dict[str, int] = {}
    for row in grid.rows if status is not None else ():
        cell = row[status].lower() if status is not None and status < len(row) else ""
        if cell and cell not in GOOD:
            bad[cell[:40]] = bad.get(cell[:40], 0) + 1
    out.add_columns("requests", columns, source=source.path, rows=len(grid.rows), statuses=bad)
    return True


def _factor(head: str, values: Sequence[float | None]) -> float:
    unit = split_unit(head)[1]
    return BASE[unit][1] if unit and BASE[unit][0] == "s" else scale_of(None, values)


def token_table(grid: Grid, source: Source, out: Reading) -> bool:
    """A row per token: request, token, and when it came or how long after the one before."""
    names = [split_unit(h) for h in grid.header]
    who = next((i for i, (plain, _) in enumerate(names) if plain in ID), None)
    gap = next((i for i, h in enumerate(grid.header) if (figure_of(h) or ("",))[0] == "itl_s"), None)
    when = next((i for i, (plain, _) in enumerate(names) if plain in CLOCK and i != who), None)
    token = any(plain in TOKEN for i, (plain, _) in enumerate(names) if i != who)
    if who is None or (gap is None and when is None) or not (token or gap is not None):
        return False
    if len({row[who] for row in grid.rows if who < len(row)}) == len(grid.rows):
        return False  # a row per request, not per token
    times = _scaled(grid, when, out) if when is not None else [NAN] * len(grid.rows)
    gaps = _scaled(grid, gap, out) if gap is not None else [NAN] * len(grid.rows)
    streams: dict[str, tuple[list[float], list[float]]] = {}
    for row, t, g in zip(grid.rows, times, gaps, strict=True):
        stream = streams.setdefault(row[who] if who < len(row) else "", ([], []))
        stream[0].append(t)
        stream[1].append(g)
    _add(streams.values(), source, out, gaps_given=gap is not None, rows=len(grid.rows))
    return True


def _scaled(grid: Grid, index: int, out: Reading) -> list[float]:
    values = column(grid, index, out)
    unit = split_unit(grid.header[index])[1]
    factor = BASE[unit][1] if unit else clock_scale([v for v in values if v is not None])
    return [NAN if v is None else base(v, factor) for v in values]


def clock_scale(times: Sequence[float]) -> float:
    """The factor to seconds of times without a unit: since 1970 they show it by their size."""
    top = max(times, default=0.0)
    return next((f for limit, f in ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3)) if top >= limit), 1.0)


def _add(
    streams: Iterable[tuple[Sequence[float], Sequence[float]]],
    source: Source,
    out: Reading,
    *,
    gaps_given: bool,
    rows: int,
) -> None:
    """Adds one batch: each stream holds times of its tokens, or gaps between them (the first is no gap)."""
    columns: dict[str, list[float]] = {"request": [], "t_s": [], "gap_s": []}
    for i, (times, gaps) in enumerate(streams):
        pairs = zip(times, gaps, strict=True) if gaps_given else _differences(times)
        for t, gap in pairs:
            if math.isnan(gap) or gap < 0 or len(columns["gap_s"]) >= MAX_GAPS:
                continue
            columns["request"].append(i)
            columns["t_s"].append(t)
            columns["gap_s"].append(gap)
    out.add_columns("gaps", columns, source=source.path, rows=rows)


def _differences(times: Sequence[float]) -> list[tuple[float, float]]:
    known = sorted(t for t in times if not math.isnan(t))
    return [(b, base(b - a, 1.0)) for a, b in itertools.pairwise(known)]


def token_json(document: Any, source: Source, out: Reading) -> bool:
    """Token gaps or times of each request, beside or without a benchmark's summary.

    Adds what it finds; returns True only where nothing else is in the document.
    """
    records = document if isinstance(document, list) else [document]
    added = False
    for record in records[:1000]:
        if isinstance(record, dict):
            added |= _token_lists(record, source, out)
    if not added and isinstance(document, list):
        added = _token_records(document, source, out)
    if not added and isinstance(document, dict):
        inner = list(_inner(document, 0))
        added = bool(inner) and _token_records(inner, source, out)
        if not added:
            added = _token_mapping(document, source, out)
    return False if added and _has_summary(document) else added


def _has_summary(document: Any) -> bool:
    first = document[0] if isinstance(document, list) and document else document
    return isinstance(first, dict) and sum(figure_of(str(k)) is not None for k in first) >= 2


def _token_lists(record: dict[str, Any], source: Source, out: Reading) -> bool:
    """`itls`: a list of gaps per request, as serving benchmarks save it in detail."""
    for key, value in record.items():
        m = LISTS.fullmatch(words(str(key)))
        nested = isinstance(value, list) and bool(value) and all(isinstance(x, list) for x in value)
        if not m or not nested:
            continue
        factor = BASE[m[1] or "s"][1]
        starts = record.get("start_times")
        firsts = record.get("ttfts")
        streams = []
        for i, gaps in enumerate(value):
            plain = [base(float(g), factor) for g in gaps if isinstance(g, int | float)]
            t = NAN
            if isinstance(starts, list) and isinstance(firsts, list) and i < len(starts) and i < len(firsts):
                t = float(starts[i]) + float(firsts[i])
            streams.append((_ends(t, plain), plain))
        _add(streams, source, out, gaps_given=True, rows=len(value))
        if isinstance(firsts, list) and len(firsts) == len(value):
            _first_tokens(record, firsts, [gaps for _, gaps in streams], source, out)
        return True
    return False


def _first_tokens(
    record: dict[str, Any], firsts: list[Any], gaps: list[list[float]], source: Source, out: Reading
) -> None:
    """Requests of the same record, which has been counted; a first token at 0 is a request that failed."""
    count = len(firsts)

    def column(key: str) -> list[float]:
        given = record.get(key)
        if not isinstance(given, list) or len(given) != count:
            return [NAN] * count
        return [float(x) if isinstance(x, int | float) else NAN for x in given]

    ttft = [float(x) if isinstance(x, int | float) and x > 0 else NAN for x in firsts]
    columns = {
        "arrival_s": column("start_times"),
        "ttft_s": ttft,
        "e2e_s": [base(t + sum(g), 1.0) for t, g in zip(ttft, gaps, strict=True)],
        "output_tokens": column("output_lens"),
    }
    out.add_columns("requests", columns, source=source.path, rows=0, statuses={})


def _ends(start: float, gaps: Sequence[float]) -> list[float]:
    out = []
    for gap in gaps:
        start += gap
        out.append(start)
    return out


def _inner(document: dict[str, Any], depth: int) -> Iterator[Any]:
    """Records of single requests at or below a document (`experiments[].requests[]`)."""
    for key in MEMBERS:
        found = document.get(key)
        if isinstance(found, list) and key in RECORDS:
            yield from found
        for item in found if isinstance(found, list) and depth < 3 else ():
            if isinstance(item, dict) and key not in RECORDS:
                yield from _inner(item, depth + 1)


def _opened(record: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """(words of the key, unit, value) of a record; `metrics.itl.value` beside its unit is opened."""
    for key, value in record.items():
        w = words(str(key))
        if isinstance(value, dict) and w == "metrics":
            yield from _opened(value)
        elif isinstance(value, dict) and isinstance(value.get("value"), list):
            yield w, str(value.get("unit") or ""), value["value"]
        else:
            yield w, "", value


def _token_records(records: list[Any], source: Source, out: Reading) -> bool:
    """One object per request with its token times or gaps; or one per token."""
    streams: list[tuple[list[float], list[float]]] = []
    given = False
    for record in records:
        if not isinstance(record, dict):
            return False
        for w, said, value in _opened(record):
            m, t = LISTS.fullmatch(w), TIMES.fullmatch(w)
            if not _is_numbers(value) or not (m or t):
                continue
            unit = (m[1] if m else t[1] if t else None) or (said if said in BASE else "")
            factor = BASE[unit][1] if unit else clock_scale(value) if t else 1.0
            plain = [base(float(x), factor) for x in value]
            given = m is not None
            streams.append(([NAN] * len(plain), plain) if given else (plain, [NAN] * len(plain)))
            break
    if not streams:
        return False
    _add(streams, source, out, gaps_given=given, rows=len(streams))
    return True


def _token_mapping(document: dict[str, Any], source: Source, out: Reading) -> bool:
    """A mapping of request names to token times ({"token_times_s": {"r0": [..]}} or bare)."""
    for key, value in (*document.items(), ("token_times", document)):
        m = TIMES.fullmatch(words(str(key)))
        if not m or not isinstance(value, dict | list) or not value:
            continue
        lists = list(value.values() if isinstance(value, dict) else value)
        sound = [x for x in lists if _is_numbers(x)]
        if len(sound) < 0.8 * len(lists) or not all(_rises(x) for x in sound):
            continue
        if value is document and not all(re.match(r"(?:r|req|request)\w*$", str(k)) for k in document):
            continue
        factor = BASE[m[1]][1] if m[1] else clock_scale([t for x in sound for t in x[:1]])
        streams = [([base(float(t), factor) for t in x], [NAN] * len(x)) for x in sound]
        _add(streams, source, out, gaps_given=False, rows=len(sound))
        return True
    return False


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 1 and all(isinstance(x, int | float) for x in value)


def _rises(values: Sequence[float]) -> bool:
    return all(b >= a for a, b in itertools.pairwise(values))
