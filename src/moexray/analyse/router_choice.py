"""Choices of the router: top-k sets, what rounding does to them, how two records differ.

Glossary: *margin* is the gap between the k-th and the next score; a *flip* is a token whose set of
chosen experts differs between two records.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Flips", "Rounding", "bf16", "chosen", "flips", "moved_load", "rounding", "softmax", "top_k"]

CHUNK = 16_384  # rows looked at together, for the cache


@dataclass(frozen=True, slots=True)
class Rounding:
    """What BF16 rounding of the probabilities does to the top-k sets.

    Args:
        tokens: Rows looked at.
        changed: Rows whose set changes; ties go to the lowest index.
        ties: Rows whose k-th and next rounded scores are equal.
        margin: Largest margin of a changed row, in rounding steps at its score.
        first: The first changed row.
    """

    tokens: int
    changed: int
    ties: int
    margin: float
    first: int


@dataclass(frozen=True, slots=True)
class Flips:
    """How two records of the same tokens differ.

    Args:
        rows: Sets compared (layers x tokens).
        changed: Sets that differ.
        tokens: Tokens compared.
        touched: Tokens with a changed set in any layer.
        per_layer: Share of changed sets of each layer.
    """

    rows: int
    changed: int
    tokens: int
    touched: int
    per_layer: dict[int, float]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Row-wise, float32."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True), np.float32)


def bf16(values: np.ndarray) -> np.ndarray:
    """Rounded to the nearest bfloat16, ties to even, as float32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)).view(np.float32)


def top_k(scores: np.ndarray, k: int) -> np.ndarray:
    """[rows, k] of the highest scores, ties to the lowest index, ids sorted."""
    return np.asarray(np.nonzero(chosen(scores, k))[1].reshape(len(scores), k))


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


def rounding(scores: np.ndarray, k: int) -> Rounding:
    """Compares the choice on float32 probabilities with that on probabilities rounded to BF16."""
    low = bf16(scores)
    changed = (chosen(scores, k) != chosen(low, k)).any(axis=1)
    ranked = -np.partition(-scores, [k - 1, k], axis=1)
    rounded = -np.partition(-low, [k - 1, k], axis=1)
    step = 2.0 ** (np.floor(np.log2(np.maximum(ranked[:, k - 1], 1e-38))) - 7)
    margins = (ranked[:, k - 1] - ranked[:, k]) / step
    return Rounding(
        len(scores), int(changed.sum()), int((rounded[:, k - 1] == rounded[:, k]).sum()),
        float(margins[changed].max()) if changed.any() else 0.0,
        int(np.flatnonzero(changed)[0]) if changed.any() else -1,
    )  # fmt: skip


def flips(layer: np.ndarray, token: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[Flips, np.ndarray]:
    """Compares two records row by row.

    Returns:
        (Flips, [rows] mask of the changed ones).
    """
    differs = (np.sort(a, axis=1) != np.sort(b, axis=1)).any(axis=1)
    labels = np.unique(layer)
    per_layer = {int(y): float(differs[layer == y].mean()) for y in labels}
    touched = np.unique(token[differs])
    found = Flips(len(differs), int(differs.sum()), len(np.unique(token)), len(touched), per_layer)
    return found, differs


def moved_load(layer: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """Largest share of a layer's choices that would have to move to make both load histograms equal."""
    worst = 0.0
    units = int(max(a.max(), b.max())) + 1
    for y in np.unique(layer):
        rows = layer == y
        first = np.bincount(a[rows][a[rows] >= 0].ravel(), minlength=units)
        second = np.bincount(b[rows][b[rows] >= 0].ravel(), minlength=units)
        worst = max(worst, float(np.abs(first - second).sum()) / (2 * max(int(first.sum()), 1)))
    return worst
