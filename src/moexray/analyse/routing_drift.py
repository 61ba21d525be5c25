"""Change points of the routing: when the mix of experts changed, and what that did to the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moexray.algorithms.drift import js, js_floor
from moexray.analyse.routing_stats import by_chance

if TYPE_CHECKING:
    from moexray.analyse.routing_ranks import Ranks

__all__ = ["Change", "changes"]

MAX_WINDOWS = 96
MIN_CHOICES = 10  # choices per unit in a window
MIN_CHANCE = 0.85  # balancedness that chance leaves a window; below, its ranks say nothing


@dataclass(frozen=True, slots=True)
class Change:
    """A change point of one layer.

    Args:
        layer: Label of the layer.
        at: Index of the first step after the change.
        until: Index after the last step of the new mix.
        distance: JS between the mix before and the first window after, nats.
        limit: The limit it passed.
        before: Balancedness of the steps before, from the last change on.
        after: Balancedness of the steps after.
        window: Steps of a window.
    """

    layer: int
    at: int
    until: int
    distance: float
    limit: float
    before: float
    after: float
    window: int


def changes(ranks: Ranks, floor_factor: float, quiet_factor: float) -> list[Change]:
    """The worst change of each layer whose balancedness fell; empty where windows are too short."""
    found = []
    for y, layer in enumerate(ranks.load.layers):
        if change := _of_layer(ranks, y, int(layer), floor_factor, quiet_factor):
            found.append(change)
    return found


def _of_layer(ranks: Ranks, y: int, layer: int, floor_factor: float, quiet_factor: float) -> Change | None:
    series, on_ranks = ranks.load.tokens[:, y], ranks.tokens[:, y]
    size = _window(series, on_ranks)
    if size is None:
        return None
    edges = np.arange(0, len(series) - size + 1, size)
    windows = np.add.reduceat(series, edges, axis=0).astype(np.float64)
    points = _points(windows, floor_factor, quiet_factor)
    if not points:
        return None
    starts = [0, *(b for b, _, _ in points)]
    ends = [*starts[1:], len(windows)]
    steps = [_refine(series, s * size, size) if s else 0 for s in starts] + [len(series)]
    best: Change | None = None
    for i in range(1, len(starts)):
        if ends[i] - starts[i] < 2 and ends[i] != len(windows):
            continue
        before = _balance(on_ranks[steps[i - 1] : steps[i]])
        after = _balance(on_ranks[steps[i] : steps[i + 1]])
        if best is None or before - after > best.before - best.after:
            _, distance, limit = points[i - 1]
            best = Change(layer, steps[i], steps[i + 1], distance, limit, before, after, size)
    return best


def _window(series: np.ndarray, on_ranks: np.ndarray) -> int | None:
    """Steps per window: enough choices for the mix and for the ranks; None if under 4 windows fit."""
    units, count = series.shape[1], on_ranks.shape[1]
    size = max(1, -(-len(series) // MAX_WINDOWS))
    while len(series) // size >= 4:
        edges = np.arange(0, len(series) - size + 1, size)
        n = float(np.median(np.add.reduceat(series.sum(axis=1), edges)))
        if n >= MIN_CHOICES * units and by_chance(n / count, count) >= MIN_CHANCE:
            return size
        size *= 2
    return None


def _points(
    windows: np.ndarray, floor_factor: float, quiet_factor: float
) -> list[tuple[int, float, float]]:
    """(window, distance, limit) where two windows running lie off the mix since the last point."""
    units = windows.shape[1]
    totals = windows.sum(axis=1)
    steps = [js(windows[i], windows[i + 1]) for i in range(len(windows) - 1)]
    quiet = quiet_factor * float(np.median(steps))
    found: list[tuple[int, float, float]] = []
    start, b, mix = 0, 1, windows[0]
    while b < len(windows) - 1:
        mix = mix + windows[b - 1] if b > start + 1 else windows[start]
        size = float(mix.sum())
        far, limit = float(js(mix, windows[b])), max(floor_factor * js_floor(units, totals[b], size), quiet)
        if far > limit:
            again = float(js(mix, windows[b + 1]))
            if again > max(floor_factor * js_floor(units, totals[b + 1], size), quiet) and steps[b] < far:
                found.append((b, far, limit))
                start = b
        b += 1
    return found


def _refine(series: np.ndarray, at: int, size: int) -> int:
    """The step near a window's edge at which the likelihood of the new mix begins to win."""
    low, high = max(1, at - size), min(len(series) - 1, at + size)
    if size == 1 or high <= low:
        return at
    before = series[max(0, low - 8 * size) : low].sum(axis=0) + 0.5
    after = series[high : high + 8 * size].sum(axis=0) + 0.5
    gain = series[low:high] @ (np.log(after / after.sum()) - np.log(before / before.sum()))
    # the sum of gains from a step to the end is largest where the change is
    tail = np.concatenate([np.cumsum(gain[::-1])[::-1], [0.0]])
    return low + int(tail.argmax())


def _balance(on_ranks: np.ndarray) -> float:
    loads = on_ranks.sum(axis=0)
    return float(loads.mean() / loads.max()) if loads.size and loads.max() > 0 else float("nan")
