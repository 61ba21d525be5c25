"""Drift of the routing: a load as a stream of windows, its changes, and what they do to the balance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moexray.algorithms.drift import FEWEST, REFERENCE, changes, js, js_floor, kl, kl_floor, page_hinkley, psi
from moexray.analyse.routing import by_layer

if TYPE_CHECKING:
    from moexray.algorithms.drift import Change
    from moexray.analyse.routing_figures import Figures
    from moexray.core.run import Batch

__all__ = ["Distance", "Drift", "Relation", "compare", "drift", "gate_window", "gate_windows", "relation"]

MOST = 512  # windows looked at; longer streams get longer windows
AT_ONCE = 1 << 14  # rows of router scores in float64 at a time
CHOICES = 4  # per expert in a window, at least
APART = 3.0  # a distance between two mixes counts above so many noise floors and distances of own halves
DRAWS = 400  # of the bootstrap
BLOCK = 4  # windows drawn together: neighbours are alike


@dataclass(frozen=True, slots=True)
class Distance:
    """How far two stretches of one layer are apart, in nats.

    Args:
        layer: Label.
        kl: KL of the later stretch from the earlier.
        js: Jensen-Shannon divergence.
        psi: Population stability index.
        noise_floor: KL that sampling alone puts between them.
        js_floor: The same for JS.
        changed: JS passes the floor, and the distance between halves of either stretch, clearly.
    """

    layer: int
    kl: float
    js: float
    psi: float
    noise_floor: float
    js_floor: float
    changed: bool


@dataclass(frozen=True, slots=True)
class Drift:
    """What happened to one load over time.

    Args:
        steps: [windows], label of the first step (or token) of each window.
        signal: [windows], mean JS over layers of each window from the first REFERENCE ones, nats.
        floor: What sampling alone gives it, nats.
        found: Changes of the mix.
        hinkley: Windows at which Page-Hinkley sees one.
        reason: Why nothing can be said; empty where it can.
    """

    steps: np.ndarray
    signal: np.ndarray
    floor: float
    found: tuple[Change, ...] = ()
    hinkley: tuple[int, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Relation:
    """Least squares of balancedness on distance from the long-run mix, over windows.

    Args:
        slope: Balancedness per nat of JS.
        low: Lower end of its 95 % interval, bootstrap over blocks of windows.
        high: Upper end.
        r2: Share of the variance that it explains.
        windows: How many.
    """

    slope: float
    low: float
    high: float
    r2: float
    windows: int


def windows_of(figures: Figures) -> tuple[np.ndarray, np.ndarray]:
    """Neighbouring steps put together until a window holds enough choices of each layer.

    Returns:
        ([windows, layers, experts] counts, [windows] index of the first step of each).
    """
    cube = figures.tokens
    per_step = float(np.median(cube.sum(axis=(1, 2)) / max(len(figures.layers), 1)))
    size = max(1, -(-len(cube) // MOST))
    if not figures.load.from_routes and per_step > 0:
        size = max(size, -(-CHOICES * cube.shape[2] // max(int(per_step), 1)))
    edges = np.arange(0, max(len(cube) - size + 1, 1), size)
    cut = cube[: edges[-1] + size]
    return np.add.reduceat(cut, edges, axis=0), edges


def drift(figures: Figures) -> Drift:
    """The changes of a load over time; the reason where its order or length says nothing."""
    counts, edges = windows_of(figures)
    span = int(figures.load.attrs.get("span", 1))  # a label may be the last step of its row
    steps = figures.load.steps[edges] - (span - 1)
    used = counts.sum(axis=(0, 2)) > 0
    counts = counts[:, used].astype(np.float64)
    first = counts[:REFERENCE].sum(axis=0)
    others = (first - (w if i < REFERENCE else 0) for i, w in enumerate(counts))
    signal = np.array([float(js(w, rest).mean()) for w, rest in zip(counts, others, strict=True)])
    n = float(np.median(counts.sum(axis=(1, 2)))) / max(counts.shape[1], 1)
    floor = js_floor(counts.shape[2], n, n * min(len(counts), REFERENCE))
    reason = ""
    if figures.load.attrs.get("rows_are_ranks"):
        reason = "its rows are ranks, not moments"
    elif not figures.load.ordered:
        reason = "its rows are not in time order (a ring buffer written unrolled)"
    elif len(counts) <= FEWEST:
        windows = "1 window" if len(counts) == 1 else f"{len(counts)} windows"
        reason = f"it has {windows}, and telling a change from noise takes {FEWEST + 1}"
    if reason:
        return Drift(steps, signal, floor, reason=reason)
    return Drift(steps, signal, floor, tuple(changes(counts)), tuple(page_hinkley(counts)))


def compare(layers: np.ndarray, a: np.ndarray, b: np.ndarray) -> list[Distance]:
    """Distance of every layer between two stretches.

    Args:
        layers: [layers] labels.
        a: [windows, layers, experts] counts of the earlier stretch.
        b: The same of the later one.
    """
    first, second = a.sum(axis=0, dtype=np.float64), b.sum(axis=0, dtype=np.float64)
    apart = js(second, first)
    own = np.maximum(_halves(a), _halves(b))
    k, p = kl(second, first), psi(second, first)
    out = []
    for y, label in enumerate(layers):
        n, m = float(second[y].sum()), float(first[y].sum())
        if not n or not m:
            continue
        floor = js_floor(first.shape[1], n, m)
        unit = 1 / n + 1 / m
        limit = APART * max(floor, float(own[y]) * unit)
        out.append(
            Distance(int(label), float(k[y]), float(apart[y]), float(p[y]), kl_floor(first.shape[1], n, m),
                     floor, bool(apart[y] > limit))
        )  # fmt: skip
    return out


def _halves(windows: np.ndarray) -> np.ndarray:
    """[layers], JS between the two halves of a stretch per (1/n + 1/m); 0 where it cannot be halved."""
    if len(windows) < 2:
        return np.zeros(windows.shape[1])
    middle = len(windows) // 2
    a, b = (part.sum(axis=0, dtype=np.float64) for part in (windows[:middle], windows[middle:]))
    unit = 1 / np.maximum(a.sum(axis=1), 1) + 1 / np.maximum(b.sum(axis=1), 1)
    return np.asarray(js(a, b) / unit)


def relation(figures: Figures, seed: int = 0) -> Relation | None:
    """How balancedness follows the distance from the long-run mix; None under REFERENCE windows."""
    counts, edges = windows_of(figures)
    if len(counts) < REFERENCE or not figures.load.ordered:
        return None
    cube = figures.tokens if figures.ranks is None else figures.ranks.tokens
    size = int(edges[1] - edges[0]) if len(edges) > 1 else 1
    loads = np.add.reduceat(cube[: edges[-1] + size], edges, axis=0).astype(np.float64)
    used = loads.sum(axis=(0, 2)) > 0
    total = counts.sum(axis=0, dtype=np.float64)
    x = np.array([float(js(w, total - w)[used].mean()) for w in counts])
    tops = loads[:, used].max(axis=2)
    y = (loads[:, used].mean(axis=2) / np.maximum(tops, 1e-300)).mean(axis=1)
    if x.std() == 0 or y.std() == 0:
        return None
    slope = float(np.polyfit(x, y, 1)[0])
    rng = np.random.default_rng(seed)
    starts = np.arange(0, len(x) - BLOCK + 1)
    drawn = []
    for _ in range(DRAWS):
        at = (rng.choice(starts, -(-len(x) // BLOCK))[:, None] + np.arange(BLOCK)).ravel()
        drawn.append(np.polyfit(x[at], y[at], 1)[0] if x[at].std() > 0 else slope)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Relation(slope, float(low), float(high), float(np.corrcoef(x, y)[0, 1] ** 2), len(x))


def gate_window(batch: Batch, least: int) -> int:
    """Tokens of a window, at least `least`, so that there are at most MOST windows."""
    rows = batch.columns["layer"]
    longest = max((len(rows[at]) for _, at in by_layer(np.asarray(rows))), default=0)
    return max(least, -(-longest // MOST))


def gate_windows(batch: Batch, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean gate probabilities per window of router scores, as counts (probability x tokens).

    Args:
        batch: Of table `logits`.
        tokens: Tokens of a window.

    Returns:
        ([windows, layers, experts], [layers] labels); no windows where no token has sound scores.
    """
    values = batch.columns["values"]
    layers = by_layer(np.asarray(batch.columns["layer"]))
    labels = np.array([y for y, _ in layers])
    parts = []
    many = max(AT_ONCE // tokens, 1)
    for _, at in layers:
        scores = values[at]
        edges = np.arange(0, max(len(scores) - tokens + 1, 1), tokens)
        sums = np.zeros((len(edges), values.shape[1]))
        for i in range(0, len(edges), many):
            rows = np.asarray(scores[edges[i] : edges[min(i + many, len(edges)) - 1] + tokens], np.float64)
            if batch.attrs.get("kind") != "probs":
                rows = np.exp(rows - rows.max(axis=1, keepdims=True))
            rows /= np.maximum(rows.sum(axis=1, keepdims=True), 1e-30)
            sums[i : i + many] = np.add.reduceat(rows, edges[i : i + many] - edges[i], axis=0)
        parts.append(sums)
    if not parts:
        return np.zeros((0, 0, values.shape[1])), labels
    shortest = min(map(len, parts))
    return np.stack([p[:shortest] for p in parts], axis=1), labels
