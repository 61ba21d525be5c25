"""Answers of Prometheus' HTTP interface (instant and range queries), and error bodies instead of a page."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from moexray.core.errors import ReadError
from moexray.readers.metric_names import canonical, engine_of, join_labels
from moexray.readers.prometheus import ERROR_TEXT, FIELDS, PAGE_NAMES, add_scrape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["prom_json"]

ERROR_KEYS = ("detail", "message", "error", "errorType")
MAX_SAMPLES = 2_000_000


def prom_json(document: Any, source: Source, out: Reading) -> bool:
    """Adds a batch per time stamp of a query's result.

    Raises:
        ReadError: an error body where a metrics page was meant to be.
    """
    if not isinstance(document, dict):
        return False
    data = document.get("data", document)
    if isinstance(data, dict) and data.get("resultType") in ("vector", "matrix"):
        return _result(data.get("result"), source, out)
    said = next((str(document[k])[:60] for k in ERROR_KEYS if k in document), "")
    meant = source.name.lower().endswith(PAGE_NAMES) or ERROR_TEXT.fullmatch(said)
    if said and len(document) <= 6 and meant:
        text = f"an error answer ({said}), not a metrics page"
        out.problem("input.scrape_dirty", f"{text}; nothing of it was used", where="line 1", lost=None)
        raise ReadError(text, where=source.path, hint="scrape it again")
    return False


def _result(result: Any, source: Source, out: Reading) -> bool:
    batches: dict[float, dict[str, list[object]]] = {}
    for labels, t_s, value in _samples(result):
        name = labels.get("__name__", "")
        rest = {k: v for k, v in labels.items() if k != "__name__"}
        metric = "" if "quantile" in rest else canonical(name, "")
        columns = batches.setdefault(t_s, {f: [] for f in FIELDS})
        row = (name, metric, engine_of(rest), join_labels(rest), value)
        for field, item in zip(FIELDS, row, strict=True):
            columns[field].append(item)
    for i, t_s in enumerate(sorted(batches)):
        add_scrape(out, source.path, batches[t_s], scrape=i, t_s=t_s)
    return bool(batches)


def _samples(result: Any) -> Iterator[tuple[dict[str, str], float, float]]:
    """(labels, epoch seconds, value); missing and unreadable ones are left out."""
    count = 0
    for series in result if isinstance(result, list) else ():
        if not isinstance(series, dict) or not isinstance(series.get("metric"), dict):
            continue
        labels = {str(k): str(v) for k, v in series["metric"].items()}
        for pair in series.get("values") or [series.get("value")]:
            if not isinstance(pair, list) or len(pair) != 2 or count >= MAX_SAMPLES:
                continue
            try:
                t_s, value = float(pair[0]), float(pair[1])
            except (TypeError, ValueError):
                continue
            if math.isfinite(value):
                count += 1
                yield labels, t_s, value
