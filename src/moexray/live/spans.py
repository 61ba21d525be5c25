"""Spans of engine steps and their layers, made after the fact and only for steps that are kept.

The engine records numbers into its ring; a step's spans are built from them once it has ended and was found
worth keeping (live/sampling.py). A step that never ended, as its forward raised, counts as an error.

Glossary: *completeness* is the layer spans made over the layer executions of the kept steps; what is missing
was overwritten in the ring before it was read.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.live.drain import ROUTER, STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from opentelemetry.trace import Link, Span, SpanContext, Tracer

    from moexray.live.drain import Batch, Meta, RingReader
    from moexray.live.enrich import Enricher
    from moexray.live.page import Page
    from moexray.live.sampling import Decider

__all__ = ["StepSpans"]

NS = 1e-9
PENDING = 4  # steps whose records are held until their end; older ones never ended
WAITING = 256  # steps whose requests are held: counts of a device come up to 64 steps after them
TOLD = ("step", "trace_high", "trace_low", "span")  # of a request


@dataclass(slots=True)
class _Open:
    """Records of a ring whose step has not ended, for whom it is, and how often each graph was replayed."""

    records: NDArray[Any] | None = None
    counts: NDArray[np.uint32] | None = None
    replays: dict[int, int] = field(default_factory=dict)
    requests: dict[int, list[SpanContext]] = field(default_factory=dict)  # by step


class StepSpans:
    """Makes the spans of one exporter.

    Args:
        tracer: Of OpenTelemetry; its provider samples nothing away.
        page: Counts what was kept and lost.
        decider: What is kept.
        enrich: Sets further attributes; None for none.
        links_of: (ring, step number) -> links to spans of requests that the step served, beside those that
            the ring tells.
    """

    def __init__(
        self, tracer: Tracer, page: Page, decider: Decider, *, enrich: Enricher | None = None,
        links_of: Callable[[Meta, int], Sequence[Link]] | None = None,
    ) -> None:  # fmt: skip
        self.tracer, self.page, self.decider, self.enrich = tracer, page, decider, enrich
        self.links_of = links_of
        self.made = self.executions = 0
        self._open: dict[Path, _Open] = {}

    def __call__(self, ring: RingReader, batch: Batch) -> list[str]:
        """Makes the spans of the steps that ended in this batch.

        Returns:
            A trace id for each STEP record in its order; empty where the step was not kept.
        """
        state = self._open.setdefault(ring.path, _Open())
        records, counts = batch.records, batch.counts
        _take(state.requests, batch.requests)
        if state.records is not None and state.counts is not None:
            records = np.concatenate([state.records, records])
            counts = np.concatenate([state.counts, counts])
        ids = []
        left = records["kind"] == ROUTER
        for end in np.flatnonzero(records["kind"] == STEP).tolist():
            step = records[end]
            rows = np.flatnonzero(left[:end])
            number = records["step"][rows]
            older, mine = rows[number < step["step"]], rows[number == step["step"]]
            self._unended(ring, records[older], counts[older], state)
            ids.append(self._one(ring, step, records[mine], counts[mine], state))
            left[older] = left[mine] = False
        state.records, state.counts = records[left], counts[left]
        self._bound(ring, state)
        if ring.alive() is False:
            self._unended(ring, state.records, state.counts, state)
            self._open.pop(ring.path, None)
        if self.executions:
            self.page.own.set("moex_trace_completeness_ratio", self.made / self.executions)
        return ids

    def _bound(self, ring: RingReader, state: _Open) -> None:
        """Steps of which later ones were seen have not ended and will not; the newest PENDING may."""
        if state.records is None or state.counts is None or not len(state.records):
            return
        steps = np.unique(state.records["step"])
        if len(steps) > PENDING:
            old = state.records["step"] <= steps[-PENDING - 1]
            self._unended(ring, state.records[old], state.counts[old], state)
            state.records, state.counts = state.records[~old], state.counts[~old]

    def _unended(
        self, ring: RingReader, records: NDArray[Any], counts: NDArray[np.uint32], state: _Open
    ) -> None:
        for number in np.unique(records["step"]).tolist():
            mine = records["step"] == number
            first = records[mine]
            step = first[-1].copy()
            step["t0_ns"], step["graph"] = first["t0_ns"].min(), 0
            self._one(ring, step, first, counts[mine], state, error="the step did not end")

    def _one(
        self, ring: RingReader, step: Any, layers: NDArray[Any], counts: NDArray[np.uint32], state: _Open,
        error: str = "",
    ) -> str:  # fmt: skip
        from opentelemetry.trace import Link

        for graph in {int(g) for g in layers["graph"]} - {0}:
            state.replays[graph] = state.replays.get(graph, -1) + 1
        trace_id = random.getrandbits(128)  # only decides the head ratio, before there is a span
        seconds = float(step["t1_ns"] - step["t0_ns"]) * NS
        reason = self.decider(trace_id, seconds, error=bool(error))
        requests = state.requests.pop(int(step["step"]), [])
        self.page.own.add("moex_traces_total", 1, reason)
        if reason == "rate":
            self.page.drop("traces", "rate")
        if reason in ("rate", "no"):
            return ""
        self.executions += max(len(layers), len(ring.meta.sites))
        self.made += len(layers)
        links = [Link(request) for request in requests]
        if self.links_of:
            links += self.links_of(ring.meta, int(step["step"]))
        return self._spans(ring.meta, step, layers, counts, state.replays, links, (reason, error))

    def _spans(
        self, meta: Meta, step: Any, layers: NDArray[Any], counts: NDArray[np.uint32],
        replays: dict[int, int], links: Sequence[Link], why: tuple[str, str],
    ) -> str:  # fmt: skip
        from opentelemetry.context import Context
        from opentelemetry.trace import Status, StatusCode, format_trace_id, set_span_in_context

        begin, end = (int(meta.wall(step[k])) for k in ("t0_ns", "t1_ns"))
        about: dict[str, Any] = {
            "moex.step": int(step["step"]), "moex.tokens": int(step["rows"]), "moex.kept": why[0],
            **_whose(meta),
        }  # fmt: skip
        root = self.tracer.start_span("moex.step", Context(), attributes=about, links=links, start_time=begin)
        self._enrich(root, "moex.step", about, (end - begin) * NS)
        if why[1]:
            root.set_status(Status(StatusCode.ERROR, why[1]))
        inside = set_span_in_context(root, Context())
        times = zip(meta.wall(layers["t0_ns"]).tolist(), meta.wall(layers["t1_ns"]).tolist(), strict=True)
        for (first, last), facts in zip(times, _facts(meta, layers, counts, replays), strict=True):
            child = self.tracer.start_span("moex.layer", inside, attributes=facts, start_time=first)
            self._enrich(child, "moex.layer", facts, (last - first) * NS)
            child.end(last)
        root.end(end)
        return format_trace_id(root.get_span_context().trace_id)

    def _enrich(self, span: Span, name: str, facts: dict[str, Any], seconds: float) -> None:
        if self.enrich:
            added, _ = self.enrich(name, "internal", facts, seconds)
            span.set_attributes(added)


def _take(requests: dict[int, list[SpanContext]], told: NDArray[Any]) -> None:
    """Holds what a batch tells of who a step is for; the oldest go first."""
    from opentelemetry.trace import SpanContext, TraceFlags

    kept = TraceFlags(TraceFlags.SAMPLED)
    for step, high, low, span in zip(*(told[name].tolist() for name in TOLD), strict=True):
        context = SpanContext(high << 64 | low, span, is_remote=True, trace_flags=kept)
        requests.setdefault(step, []).append(context)
    for step in list(requests)[:-WAITING]:
        del requests[step]


def _whose(meta: Meta) -> dict[str, Any]:
    """The labels that metrics of the same process have: from a span to its metrics."""
    return {
        "moex.model": meta.model, "moex.engine": meta.engine,
        **({} if meta.rank is None else {"moex.rank": meta.rank}),
    }  # fmt: skip


def _facts(
    meta: Meta, layers: NDArray[Any], counts: NDArray[np.uint32], replays: dict[int, int]
) -> Iterator[dict[str, Any]]:
    """Attributes of each layer's span."""
    names = ("step", "layer", "rows", "pairs", "stream", "site", "graph")
    columns = [layers[name].tolist() for name in names]
    total, hot = counts.sum(axis=1).tolist(), counts.argmax(axis=1).tolist()
    most, whose = counts.max(axis=1).tolist(), _whose(meta)
    for i, (step, layer, rows, pairs, stream, site, graph) in enumerate(zip(*columns, strict=True)):
        facts: dict[str, Any] = {
            "moex.step": step, "moex.layer": layer, "moex.tokens": rows, "moex.choices": pairs,
            "moex.cuda.stream_id": stream, "moex.router": meta.sites[site].path, **whose,
        }  # fmt: skip
        if graph:
            facts |= {"moex.cuda.graph_id": graph, "moex.graph.replay_index": replays[graph]}
        if total[i]:
            facts |= {"moex.expert.hot": hot[i], "moex.expert.hot_share": most[i] / total[i]}
        yield facts
