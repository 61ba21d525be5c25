"""Choices of the router: top-k sets, what rounding does to them, how two records differ.

Glossary: *margin* is the gap between the k-th and the next score; a *flip* is a token whose set of
chosen experts differs between two records.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moexray.algorithms.routers import bf16, chosen

__all__ = ["Flips", "Rounding", "flips", "moved_load", "rounding"]


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
