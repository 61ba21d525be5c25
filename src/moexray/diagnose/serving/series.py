"""Exhibit: load and counters of three or more scrapes over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moexray.analyse.metrics import scrapes, series

if TYPE_CHECKING:
    from moexray.analyse.metrics import Series
    from moexray.core.run import Run

__all__ = ["series_of_scrapes"]

LEAST = 3
GAUGES = (
    ("requests running", "requests_running", "count"),
    ("requests waiting", "requests_waiting", "count"),
    ("KV cache use", "kv_usage", "ratio"),
)
COUNTERS = (
    ("preemptions per window", "preemptions", "count"),
    ("tokens per window", "generation_tokens", "tokens"),
)


def series_of_scrapes(run: Run) -> list[dict[str, Any]]:
    """Gauges, differences of counters and the mean time per token, per series of scrapes."""
    return [row for chain in series(scrapes(run)) if len(chain.scrapes) >= LEAST for row in _rows(chain)]


def _rows(chain: Series) -> list[dict[str, Any]]:
    times = [s.t_s for s in chain.scrapes]
    timed = all(t is not None for t in times)
    x: list[float] = [t or 0.0 for t in times] if timed else [float(i) for i in range(len(times))]
    lines: list[tuple[str, str, list[float], list[float | None]]] = [
        (name, unit, x, [s.get(metric) for s in chain.scrapes]) for name, metric, unit in GAUGES
    ]
    lines += [
        (name, unit, x[1:], [w.delta(metric) for w in chain.windows]) for name, metric, unit in COUNTERS
    ]
    lines.append(("mean time per token", "s", x[1:], [w.mean("itl") for w in chain.windows]))
    return [
        {
            "name": f"{name}, {chain.scrapes[0].target}" if chain.scrapes[0].target else name,
            "unit": unit,
            "x_unit": "s" if timed else "step",
            "x": at,
            "y": y,
            "source": chain.scrapes[0].source,
            "marks": [],
        }
        for name, unit, at, y in lines
        if any(v is not None for v in y)
    ]
