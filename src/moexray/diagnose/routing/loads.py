"""What is said and drawn from loads: these are put together once and handed to each rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moexray.analyse.routing import loads
from moexray.analyse.routing_windows import MOST
from moexray.core.limits.routing import RoutingLimits
from moexray.diagnose.routing.choice import dropped_outputs
from moexray.diagnose.routing.metric import counts_multiplied, files_of_ranks, wrong_axis
from moexray.diagnose.routing.placement import duplicate_replica, skew_to_oom
from moexray.diagnose.routing.skew import courses, skew_and_drift

if TYPE_CHECKING:
    from moexray.analyse.routing import Load
    from moexray.core.finding import Finding
    from moexray.core.limits import Limits
    from moexray.core.run import Run

__all__ = ["drift_series", "load_rules"]

MAX_SERIES = 8


def load_rules(run: Run, limits: Limits) -> list[Finding]:
    """Everything that is said from counts and placements."""
    every, mismatches = loads(run, limits.routing.dummy_run, windows=MOST)
    return [
        *skew_and_drift(run, limits),
        *skew_to_oom(run, every, limits),
        *duplicate_replica(run, every),
        *wrong_axis(run, every, limits),
        *counts_multiplied(run, every),
        *files_of_ranks(mismatches),
        *dropped_outputs(every, limits),
    ]


def drift_series(run: Run) -> list[dict[str, Any]]:
    """Exhibit: distance of each window's mix of experts from the first ones, with its changes."""
    out: list[dict[str, Any]] = []
    for course in run.once(courses, RoutingLimits().dummy_run):
        load, seen = course.load, course.drift
        if not _has_course(load):
            continue
        label = load.attrs.get("label") or load.attrs.get("arm")
        out.append(
            {
                "name": f"mix of experts, distance from the beginning (JS){f', {label}' if label else ''}",
                "unit": "nats",
                "x_unit": "step",
                "x": [float(s) for s in seen.steps],
                "y": [float(v) for v in seen.signal],
                "source": f"{load.source} (sampling alone gives {seen.floor:.2g})",
                "marks": [
                    {
                        "x": float(seen.steps[c.start]),
                        "text": f"change of the mix in {int(c.layers.sum())} layers",
                        "finding": "ep.drift",
                    }
                    for c in seen.found
                    if c.lasts
                ],
            }
        )
    return out[:MAX_SERIES]


def _has_course(load: Load) -> bool:
    """Steps of one stream in time order."""
    return not load.attrs.get("rows_are_ranks") and load.ordered and len(load.steps) > 1
