"""A span processor that enriches spans, derives metrics from all of them, and keeps the traces worth keeping.

It stands before the processor that exports. Spans of a trace wait until its last local root has ended; then
the whole trace is handed on or dropped. What ends later follows the decision: a late span of a dropped trace
is dropped, too, and counted.

Glossary: a *local root* is a span without a parent in this process.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moexray.live.enrich import Enricher
    from moexray.live.page import Page
    from moexray.live.sampling import Decider

__all__ = ["Bounds", "Tail"]

NS = 1e-9


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of memory.

    Args:
        traces: That wait at a time; the oldest is dropped for a new one.
        spans: Of one trace; further ones are dropped, an error among them still keeps the trace.
        age_s: A trace that waits for longer never ends, and is dropped.
        decided: Traces whose decision is remembered for late spans.
    """

    traces: int = 1_000
    spans: int = 2_000
    age_s: float = 600.0
    decided: int = 10_000


@dataclass(slots=True)
class _Trace:
    since: float
    roots: int = 0
    seconds: float = 0.0
    error: bool = False
    spans: list[Any] = field(default_factory=list)


class Tail:
    """The processor. Threads may share it; a forked child begins with nothing.

    Args:
        then: The processor that gets the spans of kept traces.
        page: Counts decisions, losses and durations.
        decider: What is kept.
        enrich: Sets attributes and labels; None for none.
        bounds: Of memory.
    """

    def __init__(
        self, then: Any, page: Page, decider: Decider, enrich: Enricher | None = None,
        bounds: Bounds | None = None,
    ) -> None:  # fmt: skip
        self.then, self.page, self.decider, self.enrich = then, page, decider, enrich
        self.bounds = bounds or Bounds()
        self._scope = page.scope()
        self._begin()
        _tails.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._live: OrderedDict[int, _Trace] = OrderedDict()
        self._decided: OrderedDict[int, bool] = OrderedDict()

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Opens the trace of a local root."""
        self.then.on_start(span, parent_context)
        if not _is_root(span):
            return
        trace_id = span.context.trace_id
        with self._lock:
            if trace_id in self._decided:
                return
            now = time.monotonic()
            trace = self._live.get(trace_id)
            if trace is None:
                trace = self._live[trace_id] = _Trace(now)
            trace.roots += 1
            while len(self._live) > self.bounds.traces or self._oldest(now) < now - self.bounds.age_s:
                gone, _ = self._live.popitem(last=False)
                self._remember(gone, kept=False)
                self.page.drop("traces", "evicted")

    def _on_ending(self, span: Any) -> None:
        """Nothing: attributes are closed by then; `on_end` makes the enriched span."""

    def on_end(self, span: Any) -> None:
        """Counts and enriches a span, and decides with the last local root."""
        seconds = (span.end_time - span.start_time) * NS
        span = self._measured(span, seconds)
        trace_id = span.context.trace_id
        with self._lock:
            kept = self._decided.get(trace_id)
            trace = self._live.get(trace_id)
            if kept is None and trace is not None:
                out = self._wait(trace, span, seconds)
            elif kept:
                out = [span]
            else:  # of a trace that was dropped, or that began before we were there
                self.page.drop("spans", "late")
                out = []
        for one in out:
            self.then.on_end(one)

    def _wait(self, trace: _Trace, span: Any, seconds: float) -> list[Any]:
        """Adds a span to its trace; the whole trace once it is decided that it stays."""
        trace.error |= _failed(span)
        if len(trace.spans) < self.bounds.spans:
            trace.spans.append(span)
        else:
            self.page.drop("spans", "giant")
        if not _is_root(span):
            return []
        trace.roots -= 1
        trace.seconds = max(trace.seconds, seconds)
        if trace.roots > 0:
            return []
        trace_id = span.context.trace_id
        del self._live[trace_id]
        reason = self.decider(trace_id, trace.seconds, error=trace.error)
        self.page.own.add("moex_traces_total", 1, reason)
        if reason == "rate":
            self.page.drop("traces", "rate")
        kept = reason not in ("rate", "no")
        self._remember(trace_id, kept=kept)
        return trace.spans if kept else []

    def _measured(self, span: Any, seconds: float) -> Any:
        """The span with what the rules add; its duration goes to the metrics, kept or not."""
        name = span.name
        added: dict[str, Any] = {}
        labels: dict[str, str] = {}
        if self.enrich:
            added, labels = self.enrich(name, span.kind.name.lower(), span.attributes or {}, seconds)
        for label, value in {"": "", **labels}.items():
            self._scope.observe("moex_span_duration_seconds", seconds, name, label, value)
        return _with(span, added) if added else span

    def _oldest(self, now: float) -> float:
        return next((t.since for t in self._live.values()), now)

    def _remember(self, trace_id: int, *, kept: bool) -> None:
        self._decided[trace_id] = kept
        while len(self._decided) > self.bounds.decided:
            self._decided.popitem(last=False)

    def shutdown(self) -> None:
        """What waits was never decided: it is counted and dropped."""
        with self._lock:
            if self._live:
                self.page.drop("traces", "evicted", len(self._live))
            self._live.clear()
        self.then.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flushes what was kept."""
        return bool(self.then.force_flush(timeout_millis))


_tails: weakref.WeakSet[Tail] = weakref.WeakSet()


def _after_fork() -> None:
    for tail in list(_tails):
        tail._begin()  # noqa: SLF001 - this module's own class


os.register_at_fork(after_in_child=_after_fork)


def _is_root(span: Any) -> bool:
    return span.parent is None or span.parent.is_remote


def _failed(span: Any) -> bool:
    from opentelemetry.trace import StatusCode

    return span.status.status_code is StatusCode.ERROR


def _with(span: Any, added: dict[str, Any]) -> Any:
    """The same span with more attributes."""
    from opentelemetry.sdk.trace import ReadableSpan

    return ReadableSpan(
        name=span.name, context=span.context, parent=span.parent, resource=span.resource,
        attributes={**(span.attributes or {}), **added}, events=span.events, links=span.links, kind=span.kind,
        status=span.status, start_time=span.start_time, end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )  # fmt: skip
