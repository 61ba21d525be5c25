"""A plan for one layer: counts, node, rank and slot of every replica, near the present plan if there is one.

The two inner loops are handed in as `Tools`, so that the plain methods and their compiled twins
(kernels/packing.py) go through the same steps.

Glossary: *global* plans put any expert anywhere; *node-limited* plans keep each group of experts on one
node, as routers with a limit on nodes (DeepSeek) want it. The *trivial* plan is what engines start with:
slot i holds expert i modulo the number of experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moexray.algorithms import packing, replication
from moexray.algorithms.partition import partition
from moexray.algorithms.replication import least_top, shares, shift
from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PLAIN", "Shape", "Tools", "floor", "least", "moved", "place", "top", "trivial"]

NEAR = 5e-4  # relative distance from the bound at which more swaps are not worth their time
LARGEST = 1 << 20  # experts x GPUs, 8 bytes each in some tables; the largest models have 512 x 512
TRIES, PROOF = 100, 2_000  # nodes filled in search of the best parts: for a plan, for the bound


@dataclass(frozen=True, slots=True)
class Tools:
    """The inner loops, see algorithms/replication.py and algorithms/packing.py.

    Args:
        replicate: (costs, slots) -> counts with the lowest maximum; the bounds rest on it.
        pack: (share, counts, ranks, nodes, start, target) -> slots.
        choose: (costs, slots) -> counts to plan with, if not those of `replicate`.
    """

    replicate: Callable[..., np.ndarray]
    pack: Callable[..., np.ndarray]
    choose: Callable[..., np.ndarray] | None = None


PLAIN = Tools(replication.replicate, packing.pack)


@dataclass(frozen=True, slots=True)
class Shape:
    """What is to be filled.

    Args:
        experts: Logical experts.
        slots: Physical slots in all.
        gpus: EP ranks.
        nodes: Nodes they lie on; replicas of an expert are spread over nodes.
        groups: Groups of experts that stay on one node each (node-limited); 0 is global.

    Raises:
        UsageError: the numbers do not divide.
    """

    experts: int
    slots: int
    gpus: int
    nodes: int = 1
    groups: int = 0

    def __post_init__(self) -> None:
        e, s, g, n = self.experts, self.slots, self.gpus, self.nodes
        if min(e, s, g, n) < 1:
            raise UsageError(f"{e} experts, {s} slots, {g} GPUs, {n} nodes: each must be at least 1")
        if s < e:
            raise UsageError(f"{s} slots cannot hold {e} experts", hint=f"--slots {-(-e // g) * g} or more")
        if s % g:
            near = f"{s // g * g} or {-(-s // g) * g}" if s // g * g >= e else f"{-(-s // g) * g}"
            raise UsageError(f"{s} slots are no multiple of {g} GPUs", hint=f"--slots {near}")
        if s > e * g:
            hint = f"--slots {e * g} or fewer"
            raise UsageError(f"{s} slots on {g} GPUs hold an expert of {e} twice on a GPU", hint=hint)
        if e * g > LARGEST:
            raise UsageError(f"{e} experts on {g} GPUs are more than can be planned ({LARGEST:,} pairs)")
        if g % n:
            raise UsageError(f"{g} GPUs do not divide over {n} nodes", hint="--nodes that divides --gpus")
        if self.groups and (self.groups < 0 or e % self.groups or self.groups % n):
            raise UsageError(
                f"{e} experts in {self.groups} groups on {n} nodes do not divide",
                hint="the groups of the model (n_group) must divide its experts, the nodes must divide "
                "the groups; or --mode global",
            )

    @property
    def node(self) -> Shape:
        """One node of a node-limited plan."""
        return Shape(self.experts // self.nodes, self.slots // self.nodes, self.gpus // self.nodes)

    @property
    def most(self) -> int:
        """Replicas that an expert can have at most."""
        part = self.node if self.groups else self
        return min(part.gpus, part.slots - part.experts + 1)


def trivial(shape: Shape) -> np.ndarray:
    """[slots], the plan that engines start with; node by node where experts are bound to nodes."""
    if not shape.groups:
        return np.arange(shape.slots) % shape.experts
    part = shape.node
    one = np.arange(part.slots) % part.experts
    return np.concatenate([one + n * part.experts for n in range(shape.nodes)])


def top(costs: np.ndarray, slots: np.ndarray, gpus: int) -> float:
    """What the busiest GPU of a placement carries; slots of -1 are empty."""
    filled = slots >= 0
    counts = np.maximum(np.bincount(slots[filled], minlength=len(costs)), 1)
    share = shares(costs, counts)
    return float(np.where(filled, share[slots], 0.0).reshape(gpus, -1).sum(axis=1).max())


def floor(costs: np.ndarray, gpus: int) -> float:
    """The mean over GPUs with one replica of each expert: balancedness is this over `top`."""
    return float(costs[:, 0].sum()) / gpus


def least(costs: np.ndarray, shape: Shape, tools: Tools = PLAIN, *, split: bool = False) -> float:
    """No plan of this shape has a busiest GPU below this; `split`: with unequal parts for replicas."""
    found = least_top(costs, tools.replicate(costs, shape.slots), shape.gpus, split=split)
    if shape.groups:
        load = costs[:, 0].reshape(shape.groups, -1).sum(axis=1)
        node = _least_node(load, shape.nodes)
        parts, best = _parts(load, shape, tools, None, node, PROOF)
        node = float(load[parts].sum(axis=1).max()) if best else node
        found = max(found, node / shape.node.gpus)
    return found


def _least_node(load: np.ndarray, nodes: int) -> float:
    return least_top(load[:, None], np.ones(len(load), np.int64), nodes)


def place(
    costs: np.ndarray,
    shape: Shape,
    tools: Tools = PLAIN,
    current: np.ndarray | None = None,
    slack: float = 0.0,
) -> np.ndarray:
    """Plans one layer; never worse than the trivial plan, which is kept where there is no load.

    Args:
        costs: [experts, shape.most], see algorithms/replication.py.
        shape: What is to be filled.
        tools: Plain or compiled inner loops.
        current: [slots now], the placement in force, on as many GPUs, -1 is empty; few replicas change
            their GPU.
        slack: Relative load of the busiest GPU that may be given up to move less.

    Returns:
        [slots], the logical expert in each slot, GPUs one after another.
    """
    fresh = _fresh(costs, shape, tools)
    best = top(costs, fresh, shape.gpus)
    plain = trivial(shape)
    if top(costs, plain, shape.gpus) < best or not best:
        fresh, best = plain, top(costs, plain, shape.gpus)
    if current is None:
        return fresh
    limit = max(best, least(costs, shape, tools) * (1 + NEAR)) * (1 + slack)
    if len(current) == shape.slots and _fits(current, shape) and top(costs, current, shape.gpus) <= limit:
        return current.copy()
    moves = 0
    while moves <= shape.slots:  # as few slots as possible change their expert
        near = _near(costs, shape, tools, current, moves, limit)
        if top(costs, near, shape.gpus) <= limit:
            fewer = moved(current, near, shape.gpus).sum() < moved(current, fresh, shape.gpus).sum()
            return near if fewer else fresh
        moves = max(1, 2 * moves)
    return fresh


def moved(before: np.ndarray, after: np.ndarray, gpus: int) -> np.ndarray:
    """[gpus], replicas that a GPU has to fetch because it does not hold the expert yet."""
    pairs = zip(before.reshape(gpus, -1), after.reshape(gpus, -1), strict=True)
    return np.array([len(np.setdiff1d(new, old)) for old, new in pairs])


def _fresh(costs: np.ndarray, shape: Shape, tools: Tools) -> np.ndarray:
    choose = tools.choose or tools.replicate
    counts = tools.replicate(costs, shape.slots)
    target = least_top(costs, counts, shape.gpus)
    if not shape.groups:
        if tools.choose:
            counts = choose(costs, shape.slots)
        share = shares(costs, counts)
        return tools.pack(share, counts, shape.gpus, shape.nodes, _empty(shape), target * (1 + NEAR))
    found, part = [], shape.node
    nodes = _nodes(costs, shape, tools, None, 0.0)
    target = max(target, *(floor(costs[experts], part.gpus) for experts in nodes)) * (1 + NEAR)
    for experts in nodes:
        inner = costs[experts]
        counts = choose(inner, part.slots)
        found.append(experts[tools.pack(shares(inner, counts), counts, part.gpus, 1, _empty(part), target)])
    return np.concatenate(found)


def _near(
    costs: np.ndarray, shape: Shape, tools: Tools, current: np.ndarray, moves: int, limit: float
) -> np.ndarray:
    """A plan whose counts differ by `moves` slots from the present one, packed from where replicas lie."""
    if not shape.groups:
        counts = np.bincount(current[current >= 0], minlength=shape.experts)
        counts = shift(costs, counts, shape.slots, moves)
        start = _keep(current, counts, shares(costs, counts), shape)
        return tools.pack(shares(costs, counts), counts, shape.gpus, shape.nodes, start, limit)
    found, part = [], shape.node
    for old, experts in zip(
        current.reshape(shape.nodes, -1), _nodes(costs, shape, tools, current, limit), strict=True
    ):
        names = np.full(shape.experts, -1)
        names[experts] = np.arange(part.experts)
        mine = np.where(old >= 0, names[old], -1)
        counts = np.bincount(mine[mine >= 0], minlength=part.experts)
        counts = shift(costs[experts], counts, part.slots, moves)
        share = shares(costs[experts], counts)
        start = _keep(mine, counts, share, part)
        found.append(experts[tools.pack(share, counts, part.gpus, 1, start, limit)])
    return np.concatenate(found)


def _nodes(
    costs: np.ndarray, shape: Shape, tools: Tools, current: np.ndarray | None, limit: float
) -> list[np.ndarray]:
    """The experts of each node; groups stay on the node that holds all of them now where that balances."""
    load = costs[:, 0].reshape(shape.groups, -1).sum(axis=1)
    target = max(_least_node(load, shape.nodes) * (1 + NEAR), limit * shape.node.gpus)
    size = shape.experts // shape.groups
    parts, _ = _parts(load, shape, tools, current, target, TRIES)
    return [(np.sort(row)[:, None] * size + np.arange(size)).ravel() for row in parts]


def _parts(
    load: np.ndarray, shape: Shape, tools: Tools, current: np.ndarray | None, target: float, looks: int
) -> tuple[np.ndarray, bool]:
    """[nodes, groups of a node], and whether that is proven to be the best."""
    start = np.full((shape.nodes, shape.groups // shape.nodes), -1)
    for node, slots in enumerate([] if current is None else current.reshape(shape.nodes, -1)):
        here = np.isin(np.arange(shape.experts), slots).reshape(shape.groups, -1).all(axis=1)
        whole = np.setdiff1d(np.flatnonzero(here), start)[: start.shape[1]]
        start[node, : len(whole)] = whole
    one = np.ones(shape.groups, np.int64)
    parts = tools.pack(load, one, shape.nodes, 1, start, target).reshape(shape.nodes, -1)
    return partition(load, parts, target, looks)


def _empty(shape: Shape) -> np.ndarray:
    return np.full((shape.gpus, shape.slots // shape.gpus), -1)


def _fits(slots: np.ndarray, shape: Shape) -> bool:
    """Every expert has a slot, no GPU one twice, groups lie on one node."""
    rows = np.sort(slots.reshape(shape.gpus, -1), axis=1)
    if rows.min() < 0 or (rows[:, 1:] == rows[:, :-1]).any() or len(np.unique(slots)) < shape.experts:
        return False
    if not shape.groups:
        return True
    groups = slots.reshape(shape.nodes, -1) // (shape.experts // shape.groups)
    return sum(len(np.unique(row)) for row in groups) == shape.groups


def _keep(current: np.ndarray, counts: np.ndarray, share: np.ndarray, shape: Shape) -> np.ndarray:
    """[gpus, slots of a GPU], replicas that may stay; surplus ones leave the busiest GPU first."""
    start = _empty(shape)
    carried = np.zeros(shape.gpus)
    copies = np.zeros(shape.experts, np.int64)
    for gpu, row in enumerate(current.reshape(shape.gpus, -1)):
        known = [int(e) for e in dict.fromkeys(row.tolist()) if e >= 0]
        for slot, expert in enumerate(known[: start.shape[1]]):
            start[gpu, slot] = expert
            carried[gpu] += share[expert]
            copies[expert] += 1
    for expert in np.flatnonzero(copies > counts).tolist():
        holders = np.flatnonzero((start == expert).any(axis=1))
        for gpu in holders[np.argsort(-carried[holders], kind="stable")][: copies[expert] - counts[expert]]:
            start[gpu, start[gpu] == expert] = -1
            carried[gpu] -= share[expert]
    return start
