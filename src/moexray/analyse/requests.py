"""Arithmetic over requests, token gaps, step logs and benchmark figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moexray.core.run import Batch, Row

__all__ = [
    "GapSummary",
    "PrefillSplit",
    "Run1",
    "bench_runs",
    "gap_summary",
    "prefill_split",
    "rank_quantile",
]


@dataclass(frozen=True, slots=True)
class GapSummary:
    """Gaps between tokens, pooled and as means per request; seconds.

    Args:
        gaps: Number of gaps.
        requests: Number of requests.
        median_s: Median of the pooled gaps.
        p99_s: P99 of the pooled gaps.
        max_s: Longest gap.
        stalls: Gaps above `factor` medians.
        stalled_s: Sum of these gaps.
        p99_mean_s: P99 over the requests' mean gaps.
        median_mean_s: Median over the requests' mean gaps.
        hit: Requests with at least one stall.
        at_once: Largest number of requests whose stalls end within one median of each other; None if
            the times are unknown.
        at_s: When that was.
    """

    gaps: int
    requests: int
    median_s: float
    p99_s: float
    max_s: float
    stalls: int
    stalled_s: float
    p99_mean_s: float
    median_mean_s: float
    hit: int
    at_once: int | None
    at_s: float | None


def rank_quantile(values: NDArray[np.float64], q: float) -> float:
    """The value at rank ceil(q n), no interpolation: a value that occurred."""
    ordered = np.sort(values)
    return float(ordered[max(0, int(np.ceil(q * len(ordered))) - 1)])


def gap_summary(batch: Batch, factor: float) -> GapSummary | None:
    """Pools the gaps of a batch of table `gaps`; None where it holds fewer than two requests."""
    gap = np.asarray(batch.columns["gap_s"], float)
    who = np.asarray(batch.columns["request"])
    when = np.asarray(batch.columns["t_s"], float)
    keep = np.isfinite(gap)
    gap, who, when = gap[keep], who[keep], when[keep]
    if len(gap) < 2:
        return None
    names, index = np.unique(who, return_inverse=True)
    counts = np.bincount(index)
    means = np.bincount(index, weights=gap) / counts
    median = float(np.median(gap))
    stall = gap > factor * median
    at_once, at_s = _together(when[stall], who[stall], median)
    return GapSummary(
        gaps=len(gap),
        requests=len(names),
        median_s=median,
        p99_s=rank_quantile(gap, 0.99),
        max_s=float(gap.max()),
        stalls=int(stall.sum()),
        stalled_s=float(gap[stall].sum()),
        p99_mean_s=rank_quantile(means, 0.99),
        median_mean_s=float(np.median(means)),
        hit=len(np.unique(who[stall])),
        at_once=at_once,
        at_s=at_s,
    )


def _together(
    when: NDArray[np.float64], who: NDArray[np.int64], width: float
) -> tuple[int | None, float | None]:
    """Most requests whose stalls end within `width` of each other, and when."""
    known = np.isfinite(when)
    if not known.any():
        return None, None
    order = np.argsort(when[known])
    t, r = when[known][order], who[known][order]
    last = np.searchsorted(t, t + width, side="right")
    at = int(np.argmax(last - np.arange(len(t))))
    return len(np.unique(r[at : last[at]])), float(t[at])


@dataclass(frozen=True, slots=True)
class PrefillSplit:
    """Durations of steps with and without prefill; seconds."""

    steps: int
    with_prefill: int
    median_with_s: float
    median_without_s: float
    median_s: float
    ranks: float


def prefill_split(batch: Batch) -> PrefillSplit | None:
    """Splits a step log; None where durations or prefill are unknown, or one side is missing."""
    dur = np.asarray(batch.columns["dur_s"], float)
    tokens = np.asarray(batch.columns["prefill_tokens"], float)
    ranks = np.asarray(batch.columns["prefill_ranks"], float)
    known = np.isfinite(dur) & (np.isfinite(tokens) | np.isfinite(ranks)) & (dur > 0)
    dur, has = dur[known], ((tokens > 0) | (ranks > 0))[known]
    if not has.any() or has.all():
        return None
    spread = ranks[known][has]
    return PrefillSplit(
        steps=len(dur),
        with_prefill=int(has.sum()),
        median_with_s=float(np.median(dur[has])),
        median_without_s=float(np.median(dur[~has])),
        median_s=float(np.median(dur)),
        ranks=float(np.nanmean(spread)) if np.isfinite(spread).any() else float("nan"),
    )


@dataclass(slots=True)
class Run1:
    """Figures of one benchmark run at one level: figure -> (value, place)."""

    source: str
    run: str | None
    level: float | None
    setting: str | None
    order: int
    figures: dict[str, tuple[float, str]]

    @property
    def name(self) -> str:
        """The arm as the file names it, else the file."""
        return self.run or self.source


def bench_runs(rows: tuple[Row, ...]) -> list[Run1]:
    """Rows of table `bench` put together per run, level and setting."""
    found: dict[tuple[object, ...], Run1] = {}
    for r in rows:
        key = (r["source"], r["run"], r["level"], r["setting"], r["order"])
        run = found.setdefault(
            key, Run1(r["source"], r["run"], r["level"], r["setting"], r["order"] or 0, {})
        )
        run.figures.setdefault(r["figure"], (float(r["value"]), r["where"]))
    return list(found.values())
