"""Lists of records (snapshots, forward passes, tokens) stacked along their step."""

from __future__ import annotations

import base64
import binascii
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moexray.readers.shapes.routing_arrays import take_arrays
from moexray.readers.shapes.routing_facts import Facts, check_cells
from moexray.readers.shapes.routing_values import numbers_of, texts_of, to_array
from moexray.readers.shapes.routing_words import config_key, count_columns, role_of, words

if TYPE_CHECKING:
    import numpy as np

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["take_records"]

MOST_IDS = 32  # experts per token at most
MOST_ARMS = 8  # engines or variants in one file
MAX_ID = 2048  # experts of a layer at most
_UNITS = ("expert", "rank", "ep_rank", "gpu", "slot", "physical", "logical")
_TEXT_IDS = ("routed_experts", "routed_experts_b64", "routed_experts_base64")


def take_records(records: list[dict[Any, Any]], facts: Facts, source: Source, out: Reading) -> bool:
    """Stacks records of one kind and fills the tables; returns whether they were about routing."""
    if devices := _device_lists(records):
        facts.numbers["ep_size"] = float(devices.pop("ep_size"))
        return take_arrays(devices, facts, source, out)
    if _encoded(records[0]) and (encoded := [r for r in (_encoded(x) for x in records) if r]):
        taken = [_take_encoded(blob, facts, source, out) for blob in encoded]
        return any(taken)
    records = _named_experts(records)
    if arms := _arms(records):
        parts = [take_records(part, replace(facts, numbers=dict(facts.numbers), extra=dict(facts.extra)),
                              source, out) for part in arms]  # fmt: skip
        return any(parts)
    names = _array_names(records)
    if not names:
        return _scalars(records, facts, source, out)
    rows = [r for r in records if any(n in r for n in names)]
    facts.numbers = numbers_of(rows[0]) | facts.numbers
    facts.extra = texts_of(rows[0]) | facts.extra
    steps = _column(rows, "step")
    layers = _column(rows, "layer")
    ranks = _column(rows, "rank")
    if "forward_pass_id" in rows[0] or (ranks is not None and len(set(ranks)) == 1 and steps is not None):
        facts.extra["sum_over_ranks"] = "forward_pass_id" in rows[0]
        if ranks is not None:
            facts.numbers["rank"] = float(ranks[0])
    arrays: dict[str, np.ndarray] = {}
    for name in names:
        built = _stack(rows, name, steps, layers, facts, out)
        if built is not None:
            arrays[name] = built
    _tokens_of(rows, facts)
    return bool(arrays) and take_arrays(arrays, facts, source, out)


def _array_names(records: list[dict[Any, Any]]) -> list[str]:
    """Keys whose values are arrays of a known role, in most of the records that have any."""
    found: dict[str, int] = {}
    for record in records:
        for key, value in record.items():
            shaped = hasattr(value, "ndim") and value.ndim > 0
            listed = isinstance(value, list) and value and not isinstance(value[0], dict | str)
            if (shaped or listed) and role_of(str(key)) in (
                "counts", "topk", "logits", "placement", "inverse", "scores",
            ):  # fmt: skip
                found[str(key)] = found.get(str(key), 0) + 1
    return [n for n, seen in found.items() if seen >= max(found.values()) / 2]


def _named_experts(records: list[dict[Any, Any]]) -> list[dict[Any, Any]]:
    """Lists under the bare key "experts": chosen ids if short and all different, else counts."""
    lists = [r["experts"] for r in records if isinstance(r.get("experts"), list)]
    if 2 * len(lists) <= len(records) or not all(_whole(x) for items in lists for x in items):
        return records
    ids = all(len(x) <= MOST_IDS and len(set(x)) == len(x) and max(x, default=0) < MAX_ID for x in lists)
    name = "topk_ids" if ids and any("token" in words(str(k)) for k in records[0]) else "expert_counts"
    return [{(name if k == "experts" else k): v for k, v in r.items()} for r in records]


def _arms(records: list[dict[Any, Any]]) -> list[list[dict[Any, Any]]] | None:
    """Records of tokens of several engines in one file, by engine; None if there is only one."""
    groups: dict[str, list[dict[Any, Any]]] = {}
    for record in records:
        if any(role_of(str(k)) in ("topk", "logits") for k in record):
            texts = texts_of(record)
            groups.setdefault(str(texts.get("arm") or texts.get("engine") or ""), []).append(record)
    return list(groups.values()) if 1 < len(groups) <= MOST_ARMS and "" not in groups else None


def _column(rows: list[dict[Any, Any]], role: str) -> list[int] | None:
    """The scalar of that role in each record; None unless all have it."""
    for key in rows[0]:
        fits = role_of(str(key)) == role if role != "rank" else config_key(str(key)) == "rank"
        if fits and all(_whole(r.get(key)) for r in rows):
            return [int(r[key]) for r in rows]
    return None


def _whole(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _stack(
    rows: list[dict[Any, Any]], name: str, steps: list[int] | None, layers: list[int] | None,
    facts: Facts, out: Reading,
) -> np.ndarray | None:  # fmt: skip
    """One array of all records: along steps, along tokens, or into a (step, layer) grid."""
    import numpy as np

    role = role_of(name)
    parts = [to_array(r[name], f"record {i}, {name}", out) if name in r else None for i, r in enumerate(rows)]
    kept = [(i, p) for i, p in enumerate(parts) if p is not None and p.ndim]
    if not kept:
        return None
    if role in ("topk", "scores", "logits"):
        return _along_tokens(kept, layers, facts)
    shapes = [p.shape for _, p in kept]
    usual = max(set(shapes), key=shapes.count)
    for i, p in kept:
        if p.shape != usual:
            text = f"record {i}: {name} has shape {list(p.shape)}, the others {list(usual)}; it is not used"
            out.problem("input.dirty_table", text, where=f"record {i}", lost=1, values={"row": i})
    kept = [(i, p) for i, p in kept if p.shape == usual]
    if layers is not None and len(usual) == 1:
        return _grid(kept, steps, layers, facts)
    facts.steps = np.array([steps[i] for i, _ in kept]) if steps else np.arange(len(kept))
    stacked = np.stack([p for _, p in kept])
    if role in ("placement", "inverse") and len(usual) < 3 and (stacked == stacked[0]).all():
        return np.asarray(stacked[0])  # one placement throughout
    return stacked[:, None, :] if len(usual) == 1 else stacked


def _along_tokens(
    kept: list[tuple[int, np.ndarray]], layers: list[int] | None, facts: Facts
) -> np.ndarray | None:
    import numpy as np

    first = kept[0][1]
    kept = [(i, p) for i, p in kept if p.ndim == first.ndim and p.shape[-1] == first.shape[-1]]
    if first.ndim == 3:
        axis = 1 if first.shape[0] <= first.shape[1] or len({p.shape[0] for _, p in kept}) == 1 else 0
        return np.concatenate([p for _, p in kept], axis=axis)
    if first.ndim == 2:
        return np.concatenate([p for _, p in kept], axis=0)
    if layers is None:
        return np.stack([p for _, p in kept])
    groups: dict[int, list[np.ndarray]] = {}
    for i, p in kept:
        groups.setdefault(layers[i], []).append(p)
    shortest = min(len(g) for g in groups.values())
    facts.layers = np.array(sorted(groups))
    return np.stack([np.stack(groups[y][:shortest]) for y in sorted(groups)])


def _grid(
    kept: list[tuple[int, np.ndarray]], steps: list[int] | None, layers: list[int], facts: Facts
) -> np.ndarray:
    """Records that are one layer each -> (steps, layers, units); cells without a record are NaN."""
    import numpy as np

    seen: dict[int, int] = {}
    cells: dict[tuple[int, int], np.ndarray] = {}
    for i, p in kept:
        seen[layers[i]] = seen.get(layers[i], -1) + 1
        cells[steps[i] if steps else seen[layers[i]], layers[i]] = p
    step_ids, layer_ids = sorted({s for s, _ in cells}), sorted({y for _, y in cells})
    facts.layers = np.array(layer_ids)
    facts.steps = np.array(step_ids) if steps else None
    check_cells(len(step_ids), len(layer_ids), len(kept[0][1]))
    where = {s: i for i, s in enumerate(step_ids)}, {y: i for i, y in enumerate(layer_ids)}
    if len(cells) == len(step_ids) * len(layer_ids):
        cube = np.zeros((len(step_ids), len(layer_ids), len(kept[0][1])), kept[0][1].dtype)
    else:
        facts.holes = True
        cube = np.full((len(step_ids), len(layer_ids), len(kept[0][1])), np.nan)
    for (s, y), p in cells.items():
        cube[where[0][s], where[1][y]] = p
    return cube


def _scalars(records: list[dict[Any, Any]], facts: Facts, source: Source, out: Reading) -> bool:
    """Records like {"layer": 0, "expert": 3, "count": 120}: columns of a long table."""
    keys = [k for k in records[-1] if _whole(records[-1][k])]
    columns = {str(k): to_array([r.get(k) for r in records if k in r], str(k), out) for k in keys}
    sound = {k: v for k, v in columns.items() if v is not None}
    if not count_columns(sound) or len({len(v) for v in sound.values()}) > 1:
        return False
    units = tuple(k for k in sound if words(k).startswith(_UNITS))
    by_name = any(role_of(k) == "counts" for k in sound)
    if not units or not (by_name or any(role_of(k) == "layer" for k in sound)):
        return False
    return take_arrays(sound, facts, source, out)


def _device_lists(records: list[dict[Any, Any]]) -> dict[str, np.ndarray] | None:
    """Expert maps {layer_id, device_list: [{device_id, device_expert: [...]}]} -> one placement."""
    import numpy as np

    rows = []
    for record in records:
        devices = record.get("device_list")
        if not isinstance(devices, list) or not all(isinstance(d, dict) for d in devices):
            return None
        ordered = sorted(devices, key=lambda d: d.get("device_id") or 0)
        rows.append([d.get("device_expert") or [] for d in ordered])
    if not rows:
        return None
    slots = max((len(d) for row in rows for d in row), default=0)
    ranks = max(len(row) for row in rows)
    check_cells(len(rows), ranks, slots)
    grid = np.full((len(rows), ranks, slots), -1, np.int64)
    for i, row in enumerate(rows):
        for j, experts in enumerate(row):
            ids = [int(x) for x in experts if _whole(x)]
            grid[i, j, : len(ids)] = ids
    layers = [r.get("layer_id", i) for i, r in enumerate(records)]
    return {"placement": grid.reshape(len(rows), -1), "layer_id": np.array(layers),
            "ep_size": np.array(ranks)}  # fmt: skip


def _encoded(record: dict[Any, Any]) -> tuple[str, dict[Any, Any]] | None:
    """The base64 text of routed experts in a response, wherever it is nested (three levels)."""
    level: list[tuple[dict[Any, Any], dict[Any, Any]]] = [(record, record)]
    for _ in range(4):
        below: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        for holder, around in level:
            for key, value in holder.items():
                if words(str(key)) in _TEXT_IDS and isinstance(value, str) and len(value) >= 16:
                    return value, {**around, **holder}
                if isinstance(value, dict):
                    below.append((value, {**around, **holder}))
                elif isinstance(value, list):
                    below += [(v, {**around, **holder}) for v in value[:64] if isinstance(v, dict)]
        level = below
    return None


def _take_encoded(
    blob: tuple[str, dict[Any, Any]], facts: Facts, source: Source, out: Reading
) -> bool:
    import numpy as np

    try:
        raw = base64.b64decode(blob[0], validate=True)
    except (binascii.Error, ValueError):
        return False
    ids = np.frombuffer(raw[: len(raw) // 4 * 4], "<i4")
    if not ids.size or ids.min() < -1 or ids.max() > 1 << 14:
        return False
    numbers = numbers_of(blob[1]) | facts.numbers
    k = int(numbers.get("top_k") or _group(ids))
    layers = int(numbers.get("num_layers") or 1)
    if ids.size % (k * layers):
        return False
    inner = Facts(numbers, layout="base64 routed_experts", extra=facts.extra | {"physical": False})
    inner.layers = np.arange(layers)
    cube = ids.reshape(-1, layers, k).swapaxes(0, 1)
    return take_arrays({"topk_ids": cube}, inner, source, out)


def _group(ids: np.ndarray) -> int:
    """The most ids per token for which no group repeats an expert; 1 if none fits."""
    import numpy as np

    best = 1
    for k in range(2, 33):
        if ids.size % k == 0:
            rows = np.sort(ids.reshape(-1, k), axis=1)
            if (rows[:, 1:] != rows[:, :-1]).all():
                best = k
    return best


def _tokens_of(rows: list[dict[Any, Any]], facts: Facts) -> None:
    """Tokens of all passes, where each pass lists its input ids."""
    ids = [r.get("input_ids") for r in rows]
    if ids and all(isinstance(x, list) for x in ids):
        facts.numbers.setdefault("tokens", float(sum(len(x) for x in ids if x is not None)))
