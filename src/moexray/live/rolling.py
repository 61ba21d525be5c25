"""What a live page shows: figures once a second, spikes and findings as they come, the last diagnoses.

Glossary: an *event* is one thing that happened, numbered from 1; who has seen n asks for what came after.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from moexray.live.page import Page, Sample
    from moexray.live.watch import Report

__all__ = ["CHARTS", "Chart", "Event", "Rolling"]

POINTS = 1_800  # half an hour of seconds
STORIES = 500  # spikes and findings that are kept
DIAGNOSES = 12  # whole documents that are kept for those who click on a spike
WINDOW_S = 60.0  # over which the quantiles of a step are taken
STEP = "moex_decode_step_duration_seconds"


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart: its lines are keys of a point."""

    name: str
    unit: str
    lines: tuple[tuple[str, str], ...]  # (key of a point, label)


CHARTS = (
    Chart("Time of a step, last minute", "s", (("step_p99_s", "P99"), ("step_p50_s", "P50"))),
    Chart("Expert skew index, worst layer", "ratio", (("skew", "Gini of tokens per expert"),)),
    Chart("Balancedness of EP ranks, worst layer", "ratio", (("balancedness", "mean / max"),)),
    Chart("Drift of the mix of experts, worst layer", "ratio", (("drift", "Jensen-Shannon / ln 2"),)),
    Chart("Fragmentation, worst pool", "ratio", (("fragmentation", "1 - largest / free"),)),
    Chart("Memory of PyTorch", "bytes", (("reserved", "reserved"), ("live", "live"), ("stuck", "stuck"))),
)
# Key of a point -> (metric, how the ranks, layers and pools become one number).
GAUGES: dict[str, tuple[str, Callable[[list[float]], float]]] = {
    "skew": ("moex_expert_skew_index", max),
    "balancedness": ("moex_expert_balancedness_ratio", min),
    "drift": ("moex_routing_drift_ratio", max),
    "fragmentation": ("moex_fragmentation_ratio", max),
    "reserved": ("moex_memory_reserved_bytes", sum),
    "live": ("moex_memory_allocated_bytes", sum),
    "stuck": ("moex_memory_stuck_bytes", sum),
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    Args:
        seq: Its number.
        kind: "point", "spike" or "finding".
        data: Ready for JSON.
    """

    seq: int
    kind: str
    data: dict[str, Any]


class Rolling:
    """Collects events from a page of metrics and from reports; any thread may call it.

    Args:
        page: Where the figures come from.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.new = threading.Condition()
        self._points: deque[Event] = deque(maxlen=POINTS)
        self._stories: deque[Event] = deque(maxlen=STORIES)
        self._diagnoses: deque[tuple[int, dict[str, Any]]] = deque(maxlen=DIAGNOSES)
        self._counts: deque[tuple[float, dict[float, float]]] = deque()
        self._seq = 0

    def sample(self, now: float | None = None) -> Event:
        """Takes the figures of this moment (epoch seconds)."""
        now = time.time() if now is None else now
        samples = self.page.samples()
        point: dict[str, Any] = {"t_s": now}
        for key, (name, joined) in GAUGES.items():
            values = [s.value for s in samples if s.name == name]
            point[key] = joined(values) if values else None
        window = self._window(now, samples)
        point |= {"step_p50_s": quantile(window, 0.5), "step_p99_s": quantile(window, 0.99)}
        return self._put("point", point)

    def told(self, report: Report) -> None:
        """Takes what a look of `Watch` found."""
        with self.new:
            number = self._diagnoses[-1][0] + 1 if self._diagnoses else 1
            self._diagnoses.append((number, report.diagnosis.to_json()))
        now = time.time()
        for f in reversed(report.findings):  # the newest stand on top: so does the gravest
            story = {"id": f.id, "severity": f.severity, "claim": f.claim, "rank": f.subject.rank}
            self._put("finding", {"t_s": now, "report": number, **story})
        for s in report.spikes:
            place = {"source": s.source, "line": s.line, "rank": s.rank}
            what = {"cause": s.cause, "value_s": s.seconds, **place}
            self._put("spike", {"t_s": now, "report": number, **what})

    def since(self, seq: int) -> list[Event]:
        """Events after a number that are still kept, in order; all, if the number is another server's."""
        with self.new:
            seq = seq if seq <= self._seq else 0
            found = [e for kept in (self._points, self._stories) for e in kept if e.seq > seq]
        return sorted(found, key=lambda e: e.seq)

    def diagnosis(self, number: int | None = None) -> dict[str, Any] | None:
        """A document `moexray.diagnosis/1`, the last one by default; None if it is not kept any more."""
        with self.new:
            kept = dict(self._diagnoses)
        return kept.get(number if number is not None else max(kept, default=0))

    def _put(self, kind: str, data: dict[str, Any]) -> Event:
        with self.new:
            self._seq += 1
            event = Event(self._seq, kind, data)
            (self._points if kind == "point" else self._stories).append(event)
            self.new.notify_all()
        return event

    def _window(self, now: float, samples: Iterable[Sample]) -> dict[float, float]:
        """Steps of the window: upper border of a bucket -> steps up to it, over all ranks."""
        total: dict[float, float] = {}
        for s in samples:
            if s.name == f"{STEP}_bucket":
                border = float(dict(s.labels)["le"])
                total[border] = total.get(border, 0.0) + s.value
        self._counts.append((now, total))
        while len(self._counts) > 1 and self._counts[0][0] < now - WINDOW_S:
            self._counts.popleft()
        before = self._counts[0][1]
        return {border: max(0.0, n - before.get(border, 0.0)) for border, n in sorted(total.items())}


def quantile(buckets: dict[float, float], q: float) -> float | None:
    """A quantile of cumulative buckets, linear within one, as Prometheus' histogram_quantile.

    Args:
        buckets: Upper border (the last is infinite) -> count up to it, ascending.
        q: Between 0 and 1.

    Returns:
        None without observations; the highest finite border where it lies above that.
    """
    borders: Sequence[float] = list(buckets)
    counts = list(buckets.values())
    if not counts or counts[-1] <= 0:
        return None
    place = bisect_left(counts, q * counts[-1])
    if place >= len(borders) - 1:
        return borders[-2] if len(borders) > 1 else None
    low, below = (borders[place - 1], counts[place - 1]) if place else (0.0, 0.0)
    inside = counts[place] - below
    return low + (borders[place] - low) * ((q * counts[-1] - below) / inside if inside else 1.0)
