"""Counts per EP rank or expert out of metrics pages, by what a label or a bucket bound stands for there.

A histogram of physical counts has the EP rank as its bucket bound: the count of a rank is the
difference of neighbouring cumulative buckets; quantiles of it mean nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moexray.core.pattern import lazy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moexray.core.run import Batch, Run

__all__ = ["counts_of_pages"]

_BUCKETS = lazy(r"eplb_gpu_physical_count_bucket$")
_EXPERTS = lazy(r"(tokens?_(routed_)?(to|per)_expert|expert_(tokens?|load|count))(_total)?$")
_LAYER = ("layer", "layer_idx", "layer_id")
_UNIT = ("logical_expert_id", "logical_expert", "expert", "expert_id", "expert_idx", "ep_rank", "rank", "gpu")

Page = dict[tuple[int, int], float]


def counts_of_pages(run: Run) -> Iterator[tuple[str, str, np.ndarray, np.ndarray, np.ndarray]]:
    """(source, axis, steps, layers, [steps, layers, units]) of each file with such counters.

    Counters only grow: two pages or more give their differences, one page its sums since the start.
    """
    pages: dict[tuple[str, str], list[Page]] = {}
    for batch in run.batches("metrics"):
        for axis, page in _page(batch):
            pages.setdefault((batch.source, axis), []).append(page)
    for (source, axis), found in pages.items():
        layers = sorted({y for page in found for y, _ in page})
        units = max(u for page in found for _, u in page) + 1
        cube = np.zeros((len(found), len(layers), units))
        for i, page in enumerate(found):
            for (y, unit), value in page.items():
                cube[i, layers.index(y), unit] = value
        grown = np.diff(cube, axis=0)
        if len(found) > 1 and (grown >= 0).all() and grown.any():
            cube = grown
        yield source, axis, np.arange(len(cube)), np.array(layers), cube


def _page(batch: Batch) -> Iterator[tuple[str, Page]]:
    names = [str(n) for n in batch.columns["name"]]
    buckets: dict[int, dict[float, float]] = {}
    experts: Page = {}
    axis = "logical"
    for i, name in enumerate(names):
        if not (_BUCKETS.search(name) or _EXPERTS.search(name)):
            continue
        labels = dict(p.split("=", 1) for p in str(batch.columns["labels"][i]).split(",") if "=" in p)
        value = float(batch.columns["value"][i])
        layer = next((int(labels[k]) for k in _LAYER if labels.get(k, "").isdigit()), -1)
        if not np.isfinite(value):
            continue
        if _BUCKETS.search(name) and (bound := _bound(labels.get("le", ""))) is not None:
            buckets.setdefault(layer, {})[bound] = buckets.get(layer, {}).get(bound, 0.0) + value
        elif unit := next((k for k in _UNIT if labels.get(k, "").isdigit()), None):
            axis = "rank" if unit in ("ep_rank", "rank", "gpu") else "logical"
            key = (layer, int(labels[unit]))
            experts[key] = experts.get(key, 0.0) + value
    if experts:
        yield axis, experts
    if buckets and all(float(b).is_integer() for bounds in buckets.values() for b in bounds):
        yield "rank", dict(_differences(buckets))


def _bound(text: str) -> float | None:
    """A bucket bound; None for +Inf, which is no rank."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if np.isfinite(value) and value >= 0 else None


def _differences(buckets: dict[int, dict[float, float]]) -> Iterator[tuple[tuple[int, int], float]]:
    for layer, bounds in buckets.items():
        before = 0.0
        for bound in sorted(bounds):
            yield (layer, int(bound)), max(0.0, bounds[bound] - before)
            before = bounds[bound]
