"""Means of scores with their errors; differences of log-probabilities between batches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moexray.core.run import Row

__all__ = ["Arm", "arms", "difference_error", "largest_difference"]


@dataclass(frozen=True, slots=True)
class Arm:
    """Scores of one setting.

    Args:
        source: File.
        set: Group of arms that were run alike; None if the file has one.
        name: The setting.
        scores: One per run, 0..1.
        questions: Questions of a run; None if unknown.
        stderr: Standard error of one run that the tool printed.
        where: Place of the first run.
        scope: Arms are compared within it: their file, or "" for files that hold one arm each.
    """

    source: str
    set: str | None
    name: str
    scores: tuple[float, ...]
    questions: int | None
    stderr: float | None
    where: str
    scope: str

    @property
    def mean(self) -> float:
        """Mean score."""
        return fmean(self.scores)

    @property
    def binomial(self) -> float | None:
        """Standard error of the mean from the number of questions: sqrt(p (1 - p) / (n k))."""
        if self.questions:
            p = min(max(self.mean, 0.0), 1.0)
            return math.sqrt(p * (1 - p) / (self.questions * len(self.scores)))
        return self.stderr / math.sqrt(len(self.scores)) if self.stderr else None

    @property
    def spread(self) -> float | None:
        """Standard error of the mean from the spread of the runs; None for a single run."""
        return stdev(self.scores) / math.sqrt(len(self.scores)) if len(self.scores) > 1 else None


def arms(rows: Iterable[Row]) -> list[Arm]:
    """Rows of table `scores` per file, set and arm; files with one arm each are arms or their repeats."""
    rows = list(rows)
    inside: dict[tuple[str, str | None], set[str]] = {}
    for r in rows:
        inside.setdefault((r["source"], r["set"]), set()).add(r["arm"] or "")
    across: dict[str | None, set[str]] = {}
    for (_, group), names in inside.items():
        if len(names) == 1:
            across.setdefault(group, set()).update(names)
    found: dict[tuple[str, str | None, str], list[Row]] = {}
    for r in rows:
        alone = len(inside[r["source"], r["set"]]) == 1
        scope = "" if alone else r["source"]
        alike = alone and len(across[r["set"]]) == 1  # all files name the same arm: each is one of its own
        name = r["source"] if alike or not r["arm"] else r["arm"]
        found.setdefault((scope, r["set"], name), []).append(r)
    return [
        Arm(
            source=part[0]["source"],
            set=group,
            name=name,
            scores=tuple(r["score"] for r in part),
            questions=next((r["questions"] for r in part if r["questions"]), None),
            stderr=next((r["stderr"] for r in part if r["stderr"]), None),
            where=part[0]["where"],
            scope=scope,
        )
        for (scope, group, name), part in found.items()
    ]


def difference_error(a: Arm, b: Arm) -> float | None:
    """Standard error of the difference of two means: the larger of binomial error and run spread.

    Returns:
        None where neither is known for both arms.
    """
    known = []
    for x, y in ((a.binomial, b.binomial), (a.spread, b.spread)):
        if x is not None and y is not None:
            known.append(math.hypot(x, y))
    return max(known) if known else None


def largest_difference(rows: Iterable[Row]) -> tuple[float, int, int, Row, Row] | None:
    """The largest difference of log-probabilities of one prompt between two batches.

    Returns:
        (difference, prompts that differ, prompts compared, one row, the other); None where no prompt
        is there in two batches.
    """
    prompts: dict[tuple[str, str | None], list[Row]] = {}
    for r in rows:
        prompts.setdefault((r["source"], r["prompt"]), []).append(r)
    best: tuple[float, Row, Row] | None = None
    differ = compared = 0
    for part in prompts.values():
        if len({r["arm"] for r in part}) < 2:
            continue
        compared += 1
        first, largest = part[0], 0.0
        for other in part[1:]:
            gaps = [abs(x - y) for x, y in zip(first["values"], other["values"], strict=False)]
            gap = max(gaps, default=0.0)
            largest = max(largest, gap)
            if best is None or gap > best[0]:
                best = (gap, first, other)
        differ += largest > 0
    return (best[0], differ, compared, best[1], best[2]) if best else None
