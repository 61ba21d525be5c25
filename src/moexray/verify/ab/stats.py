"""Bootstrap of two arms: over pairs of neighbours in time, or over blocks where nothing pairs them.

Glossary: a *pair* is one stretch of each arm, neighbours in time; drift that both share falls out of their
difference. Quantiles are of all values of an arm, by rank ceil(q n). `max` is the longest value of all and
has no interval that a bootstrap could give; `mean_max` has: the longest of a stretch, mean over stretches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from moexray.verify.ab.outcome import Interval, Margin, Outcome, outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "FIGURES", "LEAST_PAIRS", "Draws", "blocks", "needed", "paired_means", "paired_outcomes", "quantile",
    "shortfall", "t_quantile", "too_few", "unpaired_outcomes",
]  # fmt: skip

FIGURES = ("p50", "p99", "mean_max", "max")
# Of 5 pairs all agree by chance once in 16; of 6 once in 32, below 5 % on both sides together.
LEAST_PAIRS = 6
# Values beyond a quantile that an estimate of it wants: 10, as P99 from 1,000 values. Source: lab.md 6.4.
LEAST_BEYOND = 10
LEVEL = 0.95  # coverage of the intervals
RESAMPLES = 2000
CELLS = 10_000  # more values than that are counted in cells of equal content: a rank is off by 1/10,000
BUDGET = 4_000_000  # numbers in one array of the bootstrap: 16 MB
BLOCKS = 50  # blocks that an unpaired series is cut into, at most


@dataclass(frozen=True, slots=True)
class Draws:
    """A figure of two arms, and the same of each resample.

    Args:
        before: Value of the first arm.
        after: Value of the second arm.
        before_draws: [resamples] of the first arm; empty where nothing can be resampled.
        after_draws: [resamples] of the second arm, from the same draws of pairs.
        n_before: Values of the first arm.
        n_after: Values of the second arm.
        units: Pairs or blocks that were resampled.
        pairs: The same; 0 where the arms were resampled apart.
        level: Coverage wanted.
    """

    before: float
    after: float
    before_draws: NDArray[np.float64]
    after_draws: NDArray[np.float64]
    n_before: int
    n_after: int
    units: int
    pairs: int
    level: float = LEVEL

    def intervals(self) -> tuple[Interval, Interval, Interval, Interval | None]:
        """Before, after, difference, ratio.

        Percentiles of the resamples, widened for few pairs as a t interval is (Hesterberg 2015, "What
        Teachers Should Know About the Bootstrap", expanded percentile interval).
        """
        a, b = self.before_draws, self.after_draws
        tail = _tail(self.units, self.level) if len(a) else math.nan
        ratio = None
        if self.before > 0 and (not len(a) or a.min() > 0):
            ratio = _interval(self.after / self.before, b / a, tail)
        return (
            _interval(self.before, a, tail),
            _interval(self.after, b, tail),
            _interval(self.after - self.before, b - a, tail),
            ratio,
        )


def quantile(values: ArrayLike, q: float) -> float:
    """The value at rank ceil(q n), no interpolation; NaN for no values."""
    ordered = np.sort(np.asarray(values, float))
    return float(ordered[max(0, math.ceil(q * len(ordered) - 1e-9) - 1)]) if len(ordered) else math.nan


def needed(figure: str) -> int:
    """Values per arm that a figure wants: 1,000 for p99, 20 for p50, 0 for maxima."""
    if not figure.startswith("p"):
        return 0
    return math.ceil(LEAST_BEYOND / (1 - _q(figure)) - 1e-6)


def shortfall(figure: str, n_before: int, n_after: int, pairs: int | None = None) -> str:
    """Why the figure allows no verdict: too few values or pairs; empty where there are enough."""
    least, want = min(n_before, n_after), needed(figure)
    if least < want:
        return f"{figure.upper()} wants {want:,} values per arm, there are {least:,}"
    return "" if pairs is None else too_few(pairs)


def too_few(count: int, what: str = "pairs") -> str:
    """Why so few pairs allow no verdict, whatever the figure; empty where there are enough."""
    return "" if count >= LEAST_PAIRS else f"{LEAST_PAIRS} {what} are wanted, there are {count}"


def paired_outcomes(
    before: Sequence[ArrayLike], after: Sequence[ArrayLike], *, figures: Sequence[str] = FIGURES,
    margin: Margin | None = None, level: float = LEVEL, seed: int = 0, missing: str = "", suffix: str = "_s",
) -> list[Outcome]:
    """Latencies of two arms, pair by pair: quantiles and maxima with intervals over pairs.

    Args:
        before: One array of values (s) per pair, first arm.
        after: The same of the second arm, in the same order of pairs.
        figures: p50, p99, p99.9, ..., mean_max, max.
        margin: What does not matter.
        level: Coverage of the intervals.
        seed: Of the resamples.
        missing: Why no verdict may be given at all (a noisy machine); empty otherwise.
        suffix: Ends the names of the figures; `_cpu_s` for processor time.

    Raises:
        ValueError: the sides differ in length.
    """  # fmt: skip
    sides = [[np.asarray(x, float) for x in side] for side in (before, after)]
    keep = [i for i, (a, b) in enumerate(zip(*sides, strict=True)) if len(a) and len(b)]
    first, second = ([side[i] for i in keep] for side in sides)
    picks = _picks(len(keep), seed)
    drawn = _draws(first, second, figures, (picks, picks), level, pairs=len(keep))
    return [
        outcome(name + suffix, d, margin=margin,
                missing=missing or shortfall(name, d.n_before, d.n_after, len(keep)))
        for name, d in zip(figures, drawn, strict=True)
    ]  # fmt: skip


def unpaired_outcomes(
    before: ArrayLike, after: ArrayLike, *, figures: Sequence[str] = FIGURES, margin: Margin | None = None,
    seed: int = 0, missing: str = "", suffix: str = "_s",
) -> list[Outcome]:
    """Latencies of two runs that nothing pairs: each is cut into blocks, in the order of time.

    Blocks keep what neighbours have in common (a stall hits several); what changed between the two runs
    beside the thing under test cannot be told from it. The longest of a block grows with its length, so both
    sides take it over equally many values of each block. Arguments as those of `paired_outcomes`.
    """  # fmt: skip
    sides = [blocks(before), blocks(after)]
    picks = (_picks(len(sides[0]), seed), _picks(len(sides[1]), seed + 1))
    common = min((len(b) for side in sides for b in side), default=0)
    drawn = _draws(sides[0], sides[1], figures, picks, LEVEL, pairs=0, common=common)
    few = min(map(len, sides))
    return [
        outcome(name + suffix, d, margin=margin,
                missing=missing or shortfall(name, d.n_before, d.n_after)
                or (f"{d.n_before:,} and {d.n_after:,} values are too few" if few < LEAST_PAIRS else ""))
        for name, d in zip(figures, drawn, strict=True)
    ]  # fmt: skip


def paired_means(
    before: ArrayLike, after: ArrayLike, *, level: float = LEVEL, seed: int = 0, pairs: bool = True
) -> Draws:
    """One number per repetition and arm (largest free block, load deviation): their means.

    Args:
        before: [n] of the first arm.
        after: [n] of the second arm; another length only where `pairs` is False.
        level: Coverage of the intervals.
        seed: Of the resamples.
        pairs: Whether the i-th of both belong together.
    """
    a, b = (np.atleast_1d(np.asarray(x, float)) for x in (before, after))
    if pairs and len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} values make no pairs")
    first = _picks(len(a), seed)
    second = first if pairs else _picks(len(b), seed + 1)
    if min(len(a), len(b)) < 2:
        first, second = first[:0], second[:0]
    return Draws(
        float(a.mean()), float(b.mean()), first @ a / len(a), second @ b / len(b), len(a), len(b),
        min(len(a), len(b)), len(a) if pairs else 0, level,
    )  # fmt: skip


def blocks(values: ArrayLike) -> list[NDArray[np.float64]]:
    """Consecutive blocks of a series: at most 50, and each of ten values or more where there are enough."""
    flat = np.asarray(values, float)
    flat = flat[np.isfinite(flat)]
    return [b for b in np.array_split(flat, max(1, min(BLOCKS, len(flat) // 10))) if len(b)]


@cache
def t_quantile(p: float, degrees: int) -> float:
    """Quantile of Student's t distribution, to about four digits."""
    theta = np.linspace(-math.pi / 2, math.pi / 2, 200_001)
    mass = np.cumsum(np.cos(theta).clip(0) ** (degrees - 1))
    return math.sqrt(degrees) * math.tan(float(np.interp(p, mass / mass[-1], theta)))


def _tail(units: int, level: float) -> float:
    """Share of the resamples to leave out on each side; NaN where fewer than two units were drawn."""
    if units < 2:
        return math.nan
    wide = math.sqrt(units / (units - 1)) * t_quantile((1 + level) / 2, units - 1)
    return NormalDist().cdf(-wide)


def _interval(value: float, draws: NDArray[np.float64], tail: float) -> Interval:
    if math.isnan(tail):
        return Interval(value)
    low, high = np.quantile(draws, (tail, 1 - tail))
    return Interval(value, min(float(low), value), max(float(high), value))


def _picks(units: int, seed: int) -> NDArray[np.float64]:
    """[resamples, units]: how often each unit is drawn."""
    if not units:
        return np.zeros((0, 0))
    rng = np.random.default_rng(seed)
    return rng.multinomial(units, np.full(units, 1 / units), size=RESAMPLES).astype(float)


def _q(figure: str) -> float:
    return float(figure.removeprefix("p")) / 100


def _draws(
    first: list[NDArray[np.float64]], second: list[NDArray[np.float64]], figures: Sequence[str],
    picks: tuple[NDArray[np.float64], NDArray[np.float64]], level: float, *, pairs: int,
    common: int | None = None,
) -> list[Draws]:  # fmt: skip
    a, b = (_figures(side, figures, p, common) for side, p in zip((first, second), picks, strict=True))
    sizes = [sum(map(len, side)) for side in (first, second)]
    units = min(len(first), len(second))
    return [
        Draws(va, vb, da, db, sizes[0], sizes[1], units, pairs, level)
        for (va, da), (vb, db) in zip(a, b, strict=True)
    ]


def _figures(
    parts: list[NDArray[np.float64]], figures: Sequence[str], picks: NDArray[np.float64], common: int | None
) -> list[tuple[float, NDArray[np.float64]]]:
    """Each figure of an arm and of its resamples; `mean_max` of the first `common` values of each part."""
    if not parts:
        return [(math.nan, np.zeros(0)) for _ in figures]
    if len(parts) < 2:
        picks = picks[:0]
    flat = np.concatenate(parts)
    order = np.argsort(flat, kind="stable")
    part = np.repeat(np.arange(len(parts)), [len(p) for p in parts])[order]
    cells = min(len(flat), CELLS, max(1, BUDGET // len(parts)))
    cell = np.arange(len(flat)) * cells // len(flat)
    held = np.zeros((len(parts), cells), np.float32)  # counts: exact up to 16 million values
    np.add.at(held, (part, cell), 1.0)
    top = np.flatnonzero(np.diff(cell, append=cells))  # last value of each cell
    tops = flat[order][top]
    wanted = [_q(f) for f in figures if not f.endswith("max")]
    drawn = _quantile_draws(held, tops, wanted, picks)
    peaks = np.array([p[:common].max() for p in parts])
    out = []
    for name in figures:
        if name == "mean_max":
            out.append((float(peaks.mean()), picks @ peaks / len(parts)))
        elif name == "max":
            out.append((float(flat.max()), np.zeros(0)))
        else:
            out.append((quantile(flat, _q(name)), drawn[wanted.index(_q(name))]))
    return out


def _quantile_draws(
    held: NDArray[np.float32], tops: NDArray[np.float64], qs: list[float], picks: NDArray[np.float64]
) -> NDArray[np.float64]:
    """[quantiles, resamples] of values counted in cells.

    Args:
        held: [units, cells], values of each unit in each cell.
        tops: [cells], the largest value of each, rising.
        qs: Shares.
        picks: [resamples, units].
    """
    out = np.empty((len(qs), len(picks)))
    times = picks.astype(np.float32)
    step = max(1, BUDGET // held.shape[1])
    for at in range(0, len(picks), step):
        below = np.cumsum(times[at : at + step] @ held, axis=1)
        for i, q in enumerate(qs):
            rank = np.ceil(q * below[:, -1:].astype(float) - 1e-9).clip(1)
            out[i, at : at + step] = tops[np.argmax(below >= rank, axis=1)]
    return out
