"""What the verdicts about load, scheduling, benchmarks, kernels and answers mean: data only."""

from __future__ import annotations

from moexray.core.verdicts.verdict import Verdict

__all__ = ["VERDICTS"]

VERDICTS: tuple[Verdict, ...] = ()
