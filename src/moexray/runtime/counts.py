"""How often router calls name experts. Ids that name none (-1 of a dropped choice) are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["of_all", "of_one"]

Ids = np.ndarray[Any, Any]  # whole numbers, of any shape


def of_one(ids: Ids, experts: int) -> Any:
    """int64 [experts]."""
    try:
        found = np.bincount(ids.reshape(-1), minlength=experts)
    except ValueError:  # below 0
        found = np.bincount(ids[ids >= 0], minlength=experts)
    return found[:experts]


def of_all(numbers: Sequence[Ids], sites: Sequence[int], total: int, experts: int) -> tuple[Any, Any]:
    """int64 [calls, experts] of each call, and int64 [total * experts] of each site: for many small calls.

    Args:
        numbers: Ids of each call.
        sites: Its site, below `total`.
        total: Sites.
        experts: That can be named.
    """
    ids = np.concatenate(numbers, axis=None)
    if ids.size and np.maximum.reduce(ids.view(f"u{ids.itemsize}")) >= experts:
        numbers = [some[(some >= 0) & (some < experts)] for some in numbers]
        ids = np.concatenate(numbers)
    sizes, calls = [some.size for some in numbers], len(numbers)
    by_call = _counts(ids, sizes, range(0, calls * experts, experts), calls * experts)
    by_site = _counts(ids, sizes, [site * experts for site in sites], total * experts)
    return by_call.reshape(calls, experts), by_site


def _counts(ids: Ids, sizes: list[int], starts: Sequence[int], cells: int) -> Any:
    """int64 [cells]: ids of calls of these sizes, whose cells start there."""
    cell = np.repeat(starts, sizes)
    return np.bincount(np.add(cell, ids, out=cell, casting="unsafe"), minlength=cells)
