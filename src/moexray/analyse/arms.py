"""Benchmark arms: which runs are compared, and how much slower one is than the other.

Glossary: an *arm* is a configuration under test, named by a column of the file; where no column names
it, each benchmark file is one arm.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moexray.core.run import Row, Run

__all__ = ["Arm", "Difference", "arms", "compare", "time_ratio"]

# Figures that say how fast a run was, the most telling first; tails are no measure of speed.
SPEED = (
    "duration_s", "output_tokens_per_s", "total_tokens_per_s", "tokens_per_s", "requests_per_s",
    "steps_per_s", "mean_itl_s", "mean_tpot_s", "mean_step_s", "p50_itl_s", "p50_tpot_s", "step_s", "itl_s",
    "mean_e2e_s", "p50_e2e_s", "mean_latency_s", "latency_s", "mean_ttft_s", "p50_ttft_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm: its label (a column's value, else the file) and its rows of `bench`."""

    label: str
    rows: tuple[Row, ...]
    named: bool

    @property
    def sources(self) -> frozenset[str]:
        """Files that it stands in."""
        return frozenset(r["source"] for r in self.rows)


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of two arms at one load level.

    Args:
        figure: As in `bench`.
        level: Load level; None if there is one only.
        first, second: Mean values of the two arms.
        noise: Largest spread of repeats, as a ratio; 0 without repeats.
        ratio: Time of the second over time of the first; above 1 the second is slower.
    """

    figure: str
    level: float | None
    first: float
    second: float
    noise: float
    ratio: float


def arms(run: Run) -> list[Arm]:
    """The arms of all benchmark files, in their order."""
    rows = run.rows("bench")
    by_label: dict[str, list[Row]] = {}
    for r in rows:
        if r["run"] is not None:
            by_label.setdefault(str(r["run"]), []).append(r)
    if len(by_label) > 1:
        return [Arm(k, tuple(v), named=True) for k, v in by_label.items()]
    by_source: dict[str, list[Row]] = {}
    for r in rows:
        by_source.setdefault(r["source"], []).append(r)
    return [Arm(k, tuple(v), named=False) for k, v in by_source.items()]


def compare(first: Arm, second: Arm, figures: Iterable[str] | None = None) -> list[Difference]:
    """Every figure that both arms have, per load level.

    Args:
        first: The arm to compare with.
        second: The arm whose times stand above the line.
        figures: Only these; all durations and rates if None.
    """
    wanted = None if figures is None else set(figures)
    a, b = _cells(first), _cells(second)
    out = []
    for key, values in a.items():
        figure, level = key
        if key not in b or (wanted is not None and figure not in wanted):
            continue
        x, y = mean(values), mean(b[key])
        if x <= 0 or y <= 0 or not figure.endswith("_s"):
            continue
        noise = max(_spread(values), _spread(b[key]))
        out.append(Difference(figure, level, x, y, noise, x / y if figure.endswith("_per_s") else y / x))
    return sorted(out, key=lambda d: (d.level is not None, d.level or 0.0, d.figure))


def time_ratio(first: Arm, second: Arm) -> tuple[float, list[Difference]] | None:
    """How much longer the second arm takes for the same work, by the most telling figure that both have.

    Returns:
        (ratio, its differences): the median over load levels; None if they share no such figure.
    """
    all_ = compare(first, second)
    for figure in SPEED:
        found = [d for d in all_ if d.figure == figure]
        if found:
            return median(d.ratio for d in found), found
    return None


def _cells(arm: Arm) -> dict[tuple[str, float | None], list[float]]:
    out: dict[tuple[str, float | None], list[float]] = {}
    for r in arm.rows:
        if r["value"] is not None:
            out.setdefault((r["figure"], r["level"]), []).append(float(r["value"]))
    return out


def _spread(values: list[float]) -> float:
    centre = mean(values)
    return (max(values) - min(values)) / centre if len(values) > 1 and centre > 0 else 0.0
