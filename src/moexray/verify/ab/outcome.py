"""What a comparison says of one figure: both sides, their difference and ratio with intervals, a verdict.

Glossary: the *margin* is the largest difference that does not matter, in the unit of the figure or as a
share of the value before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from moexray.verify.ab.stats import Draws

__all__ = ["Interval", "Margin", "Outcome", "Verdict", "judge", "outcome"]

Verdict = Literal["better", "worse", "no change", "cannot tell"]


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the ends of its interval; the ends are None where the spread is unknown."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def inverse(self) -> Interval:
        """1 / x; unknown ends where the interval reaches 0."""
        if self.low is None or self.high is None or self.low <= 0:
            return Interval(1 / self.value if self.value else math.nan)
        return Interval(1 / self.value, 1 / self.high, 1 / self.low)


@dataclass(frozen=True, slots=True)
class Margin:
    """The largest difference that does not matter.

    Args:
        size: In the unit of the figure, or a share of the value before.
        is_share: Which of the two; 0.05 is 5 %.

    Raises:
        UsageError: it is negative or no number.
    """

    size: float
    is_share: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.size < math.inf:
            raise UsageError(f"a margin of {self.size} is none", hint="0 or more, in s or as a share")

    def of(self, before: float) -> float:
        """The margin in the unit of the figure."""
        return self.size * abs(before) if self.is_share else self.size


@dataclass(frozen=True, slots=True)
class Outcome:
    """One figure of two arms; what an A/B measured, what a comparison of results found.

    Args:
        figure: p99_s, largest_free_bytes, ...: the unit ends the name.
        unit: "s", "bytes", "ratio", "count" or "".
        better: Which way is good, "lower" or "higher".
        before: First arm.
        after: Second arm.
        difference: after - before.
        ratio: after / before; None where the value before is not positive. `ratio.inverse` is before / after.
        verdict: "no change" means that the interval of the difference lies within the margin; "better" and
            "worse" that it excludes 0.
        reason: Why, or what is missing, in one sentence.
        n_before: Values of the first arm.
        n_after: Values of the second arm.
        pairs: Pairs that the intervals stand on; 0 where the arms were not paired.
        level: Coverage of the intervals.
        margin: In the unit of the figure; None where none was set.
        subject: "rank 0, device 1", ...; empty for the whole.
    """

    figure: str
    unit: str
    better: Literal["lower", "higher"]
    before: Interval
    after: Interval
    difference: Interval
    ratio: Interval | None
    verdict: Verdict
    reason: str
    n_before: int
    n_after: int
    pairs: int = 0
    level: float = 0.95
    margin: float | None = None
    subject: str = ""

    def to_json(self) -> dict[str, Any]:
        """The keys of `compare`, `check` and `ab`."""
        from dataclasses import asdict

        return asdict(self)


def outcome(
    figure: str, drawn: Draws, *, better: Literal["lower", "higher"] = "lower", unit: str = "s",
    margin: Margin | None = None, missing: str = "", subject: str = "",
) -> Outcome:
    """Judges the two arms of one figure by the intervals of their bootstrap.

    Args:
        figure: Its name.
        drawn: Both values and their bootstrap, from `stats`.
        better: Which way is good.
        unit: Of the figure.
        margin: What does not matter; without one, "no change" is never said.
        missing: Why no verdict may be given, as `stats.shortfall` and the machine say it.
        subject: What it is about.
    """  # fmt: skip
    before, after, difference, ratio = drawn.intervals()
    width = None if margin is None else margin.of(before.value)
    verdict, reason = judge(difference, width, better)
    if missing:
        verdict, reason = "cannot tell", missing
    return Outcome(
        figure=figure,
        unit=unit,
        better=better,
        before=before,
        after=after,
        difference=difference,
        ratio=ratio,
        verdict=verdict,
        reason=reason,
        n_before=drawn.n_before,
        n_after=drawn.n_after,
        pairs=drawn.pairs,
        level=drawn.level,
        margin=width,
        subject=subject,
    )


def judge(
    difference: Interval, margin: float | None, better: Literal["lower", "higher"]
) -> tuple[Verdict, str]:
    """Verdict and reason by the interval of a difference.

    The interval within the margin is the two one-sided tests of equivalence (Schuirmann 1987), each at
    half of 1 - level: one interval serves both questions, and says "no change" a little too seldom.
    """
    low, high = difference.low, difference.high
    if not all(math.isfinite(x) for x in (difference.value, low, high) if x is not None):
        return "cannot tell", "a value on one side is unknown"
    if low is None or high is None:
        return "cannot tell", "one value on each side, and nothing says how far such values scatter"
    if margin is not None and -margin < low and high < margin:
        return "no change", "the whole interval lies within the margin"
    if low <= 0 <= high:
        wide = "" if margin is None else ", and is wider than the margin"
        return "cannot tell", f"the interval holds 0{wide}"
    worse = (low > 0) == (better == "lower")
    nearest = min(abs(low), abs(high))
    sure = "" if margin is None else (
        ", and is beyond the margin" if nearest >= margin else ", not certainly by more than the margin"
    )  # fmt: skip
    return ("worse" if worse else "better"), f"the interval excludes 0{sure}"
