"""Where experts should lie, from recorded traffic: planned, bounded, scored on traffic it has not seen.

Glossary: *balancedness* is mean / max over GPUs: of tokens, or in decode mode of active experts (then the
mean is that of one replica per expert, since replicas of a busy expert only add to it).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from moexray.algorithms.placement import PLAIN, Shape, Tools, floor, least, moved, place, top, trivial
from moexray.algorithms.replication import active_costs, least_growth, replicate_active, token_costs
from moexray.algorithms.splitting import split, split_loads
from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.whatif.traffic import Traffic

__all__ = ["Later", "Layer", "Options", "Payback", "Plan", "payback", "plan"]

PLAIN_WORK = 200_000  # layers x slots x GPUs up to which the plain twin takes about a second


@dataclass(frozen=True, slots=True)
class Options:
    """How to plan.

    Args:
        decode: Balance active experts per step instead of tokens.
        unequal: The dispatcher can split an expert's tokens unequally over its replicas.
        current: [layers, slots now], the placement in force; None: start anew.
        slack: Relative load of the busiest GPU that may be given up to move less.
    """

    decode: bool = False
    unequal: bool = False
    current: np.ndarray | None = None
    slack: float = 0.01

    def __post_init__(self) -> None:
        if self.decode and self.unequal:
            raise UsageError(
                "decode mode counts active experts, an unequal split of tokens does not change them",
                where="--split unequal",
                hint="leave out one of --decode and --split unequal",
            )


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a plan; the scores are None where it had no tokens.

    Args:
        layer: Its label; -1 is unnamed.
        slots: [slots], logical experts.
        parts: [slots], part of the expert's tokens; None is an equal split.
        balancedness: Of the plan, on the traffic it was made for.
        bound: No plan of this shape has more.
        trivial: Of the layout that engines start with, whatever the mode of the plan.
        before: Of the placement in force, if one was given.
        moved: [gpus], replicas that each GPU has to fetch; None if no placement was given.
    """

    layer: int
    slots: np.ndarray
    parts: np.ndarray | None = None
    balancedness: float | None = None
    bound: float | None = None
    trivial: float | None = None
    before: float | None = None
    moved: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Later:
    """The same method on traffic it has not seen: planned on the first half, scored on the second.

    Args:
        balancedness: Mean over layers.
        trivial: The trivial plan on the second half.
        time_saved: 1 - the sum over layers of the busiest GPU's load, planned over before.
        ordered: The halves follow each other in time.
    """

    balancedness: float
    trivial: float
    time_saved: float
    ordered: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """All layers.

    Args:
        shape: What was filled.
        options: How.
        layers: In the order of the traffic.
        seconds: The algorithm alone, after warm-up: CPU time of one core.
        time_saved: As in `Later`, on the traffic it was made for.
        later: None where there are not two halves.
    """

    shape: Shape
    options: Options
    layers: tuple[Layer, ...]
    seconds: float
    time_saved: float
    later: Later | None = None

    def mean(self, name: str) -> float | None:
        """Mean over the layers that had tokens of one of their scores."""
        known = [v for y in self.layers if (v := getattr(y, name)) is not None]
        return float(np.mean(known)) if known else None

    @property
    def moved_slots(self) -> int | None:
        """Replicas that change their GPU, over all layers."""
        known = [y.moved for y in self.layers if y.moved is not None]
        return int(sum(m.sum() for m in known)) if known else None

    @property
    def fetched(self) -> int | None:
        """Replicas that the GPU with most to fetch has to fetch, over all layers."""
        known = [y.moved for y in self.layers if y.moved is not None]
        return int(np.sum(known, axis=0).max()) if known else None


@dataclass(frozen=True, slots=True)
class Payback:
    """When a rearrangement has earned what it cost.

    Args:
        gain_s: Saved per step, at most; not above 0 where the plan does not help.
        stall_s: What the rearrangement costs, once.
        steps: Until both are equal; None: never.
        later: The gain is that on traffic that was not planned on.
    """

    gain_s: float
    stall_s: float
    steps: float | None
    later: bool


def plan(traffic: Traffic, shape: Shape, options: Options) -> Plan:
    """Plans every layer and scores the method on the second half of the traffic.

    Raises:
        UsageError: the placement in force does not fit.
    """
    tools = PLAIN if len(traffic.layers) * shape.slots * shape.gpus <= PLAIN_WORK else _compiled()
    now = _in_force(shape, options, len(traffic.layers))
    _place(_costs(traffic, 0, shape, options), shape, options, tools, now[0])  # compiles, fills caches
    made, seconds = [], 0.0
    for y, label in enumerate(traffic.layers):
        begin = time.process_time()
        costs = _costs(traffic, y, shape, options)
        slots = _place(costs, shape, options, tools, now[y])
        seconds += time.process_time() - begin
        made.append(_layer(label, costs, slots, shape, options, now[y]))
    saved = _saved([(y.after, y.before) for y in made])
    found = Plan(shape, options, tuple(y.layer for y in made), seconds, saved)
    halves = traffic.halves()
    return found if halves is None else replace(found, later=_later(*halves, shape, options, tools))


def payback(made: Plan, step_s: float, stall_s: float) -> Payback:
    """Steps until a rearrangement has paid.

    Args:
        made: The plan.
        step_s: Time of the MoE layers in one step, seconds: it follows the busiest GPU at most.
        stall_s: Time in which nothing is served while experts move, seconds.
    """
    saved = made.later.time_saved if made.later else made.time_saved
    gain = step_s * saved
    return Payback(gain, stall_s, stall_s / gain if gain > 0 else None, later=made.later is not None)


def _compiled() -> Tools:
    from moexray.kernels import packing as kernel

    return Tools(kernel.replicate, kernel.pack)


def _in_force(shape: Shape, options: Options, layers: int) -> Sequence[np.ndarray | None]:
    if options.current is None:
        return [None] * layers
    for slots in options.current:
        lost = np.setdiff1d(np.arange(shape.experts), slots)
        if slots.max() >= shape.experts or lost.size or slots.size % shape.gpus:
            what = (
                f"it has expert {int(slots.max())}, the traffic has experts 0 to {shape.experts - 1}"
                if slots.max() >= shape.experts
                else f"it lacks expert {int(lost[0])}"
                if lost.size
                else f"its {slots.size} slots are no multiple of {shape.gpus} GPUs"
            )
            raise UsageError(f"the current placement does not fit: {what}", where="--current",
                             hint="give the placement of the same model on as many GPUs")  # fmt: skip
    return list(options.current)


def _costs(traffic: Traffic, y: int, shape: Shape, options: Options) -> np.ndarray:
    """[experts, most] of a layer; `most` covers the placement in force, too."""
    most = shape.most
    if options.current is not None:
        most = max(most, int(np.bincount(options.current[y][options.current[y] >= 0]).max()))
    steps = traffic.steps(y)
    return active_costs(steps, most) if options.decode else token_costs(steps.sum(axis=0), most)


def _place(
    costs: np.ndarray, shape: Shape, options: Options, tools: Tools, current: np.ndarray | None
) -> np.ndarray:
    """[slots] of one layer."""
    costs = np.ascontiguousarray(costs[:, : shape.most])
    found = place(costs, shape, tools, current, options.slack)
    if options.decode and shape.slots > shape.experts:
        # which replicas hurt least depends on the load: both ways are tried
        other = place(costs, shape, replace(tools, choose=replicate_active), current, options.slack)
        if top(costs, other, shape.gpus) < top(costs, found, shape.gpus):
            return other
    return found


def _start(shape: Shape) -> np.ndarray:
    """[slots], what engines start with; they know no node limit there."""
    return trivial(replace(shape, groups=0))


def _carried(costs: np.ndarray, slots: np.ndarray, gpus: int, parts: np.ndarray | None = None) -> float:
    """What the busiest GPU of a placement carries."""
    if parts is not None:
        return float(split_loads(costs[:, 0], slots, parts, gpus).max())
    return top(costs, slots, gpus)


@dataclass(frozen=True, slots=True)
class _Made:
    """A layer, and what its busiest GPU carries with the plan and before."""

    layer: Layer
    after: float
    before: float


def _layer(
    label: int, costs: np.ndarray, slots: np.ndarray, shape: Shape, options: Options, old: np.ndarray | None
) -> _Made:
    fetched = None if old is None else moved(old, slots, shape.gpus)
    mean = floor(costs, shape.gpus)
    if mean <= 0:
        return _Made(Layer(label, slots, moved=fetched), 0.0, 0.0)
    parts = split(costs[:, 0], slots, shape.gpus) if options.unequal else None
    inner = costs[:, : shape.most]
    low = least(inner, shape, split=options.unequal)
    if options.decode:
        low = max(low, mean + least_growth(inner, shape.slots - shape.experts) / shape.gpus)
    after = _carried(costs, slots, shape.gpus, parts)
    plain = top(costs, _start(shape), shape.gpus)
    before = plain if old is None else top(costs, old, shape.gpus)
    layer = Layer(label, slots, parts, mean / after, mean / low, mean / plain,
                  None if old is None else mean / before, fetched)  # fmt: skip
    return _Made(layer, after, before)


def _saved(tops: Sequence[tuple[float, float]]) -> float:
    """1 - the busiest GPU's load after over before, summed over layers: they run one by one."""
    before = sum(b for _, b in tops)
    return 1 - sum(a for a, _ in tops) / before if before > 0 else 0.0


def _later(first: Traffic, second: Traffic, shape: Shape, options: Options, tools: Tools) -> Later | None:
    now = _in_force(shape, options, len(first.layers))
    scores, plain, tops = [], [], []
    for y in range(len(first.layers)):
        seen, new = (_costs(half, y, shape, options) for half in (first, second))
        mean = floor(new, shape.gpus)
        if mean <= 0 or floor(seen, shape.gpus) <= 0:
            continue
        slots, old = _place(seen, shape, options, tools, now[y]), now[y]
        parts = split(seen[:, 0], slots, shape.gpus) if options.unequal else None
        after = _carried(new, slots, shape.gpus, parts)
        start = top(new, _start(shape), shape.gpus)
        scores.append(mean / after)
        plain.append(mean / start)
        tops.append((after, start if old is None else top(new, old, shape.gpus)))
    if not scores:
        return None
    means = float(np.mean(scores)), float(np.mean(plain))
    return Later(*means, _saved(tops), first.ordered and second.ordered)
