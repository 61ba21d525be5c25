"""A/B measurement: two arms, interleaved, compared pair by pair; numpy is all it needs."""

from __future__ import annotations

from moexray.verify.ab.machine import Noise, moment, noise, refusal
from moexray.verify.ab.outcome import Interval, Margin, Outcome, judge, outcome
from moexray.verify.ab.result import Result, document, result
from moexray.verify.ab.schedule import Mark, Place, Turn, places
from moexray.verify.ab.sequence import Decision, Shift, Watch
from moexray.verify.ab.stats import Draws, paired_means, paired_outcomes, quantile, unpaired_outcomes
from moexray.verify.ab.trial import Plan, RolledBack, Trial, run_trial, steps

__all__ = [
    "Decision",
    "Draws",
    "Interval",
    "Margin",
    "Mark",
    "Noise",
    "Outcome",
    "Place",
    "Plan",
    "Result",
    "RolledBack",
    "Shift",
    "Trial",
    "Turn",
    "Watch",
    "document",
    "judge",
    "moment",
    "noise",
    "outcome",
    "paired_means",
    "paired_outcomes",
    "places",
    "quantile",
    "refusal",
    "result",
    "run_trial",
    "steps",
    "unpaired_outcomes",
]  # fmt: skip
