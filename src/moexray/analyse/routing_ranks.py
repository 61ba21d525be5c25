"""From loads of experts to loads of EP ranks: EP size, placement, balance of each layer.

Glossary: *balancedness* is mean / max over EP ranks; *excess* is what the busiest rank has above the
mean; a *block* is as many neighbouring steps as chance needs to be quiet.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.analyse.routing import config, folder
from moexray.analyse.routing_stats import by_chance
from moexray.analyse.stated_ep import stated_ep
from moexray.core.pattern import lazy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from moexray.analyse.routing import Load
    from moexray.core.run import Batch, Run

__all__ = [
    "LayerBalance", "Ranks", "ep_size", "layer_balance", "logical_tokens", "mean_and_time",
    "misfit", "placements", "to_ranks", "whole_model",
]  # fmt: skip

MAX_BLOCKS = 64
_EP_WORKER = lazy(r"(?<![A-Za-z0-9])EP[ _]?(?:rank[ _]?)?(\d+)(?!\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Ranks:
    """Tokens per step, layer and EP rank, and how experts were mapped.

    Args:
        load: Where they come from; `tokens` are those of the units.
        tokens: [steps, layers, ranks].
        mapping: How units were mapped, in words.
        given: The placement was given, not assumed.
        slots: [layers, slots] logical expert per slot, where known; the last map.
        versions: (first step, such a map) for each map that was in force while slots were counted.
    """

    load: Load
    tokens: np.ndarray
    mapping: str
    given: bool
    slots: np.ndarray | None = None
    versions: tuple[tuple[int, np.ndarray], ...] = ()

    def part(self, steps: slice) -> Ranks:
        """The same for some of the steps."""
        load = replace(self.load, steps=self.load.steps[steps], tokens=self.load.tokens[steps])
        return replace(self, load=load, tokens=self.tokens[steps])


@dataclass(frozen=True, slots=True)
class LayerBalance:
    """How even the EP ranks of one layer are.

    Args:
        layer: Label; -1 where the file names none, None for the sum over all layers.
        loads: [ranks], tokens summed over the steps.
        balancedness: mean / max of the sums.
        by_chance: What equal ranks would show with so many tokens.
        typical: Median over blocks of steps of mean / max (a hot rank that moves); None if too few.
    """

    layer: int | None
    loads: np.ndarray
    balancedness: float
    by_chance: float
    typical: float | None

    @property
    def hot(self) -> int:
        """The rank with most tokens."""
        return int(self.loads.argmax())

    @property
    def share(self) -> float:
        """Its share of the layer's tokens."""
        return float(self.loads.max() / self.loads.sum())


def ep_size(run: Run, load: Load) -> tuple[int | None, str]:
    """The number of EP ranks and where it stands."""
    if load.axis == "rank":
        return load.tokens.shape[-1], "columns of the table"
    units = load.tokens.shape[-1]
    if own := load.attrs.get("ep_size"):
        return int(own), load.source
    near = [b for b in run.batches("placement") if folder(b.source) == folder(load.source)]
    for b in near or run.batches("placement"):
        if b.attrs.get("ep_size"):
            return int(b.attrs["ep_size"]), b.source
        if b.attrs.get("slots_per_rank"):
            return int(b.columns["slots"].shape[1] // b.attrs["slots_per_rank"]), b.source
    if (value := config(run, "ep_size")) and 1 < value <= units:
        return int(value), "configuration"
    stated, where = stated_ep(run)
    if stated and stated <= units:
        return stated, where
    if (files := load.attrs.get("files", 1)) > 1 and files <= units:
        return int(files), "one file per rank"
    workers = {int(m[1]) for r in run.rows("log") if r["worker"] and (m := _EP_WORKER.search(r["worker"]))}
    if len(workers) > 1 and max(workers) < units:
        return max(workers) + 1, "names of the workers in the log"
    return None, ""


def placements(run: Run, load: Load) -> Batch | None:
    """The placement that goes with a load: of its file, of its folder, or the only one."""
    own = [b for b in run.batches("placement") if b.source in load.sources]
    near = [b for b in run.batches("placement") if folder(b.source) == folder(load.source)]
    every = list(run.batches("placement"))
    for group in (own, near, every if len(every) == 1 else []):
        for b in group:
            slots = b.columns["slots"]
            units = load.tokens.shape[-1]
            fits = slots.shape[1] == units if load.axis == "physical" else int(slots.max()) < units
            if fits and (load.axis != "logical" or slots.shape[1] >= units):
                return b
    return None


def to_ranks(run: Run, load: Load, ranks: int) -> Ranks | None:
    """Tokens per EP rank; None if the units cannot be spread over that many ranks."""
    cube = load.tokens
    units = cube.shape[-1]
    if load.axis == "rank":
        return Ranks(load, cube, "counts per rank as given", given=True)
    if ranks < 1 or ranks > units:
        return None
    batch = placements(run, load)
    if batch is not None and batch.columns["slots"].shape[1] % ranks == 0:
        return _by_placement(load, batch, ranks)
    edges = np.linspace(0, units, ranks + 1).astype(int)
    if units % ranks:  # the first ranks take one more, as linear placement does
        extra = units % ranks
        edges = np.cumsum([0, *([units // ranks + 1] * extra), *([units // ranks] * (ranks - extra))])
    tokens = np.add.reduceat(cube, edges[:-1], axis=-1)
    why = misfit(run, load) or "none is given"
    return Ranks(load, tokens, f"contiguous placement assumed ({why})", given=False)


def misfit(run: Run, load: Load) -> str:
    """Why a placement that lies beside a load is not its own; empty where there is none, or it fits."""
    near = [b for b in run.batches("placement") if folder(b.source) == folder(load.source)]
    if not near or placements(run, load) is not None:
        return ""
    slots, units = near[-1].columns["slots"], load.tokens.shape[-1]
    if load.axis == "physical":
        return f"the map has {slots.shape[1]} slots, {units} were counted: of another dump"
    if int(slots.max()) >= units:
        return f"the map names expert {int(slots.max())} of {units} counted: of another model"
    return f"the map has {slots.shape[1]} slots for {units} experts"


def _by_placement(load: Load, batch: Batch, ranks: int) -> Ranks:
    """Each expert's tokens split equally over its slots; a slot's rank is slot // (slots / ranks)."""
    cube = load.tokens
    slots = batch.columns["slots"].shape[1]
    of_slot = np.arange(slots) // (slots // ranks)
    versions = [(int(s), _maps_of_layers(batch, load, int(s))) for s in np.unique(batch.columns["step"])]
    maps = versions[-1][1]
    lost = [str(y) for y, row in zip(load.layers, maps, strict=True) if (row < 0).all()]
    without = f", none for layer {', '.join(lost[:8])}" if lost else ""
    if load.axis == "physical":
        tokens = np.stack([cube[..., of_slot == r].sum(axis=-1) for r in range(ranks)], axis=-1)
        one = ", one map for all steps" if len(versions) == 1 < len(cube) else ""
        mapping = f"slots of the recorded placement{one}{without}"
        return Ranks(load, tokens, mapping, given=True, slots=maps, versions=tuple(versions))
    tokens = np.zeros((*cube.shape[:2], ranks))
    for used, version in _in_force(load, versions):
        for y in range(cube.shape[1]):
            share = np.zeros((cube.shape[2], ranks))
            filled = version[y] >= 0
            np.add.at(share, (version[y][filled], of_slot[filled]), 1.0)
            share /= np.maximum(share.sum(axis=1, keepdims=True), 1.0)
            tokens[used, y] = cube[used, y] @ share
    name = "" if batch.source in load.sources else f" of {batch.source}"
    mapping = f"placement{name}, equal split over replicas{without}"
    return Ranks(load, tokens, mapping, given=True, slots=maps)


def _in_force(
    load: Load, versions: Sequence[tuple[int, np.ndarray]]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Steps (True where meant) and the map in force in them; the first one holds before itself, too."""
    begins = [begin for begin, _ in versions]
    at = np.maximum(np.searchsorted(begins, load.steps, side="right") - 1, 0)
    for i, (_, slots) in enumerate(versions):
        yield at == i, slots


def _maps_of_layers(batch: Batch, load: Load, step: int) -> np.ndarray:
    """[layers, slots] in force at a step, one row per layer of the load; -1 where the map has none."""
    rows = batch.columns["step"] == step
    labels, slots = batch.columns["layer"][rows], batch.columns["slots"][rows]
    known = {int(y): i for i, y in enumerate(labels)}
    named = [known.get(int(y)) for y in load.layers]
    if None in named and len(slots) == 1:
        return np.repeat(slots, len(named), axis=0)
    if None in named and len(slots) == len(named):
        return np.asarray(slots)
    return np.stack([np.full(slots.shape[1], -1) if i is None else slots[i] for i in named])


def logical_tokens(ranks: Ranks) -> np.ndarray | None:
    """[steps, layers, logical experts]; None where only slots or ranks were counted."""
    load = ranks.load
    if load.axis == "logical":
        return load.tokens
    if load.axis != "physical" or ranks.slots is None:
        return None
    experts = max(int(slots.max()) for _, slots in ranks.versions) + 1
    out = np.zeros((*load.tokens.shape[:2], experts), load.tokens.dtype)
    for steps, version in _in_force(load, ranks.versions):
        for y in range(load.tokens.shape[1]):
            for slot in np.flatnonzero(version[y] >= 0):
                out[steps, y, version[y][slot]] += load.tokens[steps, y, slot]
    return out


def layer_balance(ranks: Ranks, chance: float) -> list[LayerBalance]:
    """Balance of every layer with tokens, in the order of the layers."""
    found = []
    for y, layer in enumerate(ranks.load.layers):
        series = ranks.tokens[:, y]
        if series.sum() > 0:
            found.append(_balance(int(layer), series, chance))
    return found


def whole_model(ranks: Ranks, chance: float) -> LayerBalance:
    """The same for the sum over layers: no layer's ranks can be less even in total than this."""
    return _balance(None, ranks.tokens.sum(axis=1), chance)


def _balance(layer: int | None, series: np.ndarray, chance: float) -> LayerBalance:
    loads = series.sum(axis=0)
    count = len(loads)
    by_luck = by_chance(float(loads.mean()), count)
    typical = None
    blocks = _blocks(series, chance)
    if blocks is not None:
        typical = float(np.median(blocks.mean(axis=1) / blocks.max(axis=1)))
    return LayerBalance(layer, loads, float(loads.mean() / loads.max()), by_luck, typical)


def _blocks(series: np.ndarray, chance: float) -> np.ndarray | None:
    """[blocks, ranks] of neighbouring steps, each with enough tokens; None if there are under 3."""
    size = max(1, -(-len(series) // MAX_BLOCKS))
    while len(series) // size >= 3:
        edges = np.arange(0, len(series) - size + 1, size)
        sums = np.add.reduceat(series, edges, axis=0)
        if float(np.median(sums.mean(axis=1))) > 0:
            good = np.array([by_chance(float(m), series.shape[1]) > chance for m in sums.mean(axis=1)])
            if good.mean() > 0.5 and good.sum() >= 3:
                return np.asarray(sums[good])
        size *= 2
    return None


def mean_and_time(found: list[LayerBalance]) -> dict[str, Any]:
    """Mean over layers, and sum(mean)/sum(max), which follows the time of the layers."""
    values = [b.balancedness for b in found]
    tops = sum(float(b.loads.max()) for b in found)
    return {"layer_mean": float(np.mean(values)), "of_time": sum(float(b.loads.mean()) for b in found) / tops}
