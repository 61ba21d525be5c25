"""Latency series: typical value, spikes, stalled time, percentiles that allow for sampling.

Glossary: a *spike* is a value above SPIKE times the median of its series; *stalled* seconds are the
sum of the spikes. A series is *sampled* where its step numbers leave gaps: rows then stand for the
steps up to the row before, a spike for itself alone (checked against the time that passed).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from moexray.core.run import Batch, Run

__all__ = ["Series", "Stall", "load_series", "percentile", "stalls"]

SPIKE = 5.0  # x median; what the verdict catalogue calls a spike
LEAST_ROWS = 30  # fewer rows have no median to speak of


@dataclass(frozen=True, slots=True)
class Stall:
    """A spike, or the spikes of several requests or ranks at one moment.

    Args:
        start_s, end_s: On the clock of the series; NaN if it has none.
        value_s: The longest of its spikes.
        line: Line of that spike.
        count: Its spikes.
    """

    start_s: float
    end_s: float
    value_s: float
    line: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class Series:
    """One series and its spikes.

    Args:
        source: File.
        what: itl, step, tpot, latency, ttft, e2e.
        clock: What its times count from: epoch, day, relative, none.
        rank: Rank, if the file has a column for it.
        end_s: [n] when each ended; NaN if unknown.
        value_s: [n] durations.
        line: [n] line numbers.
        weight: [n] steps that each row stands for.
        median_s: Median of the rows.
        spikes: Indices of the spikes, in order of the file.
        steps: Steps that the series covers, those between sampled rows included.
    """

    source: str
    what: str
    clock: str
    rank: int | None
    end_s: np.ndarray
    value_s: np.ndarray
    line: np.ndarray
    weight: np.ndarray
    median_s: float
    spikes: np.ndarray
    steps: int

    @property
    def sampled(self) -> bool:
        """Whether not every step has a row."""
        return self.steps > len(self.value_s)

    @property
    def stalled_s(self) -> float:
        """Sum of the spikes."""
        return float(self.value_s[self.spikes].sum())

    @property
    def span(self) -> tuple[float, float]:
        """First start and last end; NaN where no time is known."""
        known = np.isfinite(self.end_s)
        if not known.any():
            return float("nan"), float("nan")
        ends, values = self.end_s[known], self.value_s[known]
        return float((ends - values).min()), float(ends.max())


def stalls(series: Series) -> list[Stall]:
    """The spikes in order of time; those that overlap by more than half are one stall."""
    out: list[Stall] = []
    order = series.spikes[
        np.argsort(series.end_s[series.spikes] - series.value_s[series.spikes], kind="stable")
    ]
    for i in order:
        end, value, line = float(series.end_s[i]), float(series.value_s[i]), int(series.line[i])
        last = out[-1] if out else None
        shared = min(end, last.end_s) - max(end - value, last.start_s) if last else 0.0
        if last is None or not shared > 0.5 * min(value, last.end_s - last.start_s):
            out.append(Stall(end - value, end, value, line))
            continue
        longest = value > last.value_s
        out[-1] = Stall(
            last.start_s,
            max(end, last.end_s),
            max(value, last.value_s),
            line if longest else last.line,
            last.count + 1,
        )
    return out


def load_series(run: Run, times: float = SPIKE) -> list[Series]:
    """Every series of the run that is long enough, gaps between tokens of requests included.

    Args:
        run: What was read.
        times: A spike is a value above this multiple of the median.
    """
    found = [_series(b, times) for b in run.batches("latency") if len(b.columns["value_s"]) >= LEAST_ROWS]
    for b in run.batches("gaps"):
        n = len(b.columns["gap_s"])
        if n >= LEAST_ROWS:
            end = np.asarray(b.columns["t_s"], float)
            clock = "none" if not np.isfinite(end).any() else "epoch" if np.nanmax(end) > 1e9 else "relative"
            columns = {
                "value_s": b.columns["gap_s"],
                "t_s": end,
                "step": np.full(n, np.nan),
                "line": np.arange(2, n + 2),
            }
            found.append(_series(replace(b, columns=columns, attrs={"what": "itl", "clock": clock}), times))
    return found


def percentile(series: Series, share: float) -> float:
    """The value that `share` (0..1) of the steps do not exceed; sampled rows count with their weight.

    A spike's row stands for one step; the steps between it and the row before count as the median.
    """
    values, weights = series.value_s, series.weight.astype(float)
    if series.sampled and len(series.spikes):
        rest = float((weights[series.spikes] - 1).clip(0).sum())
        weights = weights.copy()
        weights[series.spikes] = 1.0
        values, weights = np.append(values, series.median_s), np.append(weights, rest)
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, share * total[-1])])


def _series(batch: Batch, times: float) -> Series:
    columns, attrs = batch.columns, batch.attrs
    value = np.asarray(columns["value_s"], float)
    end = np.asarray(columns["t_s"], float)
    step = np.asarray(columns["step"], float)
    median = float(np.median(value))
    spikes = np.flatnonzero(value > times * median) if median > 0 else np.array([], int)
    if _are_starts(end, value, spikes):
        end = end + value
    weight = _weights(step)
    return Series(
        batch.source,
        str(attrs.get("what", "latency")),
        str(attrs.get("clock", "none")),
        _rank(attrs),
        end,
        value,
        np.asarray(columns["line"], int),
        weight,
        median,
        spikes,
        int(weight.sum()),
    )


def _rank(attrs: Any) -> int | None:
    rank = attrs.get("rank")
    return None if rank is None else int(rank)


def _weights(step: np.ndarray) -> np.ndarray:
    """Steps from the row before up to each row; 1 where the numbers do not rise by whole steps."""
    n = len(step)
    ones = np.ones(n, int)
    if not np.isfinite(step).all() or n < 2:
        return ones
    gaps = np.diff(step)
    if (gaps < 1).any() or (gaps != np.round(gaps)).any():
        return ones
    return np.concatenate(([1], gaps.astype(int)))


def _are_starts(t: np.ndarray, value: np.ndarray, spikes: np.ndarray) -> bool:
    """Whether the stamps are those of the beginning: a spike then fits before the next row only."""
    inner = spikes[(spikes > 0) & (spikes < len(t) - 1)]
    if not len(inner) or not np.isfinite(t).all():
        return False
    as_end = t[inner] - t[inner - 1] >= 0.9 * value[inner]
    as_start = t[inner + 1] - t[inner] >= 0.9 * value[inner]
    return bool(as_start.mean() > 0.5 and as_end.mean() < 0.5)
