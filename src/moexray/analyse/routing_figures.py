"""How even each MoE layer is: the figures of `moexray routing`.

Glossary: a *choice* is one token-expert pair; shares are of the choices of a layer, so that one expert
can hold at most 1/k of them. *Balancedness* is mean / max, 1 is even; *max over mean* is its inverse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.routing_ranks import ep_size, logical_tokens, to_ranks
from moexray.analyse.routing_stats import by_chance, cv, entropy, gini, top_share

if TYPE_CHECKING:
    from moexray.analyse.routing import Load
    from moexray.analyse.routing_ranks import Ranks
    from moexray.core.run import Run

__all__ = ["Figures", "LayerFigures", "figures"]


@dataclass(frozen=True, slots=True)
class LayerFigures:
    """One MoE layer over all steps that were not set aside.

    Args:
        layer: Label; -1 where the file names none.
        experts: Units counted: logical experts, or slots or ranks where these are not known.
        tokens: Choices counted.
        balancedness: mean / max over EP ranks, over experts where the EP size is unknown.
        by_chance: What an even load would show with so many choices, on the same axis.
        max_over_mean: Over experts.
        cv: Coefficient of variation over experts, population.
        gini: Gini coefficient over experts; the skew index of the live metrics is the same figure.
        entropy: Of the experts' shares, over ln(experts): 1 even.
        top1_share: Share of choices that the busiest expert takes.
        top3_share: ... the three busiest.
        top3_touched: Share of tokens that the three busiest serve at all; None where only counts are known.
        load_variance: Population variance of the choices per expert, choices squared.
        min_expert_share: Share of choices that the idlest expert takes.
        active_experts: Experts with at least one choice.
        active_per_step: Mean number of experts with at least one choice in a step or window.
        hot_expert: The busiest one.
        gain_bound: Most of the layer's time that perfect balance could save, (max - mean) / max.
    """

    layer: int
    experts: int
    tokens: int
    balancedness: float
    by_chance: float
    max_over_mean: float
    cv: float
    gini: float
    entropy: float
    top1_share: float
    top3_share: float
    top3_touched: float | None
    load_variance: float
    min_expert_share: float
    active_experts: int
    active_per_step: float
    hot_expert: int
    gain_bound: float


@dataclass(frozen=True, slots=True)
class Figures:
    """The layers of one load.

    Args:
        load: Where they come from.
        ranks: Tokens per EP rank; None where the EP size is unknown.
        tokens: [steps, layers, experts] that the figures of experts stand on.
        axis: What the experts of the figures are: logical, physical or rank.
        layers: Layers with choices.
        dense: Labels of layers without any (dense ones, or not recorded).
    """

    load: Load
    ranks: Ranks | None
    tokens: np.ndarray
    axis: str
    layers: tuple[LayerFigures, ...]
    dense: tuple[int, ...]

    @property
    def over(self) -> str:
        """What balancedness is taken over."""
        return "ranks" if self.ranks is not None else "experts"

    @property
    def of_time(self) -> float:
        """sum(mean) / sum(max) over the layers: follows their time, which adds up."""
        tops = sum(f.tokens / f.balancedness for f in self.layers)
        return sum(f.tokens for f in self.layers) / tops if tops else float("nan")


def figures(run: Run, load: Load, ep: int | None = None) -> Figures:
    """The figures of every layer.

    Args:
        run: What was read: placement, configuration and launch line give the EP size.
        load: A load of it.
        ep: EP size as the user states it.
    """
    count = ep or ep_size(run, load)[0]
    ranks = to_ranks(run, load, count) if count else None
    folded = logical_tokens(ranks) if ranks is not None else None
    tokens, axis = (folded, "logical") if folded is not None else (load.tokens, load.axis)
    found, dense = [], []
    for y, label in enumerate(load.layers):
        if tokens[:, y].sum() > 0:
            on_ranks = None if ranks is None else ranks.tokens[:, y].sum(axis=0)
            if on_ranks is not None and not on_ranks.any():  # a placement that lacks this layer
                on_ranks = None
            touched = load.attrs.get("touched")
            found.append(_layer(int(label), tokens[:, y], on_ranks, touched[y] if touched else None))
        else:
            dense.append(int(label))
    return Figures(load, ranks, tokens, axis, tuple(found), tuple(dense))


def _layer(
    label: int, series: np.ndarray, on_ranks: np.ndarray | None, touched: float | None
) -> LayerFigures:
    total = series.sum(axis=0).astype(np.float64)
    share = total / total.sum()
    loads = total if on_ranks is None else on_ranks.astype(np.float64)
    even = float(loads.mean() / loads.max())
    return LayerFigures(
        layer=label,
        experts=len(total),
        tokens=round(float(total.sum())),
        balancedness=even,
        by_chance=by_chance(float(loads.mean()), len(loads)),
        max_over_mean=float(total.max() / total.mean()),
        cv=cv(total),
        gini=gini(total),
        entropy=entropy(total),
        top1_share=float(share.max()),
        top3_share=top_share(total, 3),
        top3_touched=touched,
        load_variance=float(total.var()),
        min_expert_share=float(share.min()),
        active_experts=int((total > 0).sum()),
        active_per_step=float((series > 0).sum(axis=1).mean()),
        hot_expert=int(total.argmax()),
        gain_bound=1.0 - even,
    )
