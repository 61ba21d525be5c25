"""Metrics of running engines, from the rings they record into.

Counters of choices follow the rings' own totals, which miss nothing; what needs single records (collisions,
durations of steps) counts those that were overwritten before they were read as dropped.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.live.drain import ROUTER, STEP, Drain
from moexray.live.feed import RoutingFeed, Shape, collisions, observe_steps, remedy_actions
from moexray.runtime.guard import say_once

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from moexray.live.drain import Batch, Meta, RingReader
    from moexray.live.folder import Names
    from moexray.live.page import Page, Scope

__all__ = ["MEMORY", "Engines"]

NS = 1e-9
EVERY_S = 0.2  # a ring of 16 MiB holds 15,000 records of 256 experts: 1,000 steps a second of 58 layers
SOONEST_S = 0.02
MEMORY = {  # metric -> gauge of a ring (runtime/on_device.py)
    "moex_memory_reserved_bytes": "reserved_bytes",
    "moex_memory_allocated_bytes": "allocated_bytes",
    "moex_memory_stuck_bytes": "inactive_split_bytes",
}
FILLED = 0.25  # share of a ring's records that may come between two looks, where it is filled quickly

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Last:
    """What a ring showed at the last look."""

    totals: NDArray[np.int64]
    failures: int = 0
    own_ns: int = 0
    step_ns: int = 0


class Engines:
    """All rings of a folder as a source of metrics.

    Args:
        page: Where they go.
        drain: Reads the rings.
        names: Labels that win over those of the rings, and how many experts are shown.
        ep_size: EP ranks over which experts lie contiguously; 0 where unknown.
        trace: Makes spans of what was read; gives a trace id for each step, empty where it was not kept.
    """

    every_s = EVERY_S

    def __init__(
        self, page: Page, drain: Drain, names: Names, *, ep_size: int = 0,
        trace: Callable[[RingReader, Batch], list[str]] | None = None,
    ) -> None:  # fmt: skip
        self.page, self.drain, self.names, self.ep_size, self.trace = page, drain, names, ep_size, trace
        self._last: dict[Path, _Last] = {}
        self._feeds: dict[tuple[Any, ...], RoutingFeed] = {}
        self._acted: dict[tuple[int, int, int], dict[str, dict[str, int]]] = {}  # by process
        self._ended: set[tuple[int, int, int]] = set()  # at the last look: another ring may come at this one
        self._refused = 0
        self._looked_s = -math.inf

    def update(self) -> None:
        """Reads what the rings hold since the last call, and says when to come again."""
        given = self.drain.poll()
        self._pace(max(((len(b.records) + b.dropped) / r.slots for r, b in given), default=0.0))
        # where an engine's scheduler writes steps, those of its model processes would count them twice
        clocks = {(r.meta.engine, r.meta.model) for r, _ in given if r.meta.role == "engine"}
        for ring, batch in given:
            try:
                self._one(ring, batch, of_scheduler=(ring.meta.engine, ring.meta.model) in clocks)
            except Exception as why:  # noqa: BLE001  # what is wrong with one ring must not cost the others
                say_once(f"{ring.path} could not be counted: {why!r}; please report this", log=_log)
                self.page.drop("updates", "failed")
            if ring.path not in self.drain.readers:  # its writer is gone, this was the rest
                self._last.pop(ring.path, None)
                if lost := ring.lost():
                    self.page.drop("steps", "killed", lost)
                _ended(self._scope(ring.meta), ring.meta)
        for feed in self._feeds.values():
            feed.age(self._looked_s)
        for process in self._ended:
            self._acted.pop(process, None)
        self._ended = {r.process for r, _ in given if r.path not in self.drain.readers and r.ended()}
        if len(self.drain.refused) > self._refused:
            self.page.drop("rings", "refused", len(self.drain.refused) - self._refused)
            for path, reason in list(self.drain.refused.items())[self._refused :]:
                _log.warning("%s: %s", path, reason)
            self._refused = len(self.drain.refused)

    def _one(self, ring: RingReader, batch: Batch, *, of_scheduler: bool) -> None:
        meta = ring.meta
        scope = self._scope(meta)
        self._health(scope, ring, batch)
        if meta.sites:
            self._routing(scope, ring, batch)
        traces = self.trace(ring, batch) if self.trace and meta.sites else []
        if meta.role == "engine" or not of_scheduler:
            _steps(scope, batch, traces)
        _memory(scope, meta, ring.gauges())
        remedy_actions(scope, self._acted.setdefault(ring.process, {}), ring.remedies())

    def _pace(self, filled: float) -> None:
        """The next look comes before the ring that was `filled` most (share of its records) is half full."""
        since, self._looked_s = time.monotonic() - self._looked_s, time.monotonic()
        wanted = since * FILLED / filled if filled else EVERY_S
        self.every_s = min(max(wanted, SOONEST_S), EVERY_S)

    def _scope(self, meta: Meta) -> Scope:
        rank = "" if meta.rank is None else meta.rank
        return self.page.scope(
            model=self.names.model or meta.model, engine=self.names.engine or meta.engine, rank=rank
        )

    def _routing(self, scope: Scope, ring: RingReader, batch: Batch) -> None:
        sites = ring.meta.sites
        totals = ring.totals().astype(np.int64)
        last = self._last.setdefault(ring.path, _Last(np.zeros_like(totals)))
        if not last.totals.size:
            last.totals = np.zeros_like(totals)
        new = np.maximum(totals - last.totals, 0)  # totals never fall, but a file may be damaged
        last.totals = totals
        calls = batch.records["kind"] == ROUTER
        if not new.any() and not calls.any():
            return
        key = (scope.labels, sites)
        feed = self._feeds.get(key)
        if feed is None:
            shape = Shape(
                _labels(ring.meta), tuple(s.experts for s in sites), ep_size=self.ep_size, top=self.names.top
            )
            feed = self._feeds[key] = RoutingFeed(scope, shape)
        site, counts = batch.records["site"][calls], batch.counts[calls]
        experts = np.array(feed.shape.experts)
        beyond, unnamed = np.zeros(len(sites), np.int64), np.zeros(len(sites), np.int64)
        np.add.at(beyond, site, collisions(counts, experts[site][:, None]))
        named = counts.sum(axis=1, dtype=np.int64)
        np.add.at(unnamed, site, np.maximum(batch.records["pairs"][calls].astype(np.int64) - named, 0))
        feed.add(new, beyond, unnamed)

    def _health(self, scope: Scope, ring: RingReader, batch: Batch) -> None:
        live = ring.live()
        last = self._last.setdefault(ring.path, _Last(np.zeros((0, 0), np.int64)))
        if batch.dropped:
            self.page.drop("records", "overwritten", batch.dropped)
        if (failed := live["failures"] - last.failures) > 0:
            self.page.drop("records", "not_recorded", failed)
        own, steps = live["own_ns"] - last.own_ns, live["step_ns"] - last.step_ns
        if steps > 0 and live["own_ns"]:
            scope.set("moex_hook_overhead_ratio", own / steps)
        last.failures, last.own_ns, last.step_ns = live["failures"], live["own_ns"], live["step_ns"]
        self.page.fresh(time.time() - (time.monotonic_ns() - live["beat_ns"]) * NS)


def _steps(scope: Scope, batch: Batch, traces: list[str]) -> None:
    steps = batch.records[batch.records["kind"] == STEP]
    if len(steps):
        observe_steps(scope, ((steps["t1_ns"] - steps["t0_ns"]) * NS).tolist(), traces)


def _labels(meta: Meta) -> tuple[int | str, ...]:
    """Layer of each site; its path where several have one number or none."""
    layers = [s.layer for s in meta.sites]
    return tuple(
        s.layer if s.layer >= 0 and layers.count(s.layer) == 1 else s.path for s in meta.sites
    )


def _ended(scope: Scope, meta: Meta) -> None:
    """A process that is gone uses no memory and records nothing: no alert may go on firing for it."""
    device = meta.device.partition(":")[2]
    scope.set("moex_hook_overhead_ratio", math.nan)
    for name in MEMORY:
        scope.set(name, math.nan, device, "all")


def _memory(scope: Scope, meta: Meta, gauges: dict[str, float]) -> None:
    """What the writer samples of the allocator, over all its pools."""
    device = meta.device.partition(":")[2]
    for name, key in MEMORY.items():
        if key in gauges:
            scope.set(name, gauges[key], device, "all")
    for name, key in (("moex_allocator_retries_total", "retries"), ("moex_allocator_oom_total", "ooms")):
        if key in gauges:
            scope.follow(name, gauges[key], device)
