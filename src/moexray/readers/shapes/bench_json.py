"""Benchmark results in JSON: vLLM, SGLang (JSON lines), genai-perf, aiperf, guidellm, or figures by arm.

One walk serves them all: keys are read as words, so a new tool's file mostly works as it is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from moexray.readers.cells import base, split_unit, word_set, words
from moexray.readers.shapes.bench_table import FROM, TO, moment
from moexray.readers.shapes.figures import LEVEL_ORDER, figure_of, is_run, stat_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["bench_json"]

MAX_DEPTH = 8
MAX_FIGURES = 20_000
LEVELS = (*LEVEL_ORDER, "users", "clients", "streams")
SKIP = word_set(
    "errored incomplete total_requests request_totals input_config args config env distribution quantiles "
    "histogram buckets requests request_samples metadata goodput telemetry_data gpu_telemetry"
)
NEUTRAL = word_set(
    "metrics successful percentiles records results result stats statistics summary value values benchmarks "
    "data latency_percentiles"
)
MEMBERS = ("benchmarks", "results", "runs", "experiments", "sweep", "data")


def bench_json(document: Any, source: Source, out: Reading) -> bool:  # noqa: ARG001
    """Adds every figure that the document's words name; False where there are fewer than two."""
    before = len(out.tables.get("bench", ()))
    records = before + 0
    for order, (run, body) in enumerate(_runs(document)):
        found = list(_figures(body, ()))
        level = _level(body)
        start, end = _edge(body, FROM), _edge(body, TO)
        for where, figure, value in found[:MAX_FIGURES]:
            out.add(
                "bench",
                where=f"{run}: {where}" if run else where,
                run=run,
                level=level,
                order=order,
                t_from_s=start,
                t_to_s=end,
                figure=figure,
                value=value,
            )
            records += 1
    if records - before >= 2:
        return True
    if "bench" in out.tables:
        del out.tables["bench"][before:]
        out.rows -= records - before
        if not out.tables["bench"]:
            del out.tables["bench"]
    return False


def _runs(document: Any) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """(name of the run, its results): a document, a list of them, or a mapping of arms to them."""
    if isinstance(document, list):
        items = [x for x in document[:MAX_FIGURES] if isinstance(x, dict)]
        levels = {_level(x) for x in items}
        swept = None not in levels and len(levels) == len(items)
        for i, item in enumerate(items):
            yield _name(item) or (None if swept or len(items) == 1 else str(i + 1)), item
        return
    if not isinstance(document, dict):
        return
    for key in MEMBERS:
        inner = document.get(key)
        if isinstance(inner, list) and inner and all(isinstance(x, dict) for x in inner):
            yield from _runs(inner)
            return
    arms = {k: v for k, v in document.items() if isinstance(v, dict) and _is_arm(str(k), v)}
    if arms and not any(True for _ in _figures({k: v for k, v in document.items() if k not in arms}, ())):
        for key, value in arms.items():
            inner_runs = list(_runs(value))
            for name, body in inner_runs:
                yield (str(key) if len(inner_runs) == 1 or name is None else f"{key} {name}"), body
        return
    yield _name(document), document


def _is_arm(key: str, body: dict[str, Any]) -> bool:
    """Whether a key names a run and not a quantity: its words are no figure, but figures lie below."""
    w = words(key)
    if w in SKIP or w in NEUTRAL or figure_of(key) is not None or stat_of(w)[0]:
        return False
    if any(figure_of(f"{stat}_{w}") for stat in ("mean", "p99")) or "unit" in body:
        return False
    return any(True for _ in _figures(body, ()))


def _name(body: dict[str, Any]) -> str | None:
    parts = [str(v)[:60] for k, v in body.items() if is_run(str(k)) and isinstance(v, str | int) and v != ""]
    return " ".join(parts) or None


def _edge(body: dict[str, Any], names: frozenset[str]) -> float | None:
    """When the run began or ended, if it says so."""
    for key, value in body.items():
        plain = words(str(key))
        if isinstance(value, str | int | float) and (plain in names or split_unit(str(key))[0] in names):
            return moment(value, str(key))
    return None


def _level(body: dict[str, Any]) -> float | None:
    plain = {words(str(k)): v for k, v in body.items()}
    for inner in ("args", "config", "input_config", "strategy"):
        if isinstance(plain.get(inner), dict):
            plain = {**{words(str(k)): v for k, v in plain[inner].items()}, **plain}
    if isinstance(plain.get("strategy"), dict):
        plain = {**{words(str(k)): v for k, v in plain["strategy"].items()}, **plain}
    for key in ("max_concurrency", *LEVELS):
        value = plain.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and value < float("inf"):
            return float(value)
    return None


def _figures(body: dict[str, Any], above: tuple[str, ...]) -> Iterator[tuple[str, str, float]]:
    """(place, figure, value in base units) of every number whose path of keys is a figure."""
    if len(above) > MAX_DEPTH:
        return
    unit = body.get("unit")
    for key, value in body.items():
        w = words(str(key))
        if w in SKIP or w == "unit":
            continue
        path = above if w in NEUTRAL else (*above, str(key))
        if isinstance(value, dict):
            yield from _figures(value, path)
        elif isinstance(value, int | float) and not isinstance(value, bool) and path and math.isfinite(value):
            given = unit if isinstance(unit, str) else None
            if figure := _figure(path, given):
                factor = figure[1] if figure[1] is not None else 1e-3 if value >= 5 else 1.0
                yield ".".join((*above, str(key))), figure[0], base(value, factor)


def _figure(path: tuple[str, ...], unit: str | None) -> tuple[str, float | None] | None:
    """A figure from the last key, or from the last two where the last is only a stat ("p99")."""
    last, own = split_unit(path[-1])
    stat, rest = stat_of(last)
    if stat and not rest and (len(path) > 1 or not own):
        return figure_of(f"{last} {path[-2]}", own or unit) if len(path) > 1 and stat != "std" else None
    if last.isdigit():
        return None
    return figure_of(path[-1], unit)
