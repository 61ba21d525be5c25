"""An always-valid test: looked at after each quad, it raises a false alarm with at most the stated rate.

Under the null hypothesis that B differs from A by a constant shift, the coin that chose ABBA or BAAB makes
the difference of a quad symmetric about that shift: its sign is a fair coin whatever the latencies' tails,
their dependence, or a drift that both arms share. For a symmetric x, E[exp(l x) / cosh(l x)] = 1 for each
l, so the product over quads is a martingale, and by Ville's inequality it passes 1/a with probability a at
most, at whatever moment one stops. Differences are divided by a scale of the quads before and clipped,
which keeps the symmetry and bounds what one spike can do; l is mixed over a fixed grid.

Sources: de la Pena 1999 (symmetric self-normalised martingales); Vovk and Wang 2024, "Nonparametric e-tests
of symmetry"; Howard, Ramdas, McAuliffe, Sekhon 2021, "Time-uniform, nonparametric, nonasymptotic confidence
sequences" (inversion to an interval).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from moexray.verify.ab.outcome import Interval
from moexray.verify.ab.stats import quantile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from moexray.verify.ab.outcome import Margin, Verdict
    from moexray.verify.ab.schedule import Turn

__all__ = ["Decision", "Shift", "Watch", "figure_of", "is_figure"]

CLIP = 3.0  # scales; a spike counts as three typical differences
GRID = 0.0125 * 2.0 ** np.arange(8)  # l in 1 / scales: effects from 1/80 of a typical difference on
WARM = 4  # quads before the scale is that of the data
ERRORS = 0.01  # share of failed requests that does not matter; project assumption
MAD = 1.4826  # median absolute deviation -> standard deviation of a normal distribution


class Shift:
    """How far B lies from A, by an interval that holds at every moment with the stated coverage.

    Args:
        alpha: Chance that the interval ever misses a constant shift; half of it on each side.
        margin: Shift that does not matter, in the unit of the differences.
        scale: First guess of a typical difference, same unit; only power hangs on it.
    """

    def __init__(self, alpha: float, margin: float, scale: float) -> None:
        self._bar = math.log(2 / alpha)
        self._margin, self._first = margin, scale
        self._seen: list[float] = []
        self._scales: list[float] = []
        # [more than margin, less than it, more than -margin, less than it; grid]: logs of the martingales
        self._logs = np.zeros((4, len(GRID)))
        self._passed = np.zeros(4, bool)

    @property
    def quads(self) -> int:
        """Differences seen."""
        return len(self._seen)

    def add(self, difference: float) -> None:
        """Takes the difference of one more quad, B - A."""
        scale = self._scale()
        self._seen.append(difference)
        self._scales.append(scale)
        above, below = (
            min(max((difference - shift) / scale, -CLIP), CLIP) for shift in (self._margin, -self._margin)
        )
        self._logs += _log_bet(np.array([above, -above, below, -below]))
        self._passed |= _mixed(self._logs) >= self._bar

    def interval(self) -> Interval:
        """The shifts that are not refuted now; the value is the median difference."""
        if not self._seen:
            return Interval(math.nan)
        seen, scales = np.array(self._seen), np.array(self._scales)
        centre = float(np.median(seen))
        reach = float(np.abs(seen - centre).max() + CLIP * scales.max() + 1e-12)
        ends = [self._end(seen, scales, centre, sign * reach) for sign in (-1.0, 1.0)]
        return Interval(centre, *ends)

    def verdict(self) -> Verdict:
        """What is established: beyond the margin on one side, within it, or nothing yet."""
        above, below_margin, above_minus, below = self._passed.tolist()
        if above:
            return "worse"
        if below:
            return "better"
        return "no change" if below_margin and above_minus else "cannot tell"

    @property
    def is_harmless(self) -> bool:
        """Whether it is established that B is worse by less than the margin."""
        return bool(self._passed[1])

    def _scale(self) -> float:
        if len(self._seen) < WARM:
            return self._first
        centre = median(self._seen)
        return max(MAD * median([abs(x - centre) for x in self._seen]), 1e-3 * self._first)

    def _end(
        self, seen: NDArray[np.float64], scales: NDArray[np.float64], centre: float, reach: float
    ) -> float | None:
        """The end of the interval on the side of `reach`; None while it is unbounded."""
        sign = -1.0 if reach > 0 else 1.0

        def refuted(shift: float) -> bool:
            x = _clipped((seen - shift) / scales)
            return bool(_mixed(_log_bet(sign * x).sum(axis=0)) >= self._bar)

        inner, outer = centre, centre + reach
        if not refuted(outer):
            return None
        for _ in range(40):
            middle = (inner + outer) / 2
            inner, outer = (inner, middle) if refuted(middle) else (middle, outer)
        return outer


def _clipped(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip(x, -CLIP, CLIP)


def _log_bet(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n, grid] log(exp(l x) / cosh(l x))."""
    return math.log(2) - np.logaddexp(0.0, -2.0 * x[:, None] * GRID)


def _mixed(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """[...] log of the mean over the grid of [..., grid]."""
    top = logs.max(axis=-1, keepdims=True)
    out: NDArray[np.float64] = top[..., 0] + np.log(np.exp(logs - top).mean(axis=-1))
    return out


@dataclass(frozen=True, slots=True)
class Decision:
    """What the sequential test has decided.

    Args:
        verdict: "worse" is what rolls back.
        figure: The figure that decided; empty where all of them did.
        quads: After how many quads.
        intervals: Per figure, the always-valid interval of its shift: s; ratio - 1 for a margin that is a
            share; a share of the requests for "errors".
    """

    verdict: Verdict
    figure: str
    quads: int
    intervals: Mapping[str, Interval]


class Watch:
    """The sequential test of several figures together; their chances of a false alarm add up to alpha.

    Args:
        figures: p50, p99, max, mean of the values of a turn; "errors", the share of its requests that failed.
        margin: Shift of a latency that does not matter. A share is tested on logarithms, as a ratio.
        alpha: Chance of any false alarm of the whole watch.
    """

    def __init__(self, figures: Sequence[str], margin: Margin, alpha: float) -> None:
        width = math.log1p(margin.size) if margin.is_share else margin.size
        first = width or (0.05 if margin.is_share else 0.005)
        each = alpha / len(figures)
        self._in_logs = {f for f in figures if margin.is_share and f != "errors"}
        self._shifts = {
            f: Shift(each, ERRORS, ERRORS) if f == "errors" else Shift(each, width, first) for f in figures
        }

    def add(self, quad: Sequence[Turn]) -> Verdict:
        """Takes the four turns of one more quad, and says what is established now."""
        for name, shift in self._shifts.items():
            sides = [[figure_of(name, s) for s in quad if s.place.arm == arm] for arm in "AB"]
            with np.errstate(divide="ignore", invalid="ignore"):  # a figure of 0 has no ratio
                a, b = (np.log(side) if name in self._in_logs else np.array(side) for side in sides)
                difference = float(b.sum() / len(b) - a.sum() / len(a))
            if math.isfinite(difference):
                shift.add(difference)
        return self._verdict()[0]

    def decision(self) -> Decision:
        """The same, with the figure that decided and the intervals of all."""
        verdict, figure = self._verdict()
        quads = max(s.quads for s in self._shifts.values())
        return Decision(verdict, figure, quads, {n: self._shown(n, s) for n, s in self._shifts.items()})

    def _verdict(self) -> tuple[Verdict, str]:
        """Worse if any figure is; better if one is and none is worse; no change if none changed."""
        verdicts = {name: s.verdict() for name, s in self._shifts.items()}
        for name, verdict in verdicts.items():
            if verdict == "worse":
                return "worse", name
        if all(s.is_harmless for s in self._shifts.values()):
            for name, verdict in verdicts.items():
                if verdict == "better":
                    return "better", name
        return ("no change" if all(v == "no change" for v in verdicts.values()) else "cannot tell"), ""

    def _shown(self, name: str, shift: Shift) -> Interval:
        found = shift.interval()
        if name not in self._in_logs:
            return found
        ends = [None if x is None else math.expm1(x) for x in (found.low, found.high)]
        return Interval(math.expm1(found.value), *ends)


def is_figure(name: str) -> bool:
    """Whether `figure_of` knows it."""
    found = re.fullmatch(r"p(\d{1,2}(?:\.\d{1,4})?)", name)
    return name in ("errors", "max", "mean") or (found is not None and float(found[1]) > 0)


def figure_of(name: str, turn: Turn) -> float:
    """One figure of the clean values of a turn; NaN where there are none."""
    values = turn.value_s[turn.clean()]
    if name == "errors":
        asked = len(turn.value_s) + turn.errors
        return turn.errors / asked if asked else math.nan
    if not len(values):
        return math.nan
    if name in ("mean", "max"):
        return float(values.mean() if name == "mean" else values.max())
    return quantile(values, float(name.removeprefix("p")) / 100)
