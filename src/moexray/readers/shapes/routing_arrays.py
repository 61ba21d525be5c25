"""Named arrays -> tables of routing: what any container (npz, .pt, safetensors, JSON) ends in.

Dimensions are told apart by known sizes (steps, layers, experts) and by structure, in this order:
what a number of the same file says, what an array of labels fits, then the usual order
(steps, layers, units), (layers, tokens, k), (layers, tokens, experts).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.readers.shapes.routing_facts import (
    Facts,
    batch_facts,
    check_cells,
    labels,
    layer_ids,
    layer_text,
    whole_labels,
)
from moexray.readers.shapes.routing_tokens import LARGEST_ID, arm_of, put_logits, put_routes
from moexray.readers.shapes.routing_words import (
    axis_of,
    count_columns,
    is_combined,
    role_of,
    words,
)

if TYPE_CHECKING:
    import numpy as np

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["put_counts", "take_arrays"]

MAX_COUNT = 1 << 50  # tokens; above it the sums of a file would no longer be exact
_LAYER_IN_NAME = lazy(r"(?:^|_)(?:layers?|l|moe|block)_?(\d{1,4})(?=_|$)")
_UNIT_IDS = ("expert_id", "expert", "expert_ids", "experts", "expert_idx", "expert_index", "logical_expert",
             "logical_expert_id", "logical_id", "physical_expert", "physical_expert_id", "physical_id",
             "slot", "slot_id", "ep_rank", "rank", "rank_id", "gpu", "gpu_id", "device",
             "device_id")  # fmt: skip


def take_arrays(arrays: dict[str, Any], facts: Facts, source: Source, out: Reading) -> bool:
    """Fills the tables from named arrays; returns whether any was about routing."""
    import numpy as np

    roles: dict[str, list[str]] = {}
    for name, array in arrays.items():
        role = role_of(name)
        if role and array.ndim and array.size and array.dtype.kind in "iufb":
            roles.setdefault(role, []).append(name)
    for name in roles.get("step", []):
        facts.steps = arrays[name] if arrays[name].ndim == 1 else facts.steps
    for name in roles.get("layer", []):
        facts.layers = arrays[name] if arrays[name].ndim == 1 else facts.layers
    for label, given in (("steps", facts.steps), ("layers", facts.layers)):
        if given is not None and whole_labels(given) is None:
            text = f"the {label} have labels that are no whole numbers; they are counted from 0"
            out.problem("input.dirty_table", text, where=label, lost=0, values={})
    if _long_table(arrays, roles, facts, source, out):
        return True
    placed = [n for r in ("placement", "inverse") for n in roles.get(r, []) if arrays[n].ndim >= 1]
    for name in placed:
        _placement(arrays[name], facts, source, out, inverse=role_of(name) == "inverse")
    counted = roles.get("counts", [])
    if not counted and "topk" not in roles:
        counted = [n for n in roles.get("scores", []) if arrays[n].ndim >= 2 and _integral(arrays[n])]
    counted = _stack_layers(counted, arrays, facts)
    for name in _best_counts(counted, arrays):
        axis = axis_of(name)
        what = "combined" if is_combined(name) else "routed"
        put_counts(np.asarray(arrays[name]), facts, source, out, axis=axis, what=what, name=name)
    ids = [n for n in roles.get("topk", []) if arrays[n].dtype.kind in "iu" and arrays[n].ndim >= 1]
    for name in ids:
        scores = next((s for s in roles.get("scores", []) if arrays[s].shape == arrays[name].shape), None)
        arm = arm_of(name, ids)
        put_routes(arrays[name], arrays.get(scores or ""), scores or "", arm, facts, source, out)
    logits = [n for n in roles.get("logits", []) if arrays[n].dtype.kind == "f" and arrays[n].ndim >= 2]
    for name in logits:
        put_logits(arrays[name], name, arm_of(name, logits), facts, source, out)
    return bool(placed or counted or ids or logits)


def put_counts(
    array: np.ndarray, facts: Facts, source: Source, out: Reading, *, axis: str | None, what: str, name: str
) -> None:
    """Adds counts of any dimension to the table, dirty rows set aside and named."""
    import numpy as np

    cube = _cube(array, facts)
    steps, layers, units = cube.shape
    step_ids = labels(facts.steps, steps)
    layer_labels = layer_ids(facts, layers)
    flat = cube.reshape(steps * layers, units)
    told = facts.holes or any(p.id == "input.dirty_table" for p in out.problems)
    at = np.arange(len(flat)) if not told else np.flatnonzero(~_blank(flat))
    keep = np.zeros(len(flat), bool)
    keep[at] = _clean(
        flat[at], np.repeat(step_ids, layers)[at], np.tile(layer_labels, steps)[at], name, out
    )
    if not keep.any():
        out.rows += len(at)  # read, if not used
        return
    filled = np.abs(flat).any(axis=1)
    empty = int((~filled & keep).sum())
    if empty:
        out.notes.append(f"{empty} of {len(flat)} rows are zero (dense layers, unfilled buffer) and left out")
        keep &= filled
    axis = axis or _axis_by_size(units, facts)
    integral = _integral(flat)
    kept = flat if keep.all() else flat[keep]
    kind = np.float64 if not integral else np.int32 if kept.dtype.itemsize <= 4 else np.int64
    values = kept.astype(kind if kept.dtype != np.uint32 else np.int64)
    out.add_columns(
        "counts",
        {
            "step": np.repeat(step_ids, layers)[keep],
            "layer": np.tile(layer_labels, steps)[keep],
            "tokens": values,
        },
        source=source.path,
        rows=int(keep.sum()),
        axis=axis,
        what=what,
        name=name,
        layout=facts.layout,
        labelled=facts.steps is not None and len(facts.steps) == steps,
        zero_rows=empty,
        **batch_facts(facts),
    )


def _cube(array: np.ndarray, facts: Facts) -> np.ndarray:
    """Any array of counts as (steps, layers, units)."""
    experts, layers = facts.whole("num_physical") or facts.whole("num_experts"), facts.whole("num_layers")
    if array.ndim >= 2 and experts and array.shape[-1] not in (experts, facts.whole("num_experts")):
        where = [i for i, n in enumerate(array.shape) if n == experts]
        if len(where) == 1 and array.shape[-1] != facts.whole("ep_size"):
            array = array.swapaxes(where[0], -1)
    if array.ndim == 1:
        return array.reshape(1, 1, -1)
    if array.ndim == 2:
        rows = array.shape[0]
        labelled = facts.steps is not None and len(facts.steps) == rows and rows > 1
        fits = layers == rows or (facts.layers is not None and len(facts.layers) == rows)
        return array[:, None, :] if labelled and not fits else array[None]
    while array.ndim > 3 and array.shape[-1] == 1:
        array = array[..., 0]
    while array.ndim > 3:  # a rank or micro-batch axis between layers and units: what was sent in all
        array = array.sum(axis=-2)
    steps_first = facts.steps is not None and len(facts.steps) == array.shape[0] != array.shape[1]
    if not steps_first and (
        (facts.steps is not None and len(facts.steps) == array.shape[1] != array.shape[0])
        or (layers == array.shape[0] != array.shape[1])
        or (facts.layers is not None and len(facts.layers) == array.shape[0] != array.shape[1])
    ):
        return array.swapaxes(0, 1)
    return array


def _axis_by_size(units: int, facts: Facts) -> str:
    if units == facts.whole("num_experts"):
        return "logical"
    if units == facts.whole("num_physical"):
        return "physical"
    return "rank" if units == facts.whole("ep_size") else "logical"


def _integral(array: np.ndarray) -> bool:
    import numpy as np

    if array.dtype.kind in "iub":
        return True
    sound = array[np.isfinite(array)]
    return bool(sound.size) and bool((sound == np.floor(sound)).all())


def _blank(flat: np.ndarray) -> np.ndarray:
    """Rows of nothing but NaN: odd ones that were named before, or cells that were not recorded."""
    import numpy as np

    return np.isnan(flat).all(axis=1) if flat.dtype.kind == "f" else np.zeros(len(flat), bool)


def _clean(flat: np.ndarray, steps: np.ndarray, layers: np.ndarray, name: str, out: Reading) -> np.ndarray:
    """Marks the rows that hold only sound numbers; the others are named with row and column."""
    import numpy as np

    keep = np.ones(len(flat), bool)
    tests = (("NaN", np.isnan), ("infinite", np.isinf)) if flat.dtype.kind == "f" else ()
    bounds = (("negative", lambda a: a < 0), ("impossibly large", lambda a: (a > MAX_COUNT) & (a < np.inf)))
    for kind, test in (*tests, *bounds):
        bad = test(flat)
        if not bad.any():
            continue
        row, column = (int(x) for x in np.argwhere(bad)[0])
        rows = int(bad.any(axis=1).sum())
        keep &= ~bad.any(axis=1)
        where = f"{name}: step {steps[row]}, {layer_text(int(layers[row]))}column {column}"
        text = f"{kind} count in {where} ({flat[row, column]}); {rows} of {len(flat)} rows are not used"
        out.problem("input.dirty_table", text, where=where, lost=rows,
                    values={"row": row, "column": column, "dirty_rows": rows})  # fmt: skip
    if keep.any() and not flat[keep].any():
        text = f"{name}: every count is zero ({flat.shape[0]} rows of {flat.shape[1]} columns)"
        out.problem("input.dirty_table", text, where=f"{name}, rows 0-{len(flat) - 1}", lost=len(flat),
                    values={"dirty_rows": len(flat)})  # fmt: skip
        keep[:] = False
    return keep


def _placement(array: np.ndarray, facts: Facts, source: Source, out: Reading, *, inverse: bool) -> None:
    """Adds a placement of (slots), (layers, slots) or (steps, layers, slots)."""
    import numpy as np

    ids = whole_labels(array)
    if ids is None:
        out.problem("input.dirty_table", "a placement holds values that are no expert ids", lost=None)
        return
    if ids.min() < -1 or not 0 <= ids.max() <= LARGEST_ID:
        text = f"a placement holds {ids.min()} to {ids.max()}, which are no expert ids: it is not used"
        out.problem("input.dirty_table", text, lost=None)
        return
    array = ids
    if inverse:
        array = _invert(array.reshape(1, -1, 1) if array.ndim == 1 else array.reshape(-1, *array.shape[-2:]))
    elif array.ndim == 1:
        array = array[None]
    elif array.ndim == 2 and array.shape[0] == facts.whole("ep_size") and _rank_rows(array):
        array = array.reshape(1, -1)  # one row of slots per rank
    elif array.ndim == 3 and array.shape[1] == facts.whole("ep_size") and facts.steps is None:
        array = array.reshape(len(array), -1)  # layers, ranks, slots of a rank
    steps = np.full(1, -1, np.int64)
    if array.ndim == 3:
        steps = labels(facts.steps, len(array))
    cube = array if array.ndim == 3 else array[None]
    layers = layer_ids(facts, cube.shape[1])
    out.add_columns(
        "placement",
        {
            "step": np.repeat(steps, cube.shape[1]),
            "layer": np.tile(layers, len(cube)),
            "slots": cube.reshape(-1, cube.shape[-1]),
        },
        source=source.path,
        rows=cube.shape[0] * cube.shape[1],
        layout=facts.layout,
        **batch_facts(facts),
    )


def _rank_rows(array: np.ndarray) -> bool:
    """Whether rows are ranks (no row holds every expert) and not layers (each row does)."""
    experts = int(array.max()) + 1
    return all(len(set(row.tolist()) - {-1}) < experts for row in array)


def _invert(l2p: np.ndarray) -> np.ndarray:
    """(layers, logical, replicas) of slots, padded with -1 -> (layers, slots) of logical experts."""
    import numpy as np

    check_cells(len(l2p), int(l2p.max()) + 1)
    out = np.full((len(l2p), int(l2p.max()) + 1), -1, np.int64)
    layer, logical, _ = np.nonzero(l2p >= 0)
    out[layer, l2p[l2p >= 0]] = logical
    return out


def _stack_layers(names: list[str], arrays: dict[str, Any], facts: Facts) -> list[str]:
    """Matrices that are one layer each by their names ("layer3_expert_counts") -> one cube of them all."""
    import numpy as np

    found = {n: m for n in names if (m := _LAYER_IN_NAME.search(words(n))) and arrays[n].ndim == 2}
    kinds = {(arrays[n].shape, is_combined(n)) for n in found}
    if len(found) < 2 or len(found) < len(names) or len(kinds) > 1:
        return names
    ordered = sorted(found, key=lambda n: int(found[n][1]))
    facts.layers = np.array([int(found[n][1]) for n in ordered])
    first = ordered[0]
    arrays[first] = np.stack([arrays[n] for n in ordered], axis=1)
    if facts.steps is None:
        facts.steps = np.arange(len(arrays[first]))  # so that steps go before layers
    return [first]


def _best_counts(names: list[str], arrays: dict[str, Any]) -> list[str]:
    """One array per meaning: a window's sums go before the last step's; combined stands beside."""

    def rank(name: str) -> tuple[int, int, int]:
        w = words(name)
        return ("latest" in w or "last" in w, axis_of(name) == "rank", -arrays[name].ndim)

    groups: dict[tuple[bool, tuple[str, ...]], list[str]] = {}
    for name in names:
        parts = words(name).split("_")
        label = tuple(p for p in parts if p in ("layer", "run", "domain") or p.isdigit())
        groups.setdefault((is_combined(name), label), []).append(name)
    return [min(group, key=rank) for group in groups.values()]


def _long_table(
    arrays: dict[str, Any], roles: dict[str, list[str]], facts: Facts, source: Source, out: Reading
) -> bool:
    """Columns layer, expert, count of equal length -> a matrix."""
    import numpy as np

    names = {words(n): n for n, a in arrays.items() if a.ndim == 1}
    unit = next((names[w] for w in _UNIT_IDS if w in names), None)
    flat = [n for n, a in arrays.items() if a.ndim == 1 and n != unit]
    counted = [n for n in count_columns(flat) if unit and len(arrays[n]) == len(arrays[unit])]
    if unit is None or not counted:
        return False
    size = len(arrays[unit])

    def column(role: str) -> np.ndarray:
        found = next((arrays[n] for n in roles.get(role, []) if arrays[n].shape == (size,)), None)
        return np.zeros(size, np.int64) if found is None else np.asarray(found).astype(np.int64)

    step, layer, ids = column("step"), column("layer"), np.asarray(arrays[unit]).astype(np.int64)
    if (ids < 0).any() or ids.max() > 1 << 16:
        return False
    steps, s = np.unique(step, return_inverse=True)
    layers, y = np.unique(layer, return_inverse=True)
    named = bool(roles.get("layer"))
    facts.steps, facts.layers = (steps if len(steps) > 1 else None), layers if named else None
    for count in {is_combined(n): n for n in reversed(counted)}.values():
        check_cells(len(steps), len(layers), int(ids.max()) + 1)
        cube = np.zeros((len(steps), len(layers), int(ids.max()) + 1), np.asarray(arrays[count]).dtype)
        np.add.at(cube, (s, y, ids), arrays[count])
        axis = "rank" if axis_of(unit) == "rank" else axis_of(unit) or axis_of(count)
        what = "combined" if is_combined(count) else "routed"
        put_counts(cube, facts, source, out, axis=axis, what=what, name=count)
    return True
