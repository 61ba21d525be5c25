"""Tokens per step, layer and logical expert, from everything that was read: what a plan is made on."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.routing import config, loads, over_senders
from moexray.analyse.routing_ranks import to_ranks
from moexray.core.errors import UsageError
from moexray.core.limits.routing import RoutingLimits
from moexray.diagnose.routing.plan import logical_tokens
from moexray.readers.read_any import read_any

if TYPE_CHECKING:
    from moexray.analyse.routing import Load
    from moexray.core.run import Run

__all__ = ["Traffic", "current_placement", "traffic"]

MAX_PLAN = 1 << 27  # bytes; a plan of 100 layers of 1,024 slots is under 1 MiB
ENOUGH = 64  # choices per expert after which an expert that never occurs does not exist
REGULAR = 3  # layers at one distance from which on that is the build of the model
HINT = "give counts per expert, or router choices (docs/capture.md); `moexray inspect` says what was read"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Tokens of all files of one model.

    Args:
        layers: Labels; -1 is unnamed.
        experts: Logical experts.
        cubes: One [steps, layers, experts] for each file or set of files; never negative, finite.
        ordered: Steps are in time order.
        sources: Files.
        expert_bytes: Weights of one expert, where an input says it.
        notes: What was assumed, mended or left out.
        lost: Layers without counts that are not plainly dense ones: damaged, or between recorded ones.
    """

    layers: tuple[int, ...]
    experts: int
    cubes: tuple[np.ndarray, ...]
    ordered: bool
    sources: tuple[str, ...]
    expert_bytes: float | None = None
    notes: tuple[str, ...] = ()
    lost: tuple[int, ...] = ()

    def steps(self, layer: int) -> np.ndarray:
        """[steps, experts] of the layer at an index, all files one after another."""
        parts = [cube[:, layer] for cube in self.cubes]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def halves(self) -> tuple[Traffic, Traffic] | None:
        """The first and the second half of each file's steps; None where a file has one step."""
        if min(len(cube) for cube in self.cubes) < 2:
            return None
        parts = [(cube[: len(cube) // 2], cube[len(cube) // 2 :]) for cube in self.cubes]
        first, second = zip(*parts, strict=True)
        return replace(self, cubes=first), replace(self, cubes=second)


def traffic(run: Run, experts: int | None = None) -> Traffic:
    """The tokens per logical expert of a run; damaged rows are left out and told.

    Args:
        run: What was read.
        experts: Logical experts of the model, where the highest ids may not occur.

    Raises:
        UsageError: nothing counts tokens per expert, or files of different models are mixed.
    """
    found, mismatches = loads(run, RoutingLimits().dummy_run)
    notes = [f"{path}: {problem.text}" for path, problem in run.problems]
    notes += [f"left out: {m.text}" for m in mismatches]
    cubes: list[tuple[Load, np.ndarray]] = []
    why = list(notes)
    for load in found:
        tokens, reason = _logical(run, over_senders(load))
        if tokens is None:
            why.append(f"{load.source}: {reason}")
            continue
        notes += [f"{load.source}: {note}" for note in load.notes]
        tokens, bad = _clean(tokens)
        if bad:
            notes.append(f"{load.source}: {bad} rows (step, layer) hold NaN or negative counts: left out")
        cubes.append((load, tokens))
    if not any(tokens.sum() > 0 for _, tokens in cubes):
        why += [f"{s.path}: {s.reason}" for s in run.skipped]
        reason = "; ".join(why[:3]) or ("every count is 0 or damaged" if cubes else "none in what was given")
        raise UsageError(f"no tokens per expert to plan on ({reason})", hint=HINT)
    count, assumed = _experts(run, cubes, experts)
    layers = sorted({int(y) for load, _ in cubes for y in load.layers})
    if len(cubes) > 1:
        notes.append(f"{len(cubes)} sets of counts are planned as one mix")
    if assumed:
        notes.append(f"{count} experts: the highest id that occurs, plus 1; --experts says otherwise")
    notes += _gaps(layers, cubes)
    sizes = {float(v) for load, _ in cubes if (v := load.attrs.get("expert_bytes"))}
    size = sizes.pop() if len(sizes) == 1 else config(run, "expert_bytes")
    return Traffic(
        tuple(layers), count, tuple(_align(load, tokens, layers, count) for load, tokens in cubes),
        all(load.ordered for load, _ in cubes), tuple(s for load, _ in cubes for s in load.sources),
        size, tuple(dict.fromkeys(notes)), _lost(layers, damaged=any(p.lost != 0 for _, p in run.problems)),
    )  # fmt: skip


def _logical(run: Run, load: Load) -> tuple[np.ndarray | None, str]:
    if load.what != "routed":
        return None, "counts of what came back (combine), not of what was sent"
    if load.axis == "rank":
        return None, "counts per rank, not per expert"
    if load.axis == "logical":
        return load.tokens, ""
    ranks = to_ranks(run, load, 1)
    tokens = None if ranks is None else logical_tokens(ranks)
    if tokens is not None and tokens.shape[2] > load.tokens.shape[2]:
        # every expert has a slot, so that a map of this dump cannot name so many
        return None, f"{load.tokens.shape[2]} slots, but the map names expert {tokens.shape[2] - 1}"
    others = [int(b.columns["slots"].shape[1]) for b in run.batches("placement")]
    found = f"the placement read has {max(others)}" if others else "no placement was read"
    return tokens, f"counts of {load.tokens.shape[2]} physical slots, and {found} (physical_to_logical_map)"


def _clean(tokens: np.ndarray) -> tuple[np.ndarray, int]:
    """Rows (step, layer) with a bad number become 0, and how many they are."""
    if tokens.dtype.kind == "f":
        bad = ~np.isfinite(tokens).all(axis=2)
        tokens = np.where(bad[..., None], 0.0, tokens)
    else:
        bad = np.zeros(tokens.shape[:2], bool)
    bad |= (tokens < 0).any(axis=2)
    return (np.where(bad[..., None], 0, tokens) if bad.any() else tokens), int(bad.sum())


def _experts(run: Run, cubes: list[tuple[Load, np.ndarray]], given: int | None) -> tuple[int, bool]:
    names = [f"{load.source} {load.attrs.get('label') or ''}".rstrip() for load, _ in cubes]
    widths = {tokens.shape[2]: name for (_, tokens), name in zip(cubes, names, strict=True)}
    counted = {tokens.shape[2] for load, tokens in cubes if not load.from_routes}
    stated = {int(n) for load, _ in cubes if (n := load.attrs.get("num_experts"))}
    most = max(widths)
    # ids that end below half of the experts over so many choices are of a smaller model
    small = any(2 * t.shape[2] <= most and t.sum() > ENOUGH * most for x, t in cubes if x.from_routes)
    if len(counted) > 1 or len(stated) > 1 or small:
        parts = ", ".join(f"{source}: {width}" for width, source in sorted(widths.items()))
        raise UsageError(f"the files have different numbers of experts ({parts})",
                         hint="give the files of one model")  # fmt: skip
    known = given or max((int(load.attrs.get("num_experts") or 0) for load, _ in cubes), default=0)
    known = known or int(config(run, "num_experts") or 0)
    count = max(known, *widths)
    if given and count > given:
        raise UsageError(f"expert {count - 1} occurs, but there are {given} (--experts)", where=widths[count])
    return count, not known and not counted


def _gaps(layers: list[int], cubes: list[tuple[Load, np.ndarray]]) -> list[str]:
    """Layers without counts."""
    missing = sorted(set(range(layers[0], layers[-1] + 1)) - set(layers)) if layers[0] >= 0 else []
    full = {int(y) for load, t in cubes for y in load.layers[t.any(axis=(0, 2))]}
    empty = [y for y in layers if y not in full]
    notes = []
    if missing:
        notes.append(f"no counts of layer {', '.join(map(str, missing[:8]))}: not planned")
    if empty:
        notes.append(f"no tokens in layer {', '.join(map(str, empty[:8]))}: the trivial layout is kept")
    return notes


def _lost(layers: list[int], *, damaged: bool) -> tuple[int, ...]:
    """Layers below the last recorded one whose plan is missing, where they may be MoE layers.

    A model may begin with dense layers, or have one MoE layer in every two or more; anything else, and
    any gap of a record that is damaged, may be a layer that was lost.
    """
    gaps = sorted(set(range(layers[-1])) - set(layers))
    if damaged or layers[0] < 0:
        return tuple(gaps) if layers[0] >= 0 else ()
    interleaved = len(layers) >= REGULAR and len(set(np.diff(layers).tolist())) == 1
    return () if interleaved else tuple(y for y in gaps if y > layers[0])


def _align(load: Load, tokens: np.ndarray, layers: list[int], experts: int) -> np.ndarray:
    """[steps, layers, experts] with the rows and columns of all files."""
    if tokens.shape[2] == experts and list(load.layers) == layers:
        return tokens
    out = np.zeros((len(tokens), len(layers), experts), tokens.dtype)
    out[:, np.searchsorted(layers, load.layers), : tokens.shape[2]] = tokens
    return out


def current_placement(path: str, layers: tuple[int, ...]) -> np.ndarray:
    """[layers, slots], the last placement of a file or folder for these layers; -1 is an empty slot.

    Args:
        path: A dump or placement of an engine, or a plan that moexray wrote.
        layers: Labels.

    Raises:
        UsageError: there is none, or it does not cover the layers.
        ReadError: the file cannot be read.
    """
    found = _own_plan(path)
    if found is None:
        run = read_any((path,))
        batches = run.batches("placement")
        if not batches:
            why = "; ".join(f"{s.path}: {s.reason}" for s in run.skipped) or "it holds no placement"
            hint = "a file with physical_to_logical_map, or one of `moexray plan -o`"
            raise UsageError(f"no current placement ({why})", where="--current", hint=hint)
        columns = batches[-1].columns
        last = columns["step"] == columns["step"].max()
        found = [int(y) for y in columns["layer"][last]], np.asarray(columns["slots"])[last]
    labels, slots = found
    rows = {y: i for i, y in enumerate(labels)}
    if labels == [-1] and len(layers) == 1:
        return slots
    if all(y in rows for y in layers):
        return np.asarray(slots[[rows[y] for y in layers]])
    if len(labels) == len(layers):
        return slots
    lost = [y for y in layers if y not in rows]
    one = " (it has one row, which names no layer)" if labels == [-1] else ""
    raise UsageError(f"the current placement lacks layer {', '.join(map(str, lost[:8]))}{one}", where=path,
                     hint="give a placement with all layers that have counts")  # fmt: skip


def _own_plan(path: str) -> tuple[list[int], np.ndarray] | None:
    """Labels and slots of a plan that moexray wrote, which readers pass over as its own output."""
    file = Path(path)
    if not file.is_file() or file.stat().st_size > MAX_PLAN:
        return None
    try:
        document = json.loads(file.read_bytes())
        if isinstance(document, list):  # one list of experts per layer, as `--for vllm` writes it
            slots = np.array(document, np.int64)
            return (list(range(len(slots))), slots) if slots.ndim == 2 else None
        if document["schema"] != "moexray.plan/1":
            return None
        labels = [int(y["layer"]) for y in document["layers"]]
        slots = np.array(document["physical_to_logical"], np.int64)
        if slots.ndim != 2 or len(slots) != len(labels):
            raise UsageError("the plan is damaged: not one row of slots for each layer", where=path)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, OSError):
        return None
    return labels, slots
