"""Top-k routers and what may be changed about them, on the scores of a layer.

Glossary: *scores* are the router's logits [tokens, experts]; a *choice* is one (token, expert) pair,
-1 where it was dropped; *weights* are the gate's softmax over the chosen experts, renormalised to 1;
a *batch* is `batch` neighbouring tokens, what one forward pass sees. Ties go to the lowest index.

Sources: capacity and drops, Shazeer 2017 and Switch 2021; bias on selection, Wang 2024 (loss-free
balancing); groups, DeepSeek-V2/V3. Soft mask: scores are cut at mean + cap standard deviations.
Twin on tensors: runtime/policies.py; same ids on the same scores, so nothing here may depend on the order
in which a library sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "MODES",
    "PRECISIONS",
    "Choice",
    "bf16",
    "biased",
    "capacity",
    "chosen",
    "fill_batch",
    "grouped",
    "hold_rows",
    "mean_std",
    "noise",
    "plain",
    "rounded",
    "salted",
    "soft_mask",
    "softmax",
    "sticky",
    "temperature",
    "top_k",
]

CHUNK = 16_384  # rows looked at together, for the cache
MODES = ("drop", "spill", "reroute")
PRECISIONS = {"bf16": (8, 8), "fp16": (11, 5), "e4m3": (4, 4), "e5m2": (3, 5)}  # significand, exponent bits
_MIX = tuple(np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))  # splitmix64


@dataclass(frozen=True, slots=True)
class Choice:
    """What a router chose.

    Args:
        ids: [tokens, k] experts, best first; -1 was dropped.
        weights: [tokens, k] gate weights; a dropped choice keeps 0 and the others are not raised.
    """

    ids: np.ndarray
    weights: np.ndarray


# ---- scores


def softmax(logits: np.ndarray) -> np.ndarray:
    """Row-wise, float32."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True), np.float32)


def bf16(values: np.ndarray) -> np.ndarray:
    """Rounded to the nearest bfloat16, ties to even, as float32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)).view(np.float32)


def rounded(values: np.ndarray, precision: str) -> np.ndarray:
    """Rounded to the nearest number of a precision, ties to even, as float32.

    Args:
        values: Any shape.
        precision: A key of PRECISIONS, "fp32", or "int8" (per row: 127 is the largest magnitude).
    """
    values = np.asarray(values, np.float32)
    if precision == "fp32":
        return values
    if precision == "bf16":
        return bf16(values)
    if precision == "int8":
        step = np.maximum(np.abs(values).max(axis=-1, keepdims=True), 1e-30) / 127
        return np.asarray(np.rint(values / step) * step, np.float32)
    significand, exponent = PRECISIONS[precision]
    least = 3 - 2 ** (exponent - 1)  # exponent of the smallest normal number, as frexp counts it
    _, power = np.frexp(values)
    step = np.exp2(np.maximum(power, least).astype(np.float32) - significand)
    largest = {"fp16": 65504.0, "e4m3": 448.0, "e5m2": 57344.0}[precision]
    return np.asarray(np.clip(np.rint(values / step) * step, -largest, largest), np.float32)


def noise(seed: int, batches: np.ndarray, rows: np.ndarray, experts: int) -> np.ndarray:
    """[tokens, experts] of 64-bit numbers that depend on (seed, batch, row in the batch, expert) only.

    Args:
        seed: Of the run.
        batches: [tokens] id of the batch of each token.
        rows: [tokens] position in its batch.
        experts: Columns.
    """
    with np.errstate(over="ignore"):
        start = np.full(len(rows), seed, np.int64).astype(np.uint64)
        for part in (batches, rows):
            start = _mixed(start + (part.astype(np.uint64) + np.uint64(1)) * _MIX[0])
        return _mixed(start[:, None] + (np.arange(experts, dtype=np.uint64) + np.uint64(1)) * _MIX[0])


def _mixed(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * _MIX[1]
    x = (x ^ (x >> np.uint64(27))) * _MIX[2]
    return np.asarray(x ^ (x >> np.uint64(31)))


def _gaussian(bits: np.ndarray) -> np.ndarray:
    """Standard normal numbers from 64-bit ones (Box-Muller on two halves)."""
    u = ((bits >> np.uint64(32)).astype(np.float64) + 1.0) / 2.0**32
    v = (bits & np.uint64(0xFFFFFFFF)).astype(np.float64) / 2.0**32
    return np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * np.pi * v)


def _batches(tokens: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
    at = np.arange(tokens)
    return at // batch, at % batch


def mean_std(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and population standard deviation of the finite numbers of each row, float64 [rows, 1].

    Halves are added to each other until one number is left: the same bits in every library.
    """
    kept = np.isfinite(values)
    count = np.maximum(kept.sum(axis=1, keepdims=True), 1)
    finite = np.where(kept, values, 0).astype(np.float64)
    mean = _total(finite) / count
    return mean, np.sqrt(_total(np.where(kept, (finite - mean) ** 2, 0.0)) / count)


def _total(values: np.ndarray) -> np.ndarray:
    width = 1 << max(values.shape[1] - 1, 0).bit_length()
    values = np.pad(values, ((0, 0), (0, width - values.shape[1])))
    while width > 1:
        width //= 2
        values = values[:, :width] + values[:, width:]
    return values


# ---- choosing


def chosen(scores: np.ndarray, k: int) -> np.ndarray:
    """[rows, experts], True for the k highest scores; ties to the lowest index."""
    out = np.empty(scores.shape, bool)
    for i in range(0, len(scores), CHUNK):
        part = scores[i : i + CHUNK]
        kth = np.partition(part, part.shape[1] - k, axis=1)[:, part.shape[1] - k, None]
        above = part > kth
        tied = part == kth
        room = k - above.sum(axis=1, keepdims=True)
        out[i : i + CHUNK] = above | (tied & (np.cumsum(tied, axis=1) <= room))
    return out


def top_k(scores: np.ndarray, k: int) -> np.ndarray:
    """[rows, k] of the highest scores, ties to the lowest index, ids sorted."""
    return np.asarray(np.nonzero(chosen(scores, k))[1].reshape(len(scores), k))


def _ranked(scores: np.ndarray, k: int) -> np.ndarray:
    """[rows, k], best first, ties to the lowest index."""
    ids = top_k(scores, k)
    order = np.argsort(-np.take_along_axis(scores, ids, axis=1), axis=1, kind="stable")
    return np.asarray(np.take_along_axis(ids, order, axis=1))


def _weighted(logits: np.ndarray, ids: np.ndarray, wanted: np.ndarray | None = None) -> Choice:
    """Gate weights of chosen ids.

    A choice that was dropped (-1) still counts in the sum if `wanted` names the expert it was for:
    its part of the output is lost, not given to others.
    """
    named = ids if wanted is None else wanted
    picked = np.take_along_axis(np.asarray(logits, np.float32), np.maximum(named, 0), axis=1)
    gates = np.where(named >= 0, np.exp(picked - picked.max(axis=1, keepdims=True)), 0.0)
    gates /= np.maximum(gates.sum(axis=1, keepdims=True), 1e-30)
    return Choice(ids.astype(np.int32), np.where(ids >= 0, gates, 0.0).astype(np.float32))


def plain(logits: np.ndarray, k: int) -> Choice:
    """The k highest logits."""
    return _weighted(logits, _ranked(logits, k))


def grouped(logits: np.ndarray, k: int, groups: int, topk_groups: int, best: int = 2) -> np.ndarray:
    """Logits with experts outside the best groups set to -inf.

    Args:
        logits: [tokens, experts], experts of a group side by side.
        k: Experts per token.
        groups: Number of groups.
        topk_groups: Groups that a token may use.
        best: A group's score is the sum of so many of its highest scores (V3: 2; V2: 1, the maximum).

    Raises:
        ValueError: the numbers do not fit the experts.
    """
    tokens, experts = logits.shape
    if experts % groups or not 0 < topk_groups <= groups or topk_groups * (experts // groups) < k:
        raise ValueError(f"{groups} groups, {topk_groups} of them used, for {experts} experts and top-{k}")
    inside = logits.reshape(tokens, groups, -1)
    best = min(best, inside.shape[2])
    marks = np.sort(inside, axis=2)[:, :, -best:].sum(axis=2)
    kept = np.repeat(chosen(marks, topk_groups), experts // groups, axis=1)
    return np.where(kept, logits, -np.inf).astype(np.float32)


def salted(
    logits: np.ndarray, k: int, *, seed: int = 0, salt: float = 17.0, scale: float = 1e-5,
    ties_only: bool = False, precision: str = "fp32", batch: int = 256,
) -> Choice:  # fmt: skip
    """Noise of standard deviation salt x scale on the scores, drawn from (seed, batch id).

    Args:
        logits: [tokens, experts].
        k: Experts per token.
        seed: Of the run.
        salt: Factor.
        scale: Standard deviation per unit of salt, in logits.
        ties_only: Only break exact ties: a strict winner is never changed.
        precision: What the scores are rounded to before (see `rounded`).
        batch: Tokens of a batch; a batch gets its own noise, the same in each run.
    """
    scores = rounded(logits, precision)
    bits = noise(seed, *_batches(len(scores), batch), scores.shape[1])
    if not ties_only:
        return _weighted(scores, _ranked(scores + (_gaussian(bits) * salt * scale).astype(np.float32), k))
    kth = np.partition(scores, scores.shape[1] - k, axis=1)[:, scores.shape[1] - k, None]
    tied = scores == kth
    room = k - (scores > kth).sum(axis=1, keepdims=True)
    lots = np.where(tied, bits >> np.uint64(1), np.uint64(2**63 - 1))  # lowest lots win
    place = np.argsort(np.argsort(lots, axis=1, kind="stable"), axis=1, kind="stable")
    won = (scores > kth) | (tied & (place < room))
    ids = np.nonzero(won)[1].reshape(len(scores), k)
    order = np.argsort(-np.take_along_axis(scores, ids, axis=1), axis=1, kind="stable")
    return _weighted(scores, np.take_along_axis(ids, order, axis=1))


def temperature(logits: np.ndarray, k: int, *, value: float = 2.0) -> Choice:
    """Logits divided by a temperature: the same experts, flatter (above 1) or sharper weights."""
    return _weighted(logits / np.float32(value), _ranked(logits, k))


def soft_mask(
    logits: np.ndarray, k: int, *, cap: float = 1.0, sigma: float = 0.0, seed: int = 0, batch: int = 256
) -> Choice:
    """Scores cut at mean + cap standard deviations of the token's scores, with noise of sigma if above 0.

    Cut scores tie; without noise the lowest indices win. Weights are those of the cut scores.
    """
    mean, std = mean_std(logits)
    scores = np.minimum(logits, (mean + cap * std).astype(np.float32))
    noisy = scores
    if sigma > 0:
        bits = noise(seed, *_batches(len(scores), batch), scores.shape[1])
        noisy = scores + (_gaussian(bits) * sigma).astype(np.float32)
    return _weighted(scores, _ranked(noisy, k))


def biased(logits: np.ndarray, k: int, *, rate: float = 0.02, batch: int = 256) -> Choice:
    """Selection by logits + a bias per expert that follows the load; weights from the logits alone.

    After each batch an expert above the mean load loses `rate` standard deviations of all logits, one
    below gains as much.
    """
    step = rate * float(mean_std(logits.reshape(1, -1))[1][0, 0])
    bias = np.zeros(logits.shape[1], np.float32)
    ids = np.empty((len(logits), k), np.int64)
    for i in range(0, len(logits), batch):
        part = logits[i : i + batch]
        ids[i : i + batch] = _ranked(part + bias, k)
        load = np.bincount(ids[i : i + batch].ravel(), minlength=logits.shape[1])
        bias += np.float32(step) * np.sign(load.mean() - load).astype(np.float32)
    return _weighted(logits, ids)


def capacity(
    logits: np.ndarray, k: int, *, factor: float = 1.25, mode: str = "drop", batch: int = 256,
    fill: Callable[..., None] | None = None,
) -> Choice:  # fmt: skip
    """At most ceil(factor x k x tokens / experts) tokens of a batch per expert, first come first served.

    Args:
        logits: [tokens, experts].
        k: Experts per token.
        factor: Capacity over the even load.
        mode: What a choice without room does: "drop" it is lost; "spill" it goes to the next best
            expert with room; "reroute" to the least loaded one with room (ties to the lowest index).
        batch: Tokens of a batch.
        fill: The compiled twin of `fill_batch`, where there is one.
    """
    order = np.argsort(-logits, axis=1, kind="stable")
    usable = np.isfinite(logits).sum(axis=1)
    ids = np.full((len(logits), k), -1, np.int64)
    for i in range(0, len(logits), batch):
        part = slice(i, i + batch)
        rows = order[part]
        room = np.full(logits.shape[1], -(-factor * k * len(rows) // logits.shape[1]), np.int64)
        (fill or fill_batch)(rows, usable[part], room, MODES.index(mode), ids[part])
    return _weighted(logits, ids, order[:, :k] if mode == "drop" else None)


def fill_batch(order: np.ndarray, usable: np.ndarray, room: np.ndarray, mode: int, ids: np.ndarray) -> None:
    """Serves the tokens of a batch in turn; writes ids, lowers room. Twin in kernels/routers.py.

    Args:
        order: [tokens, experts], best first.
        usable: [tokens], experts of a token that it may use at all (groups).
        room: [experts], choices each can still take.
        mode: Index into MODES.
        ids: [tokens, k], -1 to begin with.
    """
    for row, best in enumerate(order):
        for j in range(ids.shape[1]):
            expert = best[j]
            if room[expert] <= 0 or expert in ids[row, :j]:
                free = [e for e in best[: usable[row]] if room[e] > 0 and e not in ids[row, :j]]
                if MODES[mode] == "drop" or not free:
                    continue
                expert = free[0] if MODES[mode] == "spill" else max(free, key=lambda e: (room[e], -e))
            ids[row, j] = expert
            room[expert] -= 1


def sticky(
    logits: np.ndarray, k: int, *, margin: float = 0.1, hold: Callable[..., None] | None = None
) -> Choice:
    """An expert of the token before keeps its place if it is within `margin` logits of the winners.

    Args:
        logits: [tokens, experts], tokens in the order in which they are decoded.
        k: Experts per token.
        margin: In logits.
        hold: The compiled twin of `hold_rows`, where there is one.
    """
    ids = np.empty((len(logits), k), np.int64)
    (hold or hold_rows)(np.asarray(logits, np.float32), np.float32(margin), ids)
    return _weighted(logits, ids)


def hold_rows(scores: np.ndarray, margin: np.float32, ids: np.ndarray) -> None:
    """The loop of `sticky`: writes ids [tokens, k]. Twin in kernels/routers.py."""
    held = np.zeros(scores.shape[1], bool)
    for row, own in enumerate(scores):
        raised = own + margin * held
        ids[row] = np.argsort(-raised, kind="stable")[: ids.shape[1]]
        held[:] = False
        held[ids[row]] = True
