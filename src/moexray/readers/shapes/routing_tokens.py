"""Arrays per token: router choices and router scores, whatever the order of their dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.readers.shapes.routing_facts import Facts, batch_facts, layer_ids
from moexray.readers.shapes.routing_words import words

if TYPE_CHECKING:
    import numpy as np

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["arm_of", "put_logits", "put_routes"]

MAX_K = 32  # experts per token; today's models choose 1 to 22
SENTINEL = 255  # what recorders of 8-bit ids leave in unused slots (sglang#9499)
ARMS = frozenset(
    (
        "a", "b", "ref", "reference", "base", "baseline", "test", "fp32", "f32", "float32", "bf16",
        "bfloat16", "fp16", "float16", "f16", "fp8", "vllm", "sglang", "hf", "transformers",
        "trtllm", "tensorrt", "megatron", "deepspeed", "lmdeploy", "train", "rollout", "run1",
        "run2", "engine1", "engine2", "first", "second", "1", "2", "0", "before", "after",
    )
)


def arm_of(name: str, all_names: list[str]) -> str | None:
    """What tells two arrays of the same role apart: "fp32" of logits_fp32."""
    parts = words(name).split("_")
    marks = [p for p in parts if p in ARMS]
    if marks:
        return "_".join(marks)
    return words(name) if len(all_names) > 1 else None


def put_routes(
    ids: np.ndarray, scores: np.ndarray | None, scores_name: str, arm: str | None,
    facts: Facts, source: Source, out: Reading,
) -> None:  # fmt: skip
    """Adds chosen ids of any order of dimensions to the table, padding and sentinels taken off."""
    import numpy as np

    cube = _layers_tokens(ids if ids.ndim > 1 else ids[:, None], facts)
    layers, tokens, k = cube.shape
    experts = facts.whole("num_physical") or facts.whole("num_experts")
    cube, dropped = _without_padding(cube, experts)
    if dropped:
        out.notes.append(f"{dropped} columns of ids hold padding or a sentinel and are left out")
    if cube.shape[-1] == 0 or k > MAX_K:
        return
    columns = {
        "layer": np.repeat(layer_ids(facts, layers), tokens),
        "token": np.tile(np.arange(tokens), layers),
        "ids": cube.reshape(layers * tokens, -1),
    }
    if scores is not None and not dropped:
        scale = 1e-4 if words(scores_name).endswith("_e4") else 1.0
        weights = _layers_tokens(scores if scores.ndim > 1 else scores[:, None], facts)
        columns["scores"] = weights.reshape(layers * tokens, -1).astype(np.float32) * np.float32(scale)
    more = {"arm": arm} if arm else {}
    out.add_columns("routes", columns, source=source.path, rows=layers * tokens,
                    layout=facts.layout, **(batch_facts(facts) | more))  # fmt: skip


def _without_padding(cube: np.ndarray, experts: int | None) -> tuple[np.ndarray, int]:
    """Drops columns that are padding (-1) or one sentinel throughout; marks single ones as -1."""
    import numpy as np

    flat = cube.reshape(-1, cube.shape[-1]).astype(np.int32)
    flat[(flat < 0) | ((flat >= experts) if experts else False)] = -1
    flat[:, (flat == SENTINEL).all(axis=0)] = -1
    keep = ~(flat == -1).all(axis=0)
    return flat[:, keep].reshape(*cube.shape[:2], int(keep.sum())), int((~keep).sum())


def _layers_tokens(array: np.ndarray, facts: Facts) -> np.ndarray:
    """Any array per token as (layers, tokens, last)."""
    if array.ndim == 2:
        return array[None]
    if array.ndim > 3:  # batch and position, or step and token, in front
        array = array.reshape(-1, *array.shape[-2:])
    known = facts.whole("num_layers") or (len(facts.layers) if facts.layers is not None else None)
    first, second = array.shape[:2]
    tokens_first = second == known != first if known in (first, second) else second < first
    return array.swapaxes(0, 1) if tokens_first else array


def put_logits(
    array: np.ndarray, name: str, arm: str | None, facts: Facts, source: Source, out: Reading
) -> None:
    """Adds scores of every expert to the table; rows that are not finite are named and left out."""
    import numpy as np

    cube = _layers_tokens(array, facts)
    layers, tokens, experts = cube.shape
    values = np.ascontiguousarray(cube.reshape(layers * tokens, experts).astype(np.float32))
    sound = np.isfinite(values).all(axis=1)
    precision = str(array.dtype) if array.dtype.itemsize < 4 else _precision(values[sound], str(array.dtype))
    if not sound.all():
        row, column = (int(x) for x in np.argwhere(~np.isfinite(values))[0])
        bad = int((~sound).sum())
        where = f"{name}: row {row}, column {column}"
        out.problem("input.dirty_table", f"{values[row, column]} in {where}; {bad} rows are not used",
                    where=where, lost=bad, values={"row": row, "column": column})  # fmt: skip
    more = {"arm": arm} if arm else {}
    near_one = bool(values[sound].size) and bool((values[sound] >= 0).all())
    kind = "probs" if near_one and float(np.median(values[sound].sum(axis=1))) <= 1.01 else "logits"
    out.add_columns(
        "logits",
        {
            "layer": np.repeat(layer_ids(facts, layers), tokens)[sound],
            "token": np.tile(np.arange(tokens), layers)[sound],
            "values": values[sound],
        },
        source=source.path, rows=int(sound.sum()), kind=kind, precision=precision, name=name,
        **(batch_facts(facts) | more),
    )  # fmt: skip


def _precision(values: np.ndarray, stored: str) -> str:
    """The precision that the numbers have, which may be less than that of the array they are stored in."""
    import numpy as np

    if not values.size or not (values != np.floor(values)).any():
        return stored
    if not (values.view(np.uint32) & np.uint32(0xFFFF)).any():
        return "bfloat16"
    with np.errstate(over="ignore"):
        return "float16" if np.array_equal(values.astype(np.float16).astype(np.float32), values) else stored
