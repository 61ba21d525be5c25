"""Kernels of graph replays named by the operators that launched them while the graph was captured.

A replay shows kernels without operators: one launch call owns all of them. The trace of the capture has
the operators, but no kernels, as nothing ran. Both hold the same calls in the same order, so the n-th kernel
of a replay is the n-th launch of the capture. That is believed only if the numbers are equal and the
names fit together: each kernel name must come from one operator nearly always (`agreement`). Lost
calls change the number; one lost and one too many could shift the names by one place unseen.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.timeline import ANNOTATION, DRIVER, KERNEL, MEMCPY, MEMSET, OPERATOR, RUNTIME
from moexray.core.pattern import lazy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from moexray.analyse.timeline import Profile

__all__ = ["Replays", "named_replays"]

BEGIN, END = lazy(r"StreamBeginCapture"), lazy(r"StreamEndCapture")
GRAPH = lazy(r"Graph\w*Launch")
# Calls that become nodes of a graph; the launch of a graph inside a capture is none of a kernel.
NODES = lazy(r"(?:Launch\w*Kernel|LaunchKernel|Memcpy\w*Async|Memset\w*Async)\w*$")
WRAPPER = lazy(r"^(?:## Call |capture_|execute_)")  # ranges around a whole graph name no operator
AGREEMENT = 0.95  # of a real pair of 421 kernels: 1.0; shifted by two 0.91, by five 0.82; shuffled 0.25
LEAST = 4  # kernels; fewer agree by chance


@dataclass(frozen=True, slots=True)
class Replays:
    """Replays of one graph in one profile, named from a capture.

    Args:
        capture: File of the capture.
        replays: How often the graph was launched.
        rows: [replays, kernels], rows of the profile in order of time.
        operators: [kernels], the operator of each.
        agreement: Share of kernels whose name comes from its usual operator, and the other way round.
    """

    capture: str
    replays: int
    rows: NDArray[np.int64]
    operators: tuple[str, ...]
    agreement: float

    def time_by_operator(self, profile: Profile) -> list[tuple[str, int, int]]:
        """(operator, kernels in one replay, ns over all replays), the longest first."""
        length = (profile.end - profile.start)[self.rows].sum(axis=0)
        total: Counter[str] = Counter()
        for operator, ns in zip(self.operators, length.tolist(), strict=True):
            total[operator] += ns
        count = Counter(self.operators)
        return [(operator, count[operator], ns) for operator, ns in total.most_common()]


def named_replays(profiles: Iterable[Profile]) -> list[tuple[Profile, Replays]]:
    """Every graph of every profile whose capture is among the profiles.

    Captures that fit equally well and name other operators leave a graph without names.
    """
    profiles = list(profiles)
    captured = [(p.source, names) for p in profiles for names in _captures(p)]
    found = []
    for profile in profiles if captured else ():
        for rows in _replays(profile):
            kernels = tuple(profile.names[i] for i in profile.name[rows[0]].tolist())
            alike = [(source, names) for source, names in captured if len(names) == len(kernels)]
            fits = [(_agreement(kernels, names), source, names) for source, names in alike]
            fits = sorted((f for f in fits if f[0] >= AGREEMENT), key=lambda f: -f[0])
            if fits and all(f[2] == fits[0][2] for f in fits if f[0] == fits[0][0]):
                best, source, names = fits[0]
                found.append((profile, Replays(source, len(rows), rows, names, best)))
    return found


def _captures(profile: Profile) -> list[tuple[str, ...]]:
    """For each capture, the operator of each launch in it, in order."""
    begins, ends = (profile.named(pattern, RUNTIME, DRIVER) for pattern in (BEGIN, END))
    if not len(begins) or not len(ends):
        return []
    nodes = profile.named(NODES, RUNTIME, DRIVER)
    out = []
    for begin in begins.tolist():
        lane = profile.lane[begin]
        later = ends[(profile.lane[ends] == lane) & (profile.start[ends] > profile.start[begin])]
        if not len(later):
            continue
        end = profile.start[later[0]]
        mine = nodes[(profile.lane[nodes] == lane) & (profile.start[nodes] > profile.end[begin])]
        mine = mine[profile.start[mine] < end]
        if len(mine) >= LEAST:
            out.append(_operators(profile, int(lane), mine))
    return out


def _operators(profile: Profile, lane: int, calls: NDArray[np.int64]) -> tuple[str, ...]:
    """The innermost operator or named range around each call."""
    from moexray.kernels.nesting import innermost

    rows = np.flatnonzero((profile.lane == lane) & profile.of(OPERATOR, ANNOTATION))
    used = np.unique(profile.name[rows])
    plain = used[[not WRAPPER.search(profile.names[i]) for i in used.tolist()]] if len(used) else used
    rows = rows[np.isin(profile.name[rows], plain)]
    if not len(rows):
        return ("",) * len(calls)
    rows = rows[np.lexsort((-profile.end[rows], profile.start[rows]))]
    edges, owner = innermost(profile.start[rows], profile.end[rows], np.zeros(len(rows), np.bool_))
    at = np.searchsorted(edges, profile.start[calls], side="right") - 1
    inside = (at >= 0) & (at < len(owner))
    held = np.where(inside, owner[np.clip(at, 0, len(owner) - 1)], -1)
    names = np.where(held >= 0, profile.name[rows[np.maximum(held, 0)]], -1)
    return tuple(profile.names[n] if n >= 0 else "" for n in names.tolist())


def _replays(profile: Profile) -> list[NDArray[np.int64]]:
    """[replays, kernels] for each graph: launches with the same names in the same order."""
    calls = profile.named(GRAPH, RUNTIME, DRIVER)
    wanted = profile.correlation[calls]
    launched = np.isin(profile.correlation, wanted[wanted >= 0])
    rows = np.flatnonzero(profile.of(KERNEL, MEMCPY, MEMSET) & launched)
    graphs: dict[tuple[int, ...], list[NDArray[np.int64]]] = {}
    rows = rows[np.lexsort((profile.start[rows], profile.correlation[rows]))]
    edges = np.flatnonzero(np.diff(profile.correlation[rows])) + 1
    for part in np.split(rows, edges):
        if len(part) >= LEAST:
            graphs.setdefault(tuple(profile.name[part].tolist()), []).append(part)
    return [np.stack(parts) for parts in graphs.values()]


def _agreement(kernels: tuple[str, ...], operators: tuple[str, ...]) -> float:
    """Share of the kernels whose name comes from one operator; 0 if the operators tell nothing apart."""
    if len(set(operators)) < 2 or len(set(kernels)) < 2:
        return 0.0
    pairs = Counter(zip(kernels, operators, strict=True))
    best: dict[str, int] = {}
    for (kernel, _), count in pairs.items():
        best[kernel] = max(best.get(kernel, 0), count)
    return sum(best.values()) / len(kernels)
