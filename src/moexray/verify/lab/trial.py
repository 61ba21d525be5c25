"""Both arms of the lab, interleaved on one running engine, compared pair by pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.core.limits.ab import AbLimits
from moexray.verify.ab import (
    Margin,
    moment,
    noise,
    outcome,
    paired_means,
    paired_outcomes,
    places,
    refusal,
)
from moexray.verify.ab.stats import too_few
from moexray.verify.lab.traffic import arrivals
from moexray.verify.lab.work import Job

if TYPE_CHECKING:
    from collections.abc import Callable

    from moexray.verify.ab import Outcome
    from moexray.verify.lab.cluster import Engine, Measured
    from moexray.verify.lab.served import Served
    from moexray.verify.lab.work import Late

__all__ = ["Arm", "compare"]

SLOT = 50  # requests of a slot
WARM = 16  # requests before the first slot of each arm: its memory fills up
BUSY = 0.8  # share of time in which the repaired engine works: open loop, below saturation
SAME = Margin(0.10, is_share=True)  # P50 may differ by that much. Source: lab.md, bars


@dataclass(frozen=True, slots=True)
class Arm:
    """A setting of the engine.

    Args:
        layout: Of memory.
        slots: Placement.
        fill: Share of memory that keys and values take.
        says: What was changed against the incident.
        late: A rank that comes late.
    """

    layout: str
    slots: np.ndarray
    fill: float
    says: tuple[str, ...]
    late: Late | None = None

    def job(self, prompts: np.ndarray, due: np.ndarray | None = None) -> Job:
        """Requests under this setting."""
        return Job(prompts, self.slots, self.layout, self.fill, arrivals=due, late=self.late)


def compare(
    engine: Engine | Served, arms: tuple[Arm, Arm], make: Callable[[np.random.Generator, int], np.ndarray],
    requests: int, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Measures broken and repaired in turns; each pair of slots serves the same requests at the same times.

    Args:
        engine: Running.
        arms: Broken, repaired.
        make: Draws requests.
        requests: Of each arm.
        seed: Of requests and order.

    Returns:
        The keys before, after, ratio, outcomes, machine of `moexray.lab/1`.
    """
    rng = np.random.default_rng([seed, 2])
    for arm in arms:
        warm = engine.run(arm.job(make(rng, WARM)))
    mean_s = float(np.median(warm.latency_s)) / BUSY
    begin = moment()
    slots: tuple[list[Measured], list[Measured]] = ([], [])
    drawn: list[tuple[np.ndarray, np.ndarray]] = []
    quads = max(1, -(-requests // (2 * SLOT)))
    many = min(SLOT, -(-requests // (2 * quads)))
    for place in places(quads, seed):
        side = "AB".index(place.arm)
        if len(slots[side]) == len(drawn):
            drawn.append((make(rng, many), arrivals(rng, many, mean_s)))
        slots[side].append(engine.run(arms[side].job(*drawn[len(slots[side])])))
    seen = noise(begin, moment())
    return _document(slots, refusal(seen, AbLimits()), seen, seed)


def _document(
    slots: tuple[list[Measured], list[Measured]], noisy: str, seen: Any, seed: int
) -> dict[str, Any]:
    """Figures of both arms with intervals over pairs; wall-clock verdicts only on a quiet machine."""
    found: list[Outcome] = []
    for name, suffix, missing in (
        ("latency_s", "_s", noisy), ("wall_s", "_step_s", noisy), ("cpu_s", "_cpu_s", ""),
    ):  # fmt: skip
        sides = ([getattr(m, name) for m in side] for side in slots)
        found += paired_outcomes(
            *sides, figures=("p50", "p99"), margin=SAME, missing=missing, suffix=suffix, seed=seed
        )
    holes, uneven, moves = (
        paired_means(*([figure(m) for m in side] for side in slots), seed=seed)
        for figure in (_hole, _deviation, lambda m: float(m.moves.sum()) / len(m))
    )
    few = too_few(holes.pairs)
    found += [
        outcome("largest_free_bytes", holes, better="higher", unit="bytes", missing=few),
        outcome("expert_load_std", uneven, unit="ratio", missing=few),
        outcome("moves_per_step", moves, unit="ratio", missing=few),
    ]
    figures = {o.figure: o for o in found}
    return {
        "before": {name: o.before.value for name, o in figures.items()},
        "after": {name: o.after.value for name, o in figures.items()},
        "ratio": {name.removesuffix("_s"): _interval(o) for name, o in figures.items()},
        "outcomes": [o.to_json() for o in found],
        "machine": {"noisy": noisy, "load": seen.load, "steal_ratio": seen.steal_ratio,
                    "stall_ratio": seen.stall_ratio, "cores": seen.cores},
    }  # fmt: skip


def _interval(o: Outcome) -> dict[str, float | None] | None:
    """Before over after; None where either is 0."""
    if o.ratio is None or not o.ratio.value:
        return None
    turned = o.ratio.inverse
    return {"value": turned.value, "low": turned.low, "high": turned.high}


def _hole(m: Measured) -> float:
    """Largest free block of the rank that has least, in the median step, bytes."""
    return float(np.median(m.largest.min(axis=1)))


def _deviation(m: Measured) -> float:
    """Standard deviation over EP ranks of the rows that their experts received / mean; mean over layers."""
    rows = m.rows.sum(axis=0)
    return float(np.mean(rows.std(axis=1) / np.maximum(rows.mean(axis=1), 1)))
