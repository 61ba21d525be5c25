"""What a change of the mix does to the balance of the ranks: the size of its effect.

A distance in nats says whether a mix changed, not whether that matters. Two things do: that the busiest rank
of the placement in force carries more, and that a plan made before no longer fits. Both are measured.

Glossary: a *stretch* is some neighbouring windows; *growth* is how much more the busiest rank carries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moexray.algorithms.packing import rank_loads
from moexray.algorithms.placement import Shape, place
from moexray.algorithms.replication import token_costs
from moexray.analyse.routing_stats import by_chance
from moexray.analyse.routing_windows import windows_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moexray.algorithms.drift import Change
    from moexray.analyse.routing_figures import Figures
    from moexray.analyse.routing_windows import Drift

__all__ = ["Effect", "Moved", "Stretch", "around", "assumed_ranks", "effect", "moved"]

ASSUMED_EP = 8  # ranks assumed, and said so, where no artefact gives the EP size
SMALL, CLEAR = 0.01, 0.10  # growth of the busiest rank's load: below is none, small, clear; as for policies


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some windows of a load.

    Args:
        units: [windows, layers, experts].
        ranks: [windows, layers, ranks]; None where the EP size is unknown.
        gpus: EP size, assumed where it is unknown.
        experts: The units are logical experts, which a plan can move.
    """

    units: np.ndarray
    ranks: np.ndarray | None
    gpus: int
    experts: bool

    @classmethod
    def of(cls, f: Figures) -> Stretch:
        """All windows of a load."""
        units, edges = windows_of(f)
        size = int(edges[1] - edges[0]) if len(edges) > 1 else 1
        experts = f.axis == "logical"
        if f.ranks is None:
            return cls(units, None, assumed_ranks(units.shape[2]), experts)
        ranks = np.add.reduceat(f.ranks.tokens[: edges[-1] + size], edges, axis=0)
        return cls(units, ranks, ranks.shape[2], experts)

    def part(self, first: int, end: int) -> Stretch:
        """The windows from first to before end."""
        ranks = None if self.ranks is None else self.ranks[first:end]
        return Stretch(self.units[first:end], ranks, self.gpus, self.experts)


@dataclass(frozen=True, slots=True)
class Effect:
    """What lies between two stretches, for some layers together (by their time).

    Args:
        gpus: EP ranks that the plan is for.
        before: Balancedness of the placement in force in the first stretch; None: EP size unknown.
        after: The same in the second one.
        plan_before: Balancedness of a plan made on the first half of the first stretch, in its second half
            (in the same window where there is one only).
        plan_after: The same plan in the second stretch; None where no experts are known.
        growth: The larger growth of the busiest rank's load of both, what chance gives taken out; ratio.
    """

    gpus: int
    before: float | None
    after: float | None
    plan_before: float | None
    plan_after: float | None
    growth: float

    @property
    def size(self) -> str:
        """none, small or clear; unknown where neither ranks nor experts are known."""
        if self.before is None and self.plan_before is None:
            return "unknown"
        return "none" if self.growth < SMALL else "small" if self.growth < CLEAR else "clear"


@dataclass(frozen=True, slots=True)
class Moved:
    """A change of the mix that lasts, in one layer.

    Args:
        layer: Its label.
        at: Row of the load with which the new mix begins.
        until: Row after its last one.
        distance: JS, nats.
        quiet: The same where nothing changed.
        before: Balancedness over ranks from the change before on.
        after: Balancedness over ranks of the new mix.
        chance: What chance leaves of the balancedness of the shorter of both.
        window: Rows of a window.
        layers: Layers that changed at the same time.
    """

    layer: int
    at: int
    until: int
    distance: float
    quiet: float
    before: float
    after: float
    chance: float
    window: int
    layers: int


def assumed_ranks(units: int) -> int:
    """EP size to reckon with where none is known; 1 where the units do not divide."""
    return next((n for n in (ASSUMED_EP, 4, 2) if units >= 2 * n and units % n == 0), 1)


def effect(a: Stretch, b: Stretch, layers: Iterable[int]) -> Effect:
    """What the second stretch does to the balance that was had in the first.

    Args:
        a: The earlier stretch.
        b: The later one, of the same model.
        layers: Indices.
    """
    layers = list(layers)
    before = after = plan_before = plan_after = None
    growth = 0.0
    if a.ranks is not None and b.ranks is not None and a.gpus == b.gpus:
        loads = [x.sum(axis=0)[layers].astype(np.float64) for x in (a.ranks, b.ranks)]
        before, after = map(_balance, loads)
        growth = _growth(*loads)
    middle = len(a.units) // 2
    if a.experts and b.experts and a.gpus > 1:
        parts = (a.units[: middle or 1], a.units[middle:], b.units)
        seen, *new = (x.sum(axis=0)[layers].astype(np.float64) for x in parts)
        shape = Shape(seen.shape[1], -(-seen.shape[1] // a.gpus) * a.gpus, a.gpus)
        slots = [place(token_costs(load, shape.most), shape) for load in seen]
        on = [np.array([rank_loads(x, s, a.gpus) for x, s in zip(n, slots, strict=True)]) for n in new]
        plan_before, plan_after = map(_balance, on)
        growth = max(growth, _growth(*on))
    return Effect(a.gpus, before, after, plan_before, plan_after, growth)


def around(d: Drift, change: Change) -> tuple[int, int]:
    """First window of the mix before a change, and the window after the last one of the new mix."""
    earlier = (c for c in d.found if c.lasts and c.start < change.start)
    before = [c.start for c in earlier if (c.layers & change.layers).any()]
    return max(before, default=0), change.until if change.until >= 0 else len(d.steps)


def _balance(loads: np.ndarray) -> float:
    """sum(mean) / sum(max) over layers of [layers, ranks]."""
    tops = float(loads.max(axis=1).sum())
    return float(loads.mean(axis=1).sum()) / tops if tops else 1.0


def _growth(first: np.ndarray, second: np.ndarray) -> float:
    """How much more of its mean the busiest rank carries; 0 where less."""

    def worth(loads: np.ndarray) -> float:
        means = loads.mean(axis=1)
        usual = sum(float(m) / by_chance(float(m), loads.shape[1]) for m in means if m > 0)
        return min(_balance(loads) * usual / float(means.sum()), 1.0) if usual else 1.0

    return max(worth(first) / worth(second) - 1.0, 0.0)


def moved(f: Figures, d: Drift) -> list[Moved]:
    """The lasting changes of every layer, that with the greatest loss of balance for each."""
    if f.ranks is None or not d.found:
        return []
    _, edges = windows_of(f)
    size = int(edges[1] - edges[0]) if len(edges) > 1 else 1
    rows = np.append(edges, len(f.load.tokens))
    used = [y for y in range(f.tokens.shape[1]) if f.tokens[:, y].any()]
    worst: dict[int, Moved] = {}
    for i, y in enumerate(used):
        mine = [c for c in d.found if c.lasts and c.layers[i]]
        begin = 0
        for c in mine:
            end = int(rows[c.until]) if c.until >= 0 else len(f.load.tokens)
            at = int(rows[c.start])
            parts = (f.ranks.tokens[begin:at, y], f.ranks.tokens[at:end, y])
            loads = [x.sum(axis=0).astype(np.float64) for x in parts]
            before, after = (_balance(x[None]) for x in loads)
            chance = min(by_chance(float(x.mean()), len(x)) for x in loads)
            found = Moved(int(f.load.layers[y]), at, end, c.distance, c.quiet, before, after, chance, size,
                          int(c.layers.sum()))  # fmt: skip
            if y not in worst or before - after > worst[y].before - worst[y].after:
                worst[y] = found
            begin = at
    return list(worst.values())
