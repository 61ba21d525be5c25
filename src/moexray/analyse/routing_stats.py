"""Measures of how even a load is, and what chance alone would give."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

__all__ = ["by_chance", "cv", "entropy", "gini", "top_share"]


def gini(load: np.ndarray) -> float:
    """Gini coefficient of a load vector: 0 even, towards 1 all on one unit; NaN if empty."""
    n, total = len(load), float(load.sum())
    if n == 0 or total <= 0:
        return float("nan")
    ranked = np.sort(load.astype(np.float64))
    return float(((2 * np.arange(1, n + 1) - n - 1) * ranked).sum() / (n * total))


def cv(load: np.ndarray) -> float:
    """Coefficient of variation with the population standard deviation (ddof 0)."""
    mean = float(load.mean()) if load.size else 0.0
    return float(load.std()) / mean if mean > 0 else float("nan")


def top_share(load: np.ndarray, top: int) -> float:
    """Share of all choices that the `top` most loaded units take."""
    total = float(load.sum())
    return float(np.sort(load)[-top:].sum()) / total if total > 0 else float("nan")


def entropy(load: np.ndarray) -> float:
    """Entropy of a load vector over ln n: 1 even, 0 all on one unit; KL to even is (1 - this) * ln n."""
    total = float(load.sum())
    if total <= 0 or len(load) < 2:
        return float("nan")
    p = load[load > 0] / total
    return float(-(p * np.log(p)).sum() / np.log(len(load))) + 0.0  # never -0.0


@lru_cache(maxsize=4096)
def by_chance(mean: float, ranks: int) -> float:
    """Expected balancedness if every rank draws from one Poisson distribution.

    Args:
        mean: Expected tokens per rank.
        ranks: EP size.

    Returns:
        mean / E[max], E[max] by summing the tail 1 - F(x)^ranks.
    """
    if mean <= 0 or ranks < 1:
        return 0.0
    if mean > 1e8:
        return 1.0
    spread = 10 * mean**0.5 + 20
    low = max(0, int(mean - spread))
    x = np.arange(low, int(mean + spread) + 1, dtype=np.float64)
    # log pmf by recurrence from the mode, so that no gamma function is needed
    steps = np.log(mean) - np.log(np.maximum(x, 1.0))
    log_pmf = np.cumsum(np.where(x > low, steps, 0.0))
    pmf = np.exp(log_pmf - log_pmf.max())
    cdf = np.cumsum(pmf) / pmf.sum()
    return float(mean / (low + (1.0 - cdf**ranks).sum()))
