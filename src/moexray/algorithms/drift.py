"""How far two mixes of experts are apart, and when a stream of them changed.

Glossary: a *mix* is how choices spread over the experts of a layer; its *noise floor* is the distance
that sampling alone puts between a mix and a sample of it; a *window* is a stretch of the stream.

Sources: floors from the chi-square approximation, 2n KL ~ chi2(E-1); Page-Hinkley as in Page 1954 and
Hinkley 1971; the factors of `changes` were found on recorded routing (docs/decisions/022).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

__all__ = ["Change", "PageHinkley", "changes", "js", "js_floor", "kl", "kl_floor", "page_hinkley", "psi"]

POOLS = ((1, 13.5), (2, 10.0), (4, 8.5))  # windows taken together; spreads by which they must stand out
LEAST_SPREAD = 0.35  # of the quiet mean: the spread of few windows is not known better
TAIL = 1.5  # a chi-square of few degrees of freedom has a heavy tail: its relative spread counts so often
QUIET = 16  # windows that tell how far apart quiet ones are
AGAIN = 8  # ... after a change; fewer, so that the next one is not part of them
GUARD = 4  # newest quiet values that do not count yet: a change may have begun in them
HALF_A_CHOICE = 0.5  # added to each expert of a reference, so that an expert never chosen is not impossible


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the mix.

    Args:
        start: First window of the new mix.
        found: Window at whose end it was seen; `found - start + 1` windows are the delay.
        distance: Mean JS over layers between the windows from start to found and those before, nats.
        quiet: The same where nothing changed, nats.
        layers: [layers], True for those that changed by themselves.
        until: Window at which the next mix begins; -1 where it holds to the end.
    """

    start: int
    found: int
    distance: float
    quiet: float
    layers: np.ndarray
    until: int

    @property
    def lasts(self) -> bool:
        """The new mix held for so long, or holds at the end, that it is no burst."""
        return self.until < 0 or self.until - self.start >= QUIET


def kl(new: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """KL(new || reference) of counts [..., E] over the last axis, nats.

    Half a choice is added to each expert of the reference.
    """
    padded = np.asarray(reference, np.float64) + HALF_A_CHOICE
    p, q = _shares(new), padded / padded.sum(axis=-1, keepdims=True)
    return np.asarray((p * np.log(np.maximum(p, 1e-300) / q)).sum(axis=-1))


def kl_floor(units: int, n: float, reference: float) -> float:
    """KL that n choices show on average against `reference` choices of the same mix, nats."""
    return (units - 1) / 2 * (1 / max(n, 1.0) + 1 / max(reference, 1.0))


def js(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Jensen-Shannon divergence of counts [..., E] over the last axis, nats (at most ln 2)."""
    p, q = _shares(a), _shares(b)
    return np.asarray(np.maximum(_entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2, 0.0))


def js_floor(units: int, n: float, m: float) -> float:
    """JS that two samples of n and m choices of one mix show on average, nats (a quarter of KL's)."""
    return kl_floor(units, n, m) / 4


def psi(new: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Population stability index of counts [..., E] over the last axis, half a choice added to each."""
    padded = [np.asarray(x, np.float64) + HALF_A_CHOICE for x in (new, reference)]
    p, q = (x / x.sum(axis=-1, keepdims=True) for x in padded)
    return np.asarray(((p - q) * np.log(p / q)).sum(axis=-1))


def _shares(counts: np.ndarray) -> np.ndarray:
    counts = np.asarray(counts, np.float64)
    return np.asarray(counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1e-300))


def _entropy(p: np.ndarray) -> np.ndarray:
    return np.asarray(-(p * np.log(np.maximum(p, 1e-300))).sum(axis=-1))


class PageHinkley:
    """Finds a rise of the mean of a series, value by value.

    Args:
        delta: Rise that does not count, in the unit of the series.
        threshold: Sum of rises above delta that is a change, same unit.
        least: Values before the first alarm.
    """

    def __init__(self, delta: float, threshold: float, least: int = QUIET) -> None:
        self.delta, self.threshold, self.least = delta, threshold, least
        self._reset()

    def _reset(self) -> None:
        self.count, self.mean, self.total, self.lowest = 0, 0.0, 0.0, 0.0

    def update(self, value: float) -> bool:
        """Takes one value; whether the mean has risen (then it begins anew)."""
        self.count += 1
        self.mean += (value - self.mean) / self.count
        self.total += value - self.mean - self.delta
        self.lowest = min(self.lowest, self.total)
        if self.count > self.least and self.total - self.lowest > self.threshold:
            self._reset()
            return True
        return False


def page_hinkley(windows: np.ndarray, *, delta: float = 0.005, threshold: float = 0.2) -> list[int]:
    """Windows at which Page-Hinkley sees a change of the mean JS over layers.

    Args:
        windows: [windows, layers, E] counts, windows of about equal size.
        delta: See PageHinkley; the default, like the next, is for 64 tokens on 64 experts, top-6.
        threshold: See PageHinkley.

    Returns:
        Indices; after each the reference is taken anew from the QUIET windows from there on.
    """
    found: list[int] = []
    start = 0
    while start + QUIET < len(windows):
        reference = windows[start : start + QUIET].sum(axis=0)
        watch = PageHinkley(delta, threshold)
        at = None
        for i in range(start, len(windows)):
            held = windows[i] if i < start + QUIET else 0
            if watch.update(float(js(windows[i], reference - held).mean())):
                at = i
                break
        if at is None:
            return found
        found.append(at)
        start = at
    return found


def changes(windows: np.ndarray) -> list[Change]:
    """Changes of the mix in a stream of windows, oldest first.

    The newest 1, 2 and 4 windows are compared with all before them since the last change; a
    distance that stands out of the quiet ones of the same comparison is a change. Distances are
    compared per (1/n + 1/m) of the choices on both sides, which is how sampling makes them grow;
    no threshold in nats is needed, so it holds for any number of experts and size of windows.

    Args:
        windows: [windows, layers, E] counts, in time order, windows of about equal size.

    Returns:
        Empty where fewer than QUIET + 1 windows are given.
    """
    sums = np.concatenate([np.zeros((1, *windows.shape[1:])), np.cumsum(windows, axis=0, dtype=np.float64)])
    found: list[Change] = []
    first, begin = 0, QUIET
    quiet: dict[int, list[np.ndarray]] = {}
    for i in range(QUIET, len(windows)):
        if i < begin:
            continue
        if i == begin:
            quiet = _held_out(sums, first, begin)
        if change := _look(sums, first, begin, i, quiet):
            found.append(change)
            first, begin = change.start, max(change.start + AGAIN, i + 1)
    return [replace(c, until=after.start) if after else c for c, after in zip_longest(found, found[1:])]


def _held_out(sums: np.ndarray, first: int, end: int) -> dict[int, list[np.ndarray]]:
    """Distances of pools of the windows [first, end) from the rest of them, by size of the pool."""
    whole = sums[end] - sums[first]
    pools = {size: [sums[i + size] - sums[i] for i in range(first, end - size + 1)] for size, _ in POOLS}
    return {size: [_distance(pool, whole - pool) for pool in found] for size, found in pools.items()}


def _look(
    sums: np.ndarray, first: int, begin: int, i: int, quiet: dict[int, list[np.ndarray]]
) -> Change | None:
    """Whether window i ends a pool that stands out; if not, its distances join the quiet ones."""
    free = max((sums.shape[2] - 1) * sums.shape[1], 1)  # degrees of freedom of a distance
    least = max(LEAST_SPREAD, TAIL * (2 / free) ** 0.5)
    for size, factor in POOLS:
        at = i + 1 - size
        if at < begin:
            continue
        new, before = sums[i + 1] - sums[at], sums[at] - sums[first]
        distance = _distance(new, before)
        settled = np.array(quiet[size][: max(len(quiet[size]) - GUARD, AGAIN - size + 1)])
        usual = settled.mean(axis=1)
        mean = float(usual.mean())
        spread = max(float(usual.std(ddof=1)), least * mean)
        if float(distance.mean()) > mean + factor * spread:
            start = _likeliest(sums, first, range(max(begin, i - GUARD + 1), i + 1), i + 1)
            unit = _unit(new, before)
            return Change(start, i, float(distance.mean()) * unit, mean * unit, _moved(distance, settled), -1)
        quiet[size].append(distance)
    return None


def _distance(new: np.ndarray, before: np.ndarray) -> np.ndarray:
    return np.asarray(js(new, before) / _unit(new, before))


def _unit(new: np.ndarray, before: np.ndarray) -> float:
    layers = len(new)
    return float(layers / max(new.sum(), 1.0) + layers / max(before.sum(), 1.0))


def _likeliest(sums: np.ndarray, first: int, starts: range, end: int) -> int:
    """The start of the new mix under which the counts up to `end` are most likely."""

    def gain(at: int) -> float:
        before, after = sums[at] - sums[first], sums[end] - sums[at]
        return -float((before.sum(axis=-1) * _entropy(_shares(before))).sum()) - float(
            (after.sum(axis=-1) * _entropy(_shares(after))).sum()
        )

    return max(starts, key=gain)


def _moved(distance: np.ndarray, settled: np.ndarray) -> np.ndarray:
    """[layers], True where a layer's distance stands out of its own quiet ones."""
    own = settled.mean(axis=0)
    spread = np.maximum(settled.std(axis=0, ddof=1), LEAST_SPREAD * own)
    return np.asarray(distance > own + POOLS[-1][1] * spread)
