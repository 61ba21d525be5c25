"""A/B measurement: two arms, interleaved, compared pair by pair; numpy is all it needs."""

from __future__ import annotations

from moexray.verify.ab.outcome import Interval, Margin, Outcome, judge, outcome
from moexray.verify.ab.schedule import Mark, Place, Slot, places
from moexray.verify.ab.stats import Draws, paired_means, paired_outcomes, quantile, unpaired_outcomes

__all__ = [
    "Draws", "Interval", "Margin", "Mark", "Outcome", "Place", "Slot", "judge", "outcome", "paired_means",
    "paired_outcomes", "places", "quantile", "unpaired_outcomes",
]  # fmt: skip
