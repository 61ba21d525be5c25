"""Nested documents (JSON, pickles, torch files) about routing -> named arrays -> tables.

A document is a dict, a list of records, or a bare array. Numbers beside arrays become Facts;
records (snapshots, passes, tokens) are stacked along their step.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.readers.shapes.routing_arrays import take_arrays
from moexray.readers.shapes.routing_facts import Facts, check_cells
from moexray.readers.shapes.routing_records import take_records
from moexray.readers.shapes.routing_values import numbers_of, texts_of, to_array
from moexray.readers.shapes.routing_words import config_key, role_of, words

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["take_document"]

_LAYER_NAME = lazy(
    r"^(?:.*?(?:^|[^a-z0-9])(?:layers?|l|moe|block)[._ -]?)?(\d{1,4})"
    r"(?:[._ -](?:mlp|moe|experts?|router|gate|counts?|ffn).*)?$",
    re.IGNORECASE,
)
_RANK_NAME = lazy(r"^(?:ep[_ -]?)?(?:rank|gpu|device)[_ -]?(\d+)$", re.IGNORECASE)
_ITER_LAYER = lazy(r"^(\d+)_(\d+)$")
_NESTED = ("config", "meta", "metadata", "meta_info", "params", "args", "info", "model_config", "parallel")
_SIZES = ("top_k", "ep_size", "dp_size", "tp_size", "num_experts", "num_physical", "num_redundant")
_CONFIG_PROOF = {"top_k", "num_experts", "ep_size", "num_redundant", "bytes_per_token", "expert_bytes"}


def take_document(document: Any, layout: str, source: Source, out: Reading) -> bool:
    """Fills the tables of routing from a parsed document; returns whether it was about routing."""
    import numpy as np

    facts = Facts(layout=layout)
    if isinstance(document, np.ndarray):
        return _bare(document, facts, source, out)
    if isinstance(document, list | tuple) and document:
        if all(isinstance(item, dict) for item in document):
            facts.numbers, facts.extra = _meta_records(document)
            return take_records(list(document), facts, source, out)
        if all(isinstance(item, np.ndarray) for item in document):
            shapes = {item.shape for item in document}
            stacked = np.stack(document) if len(shapes) == 1 else None
            return stacked is not None and _bare(stacked, facts, source, out)
        return False
    if not isinstance(document, dict):
        return False
    facts.numbers, facts.extra = numbers_of(document), texts_of(document)
    return _take_dict(document, facts, source, out) or _config(document, facts, out)


def _take_dict(document: dict[Any, Any], facts: Facts, source: Source, out: Reading) -> bool:
    import numpy as np

    arrays: dict[str, np.ndarray] = {}
    _beside(document, facts)
    taken = _by_layer(document, facts, source, out)
    for key, value in document.items():
        name = str(key)
        if isinstance(value, dict):
            if role_of(name) == "placement" and (slots := _of_ranks(value)):
                facts.numbers.setdefault("ep_size", float(len(value)))
                arrays[name] = np.array([slots], np.int64)
            elif role_of(name) in ("counts", "placement", "topk", "logits"):
                taken |= _by_layer(value, facts, source, out, name)
            elif any(isinstance(v, dict | list | tuple | np.ndarray) for v in value.values()):
                inner = Facts(numbers_of(value) | facts.numbers, layout=facts.layout,
                              extra=facts.extra | texts_of(value) | {"label": name})  # fmt: skip
                taken |= words(name) not in _NESTED and _take_dict(value, inner, source, out)
        elif isinstance(value, list | tuple) and value and all(isinstance(v, dict) for v in value):
            inner = Facts(dict(facts.numbers), layout=facts.layout, extra=dict(facts.extra))
            taken |= take_records(list(value), inner, source, out)
        elif role_of(name) or isinstance(value, np.ndarray):
            array = to_array(value, name, out)
            if array is not None and array.ndim:
                arrays[name] = array
    if arrays:
        _ring(arrays, document, facts, out)
        taken |= take_arrays(arrays, facts, source, out)
    return taken


def _beside(document: dict[Any, Any], facts: Facts) -> None:
    """Numbers of the configurations that lie beside the data: by their name, or dicts of scalars only."""
    for key, value in document.items():
        if not isinstance(value, dict):
            continue
        if words(str(key)) in _NESTED:
            facts.numbers = numbers_of(value) | facts.numbers
            facts.extra = texts_of(value) | facts.extra
        elif not any(isinstance(v, dict | list | tuple) or hasattr(v, "ndim") for v in value.values()):
            sizes = {k: v for k, v in numbers_of(value).items() if k in _SIZES}
            facts.numbers = sizes | facts.numbers


def _ring(arrays: dict[str, np.ndarray], document: dict[Any, Any], facts: Facts, out: Reading) -> None:
    """A recorder that writes its ring buffer unrolled: rows are in time order only while it is not full."""
    ring = next((k for k in document if words(str(k)).startswith("average_utilization_rate")), None)
    cube = next((a for n, a in arrays.items() if role_of(n) == "counts" and a.ndim == 3), None)
    if ring is None or cube is None:
        return
    facts.layout = "sglang stat"
    filled = cube.reshape(len(cube), -1).any(axis=1)
    facts.extra["ordered"] = not bool(filled.all())
    if filled.all():
        out.notes.append("the ring buffer is full: its rows are not in time order, no index is stored")


def _by_layer(
    document: dict[Any, Any], facts: Facts, source: Source, out: Reading, role_name: str = ""
) -> bool:
    """Keys that are layers ("layer_3", "3") or "{iteration}_{layer}", values one vector each."""
    import numpy as np

    cells: dict[tuple[int, int], np.ndarray] = {}
    ranked = 0
    for key, value in document.items():
        both = _ITER_LAYER.match(str(key))
        one = _LAYER_NAME.match(str(key))
        if not both and not one:
            continue
        plain = _vector(value) if isinstance(value, dict) else value
        array = to_array(plain, str(key), out) if isinstance(plain, list | tuple | np.ndarray) else None
        if array is None or array.ndim != 1 or array.size < 2 or array.dtype.kind not in "iuf":
            continue
        ranked += bool(both)
        cells[(int(both[1]), int(both[2])) if both else (0, int(one[1]) if one else 0)] = array
    if not cells or (not role_name and not ranked and len(cells) < len(document) - 8):
        return False
    width = max(len(a) for a in cells.values())
    cells = {k: a for k, a in cells.items() if len(a) == width}
    steps, layers = sorted({s for s, _ in cells}), sorted({y for _, y in cells})
    check_cells(len(steps), len(layers), width)
    cube = np.full((len(steps), len(layers), width), np.nan)
    for (step, layer), array in cells.items():
        cube[steps.index(step), layers.index(layer)] = array
    if role_name and role_of(role_name) == "placement" and np.isfinite(cube).all():
        facts.layers = np.array(layers)
        return take_arrays({role_name: cube[0].astype(np.int64)}, facts, source, out)
    if not ranked and (cube[np.isfinite(cube)] != np.floor(cube[np.isfinite(cube)])).any():
        return False
    inner = Facts(dict(facts.numbers), layers=np.array(layers), layout=facts.layout, extra=dict(facts.extra),
                  holes=len(cells) < len(steps) * len(layers))  # fmt: skip
    if ranked:
        inner.steps = np.array(steps)
        inner.layout = "iteration_layer vectors"
        inner.extra["sum_over_ranks"] = True
    name = role_name if role_name and role_of(role_name) == "counts" else "expert_counts"
    return take_arrays({name: cube if ranked else cube[0]}, inner, source, out)


def _of_ranks(value: dict[Any, Any]) -> list[int] | None:
    """{"rank0": [ids], "rank1": [ids]} -> the slots of all ranks one after another."""
    found = {_RANK_NAME.match(str(k)): v for k, v in value.items()}
    lists = {int(m[1]): v for m, v in found.items() if m and isinstance(v, list) and v}
    same = len({len(v) for v in lists.values()}) == 1
    if len(lists) != len(value) or len(lists) < 2 or not same:
        return None
    slots = [x for r in sorted(lists) for x in lists[r]]
    return slots if all(isinstance(x, int) and not isinstance(x, bool) for x in slots) else None


def _vector(value: dict[Any, Any]) -> list[Any] | None:
    """{"0": 12, "1": 40} -> [12, 40]."""
    try:
        ids = {int(re.sub(r"^\D+", "", str(k))): v for k, v in value.items()}
    except ValueError:
        return None
    if not ids or max(ids) > 1 << 16 or min(ids) < 0:
        return None
    return [ids.get(i, 0) for i in range(max(ids) + 1)]


def _bare(array: np.ndarray, facts: Facts, source: Source, out: Reading) -> bool:
    """An array without a name: ids, scores or counts by their structure."""
    import numpy as np

    if array.ndim < 2 or array.dtype.kind not in "iuf" or not array.size:
        return False
    last = array.shape[-1]
    if array.dtype.kind == "f":
        sound = array[np.isfinite(array)]
        whole = bool(sound.size) and bool((sound == np.floor(sound)).all())
        name = "expert_counts" if whole and (sound >= 0).all() else "router_logits"
    else:
        rows = np.sort(array.reshape(-1, last)[:4096], axis=1)
        distinct = bool((rows[:, 1:] != rows[:, :-1]).all())
        name = "topk_ids" if last <= 16 and distinct and int(array.max()) < 2048 else "expert_counts"
    out.notes.append(f"an array without a name, shape {list(array.shape)}, read as {name}")
    return take_arrays({name: array}, facts, source, out)


def _meta_records(records: Sequence[dict[Any, Any]]) -> tuple[dict[str, float], dict[str, Any]]:
    """Facts of the records that only describe the others ("type": "meta")."""
    numbers: dict[str, float] = {}
    texts: dict[str, Any] = {}
    for record in records[:20]:
        if str(record.get("type", "")).lower() in ("meta", "header", "config") or not any(
            role_of(str(k)) in ("topk", "counts", "logits") for k in record
        ):
            numbers |= numbers_of(record)
            texts |= texts_of(record)
    return numbers, texts


def _config(document: dict[Any, Any], facts: Facts, out: Reading) -> bool:
    """A configuration: its numbers are kept for the arithmetic; the file itself holds no record."""
    known = {k: v for k, v in facts.numbers.items() if k != "rank"}
    if not _CONFIG_PROOF & set(known) or (len(known) < 2 and len(document) > 4):
        return False
    names = {config_key(str(k)): str(k) for k in document}
    for key, value in known.items():
        out.add("routing_config", where=f"key {names.get(key, key)}", key=key, value=value,
                name=names.get(key, key))  # fmt: skip
    out.rows -= len(known)
    shown = ", ".join(f"{k} {v:g}" for k, v in list(known.items())[:6])
    out.notes.insert(0, f"a configuration, no measurements ({shown})")
    return True
