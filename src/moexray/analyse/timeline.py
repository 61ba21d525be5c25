"""Timelines as arrays: profiles, steps, busy time of a device, calls by step.

Glossary: a *profile* is the trace of one rank; a *launching lane* is a host thread that launches
kernels; *exposed* time is time in which no compute kernel runs (waiting communication counts as idle).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.core.pattern import lazy
from moexray.core.tables.timeline import CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from moexray.core.run import Run

__all__ = ["Cover", "Profile", "Steps", "captures", "profiles"]

KERNEL, MEMCPY, MEMSET, RUNTIME, DRIVER, OPERATOR, ANNOTATION, PYTHON, SYNC = (
    CATEGORIES.index(c)
    for c in (
        "kernel",
        "memcpy",
        "memset",
        "runtime",
        "driver",
        "operator",
        "annotation",
        "python",
        "sync",
    )
)
# Annotations that mark engine or training steps, best first; the first that occurs is taken.
STEP_NAMES = (
    lazy(r"ProfilerStep#(\d+)"),
    lazy(r"execute_(?:model|(?:\d+_)?context|new_|batch)", re.IGNORECASE),
    lazy(r"step\[|(?:decode|forward|engine|train|model)_?step\b", re.IGNORECASE),
    lazy(r"(?:step|iter(?:ation)?)[ _#:=]*(\d+)$", re.IGNORECASE),
)
LAUNCH = lazy(r"(?:cuda|hip|cu|xpu)\w*Launch\w*")
# A kernel marks steps if it runs at least 8 times over most of the trace, mostly at like distances.
BY_COUNT = (0.02, 0.9)  # spread and share of like distances, counted in kernels
ROUNDED_NS = 1_000  # steps that follow each other at once overlap by this, where times are whole us
PERIOD_LEAST, PERIOD_SPAN, PERIOD_SPREAD, PERIOD_SHARE, PERIOD_TRIES = 8, 0.8, 0.25, 0.6, 40
# Kernels that move data between ranks (or wait for it), by library; a maintained table.
COMM_KERNELS = lazy(
    r"nccl\w*Kernel|ncclDevFunc|rccl\w*Kernel|msccl|userbuffers_|a2a_?(?:dispatch|combine)"
    r"|\b(?:(?:deep_)?ep|uccl)::(?:\w+::)*(?:dispatch(?![a-z])|combine(?![a-z])|\w*notify\w*|\w*barrier\w*|clean\w*)"
    r"|nvshmem|rocshmem|mori::|pplx\w*::?\w*(?:dispatch|combine)|hybrid_ep"
    r"|(?:one|two)_shot_all_?reduce|multimem_\w*(?:all|reduce|gather)|cross_device_reduce"
    r"|custom_all_?reduce|quick_?reduce|trtllm_\w*all_?reduce|allreduce_fusion|oneShotAllReduce"
    r"|twoShotAllReduce|lamport\w*reduce|moe_?(?:All|a)ll?to_?all|moeAlltoAll|moe_comm|all_?to_?all\w*kernel"
    r"|symm_mem\w*|all_gather\w*kernel|reduce_scatter\w*kernel|^(?:gloo|ucc|mpi):",
    re.IGNORECASE,
)
# Where a model runs on the host: collectives of CPU backends as torch's profiler notes them (from the start
# of the work to its end), operators that compute, and moves of blocks inside an arena.
HOST_COMM = lazy(r"^(?:gloo|ucc|mpi):")
HOST_COMPUTE = lazy(r"^(?:aten|mkldnn|quantized|vllm|_C\w*)::")
HOST_MOVES = lazy(r"(?:\b|_)(?:arena|heap|mem_?pool)[._: ]+(?:compact|defrag)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of one profile in order of time, not overlapping.

    Args:
        start, end: ns.
        label: Step number where the annotation has one, else its position.
        derived: Where they come from: "annotation", "launch" (between graph launches), "period"
            (between launches of a kernel that comes back regularly), or "none".
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    label: NDArray[np.int64]
    derived: str

    def __len__(self) -> int:
        return len(self.start)

    @property
    def duration(self) -> NDArray[np.int64]:
        """Length of each step, ns."""
        return self.end - self.start

    @property
    def median_ns(self) -> float:
        """Median length; NaN without steps."""
        return float(np.median(self.duration)) if len(self) else float("nan")

    def of(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Position of the step that holds each time; -1 outside."""
        if not len(self):
            return np.full(len(times), -1)
        at = np.searchsorted(self.start, times, side="right") - 1
        return np.where((at >= 0) & (times < self.end[np.maximum(at, 0)]), at, -1)


class Cover:
    """A union of intervals that answers how much of a window it covers."""

    def __init__(self, start: NDArray[np.int64], end: NDArray[np.int64]) -> None:
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        reach = np.maximum.accumulate(end) if len(end) else end
        first = np.ones(len(start), bool)
        first[1:] = start[1:] > reach[:-1]
        self.start = start[first]
        self.end = reach[np.append(np.flatnonzero(first)[1:] - 1, len(start) - 1)] if len(start) else end
        self.total = np.concatenate([[0], np.cumsum(self.end - self.start)])

    def before(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Covered time before each time."""
        if not len(self.start):
            return np.zeros(len(times), np.int64)
        at = np.searchsorted(self.start, times, side="right")
        ahead = np.maximum(0, self.end[np.maximum(at - 1, 0)] - times)
        return np.asarray(self.total[at] - np.where(at > 0, ahead, 0), np.int64)

    def within(self, start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
        """Covered time inside each window, ns."""
        return self.before(np.asarray(end)) - self.before(np.asarray(start))

    def gaps(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Windows between the intervals."""
        return self.end[:-1], self.start[1:]


class Profile:
    """The trace of one rank, with what is computed from it on demand."""

    def __init__(
        self,
        source: str,
        columns: Mapping[str, Any],
        attrs: Mapping[str, Any],
        comm: Mapping[str, Any] | None,
    ) -> None:
        self.source, self.attrs, self.comm = source, attrs, comm
        self.host_lanes: NDArray[np.int64] | None = None  # threads that compute, where no device is traced
        self.start: NDArray[np.int64] = np.asarray(columns["ts_ns"])
        self.end: NDArray[np.int64] = self.start + columns["dur_ns"]
        self.category: NDArray[np.int64] = columns["category"]
        self.name: NDArray[np.int64] = columns["name"]
        self.lane: NDArray[np.int64] = columns["lane"]
        self.device: NDArray[np.int64] = columns["device"]
        self.stream: NDArray[np.int64] = columns["stream"]
        self.correlation: NDArray[np.int64] = columns["correlation"]
        self.names: list[str] = list(attrs["names"])
        if not self.of(KERNEL, MEMCPY, MEMSET).any():
            self._on_host()
        self.rank: int | None = attrs["rank"]
        self.world_size: int | None = attrs["world_size"]

    @property
    def who(self) -> str:
        """How the rank is called in a claim."""
        if self.rank is not None:
            return f"rank {self.rank}"
        return str(self.attrs.get("label") or self.source.rpartition("/")[2])

    @property
    def cut(self) -> bool:
        """Whether it is a digest (analyse/digest): what it does not show may still have happened."""
        return bool(self.attrs.get("digest"))

    @property
    def window(self) -> tuple[int, int]:
        """First start and last end, ns."""
        return (int(self.start.min()), int(self.end.max())) if len(self.start) else (0, 0)

    def _on_host(self) -> None:
        """Where no device is traced but ranks talk or arenas move: the host's work stands for kernels."""
        moves = self.named(HOST_MOVES, ANNOTATION, OPERATOR)
        talks = self.named(HOST_COMM, ANNOTATION, OPERATOR)
        if not len(moves) and not len(talks):
            return
        works = self.named(HOST_COMPUTE, OPERATOR)
        self.category = self.category.copy()
        self.category[moves] = RUNTIME
        self.category[talks] = self.category[works] = KERNEL
        self.host_lanes = np.unique(self.lane[np.concatenate([works, moves])])

    def named(self, pattern: re.Pattern[str], *categories: int) -> NDArray[np.int64]:
        """Rows whose name fits the pattern, in time order."""
        rows = np.flatnonzero(self.of(*categories))
        used = np.unique(self.name[rows])
        fits = used[np.array([bool(pattern.search(self.names[i])) for i in used.tolist()], bool)]
        return rows[np.isin(self.name[rows], fits)]

    def of(self, *categories: int) -> NDArray[np.bool_]:
        """Mask of the rows of these categories; all rows for none."""
        if not categories:
            return np.ones(len(self.category), np.bool_)
        return np.isin(self.category, categories)

    @cached_property
    def comm_rows(self) -> NDArray[np.int64]:
        """Kernels that communicate: by the collective that the profiler noted, else by their names."""
        named = self.named(COMM_KERNELS, KERNEL)
        if self.comm is None:
            return named
        noted = np.asarray(self.comm["row"])
        return np.union1d(named, noted[self.category[noted] == KERNEL])

    @cached_property
    def comm_at(self) -> dict[int, int]:
        """Row of a slice -> position in the metadata of collectives."""
        return {} if self.comm is None else {int(row): i for i, row in enumerate(self.comm["row"])}

    @cached_property
    def compute(self) -> Cover:
        """When a kernel, copy or fill runs that does not communicate."""
        mask = self.of(KERNEL, MEMCPY, MEMSET)
        mask[self.comm_rows] = False
        return Cover(self.start[mask], self.end[mask])

    @cached_property
    def launching(self) -> NDArray[np.int64]:
        """Lanes that launch kernels; all lanes with runtime calls where no launch is recorded."""
        if self.host_lanes is not None:
            return self.host_lanes
        rows = self.named(LAUNCH, RUNTIME, DRIVER)
        if not len(rows):
            rows = np.flatnonzero(self.of(RUNTIME, DRIVER))
        return np.unique(self.lane[rows])

    @cached_property
    def steps(self) -> Steps:
        """Steps by annotation, else by graph launches that repeat, else none."""
        for pattern in STEP_NAMES:
            rows = self.named(pattern, ANNOTATION)
            if len(rows):
                return self._annotated(rows, pattern)
        rows = self.named(re.compile(r"(?:cuda|hip)GraphLaunch"), RUNTIME, DRIVER)
        if len(rows) >= 8:
            start = self.start[rows]
            return Steps(start[:-1], start[1:], np.arange(len(start) - 1), "launch")
        return self._periodic()

    def _periodic(self) -> Steps:
        """Windows between the starts of the rarest kernel that comes back regularly, in time or in order."""
        kernels = np.flatnonzero(self.of(KERNEL))
        ids, counts = np.unique(self.name[kernels], return_counts=True)
        span = self.end[kernels].max() - self.start[kernels].min() if len(kernels) else 0
        order = np.arange(len(kernels))
        # Where steps take unlike times (a fault does that), the same number of kernels lies between.
        for at, spread, share in ((self.start[kernels], PERIOD_SPREAD, PERIOD_SHARE), (order, *BY_COUNT)):
            for name in ids[np.argsort(counts, kind="stable")][:PERIOD_TRIES].tolist():
                mine = np.flatnonzero(self.name[kernels] == name)
                start = self.start[kernels[mine]]
                if len(start) < PERIOD_LEAST or start[-1] - start[0] < PERIOD_SPAN * span:
                    continue
                gaps = np.diff(at[mine])
                middle = np.median(gaps)
                if np.median(np.diff(mine)) < 2:  # it follows itself: a loop inside of a step
                    continue
                if np.mean(np.abs(gaps - middle) <= spread * middle) >= share:
                    return Steps(start[:-1], start[1:], np.arange(len(gaps)), "period")
        if len(start := self._in_turn(kernels, ids, counts)):
            return Steps(start[:-1], start[1:], np.arange(len(start) - 1), "period")
        none = np.empty(0, np.int64)
        return Steps(none, none, none, "none")

    def _in_turn(
        self, kernels: NDArray[np.int64], ids: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Starts of steps of any length: the rarest kernels that take turns, always in one order."""
        span = self.end[kernels].max() - self.start[kernels].min() if len(kernels) else 0
        for count in np.unique(counts[counts >= PERIOD_LEAST]).tolist():
            alike = ids[counts == count]
            mine = kernels[np.isin(self.name[kernels], alike)]
            turns = self.name[mine].reshape(count, len(alike))
            start = self.start[mine].reshape(turns.shape)[:, 0]
            if len(alike) >= 2 and (turns == turns[0]).all() and start[-1] - start[0] >= PERIOD_SPAN * span:
                return start
        return np.empty(0, np.int64)

    def _annotated(self, rows: NDArray[np.int64], pattern: re.Pattern[str]) -> Steps:
        lanes, counts = np.unique(self.lane[rows], return_counts=True)
        rows = rows[self.lane[rows] == lanes[np.argmax(counts)]]
        keep: list[int] = []
        for row in rows:
            if not keep or self.start[row] >= self.end[keep[-1]] - ROUNDED_NS:
                keep.append(int(row))
        labels = []
        for i, row in enumerate(keep):
            match = pattern.search(self.names[self.name[row]])
            number = match.group(1) if match and match.groups() else None
            labels.append(int(number) if number else i)
        at = np.array(keep, np.int64)
        return Steps(self.start[at], self.end[at], np.array(labels, np.int64), "annotation")


def profiles(run: Run) -> list[Profile]:
    """One profile per trace file that holds slices."""
    comm = {b.source: b.columns for b in run.batches("trace_comm")}
    return [
        Profile(b.source, b.columns, b.attrs, comm.get(b.source))
        for b in run.batches("trace")
        if len(b.columns["ts_ns"])
    ]


def captures(found: list[Profile]) -> list[list[Profile]]:
    """Groups profiles that belong together: one capture holds each rank once.

    A world of one is a capture of its own. Two captures of one run lie in two folders, or do not
    overlap in time; what remains double stays in one group if the world size is known.
    """
    alone = [[p] for p in found if p.world_size == 1]
    return alone + _together([p for p in found if p.world_size != 1])


def _together(found: list[Profile]) -> list[list[Profile]]:
    ranks = [p.rank for p in found if p.rank is not None]
    if len(ranks) == len(set(ranks)):
        return [found] if found else []
    folders: dict[str, list[Profile]] = {}
    for profile in found:
        folders.setdefault(profile.source.rpartition("/")[0], []).append(profile)
    if len(folders) > 1 and all(_unique(g) and len(g) > 1 for g in folders.values()):
        return list(folders.values())
    groups: list[list[Profile]] = []
    reach = 0
    for profile in sorted(found, key=lambda p: p.window):
        if not groups or profile.window[0] >= reach:
            groups.append([])
        groups[-1].append(profile)
        reach = max(reach, profile.window[1])
    if all(_unique(g) for g in groups):
        return groups
    return [found] if any(p.world_size for p in found) else [[p] for p in found]


def _unique(group: list[Profile]) -> bool:
    ranks = [p.rank for p in group if p.rank is not None]
    return len(ranks) == len(set(ranks))
