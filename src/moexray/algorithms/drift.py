"""How far two mixes of experts are apart, and when a stream of them changed.

Glossary: a *mix* is how choices spread over the experts of a layer; its *noise floor* is the distance
that sampling alone puts between a mix and a sample of it; a *window* is a stretch of the stream.

Sources: floors from the chi-square approximation, 2n KL ~ chi2(E-1); Page-Hinkley as in Page 1954 and
Hinkley 1971; the factors of `changes` were found on recorded routing (docs/decisions/022).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

__all__ = [
    "FEWEST", "REFERENCE", "Change", "PageHinkley", "changes", "js", "js_floor", "kl", "kl_floor",
    "page_hinkley", "psi",
]  # fmt: skip

POOLS = ((1, 13.5), (2, 10.0), (4, 8.5))  # windows taken together; spreads by which the layers must stand out
ALONE = {2: 6.0, 4: 6.0}  # the same for one layer against the others
LEAST_SPREAD = 0.35  # of the quiet mean: the spread of few windows is not known better
LEAST_LOG = 0.25  # ... of the logarithm of a layer's distance over that of the others
TAIL = 1.5  # a chi-square of few degrees of freedom has a heavy tail: its relative spread counts so often
MOVED = 4.0  # spreads by which a layer must stand out to be named in a change of them all
ABOVE = 1.5  # quiet means that a layer alone must pass
FEWEST = 4  # windows before the first that can be called new
ENOUGH = 10  # windows of a reference from which the spreads above are asked; with fewer, more in proportion
QUIET = 16  # windows that tell how far apart quiet ones are
GUARD = 4  # newest quiet values that do not count yet: a change may have begun in them
LASTING = 16  # windows that a new mix must hold to be no burst
REFERENCE = 16  # windows of the mix that Page-Hinkley compares with
HALF_A_CHOICE = 0.5  # added to each expert of a reference, so that an expert never chosen is not impossible


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the mix.

    Args:
        start: First window of the new mix.
        found: Window at whose end it was seen; `found - start + 1` windows are the delay.
        distance: Mean JS over its layers between the newest windows and those before, nats.
        quiet: The same where nothing changed, nats.
        layers: [layers], True for those that changed.
        until: Window at which the next mix begins, or the old one again; -1 where it holds to the end.
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
        return self.until < 0 or self.until - self.start >= LASTING


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

    def __init__(self, delta: float, threshold: float, least: int = REFERENCE) -> None:
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
        Indices; after each the reference is taken anew from the REFERENCE windows from there on.
    """
    found: list[int] = []
    start = 0
    while start + REFERENCE < len(windows):
        reference = windows[start : start + REFERENCE].sum(axis=0)
        watch = PageHinkley(delta, threshold)
        at = None
        for i in range(start, len(windows)):
            held = windows[i] if i < start + REFERENCE else 0
            if watch.update(float(js(windows[i], reference - held).mean())):
                at = i
                break
        if at is None:
            return found
        found.append(at)
        start = at
    return found


def changes(windows: np.ndarray) -> list[Change]:
    """Changes of the mix in a stream of windows, by their start.

    The newest 1, 2 and 4 windows are compared with all before them since the last change; a
    distance that stands out of the quiet ones of the same comparison is a change. Distances are
    compared per (1/n + 1/m) of the choices on both sides, which is how sampling makes them grow;
    no threshold in nats is needed, so it holds for any number of experts and size of windows.

    Two questions are asked: whether the mean over layers stands out, and whether one layer stands out
    of the others. Texts move all layers together, so that the ratio of a layer's distance to the median
    of the others is quiet even where the texts are not: a layer that changes alone is seen in it.

    Args:
        windows: [windows, layers, E] counts, in time order, windows of about equal size.

    Returns:
        Empty where fewer than FEWEST + 1 windows are given.
    """
    before = np.zeros((1, *windows.shape[1:]))
    scan = _Scan(np.concatenate([before, np.cumsum(windows, axis=0, dtype=np.float64)]))
    found: list[Change] = []
    for i in range(FEWEST, len(windows)):
        if change := scan.look(i):
            if not scan.alone:  # what one layer seemed to do was the beginning of this
                found = [c for c in found if c.start < change.start - 1]
            found.append(change)
    return _ended(_joined(found))


def _joined(found: list[Change]) -> list[Change]:
    """Layers that changed alone in the same window are one change."""
    out: list[Change] = []
    for c in sorted(found, key=lambda c: c.start):
        if out and out[-1].start == c.start:
            last = out.pop()
            far = max(last, c, key=lambda x: x.distance)
            out.append(replace(far, found=max(c.found, last.found), layers=c.layers | last.layers))
        else:
            out.append(c)
    return out


def _ended(found: list[Change]) -> list[Change]:
    """With the end of each mix that lasts: where the next lasting one begins in any of its layers."""
    out = []
    for i, c in enumerate(found):
        after = (n.start for n in found[i + 1 :] if n.lasts and (n.layers & c.layers).any())
        out.append(replace(c, until=next(after, -1)) if c.until < 0 else c)
    return out


class _Scan:
    """What each layer is compared with, and how far apart its quiet windows were.

    Args:
        sums: [windows + 1, layers, E], counts before each window.
    """

    def __init__(self, sums: np.ndarray) -> None:
        layers, units = sums.shape[1:]
        self.sums, self.alone = sums, False
        self.least = max(LEAST_SPREAD, TAIL * (2 / max((units - 1) * layers, 1)) ** 0.5)
        self.least_own = np.maximum(LEAST_LOG, (2 / max(units - 1, 1)) ** 0.5)
        self.begin_at(0)

    def begin_at(self, first: int) -> None:
        """All layers are compared with what comes from window `first` on."""
        layers = self.sums.shape[1]
        self.first = first
        self.cut = self.sums[first].copy()  # [layers, E], counts that are no part of the reference
        self.left = np.full(layers, first)  # windows that are no part of it
        self.free = np.full(layers, first + FEWEST)  # first window that may be a new mix
        self.learning = True
        self.quiet: dict[int, list[np.ndarray]] = {}
        self.apart: dict[int, list[np.ndarray]] = {}

    def look(self, i: int) -> Change | None:
        """Whether window i ends a pool that stands out; if not, its distances join the quiet ones."""
        if i < self.first + FEWEST:
            return None
        learned = max(self.first + FEWEST, i + 1 - GUARD)
        self.learning = self.learning and learned <= self.first + QUIET
        if self.learning:
            self.learn(learned)
        for size, factor in POOLS:
            at = i + 1 - size
            ready = at >= self.free
            if not ready.any():
                continue
            count = max(len(self.quiet[size]) - GUARD, QUIET - size + 1)
            usual, apart = np.array(self.quiet[size][:count]), np.array(self.apart[size][:count])
            distance = _distance(self.sums[i + 1] - self.sums[at], self.sums[at] - self.cut)
            if len(usual) < 2:
                continue
            distance = np.where(ready, distance, usual.mean(axis=0))
            share = np.maximum(1.0, ENOUGH / np.maximum(at - self.left, 1))
            if self._all(distance, usual, factor * float(np.median(share[ready]))):
                return self._change(i, size, distance, usual, None)
            alone = ready & self._one(distance, usual, apart, share * ALONE.get(size, np.inf))
            if alone.any():
                return self._change(i, size, distance, usual, alone)
            if not self.learning:
                self.quiet[size].append(distance)
                self.apart[size].append(_beside(distance))
        return None

    def learn(self, end: int) -> None:
        """Distances of pools of the windows so far from the rest of them, by size of the pool."""
        whole, s = self.sums[end] - self.cut, self.sums
        for size, _ in POOLS:
            starts = range(self.first, end - size + 1) if end - self.first > size else ()
            pools = [s[i + size] - s[i] for i in starts]
            self.quiet[size] = [_distance(pool, whole - pool) for pool in pools]
            self.apart[size] = [_beside(d) for d in self.quiet[size]]

    def _all(self, distance: np.ndarray, usual: np.ndarray, factor: float) -> bool:
        means = usual.mean(axis=1)
        mean = float(means.mean())
        spread = max(float(means.std(ddof=1)), self.least * mean)
        return bool(distance.mean() > mean + factor * spread)

    def _one(
        self, distance: np.ndarray, usual: np.ndarray, apart: np.ndarray, factor: np.ndarray
    ) -> np.ndarray:
        """[layers], True where a layer stands out of the others and of its own quiet distances."""
        if len(distance) < 2:
            return np.zeros(len(distance), bool)
        spread = np.maximum(apart.std(axis=0, ddof=1), self.least_own)
        out = _beside(distance) > apart.mean(axis=0) + factor * spread
        return np.asarray(out & (distance > ABOVE * usual.mean(axis=0)))

    def _change(
        self, i: int, size: int, distance: np.ndarray, usual: np.ndarray, alone: np.ndarray | None
    ) -> Change:
        """The change, its layers and its start; from here on the reference is the new mix."""
        at = i + 1 - size
        layers = _moved(distance, usual) if alone is None else alone
        start = self._likeliest(layers, i)
        unit = _unit(self.sums[i + 1] - self.sums[at], self.sums[at] - self.cut)[layers]
        until = self._back(start, i, layers)
        far, near = (float((d[layers] * unit).mean()) for d in (distance, usual.mean(axis=0)))
        self.alone = alone is not None
        self.learning = False  # what was learned of the mix before stays valid
        if until >= 0:  # a burst: the reference stays, without it
            mine = np.ones(len(layers), bool) if alone is None else alone
            self.cut[mine] += (self.sums[until] - self.sums[start])[mine]
            self.left[mine] += until - start
            self.free[mine] = max(until, i + 1)
        elif alone is None:
            self.begin_at(start)
            self.free[:] = max(start + FEWEST, i + 1)
        else:
            self.cut[alone], self.left[alone] = self.sums[start][alone], start
            self.free[alone] = max(start + FEWEST, i + 1)
        return Change(start, i, far, near, layers, until)

    def _likeliest(self, layers: np.ndarray, i: int) -> int:
        """The start of the new mix under which the counts up to window i are most likely."""
        sums, cut = self.sums[:, layers], self.cut[layers]
        starts = range(max(int(self.free[layers].min()), i - GUARD + 1), i + 1)

        def gain(at: int) -> float:
            parts = sums[at] - cut, sums[i + 1] - sums[at]
            return -sum(float((p.sum(axis=-1) * _entropy(_shares(p))).sum()) for p in parts)

        return max(starts, key=gain)

    def _back(self, start: int, found: int, layers: np.ndarray) -> int:
        """Window from which GUARD windows are nearer to the mix before; -1 where the new one lasts."""
        s, last = self.sums[:, layers], len(self.sums) - 1
        old, new = s[start] - self.cut[layers], s[found + 1] - s[start]

        def again(at: int, end: int) -> bool:
            pool = s[end] - s[at]
            return float(_distance(pool, old).sum()) < float(_distance(pool, new).sum())

        for at in range(found + 1, min(start + LASTING, last - 1)):
            end = min(at + GUARD, last)
            if again(at, end):
                return next((i for i in range(at, end) if again(i, i + 1)), at)
        return -1


def _unit(new: np.ndarray, before: np.ndarray) -> np.ndarray:
    """[layers], 1/n + 1/m."""
    return np.asarray(1 / np.maximum(new.sum(axis=-1), 1.0) + 1 / np.maximum(before.sum(axis=-1), 1.0))


def _distance(new: np.ndarray, before: np.ndarray) -> np.ndarray:
    """[layers], JS per unit."""
    return np.asarray(js(new, before) / _unit(new, before))


def _beside(distance: np.ndarray) -> np.ndarray:
    """[layers], logarithm of each distance over the median of the others."""
    logs = np.log(np.maximum(distance, 1e-9))
    if len(logs) < 2:
        return np.zeros(len(logs))
    order = np.sort(logs)
    rank = np.empty(len(logs), np.int64)
    rank[np.argsort(logs, kind="stable")] = np.arange(len(logs))
    low, high = (len(logs) - 2) // 2, (len(logs) - 1) // 2  # the middle of one fewer
    return np.asarray(logs - (order[low + (low >= rank)] + order[high + (high >= rank)]) / 2)


def _moved(distance: np.ndarray, settled: np.ndarray) -> np.ndarray:
    """[layers], True where a layer's distance stands out of its own quiet ones; all if none does."""
    own = settled.mean(axis=0)
    spread = np.maximum(settled.std(axis=0, ddof=1), LEAST_SPREAD * own)
    moved = np.asarray(distance > own + MOVED * spread)
    return moved if moved.any() else np.ones(len(moved), bool)
