"""Load of engines over time, from the figures that they print in their logs."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from moexray.core.run import Batch, Row, Run

__all__ = ["Point", "engine_points", "points"]

BINS = 12  # a long log is looked at in so many equal parts


@dataclass(frozen=True, slots=True)
class Point:
    """Load at one time, or over one window; None is unknown.

    Args:
        source: File.
        where: Line or scrape.
        t_s: Time on the clock of the file.
        running: Requests being served.
        waiting: Requests in the queue.
        kv: KV cache use, 0..1.
        step_s: Mean time per token of the window that ends here; of statistics, the iteration.
        preempted: Preemptions in that window.
        engines: Engines that the figures cover.
    """

    source: str
    where: str
    t_s: float | None
    running: float | None
    waiting: float | None
    kv: float | None
    step_s: float | None = None
    preempted: float | None = None
    engines: int = 1


def points(run: Run) -> list[Point]:
    """One point per line that states the load."""
    return [_point(r) for r in run.rows("log") if r["kind"] in ("stats", "batch")]


def engine_points(run: Run) -> dict[str, list[Point]]:
    """Points of each engine in the order of its log, thinned to medians of equal parts.

    Returns:
        {engine: points}; the key is "" where lines name no engine.
    """
    lines: dict[str, list[Point]] = {}
    for row in run.rows("log"):
        if row["kind"] in ("stats", "batch") and row["phase"] != "startup":
            lines.setdefault(_engine(row), []).append(_point(row))
    for batch in run.batches("iterations"):
        for engine, point in _iterations(batch):
            lines.setdefault(engine, []).append(point)
    return {engine: _bins(found) for engine, found in lines.items()}


def _iterations(batch: Batch) -> Iterator[tuple[str, Point]]:
    """(engine, load) of each iteration of a statistics file."""
    names = ("rank", "t_s", "running", "waiting", "kv_usage", "dur_s", "paused")
    rows = zip(*(batch.columns[name] for name in names), strict=True)
    for i, row in enumerate(rows):
        rank, t_s, *load = (None if v != v else float(v) for v in row)  # noqa: PLR0124  # NaN
        running, waiting, kv, step_s, paused = load
        where = f"iteration {i + 1} of the file"
        engine = "" if rank is None else str(int(rank))
        yield engine, Point(batch.source, where, t_s, running, waiting, kv, step_s, paused)


def _engine(row: Row) -> str:
    engine = (row["fields"] or {}).get("engine")
    if engine is not None:
        return str(engine)
    worker = str(row["worker"] or "")
    return next(
        (p[2:] for p in worker.replace("_", " ").split() if p.startswith("DP") and p[2:].isdigit()), ""
    )


def _point(row: Row) -> Point:
    f: dict[str, Any] = row["fields"] or {}

    def number(*names: str) -> float | None:
        return next((float(v) for n in names if isinstance(v := f.get(n), int | float)), None)

    running, speed = number("running"), number("output_tok_s", "throughput")
    percent = number("kv_pct")
    return Point(
        source=row["source"],
        where=row["where"],
        t_s=row["t_s"],
        running=running,
        waiting=number("waiting", "queued"),
        kv=percent / 100 if percent is not None else number("usage"),
        step_s=running / speed if running and speed and f.get("what") != "prefill" else None,
    )


def _bins(found: Sequence[Point]) -> list[Point]:
    if len(found) <= BINS:
        return list(found)
    out = []
    for i in range(BINS):
        part = found[i * len(found) // BINS : (i + 1) * len(found) // BINS]

        def mid(name: str, part: Sequence[Point] = part) -> float | None:
            known = [v for p in part if (v := getattr(p, name)) is not None]
            return median(known) if known else None

        last = part[-1]
        load = (mid("running"), mid("waiting"), mid("kv"), mid("step_s"), _sum(part))
        out.append(Point(last.source, last.where, last.t_s, *load))
    return out


def _sum(part: Sequence[Point]) -> float | None:
    known = [p.preempted for p in part if p.preempted is not None]
    return sum(known) if known else None
