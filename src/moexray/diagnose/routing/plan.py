"""What a better placement would give: predicted on later windows than it was planned on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moexray.algorithms.packing import balancedness, rank_loads
from moexray.algorithms.placement import Shape, floor, least, place
from moexray.algorithms.replication import token_costs
from moexray.analyse.routing_ranks import logical_tokens
from moexray.core.remedies import remedy
from moexray.core.sizes import human_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.analyse.routing_ranks import Ranks
    from moexray.core.finding import Remedy

__all__ = ["Plan", "logical_tokens", "plan", "skew_remedies"]

NO_BETTER = 5e-4  # of balancedness, which is shown with three decimals
LAYERS = 8  # layers planned for a prediction
MAX_CELLS = 400_000  # slots x ranks of one layer that the plain packer takes in well under a second


@dataclass(frozen=True, slots=True)
class Plan:
    """Predicted balance of a placement.

    Args:
        balancedness: Mean over the planned layers, scored on windows that the plan has not seen.
        best: The bound of any placement with so many slots.
        later: The score is out of sample.
        extra: Redundant slots per layer.
    """

    balancedness: float
    best: float
    later: bool
    extra: int


def plan(tokens: np.ndarray, layers: Sequence[int], ranks: int, extra: int) -> Plan | None:
    """Packs some layers on the first half of the steps and scores them on the second half."""
    experts = tokens.shape[2]
    slots = experts + extra
    if slots % ranks or not experts <= slots <= experts * ranks or slots * ranks > MAX_CELLS:
        return None
    half = len(tokens) // 2
    scores, bounds = [], []
    for y in list(layers)[:LAYERS]:
        seen = (tokens[:half, y] if half else tokens[:, y]).sum(axis=0).astype(np.float64)
        new = (tokens[half:, y] if half else tokens[:, y]).sum(axis=0).astype(np.float64)
        if seen.sum() <= 0 or new.sum() <= 0:
            continue
        shape = Shape(experts, slots, ranks)
        placed = place(token_costs(seen, shape.most), shape)
        scores.append(balancedness(rank_loads(new, placed, ranks)))
        costs = token_costs(new, shape.most)
        bounds.append(floor(costs, ranks) / least(costs, shape))
    if not scores:
        return None
    return Plan(float(np.mean(scores)), float(np.mean(bounds)), bool(half), extra)


def skew_remedies(ranks: Ranks, layers: Sequence[int], now: float) -> tuple[Remedy, ...]:
    """Re-placement first (no extra memory), then redundant experts, then the router."""
    count = ranks.tokens.shape[-1]
    tokens = logical_tokens(ranks)
    found: list[Remedy] = []
    experts = tokens.shape[2] if tokens is not None else 0
    fit = -experts % count
    size = ranks.load.attrs.get("expert_bytes")
    best = 0.0  # predicted by a remedy before that costs less
    for id, extra in (("re-place-experts", fit), ("redundant-experts", fit + count)):
        made = plan(tokens, layers, count, extra) if tokens is not None else None
        if made is None:
            words = "needs counts per expert to be predicted"
        else:
            scored = "planned on the first half of the steps, scored on the second" if made.later else \
                "scored on the same counts"  # fmt: skip
            words = (
                f"predicted balancedness {made.balancedness:.3f} after {now:.3f} now (bound of any placement "
                f"{made.best:.3f}; {scored})"
            )
            if made.balancedness < best + NO_BETTER:
                words += ", no better than placing anew on the same slots"
            best = max(best, made.balancedness)
        slots = extra // count if extra else 0
        memory = f"{slots} more expert{'s' * (slots != 1)} per layer and rank"
        if size:
            memory += f", {human_bytes(slots * float(size))} per layer and rank"
        found.append(remedy(id, predicted=words, memory=memory, slots=extra))
    found.append(remedy("router-policy"))
    return tuple(found)
