"""The host side of a profile: allocator calls by step, silences of the launching thread, records in them.

Glossary: a *silence* is a gap in which no runtime call and no operator runs on any launching lane while
the device has no compute either (a rank that waits has a synchronise call there).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.timeline import (
    ANNOTATION,
    DRIVER,
    HOST_MOVES,
    KERNEL,
    LAUNCH,
    MEMCPY,
    MEMSET,
    OPERATOR,
    PYTHON,
    RUNTIME,
    SYNC,
    Cover,
)
from moexray.core.pattern import lazy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moexray.analyse.timeline import Profile

__all__ = [
    "BUSY", "COLLECT", "COMPILE", "DEVICE_MEMORY", "EMPTY_CACHE", "MOSTLY", "REARRANGE", "RELEASE",
    "SNAPSHOT", "AllocCalls", "Silences", "alloc_calls", "cover_of", "has_host", "silences",
]  # fmt: skip

SUFFIX = r"(?:_v\d+|_ptsz|_ptds)*$"  # Nsight appends the version of the entry point
ALLOCATE = lazy(
    r"^(?:cuda|hip)Malloc(?:Async|Managed|FromPoolAsync)?"
    + SUFFIX
    + r"|^(?:cu|hip)Mem(?:Alloc|AllocManaged|AllocAsync|Create|Map|SetAccess|AddressReserve)"
    + SUFFIX
)
RELEASE = lazy(
    r"^(?:cuda|hip)Free(?:Async)?"
    + SUFFIX
    + r"|^(?:cu|hip)Mem(?:Free|FreeAsync|Unmap|Release|AddressFree)"
    + SUFFIX
)
DEVICE_MEMORY = lazy(f"{ALLOCATE.pattern}|{RELEASE.pattern}|(?i:{HOST_MOVES.pattern})")
EMPTY_CACHE = lazy(r"\bempty_?cache\b", re.IGNORECASE)
COLLECT = lazy(r"(?:\b|_)gc(?:\b|_)|garbage[ _]?collect", re.IGNORECASE)
COMPILE = lazy(
    r"compiler?\.py|\bcompile\b|make_cubin|triton/runtime/jit|nvrtcCompile|_inductor/|torch/_dynamo"
    r"|deep_?gemm/jit|cuModuleLoad|cuLibraryLoad|cudaLibraryLoad|hipModuleLoad|\bjit[_ ](?:compile|build)",
    re.IGNORECASE,
)
REARRANGE = lazy(r"eplb|rearrang|rebalance_?expert|expert_?(?:move|transfer|migrat)", re.IGNORECASE)
SNAPSHOT = lazy(r"\b_?dump_snapshot\b|memory_?snapshot|\b_snapshot\b", re.IGNORECASE)
TRIFLE_NS = 50_000  # a release below this had nothing to wait for: start-up
MOSTLY = 0.5  # share of a silence that a record must cover to explain it
BUSY = 0.2  # share of a silence in which the device may compute and the silence still costs time


@dataclass(frozen=True, slots=True)
class AllocCalls:
    """Device allocator calls of the launching lanes inside steps.

    Args:
        row: Rows of the calls.
        step: Step position of each call, never -1.
        release: Whether a call gives memory back.
        total: Time of the calls per step with calls, ns.
        exposed: The part of it in which the device computes nothing and waits for no other rank, ns.
        steps: Positions of the steps that have calls.
        outside: Calls outside of every step.
    """

    row: NDArray[np.int64]
    step: NDArray[np.int64]
    release: NDArray[np.bool_]
    total: NDArray[np.int64]
    exposed: NDArray[np.int64]
    steps: NDArray[np.int64]
    outside: int


@dataclass(frozen=True, slots=True)
class Silences:
    """Windows in which the host of a rank stood still.

    Args:
        start, end: ns.
        step: Position of the step that holds its middle, if the part in it is long enough alone; else -1.
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    step: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start)

    def within(self, start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
        """Silent time inside each window, ns."""
        return Cover(self.start, self.end).within(start, end)


def alloc_calls(profile: Profile, waiting: Cover | None = None) -> AllocCalls:
    """Allocator calls inside steps; first steps that only allocate are start-up and count as outside.

    Args:
        profile: Of one rank.
        waiting: When its collectives wait for other ranks: what it does meanwhile costs nothing.
    """
    rows = profile.named(DEVICE_MEMORY, RUNTIME, DRIVER)
    rows = rows[np.isin(profile.lane[rows], profile.launching)]
    steps = profile.steps
    step = steps.of(profile.start[rows])
    freeing = np.array([bool(RELEASE.search(n)) for n in profile.names], bool)
    release = freeing[profile.name[rows]] if len(rows) else np.empty(0, bool)
    freed = np.where(release, profile.end[rows] - profile.start[rows], 0)
    inside = (step >= 0) & ~np.isin(step, _warm_up(step, freed, len(steps)))
    outside = int(np.count_nonzero(~inside))
    rows, step, release = rows[inside], step[inside], release[inside]
    start, end = profile.start[rows], profile.end[rows]
    taken = profile.compute
    if waiting is not None:
        edges = ((taken.start, waiting.start), (taken.end, waiting.end))
        taken = Cover(*(np.concatenate(e) for e in edges))
    idle = (end - start) - taken.within(start, end)
    found = np.unique(step)
    total = np.array([np.sum((end - start)[step == s]) for s in found], np.int64)
    exposed = np.array([np.sum(idle[step == s]) for s in found], np.int64)
    return AllocCalls(rows, step, release, total, exposed, found, outside)


def _warm_up(step: NDArray[np.int64], freed: NDArray[np.int64], steps: int) -> list[int]:
    """The first steps of the trace as long as they hardly release, at most a tenth of all (or two)."""
    head: list[int] = []
    while len(head) < max(2, steps // 10):
        here = step == len(head)
        if not here.any() or freed[here].sum() > TRIFLE_NS:
            break
        head.append(len(head))
    return head


def has_host(profile: Profile) -> bool:
    """Whether the trace holds the host's launches; without them its silences cannot be told."""
    return len(profile.named(LAUNCH, RUNTIME, DRIVER)) > 0


def silences(profile: Profile, least_ns: float) -> Silences:
    """Gaps of the launching lanes longer than `least_ns` in which the device computes nothing either.

    Where the trace holds no host, gaps in which the device runs nothing at all stand for them.
    """
    busy = profile.of(RUNTIME, DRIVER, OPERATOR, SYNC) & np.isin(profile.lane, profile.launching)
    if not has_host(profile):
        busy = profile.of(KERNEL, MEMCPY, MEMSET)
    start, end = Cover(profile.start[busy], profile.end[busy]).gaps()
    long = end - start > least_ns
    start, end = start[long], end[long]
    idle = profile.compute.within(start, end) <= BUSY * (end - start)
    start, end = start[idle], end[idle]
    steps = profile.steps
    step = steps.of((start + end) // 2)
    if not len(steps):
        return Silences(start, end, step)
    inside = np.minimum(end, steps.end[step]) - np.maximum(start, steps.start[step])
    return Silences(start, end, np.where(inside > least_ns, step, -1))


def cover_of(
    profile: Profile, pattern: re.Pattern[str], *categories: int, own_lane: bool = False
) -> Cover:
    """When slices of that name run (Python frames, annotations and driver calls unless told otherwise).

    Args:
        profile: Of one rank.
        pattern: Of their names.
        categories: Of the slices.
        own_lane: Only those of threads that launch kernels.
    """
    rows = profile.named(pattern, *(categories or (PYTHON, ANNOTATION, DRIVER, RUNTIME)))
    if own_lane:
        rows = rows[np.isin(profile.lane[rows], profile.launching)]
    return Cover(profile.start[rows], profile.end[rows])
