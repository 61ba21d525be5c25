"""From what was drained (counts per expert, times of steps) to the metrics of one process.

Glossary: a *block* is what came in within WINDOW_S / BLOCKS seconds; the *window* is the last BLOCKS of
them; the *reference* is the first full window, with which later ones are compared.
"""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moexray.algorithms.drift import js
from moexray.analyse.routing_stats import gini
from moexray.live.metrics import LEAST_TOKENS, WINDOW_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from moexray.live.page import Scope, Series

__all__ = ["TOP", "RoutingFeed", "Shape", "collisions", "observe_steps", "remedy_actions"]

BLOCKS = 6
YOUNG_S = 10.0  # within the first window the busiest experts are chosen anew so often
TOP = 4  # experts a layer shows by default: 58 layers x 4 are an eighth of the ceiling


@dataclass(frozen=True, slots=True)
class Shape:
    """What the counts of one process look like.

    Args:
        layers: Labels of the MoE layers, in the order of the counts; paths where numbers are not unique,
            -1 where the one layer has no name.
        experts: [layers], logical experts of each; columns of the counts past it are empty.
        ep_size: EP ranks; 0 where unknown.
        slots: [layers, slots] logical expert of each slot, ranks one after the other; None: contiguous.
        top: Experts of a layer that are shown, the busiest of the window; 0 for all.
    """

    layers: tuple[int | str, ...]
    experts: tuple[int, ...]
    ep_size: int = 0
    slots: NDArray[np.int64] | None = None
    top: int = TOP


class RoutingFeed:
    """Turns counts into the routing metrics of one process.

    Totals of every expert are kept here whatever the page shows, so an expert that comes back to the
    busiest goes on at its true count.

    Args:
        scope: Where the metrics go.
        shape: What the counts look like.
    """

    def __init__(self, scope: Scope, shape: Shape) -> None:
        self.scope, self.shape = scope, shape
        self.totals = np.zeros((len(shape.layers), max(shape.experts)), np.int64)
        self._reference: NDArray[np.int64] | None = None
        self._blocks: deque[tuple[float, NDArray[np.int64]]] = deque()
        self._names = ["" if layer == -1 else str(layer) for layer in shape.layers]
        self._shown: list[tuple[tuple[int, int], Series | None]] = []
        self._chosen_s = -math.inf
        self._started_s: float | None = None

    def add(
        self, choices: NDArray[np.integer], beyond: NDArray[np.integer],
        unnamed: NDArray[np.integer] | None = None, now_s: float | None = None,
    ) -> None:  # fmt: skip
        """Counts what came since the last call.

        Args:
            choices: [layers, experts], token-expert pairs.
            beyond: [layers], of these beyond even capacity (`collisions`).
            unnamed: [layers], pairs that named no expert; None where they are not counted.
            now_s: Monotonic seconds; now by default.
        """
        now = time.monotonic() if now_s is None else now_s
        sums = np.asarray(choices, np.int64)
        self.totals += sums
        self._into_window(sums, now)
        window = self.window
        measures = self._measures(window, now)  # before the lock: a scrape does not wait for it
        with self.scope.page.lock:
            for y, name in enumerate(self._names):
                self.scope.add("moex_routed_choices_total", int(sums[y].sum()), name)
                self.scope.add("moex_routing_collisions_total", int(beyond[y]), name)
                if unnamed is not None:
                    self.scope.add("moex_expert_capacity_dropped_tokens_total", int(unnamed[y]), name)
            self._tell(measures)
            self._show_experts(window, now)

    def age(self, now_s: float | None = None) -> None:
        """Where nothing came: what is older than the window leaves it; with the last of it the gauges go."""
        now = time.monotonic() if now_s is None else now_s
        if not self._blocks or now - self._blocks[0][0] < WINDOW_S:
            return
        self._leave_window(now)
        measures = self._measures(self.window, now)
        with self.scope.page.lock:
            self._tell(measures)

    def _tell(self, measures: tuple[list[float], list[float], list[float]]) -> None:
        names = ("moex_expert_skew_index", "moex_expert_balancedness_ratio", "moex_routing_drift_ratio")
        for metric, values in zip(names, measures, strict=True):
            for name, value in zip(self._names, values, strict=True):
                self.scope.set(metric, value, name)

    def _into_window(self, sums: NDArray[np.int64], now: float) -> None:
        if self._started_s is None:
            self._started_s = now
        if self._blocks and now - self._blocks[-1][0] < WINDOW_S / BLOCKS:
            np.add(self._blocks[-1][1], sums, out=self._blocks[-1][1])
        else:
            self._blocks.append((now, sums.copy()))
        self._leave_window(now)

    def _leave_window(self, now: float) -> None:
        while self._blocks and now - self._blocks[0][0] >= WINDOW_S:
            self._blocks.popleft()

    @property
    def window(self) -> NDArray[np.int64]:
        """[layers, experts], choices of the last WINDOW_S seconds."""
        out = np.zeros_like(self.totals)
        for _, sums in self._blocks:
            out += sums
        return out

    def _measures(
        self, window: NDArray[np.int64], now: float
    ) -> tuple[list[float], list[float], list[float]]:
        """[layers] each: skew, balancedness, drift; NaN where nothing can be said."""
        enough = window.sum(axis=1) >= LEAST_TOKENS * np.array(self.shape.experts)
        if self._reference is None and self._started_s is not None and now - self._started_s >= WINDOW_S:
            self._reference = window.copy() if enough.all() else None
        unknown = np.full(len(window), math.nan)
        balance = self._balancedness(window)
        far = unknown if self._reference is None else js(window, self._reference) / math.log(2)
        skew = [
            gini(window[y, : self.shape.experts[y]]) if known else math.nan for y, known in enumerate(enough)
        ]
        known_balance = unknown if balance is None else np.where(enough, balance, math.nan)
        return skew, known_balance.tolist(), np.where(enough, far, math.nan).tolist()

    def _show_experts(self, window: NDArray[np.int64], now: float) -> None:
        """The busiest experts; chosen anew once a window, so that series do not come and go."""
        young = self._started_s is None or now - self._started_s < WINDOW_S
        if not self._shown or now - self._chosen_s >= (YOUNG_S if young else WINDOW_S):
            top = self.shape.top or window.shape[1]
            cells = [
                (y, e)
                for y, count in enumerate(self.shape.experts)
                for e in np.argsort(-window[y, :count], kind="stable")[:top].tolist()
            ]
            labels = [(self._names[y], str(e)) for y, e in cells]
            self._shown = list(zip(cells, self.scope.show("moex_expert_tokens_total", labels), strict=True))
            self._chosen_s = now
        for cell, series in self._shown:
            if series:
                series.value = int(self.totals[cell])

    def _balancedness(self, window: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """[layers], mean / max over EP ranks; None where the EP size does not divide the slots."""
        ranks, slots = self.shape.ep_size, self.shape.slots
        if ranks < 2 or len(set(self.shape.experts)) > 1:
            return None
        load = window.astype(np.float64)
        if slots is not None:  # replicas share their expert's tokens evenly
            copies = np.stack([np.bincount(row, minlength=load.shape[1]) for row in slots])
            load = np.take_along_axis(load / np.maximum(copies, 1), slots, axis=1)
        if load.shape[1] % ranks:
            return None
        on_ranks = load.reshape(len(load), ranks, -1).sum(axis=2)
        return np.asarray(on_ranks.mean(axis=1) / np.maximum(on_ranks.max(axis=1), 1e-300))


def collisions(counts: NDArray[np.integer], experts: int | NDArray[np.integer]) -> NDArray[np.int64]:
    """Choices beyond even capacity of each row: sum over experts of max(0, n_e - ceil(n k / E)).

    Args:
        counts: [..., at least experts], choices of one router call or step.
        experts: E, one for all or [..., 1]; columns past it are empty.
    """
    own = np.asarray(counts)
    even = -(-own.sum(axis=-1, keepdims=True, dtype=np.int64) // experts)
    # max(0, n - c) = max(n, c) - c: one pass in the type of the counts, thousands of rows at a time
    largest = np.maximum(own, even.astype(own.dtype)).sum(axis=-1, dtype=np.int64)
    return np.asarray(largest - even[..., 0] * own.shape[-1])


def observe_steps(scope: Scope, seconds: Sequence[float], trace_ids: Sequence[str] = ()) -> None:
    """Adds the durations of steps.

    Args:
        scope: Where they go.
        seconds: [steps], durations.
        trace_ids: [steps], 32 hex digits where the step's trace was kept, else empty; none at all for [].
    """
    ids = trace_ids or [""] * len(seconds)
    for value, trace in zip(seconds, ids, strict=True):
        scope.observe("moex_decode_step_duration_seconds", value, trace_id=trace)


def remedy_actions(scope: Scope, seen: dict[str, dict[str, int]], found: dict[str, dict[str, int]]) -> None:
    """Adds what the remedies of a process did since the last look.

    Args:
        scope: Where it goes.
        seen: What was counted of this process until now, by remedy and outcome; brought up to date.
        found: What one of its rings tells; an older ring may tell less.
    """
    for remedy, outcomes in found.items():
        known = seen.setdefault(remedy, {})
        for outcome, count in outcomes.items():
            before = known.get(outcome, 0)
            scope.add("moex_remedy_actions_total", max(count - before, 0), remedy, outcome)
            known[outcome] = max(count, before)
