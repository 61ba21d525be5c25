"""The rules of routing that look at loads: these are put together once and handed to each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.analyse.routing import loads
from moexray.diagnose.routing_choice import dropped_outputs
from moexray.diagnose.routing_metric import counts_multiplied, files_of_ranks, wrong_axis
from moexray.diagnose.routing_placement import duplicate_replica, skew_to_oom
from moexray.diagnose.routing_skew import skew_and_drift

if TYPE_CHECKING:
    from moexray.core.finding import Finding
    from moexray.core.limits import Limits
    from moexray.core.run import Run

__all__ = ["load_rules"]


def load_rules(run: Run, limits: Limits) -> list[Finding]:
    """Everything that is said from counts and placements."""
    every, mismatches = loads(run, limits.routing.dummy_run)
    return [
        *skew_and_drift(run, every, limits),
        *skew_to_oom(run, every, limits),
        *duplicate_replica(run, every),
        *wrong_axis(run, every, limits),
        *counts_multiplied(run, every),
        *files_of_ranks(mismatches),
        *dropped_outputs(every),
    ]
