"""How long tensors live and how many bytes they take, per layer, expert and scope.

The lives come from analyse/tensors.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.algorithms.intervals import moments, peak_by_group
from moexray.core.scopes import NOTHING, SCOPES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moexray.analyse.tensors import Tensors

    Ints = NDArray[np.int64]

__all__ = ["Group", "groups", "unattributed"]


@dataclass(frozen=True, slots=True)
class Group:
    """Figures of the lives of one layer, expert and scope; None is unknown.

    Args:
        layer, expert, scope: Who; all None is what nothing attributes.
        count: Allocations.
        open: Of these not freed within the history.
        bytes: Sum of their sizes.
        mean_ns, median_ns, max_ns: Lifetimes of those that ended; None without times.
        mean_events, median_events, max_events: The same in allocations and frees of the whole history.
        peak_bytes: Most of the group alive at once.
        at_peak_bytes: Alive when the lives of all groups together take most.
    """

    layer: int | None
    expert: int | None
    scope: str | None
    count: int
    open: int
    bytes: int
    mean_ns: float | None
    median_ns: float | None
    max_ns: int | None
    mean_events: float | None
    median_events: float | None
    max_events: int | None
    peak_bytes: int
    at_peak_bytes: int


def groups(one: Tensors) -> list[Group]:
    """The groups of these lives, those with most bytes at the common peak first, then by their own peak."""
    keys = np.stack([one.layer, one.expert, one.scope], axis=1)
    rows, group = np.unique(keys, axis=0, return_inverse=True)
    group, count = group.reshape(-1), len(rows)
    tally = {
        "count": np.bincount(group, minlength=count),
        "open": np.bincount(group, weights=one.is_open, minlength=count).astype(np.int64),
        "bytes": _summed(group, one.size, count),
        "peak_bytes": peak_by_group(group, one.start, one.end, one.size, count),
        "at_peak_bytes": _summed(group, np.where(_at_peak(one), one.size, 0), count),
    }
    ended = ~one.is_open
    spans = {"events": _spans(group, one.end - one.start, ended, count)}
    if one.start_ns is not None and one.end_ns is not None:
        spans["ns"] = _spans(group, one.end_ns - one.start_ns, ended, count)
    blank = [(None, None, None)] * count
    out = []
    for i, (layer, expert, scope) in enumerate(rows.tolist()):
        figures = {name: int(column[i]) for name, column in tally.items()}
        for unit in ("ns", "events"):
            names = (f"mean_{unit}", f"median_{unit}", f"max_{unit}")
            figures |= dict(zip(names, spans.get(unit, blank)[i], strict=True))
        named = (None if layer < 0 else layer, None if expert < 0 else expert)
        out.append(Group(*named, None if scope == NOTHING.kind else SCOPES[scope], **figures))
    return sorted(out, key=lambda g: (-g.at_peak_bytes, -g.peak_bytes, -g.bytes))


def unattributed(one: Tensors) -> float:
    """Share of the allocated bytes whose layer, expert and scope are all unknown."""
    unknown = (one.layer < 0) & (one.expert < 0) & (one.scope == NOTHING.kind)
    total = int(one.size.sum())
    return int(one.size[unknown].sum()) / total if total else 0.0


def _summed(group: Ints, values: Ints, count: int) -> Ints:
    out = np.zeros(count, np.int64)
    np.add.at(out, group, values)
    return out


def _at_peak(one: Tensors) -> NDArray[np.bool_]:
    row, _, live = moments(one.start, one.end, one.size)
    at = one.start[row[int(np.argmax(live))]]
    return np.asarray((one.start <= at) & (one.end > at))


def _spans(group: Ints, span: Ints, chosen: NDArray[np.bool_], count: int) -> list[tuple[Any, Any, Any]]:
    """(mean, median, longest) of the chosen spans of each group; (None, None, None) where it has none."""
    order = np.lexsort((span[chosen], group[chosen]))
    sorted_span, of = span[chosen][order], group[chosen][order]
    edges = np.searchsorted(of, np.arange(count + 1))
    out: list[tuple[Any, Any, Any]] = []
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        part = sorted_span[low:high]
        if len(part):
            out.append((float(part.mean()), float(np.median(part)), int(part[-1])))
        else:
            out.append((None, None, None))
    return out
