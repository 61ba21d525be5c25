"""Idle gaps of every stream, and what each instant of them waited for.

A gap before a kernel is cut at the moment at which its launch call returned. Before it the kernel could
not start: the *host part*, attributed to what the launching thread did, instant by instant. After it the
kernel was in the queue: the *device part*, attributed to the kernel of another stream that ended just
before, to what else ran meanwhile, to the latency of a launch, or to nothing (unexplained). All times
are whole ns, so that busy + host + device + unexplained is the span, exactly.

Kernels of a CUDA graph other than its first wait for the graph, not for the host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.timeline import (
    ANNOTATION,
    DRIVER,
    KERNEL,
    MEMCPY,
    MEMSET,
    OPERATOR,
    PYTHON,
    RUNTIME,
    Cover,
)
from moexray.analyse.timeline_host import COLLECT, COMPILE, DEVICE_MEMORY
from moexray.core.pattern import lazy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from moexray.analyse.timeline import Profile

__all__ = ["DEVICE", "HOST", "Gaps", "Stream", "attribute", "streams"]

# What a host part may be; the order is that of `Gaps.host`.
HOST = ("allocator", "synchronise", "poll", "launch", "runtime", "jit", "gc", "operator", "python", "none")
ALLOCATOR, SYNCHRONISE, POLL, LAUNCHING, OTHER_CALL, JIT, GC, IN_OPERATOR, IN_PYTHON, NOTHING = range(10)
# What a device part may be; the order is that of `Gaps.device`.
DEVICE = (
    "released_by_comm", "released_by_compute", "overlapped_by_comm", "overlapped_by_compute", "in_graph",
    "launch_latency",
)  # fmt: skip
REACH_NS = 10_000  # a kernel that ends so shortly before another starts released it: launches take 3-8 us
LATENCY_NS = 15_000  # a queued kernel may take so long to start without anything being wrong
COPYING = lazy(r"^(?:cuda|hip)Memcpy(?!\w*Async)|^cuMemcpy(?!\w*Async)")
SYNCHRONISING = lazy(r"(?:Stream|Device|Event|Ctx)Synchronize")
POLLING = lazy(r"(?:Event|Stream)Query")
GRAPH = lazy(r"Graph\w*Launch")
# Frames that compile; wrappers that only run what was compiled (eval_frame, output_code, jit.run) do not.
COMPILING = lazy(
    r"convert_frame\.py\(\d+\): _?compile|compile_fx\.py|async_compile\.py"
    r"|codecache\.py\(\d+\): (?:_?load|_?compile|save|write)|graph_compile\.py"
    r"|triton/compiler/(?:code_generator|compiler\.py\(\d+\): (?:compile|make_))"
    r"|\bmake_(?:cubin|ptx|llir|ttir|ttgir|amdgcn|hsaco)\b"
    r"|triton/runtime/(?:build\.py|autotuner\.py\(\d+\): _?bench|jit\.py\(\d+\): (?:_do_)?compile)"
    r"|nvrtc|deep_?gemm/jit|flashinfer/jit|cpp_extension\.py",
    re.IGNORECASE,
)
STARTING = lazy(r"(?:cuda|hip|cu|xpu)\w*Launch|Memcpy\w*Async|Memset")


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream of one device.

    Args:
        device: Index.
        stream: Id.
        rows: Its slices in order of time.
        is_comm: Most of its time is communication.
        busy: When anything runs on it.
    """

    device: int
    stream: int
    rows: NDArray[np.int64]
    is_comm: bool
    busy: Cover

    @property
    def span(self) -> tuple[int, int]:
        """First start and last end, ns."""
        return int(self.busy.start[0]), int(self.busy.end[-1])


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gaps of one stream, cut at the edges of steps, in order of time. Arrays of [gaps]; times in ns.

    Args:
        of: The stream.
        start, end: Window of the gap.
        step: Position of the step that holds it; -1 outside.
        before: Row of the kernel that ends the gap.
        launch: Row of the call that launched it; -1 where none is recorded.
        host: [gaps, len(HOST)].
        device: [gaps, len(DEVICE)].
        unexplained: What remains.
        released_by: Row of the kernel that released it; -1.
    """

    of: Stream
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    step: NDArray[np.int64]
    before: NDArray[np.int64]
    launch: NDArray[np.int64]
    host: NDArray[np.int64]
    device: NDArray[np.int64]
    unexplained: NDArray[np.int64]
    released_by: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start)

    @property
    def duration(self) -> NDArray[np.int64]:
        """Length of each, ns."""
        return self.end - self.start


def streams(profile: Profile) -> list[Stream]:
    """Streams with kernels, copies or fills, the one with most compute first."""
    rows = np.flatnonzero(profile.of(KERNEL, MEMCPY, MEMSET) & (profile.stream >= 0))
    if not len(rows):
        return []
    talks = np.zeros(len(profile.start), np.bool_)
    talks[profile.comm_rows] = True
    keys = profile.device[rows].astype(np.int64) << 32 | profile.stream[rows]
    found = []
    known, first = np.unique(np.sort(keys), return_index=True)
    per_stream = np.split(rows[np.argsort(keys, kind="stable")], first[1:])
    for key, mine in zip(known.tolist(), per_stream, strict=True):
        length = profile.end[mine] - profile.start[mine]
        talking = int(length[talks[mine]].sum())
        cover = Cover(profile.start[mine], profile.end[mine])
        found.append(Stream(key >> 32, key & 0xFFFFFFFF, mine, 2 * talking > int(length.sum()), cover))
    return sorted(found, key=lambda s: (s.is_comm, -int(s.busy.total[-1])))


def attribute(profile: Profile) -> Iterator[Gaps]:
    """The gaps of each stream with what they waited for, stream by stream: a thousand would fill memory."""
    every = streams(profile)
    if not every:
        return
    threads = _Threads(profile)
    launches = _Launches(profile)
    on_device: dict[int, list[Stream]] = {}
    for one in every:
        on_device.setdefault(one.device, []).append(one)
    devices = {device: _Device(profile, found) for device, found in on_device.items()}
    for one in every:
        yield _of_stream(profile, one, devices[one.device], threads, launches)


def _of_stream(
    profile: Profile, one: Stream, beside: _Device, threads: _Threads, launches: _Launches
) -> Gaps:
    first, last = one.busy.gaps()
    before = one.rows[np.searchsorted(profile.start[one.rows], last)]
    start, end, at = _cut(first, last, profile.steps.start, profile.steps.end)
    before = before[at]
    call, ready = launches.of(before)
    host_end = np.clip(np.where(call >= 0, ready, start), start, end)
    lane = np.where(call >= 0, profile.lane[np.maximum(call, 0)], -1)
    host = threads.between(lane, start, host_end)
    inside = launches.inside_graph(before, call)
    device, rest, released = _device_part(profile, one, beside, host_end, end, last[at], inside)
    middle = profile.steps.of(start)
    return Gaps(one, start, end, middle, before, call, host, device, rest, released)


def _cut(
    first: NDArray[np.int64], last: NDArray[np.int64], *edges: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Windows cut at the edges of steps: (starts, ends, index of the whole window)."""
    marks = np.unique(np.concatenate(edges)) if edges else np.empty(0, np.int64)
    low, high = np.searchsorted(marks, first, side="right"), np.searchsorted(marks, last, side="left")
    parts = high - low + 1
    at = np.repeat(np.arange(len(first)), parts)
    nth = np.arange(len(at)) - np.repeat(np.cumsum(parts) - parts, parts)
    padded = np.append(marks, 0)
    start = np.where(nth == 0, first[at], padded[np.minimum(low[at] + nth - 1, len(marks))])
    end = np.where(nth == parts[at] - 1, last[at], padded[np.minimum(low[at] + nth, len(marks))])
    return start.astype(np.int64), end.astype(np.int64), at


def _device_part(
    profile: Profile, one: Stream, beside: _Device, start: NDArray[np.int64], end: NDArray[np.int64],
    kernel_start: NDArray[np.int64], inside: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:  # fmt: skip
    """[gaps, DEVICE], what remains, and the row that released each kernel (-1)."""
    out = np.zeros((len(start), len(DEVICE)), np.int64)
    left = end - start
    released = beside.ended_last(one, kernel_start)
    when = np.where(released >= 0, profile.end[released], -1)
    released = np.where((when > start) & (kernel_start - when <= REACH_NS), released, -1)
    has = released >= 0
    comm = has & beside.talks[released]
    # From where the releasing kernel ran (or the device part began) until the kernel started.
    since = np.where(has, np.maximum(start, profile.start[np.maximum(released, 0)]), end)
    given = np.clip(end - since, 0, left)
    out[:, 0], out[:, 1] = np.where(comm, given, 0), np.where(comm, 0, given)
    until = end - given
    out[:, 2], out[:, 3] = (beside.busy[kind].within(start, until) for kind in (True, False))
    both = np.maximum(out[:, 2] + out[:, 3] - (until - start), 0)  # time under both counts as communication
    out[:, 3] -= np.minimum(both, out[:, 3])
    rest = left - out.sum(axis=1)
    latency = ~inside & (rest <= LATENCY_NS)
    out[:, 4], out[:, 5] = np.where(inside, rest, 0), np.where(latency, rest, 0)
    return out, np.where(inside | latency, 0, rest), released


class _Device:
    """All streams of one device together, so that many streams cost no pairs of them.

    Args:
        profile: The trace.
        found: Its streams on the device.
    """

    def __init__(self, profile: Profile, found: list[Stream]) -> None:
        self.talks = np.zeros(len(profile.start), np.bool_)
        self.talks[profile.comm_rows] = True
        rows = np.concatenate([s.rows for s in found])
        place = np.repeat(np.arange(len(found)), [len(s.rows) for s in found])
        order = np.lexsort((-place, profile.end[rows]))  # of equal ends the first stream comes last
        self.rows, self.end, self.place = rows[order], profile.end[rows[order]], place[order]
        self.places = {s.stream: i for i, s in enumerate(found)}
        runs = np.flatnonzero(np.diff(self.place, prepend=-1))
        self.before_run = np.repeat(runs, np.diff(runs, append=len(order))) - 1
        # A window of a stream's own gap holds nothing of that stream: its own busy time does not count.
        self.busy = {kind: _union([s.busy for s in found if s.is_comm is kind]) for kind in (True, False)}

    def ended_last(self, one: Stream, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of the other streams that ended last at or before each time; -1 for none."""
        at = np.searchsorted(self.end, times, side="right") - 1
        own = (at >= 0) & (self.place[at] == self.places[one.stream])
        at = np.where(own, self.before_run[at], at)
        return np.where(at >= 0, self.rows[at], -1)


def _union(covers: list[Cover]) -> Cover:
    nothing = [np.empty(0, np.int64)]
    return Cover(
        np.concatenate([c.start for c in covers] or nothing),
        np.concatenate([c.end for c in covers] or nothing),
    )


class _Launches:
    """The call that launched each kernel, and until when the kernel could not start."""

    def __init__(self, profile: Profile) -> None:
        calls = np.flatnonzero(profile.of(RUNTIME, DRIVER) & (profile.correlation >= 0))
        order = np.argsort(profile.correlation[calls], kind="stable")
        self.calls, self.profile = calls[order], profile
        self.ids = profile.correlation[self.calls]
        used = np.unique(profile.name[self.calls])
        self.graphs = used[np.array([bool(GRAPH.search(profile.names[i])) for i in used.tolist()], np.bool_)]
        kernels = np.flatnonzero(profile.of(KERNEL, MEMCPY, MEMSET) & (profile.correlation >= 0))
        self.launched, first = np.unique(profile.correlation[kernels], return_index=True)
        self.first = kernels[first]  # rows are in order of time

    def of(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(row of the call or -1, end of the call); a launch may return after its kernel began."""
        if not len(self.calls):
            return np.full(len(rows), -1), np.zeros(len(rows), np.int64)
        wanted = self.profile.correlation[rows]
        at = np.minimum(np.searchsorted(self.ids, wanted), len(self.ids) - 1)
        known = (self.ids[at] == wanted) & (wanted >= 0)
        call = np.where(known, self.calls[at], -1)
        return call, self.profile.end[np.maximum(call, 0)]

    def inside_graph(self, rows: NDArray[np.int64], call: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Kernels of a graph other than its first: the graph, not the host, decides when they start."""
        p = self.profile
        if not len(self.calls) or not len(self.first):
            return np.zeros(len(rows), np.bool_)
        by_graph = (call >= 0) & np.isin(p.name[np.maximum(call, 0)], self.graphs)
        at = np.minimum(np.searchsorted(self.launched, p.correlation[rows]), len(self.launched) - 1)
        return np.asarray(by_graph & (self.first[at] != rows))


class _Threads:
    """What each host thread does at each instant, as classes of HOST."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.classes = _classes(profile)
        self.lines: dict[int, dict[int, Cover]] = {}

    def between(
        self, lane: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """[windows, HOST] ns of each class on the lane of each window; NOTHING where no slice runs."""
        out = np.zeros((len(start), len(HOST)), np.int64)
        for one in np.unique(lane[(lane >= 0) & (end > start)]).tolist():
            at = np.flatnonzero((lane == one) & (end > start))
            for kind, cover in self._line(one).items():
                out[at, kind] = cover.within(start[at], end[at])
        out[:, NOTHING] = (end - start) - np.delete(out, NOTHING, axis=1).sum(axis=1)
        return out

    def _line(self, lane: int) -> dict[int, Cover]:
        """When each class ran on a lane."""
        if lane not in self.lines:
            from moexray.kernels.nesting import innermost

            p = self.profile
            rows = np.flatnonzero((p.lane == lane) & (self.classes >= 0))
            rows = rows[np.lexsort((-p.end[rows], p.start[rows]))]
            kinds = self.classes[rows]
            spread = np.isin(kinds, (JIT, GC, ALLOCATOR, SYNCHRONISE))
            edges, owner = innermost(p.start[rows], p.end[rows], spread)
            kind = np.where(owner >= 0, kinds[np.maximum(owner, 0)], NOTHING)
            pieces = {int(k): np.flatnonzero(kind == k) for k in np.unique(kind) if k != NOTHING}
            self.lines[lane] = {k: Cover(edges[at], edges[at + 1]) for k, at in pieces.items()}
        return self.lines[lane]


def _classes(profile: Profile) -> NDArray[np.int64]:
    """[rows], class of HOST; -1 for slices that are not of a host thread."""
    calls = (
        (STARTING, LAUNCHING), (POLLING, POLL), (SYNCHRONISING, SYNCHRONISE), (COPYING, SYNCHRONISE),
        (DEVICE_MEMORY, ALLOCATOR), (COMPILE, JIT),
    )  # fmt: skip
    frames = ((COMPILING, JIT), (COLLECT, GC))
    out = np.full(len(profile.name), -1)
    for mask, patterns, other in (
        (profile.of(RUNTIME, DRIVER), calls, OTHER_CALL),
        (profile.of(OPERATOR, ANNOTATION), frames, IN_OPERATOR),
        (profile.of(PYTHON), frames, IN_PYTHON),
    ):
        table = np.full(len(profile.names), other)
        for i in np.unique(profile.name[mask]).tolist():
            for pattern, kind in patterns:
                if pattern.search(profile.names[i]):
                    table[i] = kind
        out[mask] = table[profile.name[mask]]
    return out
