"""sched.dp_imbalance: one engine of a data-parallel server has far more requests than the others."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from moexray.analyse.load import Point, engine_points
from moexray.analyse.metrics import engine_sets, scrapes
from moexray.core.finding import Evidence, Finding, pairs
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from moexray.analyse.metrics import Scrape
    from moexray.core.limits import Limits
    from moexray.core.run import Run

__all__ = ["dp_imbalance"]


def dp_imbalance(run: Run, limits: Limits) -> list[Finding]:
    """One engine of a data-parallel server has far more requests than the others."""
    best: Finding | None = None
    sides = engine_sets(scrapes(run))
    for target in {s[0].target for s in sides}:
        pages = [_engines(side) for side in sides if side[0].target == target]
        best = max((f for f in (best, _uneven(pages, limits)) if f), key=lambda f: f.value or 0, default=None)
    if best is None and (logged := engine_points(run)) and len(logged) > 1:
        page = {
            e: Point(p[-1].source, p[-1].where, None, _mid(p, "running"), _mid(p, "waiting"), _mid(p, "kv"))
            for e, p in logged.items()
            if e
        }
        best = _uneven([page], limits)
    return [best] if best else []


def _mid(chain: list[Point], name: str) -> float | None:
    known = [v for p in chain if (v := getattr(p, name)) is not None]
    return median(known) if known else None


def _engines(side: list[Scrape]) -> dict[str, Point]:
    return {
        e: Point(
            s.source,
            s.where,
            s.t_s,
            s.get("requests_running", e),
            s.get("requests_waiting", e),
            s.get("kv_usage", e),
        )
        for s in side
        for e in s.engines
        if e
    }


def _uneven(pages: list[dict[str, Point]], limits: Limits) -> Finding | None:
    """A finding if the same engine stands out in more than half of the pages."""
    hits: dict[str, list[tuple[float, float, str, dict[str, Point]]]] = {}
    for page in pages:
        if (hit := _hottest(page, limits)) is not None:
            hits.setdefault(hit[0], []).append((*hit[1:], page))
    engine, found = max(hits.items(), key=lambda kv: len(kv[1]), default=("", []))
    if not found or 2 * len(found) <= len(pages):
        return None
    value, mid, what, page = found[-1]
    hot = page[engine]
    others = [p for e, p in page.items() if e != engine]
    kv = f" with KV use {hot.kv:.0%}" if hot.kv is not None else ""
    rest = [p.kv for p in others if p.kv is not None]
    kv += f" (others {min(rest):.0%}-{max(rest):.0%})" if rest and hot.kv is not None else ""
    times = f"{value / mid:.1f}x" if mid else "the others have none"
    claim = (
        f"Engine {engine} has {value:.0f} requests {what} against {mid:.0f} in the median of the other "
        f"{len(others)} ({times}){kv}. Expert-parallel steps are lock-stepped, so all engines inherit its "
        f"step time."
    )
    facts: dict[str, object] = {"engine": engine, "ratio": value / mid if mid else None, "kv_usage": hot.kv}
    for name in ("running", "waiting"):
        facts |= {f"{name}_{e}": _plain(getattr(p, name)) for e, p in list(page.items())[:64]}
    return Finding(
        "sched.dp_imbalance",
        "warn",
        0.9 if len(found) > 1 or value > limits.requests.imbalance_sure * max(mid, 1) else 0.85,
        claim,
        value=value / mid if mid else value,
        limit=limits.requests.imbalance,
        unit="ratio" if mid else "count",
        evidence=(Evidence(hot.source, hot.where, pairs(facts)),),
        remedies=(remedy("sched-balance-router", engine=engine),),
        cost=value - mid,
    )


def _hottest(page: dict[str, Point], limits: Limits) -> tuple[str, float, float, str] | None:
    """(engine, its requests, median of the others, running or waiting) of the engine that stands out."""
    lim = limits.requests
    for what in ("running", "waiting"):
        known = {e: v for e, p in page.items() if (v := getattr(p, what)) is not None}
        if len(known) < 2:
            continue
        engine = max(known, key=lambda e: known[e])
        mid = median([v for e, v in known.items() if e != engine])
        if known[engine] > lim.imbalance * mid and known[engine] - mid >= lim.imbalance_requests:
            return engine, known[engine], mid, what
    return None


def _plain(value: float | None) -> float | int | None:
    return int(value) if value is not None and value == int(value) else value
