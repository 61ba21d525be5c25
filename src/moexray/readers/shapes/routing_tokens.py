"""Arrays per token: router choices and router scores, whatever the order of their dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.readers.shapes.routing_facts import Facts, batch_facts, layer_ids
from moexray.readers.shapes.routing_words import words

if TYPE_CHECKING:
    import numpy as np

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["LARGEST_ID", "arm_of", "put_logits", "put_routes"]

LARGEST_ID = 65_535  # of an expert or slot; models have up to some hundreds
MAX_K = 32  # experts per token; today's models choose 1 to 22
SENTINEL = 255  # what recorders of 8-bit ids leave in unused slots (sglang#9499)
LARGEST_SCORE = 1e30  # sums and products of a few such scores still fit float32; routers give some tens
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
    cube = _known_ids(cube, experts, facts, out)
    cube, dropped = _without_padding(cube)
    if k > MAX_K:
        return
    if dropped == k:
        out.notes.append("; ".join(p.text for p in out.problems) or "all ids are padding or a sentinel")
        return
    if dropped:
        out.notes.append(f"{dropped} columns of ids hold padding or a sentinel and are left out")
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


def _known_ids(cube: np.ndarray, experts: int | None, facts: Facts, out: Reading) -> np.ndarray:
    """Ids as int32, -1 where there is none; ids that no expert has are named."""
    import numpy as np

    end = experts or LARGEST_ID + 1
    none = (cube == -1) | (cube == end) | ((cube == SENTINEL) & (end <= SENTINEL))  # how engines pad
    odd = ((cube < -1) | (cube > end)) & ~none
    if odd.any():
        layer, token, _ = at = tuple(int(i) for i in np.argwhere(odd)[0])
        where = f"layer {int(layer_ids(facts, len(cube))[layer])}, token {token}"
        lost = int(odd.sum())
        text = f"expert {cube[at]} in {where} of 0 to {end - 1}; {lost} of {cube.size} choices are not used"
        out.problem("input.dirty_table", text, where=where, lost=lost, values={"row": token})
    return np.where(none | odd, -1, cube).astype(np.int32)


def _without_padding(cube: np.ndarray) -> tuple[np.ndarray, int]:
    """Drops columns that are padding (-1) or one sentinel throughout."""
    flat = cube.reshape(-1, cube.shape[-1])
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
    """Adds scores of every expert to the table; rows that no router gives are named and left out."""
    import numpy as np

    cube = _layers_tokens(array, facts)
    layers, tokens, experts = cube.shape
    with np.errstate(over="ignore"):  # what does not fit is left out below
        values = np.ascontiguousarray(cube.reshape(layers * tokens, experts).astype(np.float32))
    usable = np.abs(values) <= LARGEST_SCORE  # NaN is not
    sound = usable.all(axis=1)
    precision = str(array.dtype) if array.dtype.itemsize < 4 else _precision(values[sound], str(array.dtype))
    if not sound.all():
        row, column = (int(x) for x in np.argwhere(~usable)[0])
        bad = int((~sound).sum())
        where = f"{name}: row {row}, column {column}"
        out.problem("input.dirty_table", f"{values[row, column]:g} in {where}; {bad} rows are not used",
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
