"""Which traces are kept: decided at their end, from what happened, within a bound.

Glossary: the *reference* is the quantile of the first full window of durations; it is what shows a slowdown
that lasts, to which a rolling quantile alone would get used.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["REASONS", "Decider", "Keep"]

# Why a trace was kept, in the order of asking; "rate" and "no" are dropped ones.
REASONS = ("error", "alert", "slo", "slow", "reference", "ratio", "rate", "no")


@dataclass(frozen=True, slots=True)
class Keep:
    """What is kept.

    Args:
        ratio: Share of all traces that is kept in any case, decided by the trace id alone (head sampling).
        slo_s: Seconds above which a trace is kept; 0 for none.
        quantile: ... and above this quantile of the last `window` durations.
        window: Durations that a quantile is taken of.
        times: A trace is kept above so many times the quantile of the reference.
        most_per_s: Traces kept a second, on average over ten seconds; the bound of memory and export.
    """

    ratio: float = 0.0
    slo_s: float = 0.0
    quantile: float = 0.99
    window: int = 1024
    times: float = 1.5
    most_per_s: float = 10.0


class Decider:
    """Decides trace by trace; threads may share it.

    Args:
        keep: What is kept.
        alert_active: Whether an alert fires now: then everything is kept, within the rate.
        clock: Monotonic seconds.
    """

    def __init__(
        self, keep: Keep, alert_active: Callable[[], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.keep, self._alert, self._clock = keep, alert_active or (lambda: False), clock
        self._lock = threading.Lock()
        self._last: deque[float] = deque(maxlen=keep.window)
        self._seen = 0
        self._limit = self._reference = float("inf")
        self._tokens, self._at = 10 * keep.most_per_s, clock()

    def __call__(self, trace_id: int, seconds: float, *, error: bool = False) -> str:
        """One of REASONS for a trace that took so long.

        Args:
            trace_id: 128 bits.
            seconds: Its duration.
            error: It failed, or never ended.
        """
        with self._lock:
            reason = self._why(trace_id, seconds, error=error)
            self._learn(seconds)
            if reason == "no":
                return reason
            now = self._clock()
            full = 10 * self.keep.most_per_s
            self._tokens = min(full, self._tokens + (now - self._at) * self.keep.most_per_s)
            self._at = now
            if self._tokens < 1:
                return "rate"
            self._tokens -= 1
            return reason

    def _why(self, trace_id: int, seconds: float, *, error: bool) -> str:
        keep = self.keep
        if error:
            return "error"
        if self._alert():
            return "alert"
        if keep.slo_s and seconds > keep.slo_s:
            return "slo"
        if seconds > self._limit:
            return "slow"
        if seconds > keep.times * self._reference:
            return "reference"
        # the lower 56 bits are random by W3C's level 2; the same answer in every process
        return "ratio" if (trace_id & (1 << 56) - 1) < keep.ratio * (1 << 56) else "no"

    def _learn(self, seconds: float) -> None:
        self._last.append(seconds)
        self._seen += 1
        # a sort of 1,024 numbers takes 50 us: every 64th time is enough for a quantile
        if len(self._last) == self.keep.window and self._seen % 64 == 0:
            ranked = sorted(self._last)
            self._limit = ranked[min(len(ranked) - 1, int(self.keep.quantile * len(ranked)))]
            if self._reference == float("inf"):
                self._reference = self._limit
