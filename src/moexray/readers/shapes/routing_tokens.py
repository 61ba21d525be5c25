"""Arrays per token: router choices and router scores, whatever the order of their dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.core.errors import LimitError
from moexray.readers.shapes.routing_facts import Facts, batch_facts, layer_ids, layer_text, stray_id
from moexray.readers.shapes.routing_words import words

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["LARGEST_ID", "arm_of", "put_logits", "put_routes"]

LARGEST_ID = 65_535  # of an expert or slot; models have up to some hundreds
MAX_K = 32  # experts per token; today's models choose 1 to 22
SENTINEL = 255  # what recorders of 8-bit ids leave in unused slots (sglang#9499)
BLOCK = 1 << 16  # rows looked at together, so that no copy of everything is made
MAX_WORK = 800 << 20  # bytes of an array and what is kept of it (1 GiB in all is the bar)
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
    cube = _known_ids(cube, experts, facts, source, out)
    cube, dropped = _without_padding(cube)
    if k > MAX_K:
        return
    if dropped == k:
        out.notes.append("; ".join(p.text for p in out.problems) or "all ids are padding or a sentinel")
        return
    if dropped:
        out.notes.append(f"{dropped} columns of ids hold padding or a sentinel and are left out")
    columns = {
        **_labels(facts, layers, tokens),
        "ids": cube.reshape(layers * tokens, -1),
    }
    if scores is not None and not dropped:
        scale = 1e-4 if words(scores_name).endswith("_e4") else 1.0
        weights = _layers_tokens(scores if scores.ndim > 1 else scores[:, None], facts)
        columns["scores"] = weights.reshape(layers * tokens, -1).astype(np.float32) * np.float32(scale)
    more = {"arm": arm} if arm else {}
    out.add_columns("routes", columns, source=source.path, rows=layers * tokens,
                    layout=facts.layout, **(batch_facts(facts) | more))  # fmt: skip


def _labels(facts: Facts, layers: int, tokens: int) -> dict[str, np.ndarray]:
    """Layer and token of each row, as small as they fit."""
    import numpy as np

    labels = layer_ids(facts, layers)
    small = np.int16 if labels.size and -1 <= labels.min() <= labels.max() < 1 << 15 else np.int64
    return {
        "layer": np.repeat(labels.astype(small), tokens),
        "token": np.tile(np.arange(tokens, dtype=np.int32), layers),
    }


def _check_work(size: int, source: Source) -> None:
    """Refuses what would not fit into memory while it is worked on.

    Args:
        size: Bytes of the array and of what is kept of it.
        source: Where it stands.

    Raises:
        LimitError: more than MAX_WORK.
    """
    if size > MAX_WORK:
        raise LimitError(
            f"its choices or scores would take {size >> 20} MiB of memory, the bound is {MAX_WORK >> 20} MiB",
            where=source.path,
            hint="keep fewer tokens or layers, or ids as uint8 and scores as float32",
        )


def _blocks(cube: np.ndarray) -> Iterator[tuple[tuple[int, slice], np.ndarray]]:
    """Yields ((layer, tokens), part) of an array [layers, tokens, ...]."""
    for layer in range(len(cube)):
        for start in range(0, cube.shape[1], BLOCK):
            at = layer, slice(start, start + BLOCK)
            yield at, cube[at]


def _known_ids(
    cube: np.ndarray, experts: int | None, facts: Facts, source: Source, out: Reading
) -> np.ndarray:
    """Ids in the smallest signed integers, -1 where there is none; ids that no expert has are named."""
    import numpy as np

    largest = int(cube.max(initial=0))
    end = experts or _end(cube, largest)
    kind = np.min_scalar_type(-max(min(largest, end), 1) - 1)
    padded = end <= largest or int(cube.min(initial=0)) < 0 or (largest >= SENTINEL and end <= SENTINEL)
    rows = cube.shape[0] * cube.shape[1] * 6  # of _labels
    copied = padded or kind.itemsize != cube.dtype.itemsize or not cube.flags.c_contiguous
    _check_work(cube.nbytes + rows + copied * cube.size * kind.itemsize, source)
    if not padded:
        return cube.astype(kind, order="C") if copied else cube.view(kind)
    known = np.empty(cube.shape, kind)
    lost, first = 0, ""
    for (layer, at), part in _blocks(cube):
        none = (part == -1) | (part == end) | ((part == SENTINEL) & (end <= SENTINEL))  # how engines pad
        odd = ((part < -1) | (part > end)) & ~none
        known[layer, at] = np.where(none | odd, -1, part)
        if odd.any() and not lost:
            token, place = (int(i) for i in np.argwhere(odd)[0])
            row = at.start + token
            where = f"{layer_text(int(layer_ids(facts, len(cube))[layer]))}token {row}"
            first = f"expert {part[token, place]} in {where} of 0 to {end - 1}"
        lost += int(odd.sum())
    if lost:
        text = f"{first}; {lost} of {cube.size} choices are not used"
        out.problem("input.dirty_table", text, where=where, lost=lost, values={"row": row})
    return known


def _end(cube: np.ndarray, largest: int) -> int:
    """One past the largest id that may be one, where the number of experts is unknown."""
    import numpy as np

    if largest > SENTINEL:
        seen = np.zeros(LARGEST_ID + 1, bool)
        for _, part in _blocks(cube):
            seen[part[(part >= 0) & (part <= LARGEST_ID)]] = True
        known = np.flatnonzero(seen)
        if stray_id(known) is not None:
            return int(known[-2]) + 1
    return LARGEST_ID + 1


def _without_padding(cube: np.ndarray) -> tuple[np.ndarray, int]:
    """Drops columns that are padding (-1) or one sentinel throughout."""
    columns = range(cube.shape[-1])
    keep = [i for i in columns if not any((cube[..., i] == x).all() for x in (-1, SENTINEL))]
    return (cube if len(keep) == len(columns) else cube[..., keep]), len(columns) - len(keep)


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
    kept = array.dtype == np.float32 and cube.flags.c_contiguous
    _check_work(array.nbytes + (0 if kept else 4 * array.size), source)
    with np.errstate(over="ignore"):  # what does not fit is left out below
        values = np.ascontiguousarray(cube.reshape(layers * tokens, experts), np.float32)
    sound, first = _sound(values)
    labels = _labels(facts, layers, tokens)
    if not sound.all():
        bad = int((~sound).sum())
        where = f"{name}: row {first[0]}, column {first[1]}"
        out.problem("input.dirty_table", f"{values[first]:g} in {where}; {bad} rows are not used",
                    where=where, lost=bad, values={"row": first[0], "column": first[1]})  # fmt: skip
        _check_work(array.nbytes + 4 * array.size * (1 if kept else 2), source)
        values, labels = values[sound], {k: v[sound] for k, v in labels.items()}
    precision = str(array.dtype) if array.dtype.itemsize < 4 else _precision(values, str(array.dtype))
    near_one = bool(values.size) and float(values.min()) >= 0
    kind = "probs" if near_one and float(np.median(values.sum(axis=1))) <= 1.01 else "logits"
    more = {"arm": arm} if arm else {}
    out.add_columns(
        "logits", {**labels, "values": values}, source=source.path, rows=len(values), kind=kind,
        precision=precision, name=name, **(batch_facts(facts) | more),
    )  # fmt: skip


def _sound(values: np.ndarray) -> tuple[np.ndarray, tuple[int, int]]:
    """([rows] mask, (row, column) of the first odd score): -inf is an expert that may not be chosen."""
    import numpy as np

    sound = np.empty(len(values), bool)
    first = (-1, -1)
    for start in range(0, len(values), BLOCK):
        part = values[start : start + BLOCK]
        masked = part == -np.inf
        odd = ~((np.abs(part) <= LARGEST_SCORE) | masked)  # NaN is odd, too
        odd[masked.all(axis=1)] = True
        sound[start : start + BLOCK] = ~odd.any(axis=1)
        if first[0] < 0 and odd.any():
            row, column = np.argwhere(odd)[0]
            first = start + int(row), int(column)
    return sound, first


def _precision(values: np.ndarray, stored: str) -> str:
    """The precision that the numbers have, which may be less than that of the array they are stored in."""
    import numpy as np

    parts = [values[i : i + BLOCK] for i in range(0, len(values), BLOCK)]
    if not any((p != np.floor(p)).any() for p in parts):
        return stored
    if not any((p.view(np.uint32) & np.uint32(0xFFFF)).any() for p in parts):
        return "bfloat16"
    with np.errstate(over="ignore"):
        halves = all(np.array_equal(p.astype(np.float16).astype(np.float32), p) for p in parts)
    return "float16" if halves else stored
