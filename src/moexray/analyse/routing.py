"""Loads of experts and EP ranks, put together from everything that was read.

Glossary: a *load* is a cube of tokens (steps, layers, units); warm-up rows (runs of identical rows)
are set aside; counters that only grow are differenced; files of several ranks are summed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.analyse.routing_pages import counts_of_pages
from moexray.core.rank_name import rank_in_name, without_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Batch, Run

__all__ = ["MIN_WINDOW", "Load", "Mismatch", "by_layer", "config", "folder", "loads", "over_senders"]

WINDOWS = 64  # windows that a stream of tokens is cut into
MIN_WINDOW = 64  # tokens of a window
TOP = 3  # experts whose tokens are counted together
MAX_CELLS = 1 << 24  # of a cube of counts (128 MiB)
IDLE = 0.1  # tokens of an idle step (a rank that only keeps step with the others) / tokens of a usual one


@dataclass(frozen=True, slots=True)
class Load:
    """Tokens per step, layer and unit.

    Args:
        source: The file (the first of several).
        sources: All files that went into it.
        axis: logical, physical or rank.
        steps: [steps] labels.
        layers: [layers] labels; -1 where unnamed.
        tokens: [steps, layers, units].
        what: routed or combined.
        ordered: Rows are in time order.
        attrs: Facts of the batch (ep_size, top_k, tokens, ...).
        notes: What was done to the numbers.
        set_aside: Steps or rows left out as warm-up.
        from_routes: It was counted from router choices; steps are token positions.
    """

    source: str
    sources: tuple[str, ...]
    axis: str
    steps: np.ndarray
    layers: np.ndarray
    tokens: np.ndarray
    what: str = "routed"
    ordered: bool = True
    attrs: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    set_aside: int = 0
    from_routes: bool = False


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Files of ranks that cannot be summed as they are.

    Args:
        id: input.shape_mismatch (tables do not fit) or input.rank_set (missing, twice).
        sources: All files of the set.
        odd: The files at fault; empty for missing ranks.
        text: What is wrong.
    """

    id: str
    sources: tuple[str, ...]
    odd: tuple[str, ...]
    text: str


def folder(source: str) -> str:
    """The folder part of a path as it was given."""
    return source.rpartition("/")[0]


def config(run: Run, key: str) -> float | None:
    """A number of a configuration file; None unless all files agree."""
    values = {row["value"] for row in run.rows("routing_config") if row["key"] == key}
    return values.pop() if len(values) == 1 else None


def loads(run: Run, dummy_run: int, *, windows: int = WINDOWS) -> tuple[list[Load], list[Mismatch]]:
    """Every load in the run, files of ranks summed, and the files that could not be.

    Args:
        run: What was read.
        dummy_run: Identical rows of choices in a row that are warm-up.
        windows: At most so many windows are made of a stream of choices, MIN_WINDOW tokens each or more.
    """
    found: list[Load] = []
    mismatches: list[Mismatch] = []
    groups: dict[tuple[Any, ...], list[Batch]] = {}
    for i, batch in enumerate(run.batches("counts")):
        stem, named = without_rank(batch.source)
        merged = bool(batch.attrs.get("sum_over_ranks")) or (named and batch.attrs["axis"] != "rank")
        key = (stem, batch.attrs["what"], batch.attrs["name"], batch.attrs.get("label"))
        groups.setdefault(key if merged else (i,), []).append(batch)
    for batches in groups.values():
        kept, mismatch = _fitting(batches)
        if mismatch:
            mismatches.append(mismatch)
        if kept:
            found.append(_tidy(_sum(kept)))
    for source, axis, steps, layers, cube in counts_of_pages(run):
        found.append(
            Load(source, (source,), axis, steps, layers, cube, attrs={"layout": "metrics"},
                 notes=("counters of a metrics page",))
        )  # fmt: skip
    counted = {s for load in found for s in load.sources}
    seen = [b for b in run.batches("routes") if b.source not in counted]
    found.extend(load for b in seen if (load := _from_routes(b, dummy_run, windows)))
    return found, mismatches


def over_senders(load: Load) -> Load:
    """A load whose rows are sending ranks, as one row: what the experts got in all."""
    if not load.attrs.get("rows_are_ranks"):
        return load
    return replace(load, layers=np.array([-1]), tokens=load.tokens.sum(axis=1, keepdims=True))


def _fitting(batches: Sequence[Batch]) -> tuple[list[Batch], Mismatch | None]:
    """The batches of one shape and kind of number; none of them if they do not fit together."""
    if len(batches) == 1:
        return list(batches), None
    kinds: dict[tuple[Any, ...], list[Batch]] = {}
    for b in batches:
        layers = len(np.unique(b.columns["layer"]))
        kinds.setdefault((layers, b.columns["tokens"].shape[1], b.columns["tokens"].dtype.kind), []).append(b)
    if len(kinds) == 1:
        return _one_per_rank(batches)
    usual = max(kinds, key=lambda k: len(kinds[k]))
    odd = tuple(b.source for k, members in kinds.items() if k != usual for b in members)
    shapes = "; ".join(
        f"{members[0].source}{f' and {len(members) - 1} more' if len(members) > 1 else ''}: "
        f"{k[0]} layers x {k[1]} units{' of fractions' if k[2] == 'f' else ''}"
        for k, members in kinds.items()
    )
    return [], Mismatch("input.shape_mismatch", tuple(b.source for b in batches), odd, shapes)


def _one_per_rank(batches: Sequence[Batch]) -> tuple[list[Batch], Mismatch | None]:
    """One batch per rank; copies are dropped, two different ones of a rank are left out and told."""
    first = batches[0].columns["tokens"]
    if all(np.array_equal(first, b.columns["tokens"]) for b in batches[1:]):
        return [batches[0]], None  # the same all-reduced counts in every file
    ranks: dict[Any, list[Batch]] = {}
    for i, b in enumerate(batches):
        rank = b.attrs.get("rank", rank_in_name(b.source, bare=True))
        same = ranks.setdefault(f"file {i}" if rank is None else int(rank), [])
        if not any(np.array_equal(s.columns["tokens"], b.columns["tokens"]) for s in same):
            same.append(b)
    twice = {r: same for r, same in ranks.items() if len(same) > 1}
    kept = [same[0] for same in ranks.values() if len(same) == 1]
    numbered = {r for r in ranks if isinstance(r, int)}
    missing = sorted(set(range(max(numbered, default=-1) + 1)) - numbered)
    texts = [f"rank {r} occurs {len(s)} times with different content, none is used" for r, s in twice.items()]
    if missing and len(missing) < len(numbered):
        texts.append(f"rank {', '.join(map(str, missing))} is missing: the sums lack its tokens")
    if not texts:
        return kept, None
    odd = tuple(b.source for same in twice.values() for b in same)
    return kept, Mismatch("input.rank_set", tuple(b.source for b in batches), odd, "; ".join(texts))


def _sum(batches: Sequence[Batch]) -> Load:
    """One cube from batches with the same units; the same (step, layer) of several files is added."""
    steps = np.unique(np.concatenate([b.columns["step"] for b in batches]))
    layers = np.unique(np.concatenate([b.columns["layer"] for b in batches]))
    first = batches[0]
    if not first.attrs.get("labelled", False):
        steps = np.arange(len(steps)) if len(batches) == 1 and len(steps) == 1 else steps
    units = first.columns["tokens"].shape[1]
    kind = np.result_type(*[b.columns["tokens"].dtype for b in batches])
    cube = np.zeros((len(steps), len(layers), units), kind)
    flat = cube.reshape(-1, units)
    for b in batches:
        at = np.searchsorted(steps, b.columns["step"]) * len(layers)
        at += np.searchsorted(layers, b.columns["layer"])
        if len(batches) == 1 and np.array_equal(at, np.arange(len(flat))):
            cube = b.columns["tokens"].reshape(cube.shape)
        elif len(np.unique(at)) == len(at):
            flat[at] += b.columns["tokens"]
        else:
            np.add.at(flat, at, b.columns["tokens"])
    attrs = {**first.attrs, "span": _span(steps) if first.attrs.get("labelled") else 1}
    if len(batches) > 1:
        attrs["files"] = len(batches)
    return Load(
        first.source, tuple(b.source for b in batches), str(attrs["axis"]), steps, layers, cube,
        what=str(attrs.get("what", "routed")), ordered=bool(attrs.get("ordered", True)), attrs=attrs,
        notes=(f"{len(batches)} files of ranks summed",) if len(batches) > 1 else (),
    )  # fmt: skip


def _span(steps: np.ndarray) -> int:
    """Steps that a label stands for: more than one where labels are the last step of a window."""
    if len(steps) < 2:
        return 1
    width = int(np.median(np.diff(steps)))
    ends = width > 1 and ((steps[0] + 1) % width == 0 or steps[0] == width)
    return width if ends else 1


def _tidy(load: Load) -> Load:
    """Differences counters that only grow; sets aside runs of identical steps."""
    cube = load.tokens
    grows = len(cube) >= 3 and cube.shape[1] * cube.shape[2] >= 8 and load.ordered
    if grows and (cube[1] >= cube[0]).all() and (cube[-1] >= cube[1]).all():
        grown = np.diff(cube, axis=0)
        if (grown >= 0).all() and grown.any(axis=(1, 2)).sum() >= 2:
            note = "counters that only grow: differences of neighbouring steps are used"
            load = replace(load, steps=load.steps[1:], tokens=grown, notes=(*load.notes, note))
            cube = grown
    if len(cube) < 2:
        return load
    same = (cube[1:] == cube[:-1]).all(axis=(1, 2))
    repeated = np.zeros(len(cube), bool)
    repeated[1:] |= same
    repeated[:-1] |= same
    if not repeated.any() or repeated.all():
        return load
    # Later on, equal steps may be the same prompt again: only those without weight are idle ones.
    totals = cube.sum(axis=(1, 2))
    idle = totals <= IDLE * np.median(totals[~repeated])
    repeated &= idle | (np.arange(len(cube)) < int(np.argmin(repeated)))
    if not repeated.any():
        return load
    note = f"{int(repeated.sum())} of {len(cube)} steps equal their neighbour (warm-up): set aside"
    return replace(load, steps=load.steps[~repeated], tokens=cube[~repeated], notes=(*load.notes, note),
                   set_aside=int(repeated.sum()))  # fmt: skip


def by_layer(layer: np.ndarray) -> list[tuple[int, slice | np.ndarray]]:
    """(label, its rows) of each layer, by label: slices where the rows of a layer stand together."""
    if not len(layer):
        return []
    edges = np.concatenate([[0], np.flatnonzero(layer[1:] != layer[:-1]) + 1, [len(layer)]])
    labels = [int(y) for y in layer[edges[:-1]]]
    if len(set(labels)) == len(labels):
        together = [(y, slice(int(a), int(b))) for y, (a, b) in zip(labels, pairwise(edges), strict=True)]
        return sorted(together, key=lambda part: part[0])
    return [(int(y), np.flatnonzero(layer == y)) for y in np.unique(layer)]


def dummy_tokens(stack: Sequence[np.ndarray], limit: int) -> np.ndarray:
    """[tokens], True where a token is one of a run of at least `limit` whose ids are equal in each layer.

    Args:
        stack: [tokens, k] ids of each layer.
        limit: Shortest run.
    """
    tokens = len(stack[0])
    if tokens < limit:
        return np.zeros(tokens, bool)
    changed = np.zeros(tokens - 1, bool)
    for ids in stack:
        for k in range(ids.shape[1]):
            changed |= ids[1:, k] != ids[:-1, k]
    edges = np.concatenate([[0], np.flatnonzero(changed) + 1, [tokens]])
    return np.repeat(np.diff(edges) >= limit, np.diff(edges))


def _from_routes(batch: Batch, dummy_run: int, windows: int) -> Load | None:
    """Counts per window of tokens from router choices, warm-up rows set aside."""
    ids = np.asarray(batch.columns["ids"])
    parts = by_layer(np.asarray(batch.columns["layer"]))
    tokens = min((len(ids[at]) for _, at in parts), default=0)
    if not tokens:
        return None
    layers = np.array([y for y, _ in parts])
    stack = [ids[at][:tokens] for _, at in parts]
    dummy = dummy_tokens(stack, dummy_run)
    if dummy.all():
        dummy[:] = False  # nothing else is there: what was recorded is what can be shown
    keep = ~dummy
    if dummy.any():
        stack = [p[keep] for p in stack]
    experts = int(batch.attrs.get("num_experts") or 0)
    units = max(experts, *(int(p.max()) + 1 for p in stack))
    most = min(windows, MAX_CELLS // max(len(layers) * units, 1))
    count = max(1, min(most, len(stack[0]) // MIN_WINDOW))
    edges = np.linspace(0, len(stack[0]), count + 1).astype(int)
    cube = np.zeros((count, len(layers), units), np.int64)
    for y, choices in enumerate(stack):
        for w, (a, b) in enumerate(pairwise(edges)):
            part = choices[a:b]
            cube[w, y] = np.bincount(part[part >= 0].ravel(), minlength=units)
    hottest = np.argsort(-cube.sum(axis=0), axis=1, kind="stable")[:, :TOP]
    touched = []
    for choices, best in zip(stack, hottest, strict=True):
        parts_of = (np.isin(choices[a:b], best).any(axis=1).sum() for a, b in pairwise(edges))
        touched.append(float(sum(parts_of) / len(choices)))
    attrs = {**batch.attrs, "seen_tokens": tokens, "touched": touched}
    notes = (f"{int(dummy.sum())} of {tokens} tokens are runs of identical rows (warm-up): set aside",)
    positions = np.flatnonzero(keep)[edges[:-1]]
    return Load(
        batch.source, (batch.source,), "physical" if batch.attrs.get("physical") else "logical", positions,
        layers, cube, attrs=attrs, notes=notes if dummy.any() else (),
        set_aside=int(dummy.sum()), from_routes=True,
    )  # fmt: skip
