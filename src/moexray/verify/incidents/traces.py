"""Writes the profiler traces of an incident, one per rank, each on its own clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moexray.verify.incidents.machine import Event, Story
    from moexray.verify.incidents.plan import Plan

__all__ = ["BASE_NS", "START_US", "trace"]

BASE_NS = 1_790_857_026_000_000_000  # the profiler's constant of the quarter: the same on all ranks
START_US = 2_142_974_000_000.0  # of the machine's clock after it
STREAMS = {"compute": 7, "side": 21, "comm": 27}
STARTUP = 6  # allocations before the first step, a decoy


def trace(plan: Plan, story: Story, rank: int) -> dict[str, Any]:
    """The document of one rank."""
    clock = _Clock(plan, rank)
    events = [_slice(clock, rank, e) for e in story.events[rank] if _shown(plan, story, e, rank)]
    events += [_slice(clock, rank, e) for e in _decoys(plan, story, rank)]
    events.sort(key=lambda e: e["ts"])
    head: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 84_942_979_072}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": plan.ranks},
    }
    if not plan.whole_us:
        head["baseTimeNanoseconds"] = BASE_NS
    names = {"ph": "M", "name": "process_name", "pid": 2200 + rank, "tid": 0, "args": {"name": "python3"}}
    return {**head, "displayTimeUnit": "ms", "traceEvents": [names, *events]}


class _Clock:
    """True us since the start -> us as the trace counts them."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self.shift = START_US + plan.offset_us[rank]
        self.rate = 1 + plan.drift_ppm[rank] * 1e-6
        self.epoch = BASE_NS // 1000 if plan.whole_us else None

    def stamp(self, start: float, dur: float) -> tuple[float | int, float | int]:
        """(ts, dur)."""
        if self.epoch is None:
            return round(self.shift + start * self.rate, 3), round(dur * self.rate, 3)
        first = int(self.shift + start * self.rate)
        return self.epoch + first, int(self.shift + (start + dur) * self.rate) - first


def _shown(plan: Plan, story: Story, event: Event, rank: int) -> bool:
    if event.start < story.begin[plan.late_start[rank]]:
        return False
    if "host" in plan.withheld and event.cat in ("cpu_op", "cuda_runtime"):
        return False
    record = event.cat == "python_function" or event.name == "eplb_rearrange"
    everyone = any(c.kind == "rearrange" for c in plan.causes)
    return not (record and "frames" in plan.withheld and (everyone or rank in plan.guilty))


def _slice(clock: _Clock, rank: int, event: Event) -> dict[str, Any]:
    ts, dur = clock.stamp(event.start, event.dur)
    out = {"ph": "X", "cat": event.cat, "name": event.name, "ts": ts, "dur": dur, "args": event.args}
    if event.lane in ("host", "thread"):
        return {**out, "pid": 2200 + rank, "tid": 2200 + rank + 7 * (event.lane == "thread")}
    stream = STREAMS[event.lane]
    args = {"device": 0, "context": 1, "stream": stream, "queued": 0, **event.args}
    return {**out, "pid": 0, "tid": stream, "args": args}


def _decoys(plan: Plan, story: Story, rank: int) -> list[Event]:
    from moexray.verify.incidents.machine import MOVE, Event

    found = []
    if "startup_malloc" in plan.decoys:
        found += [
            Event(
                "cuda_runtime", "cudaMalloc", "host", story.begin[0] - 1000.0 * (STARTUP - i) - 900, 800.0, {}
            )
            for i in range(STARTUP)
        ]
    if "tiny_frees" in plan.decoys:
        for step in range(3, plan.steps, 9):
            at = story.end[step] - 25.0  # while the host waits for the last kernel of the step
            found += [Event("cuda_runtime", n, "host", at, 2.0, {}) for n in ("cudaFree", "cudaMalloc")]
    if "jit_thread" in plan.decoys:  # a kernel for later, on a thread that launches nothing
        name, at = "triton/compiler/compiler.py(245): compile", story.begin[plan.steps // 4]
        found.append(Event("python_function", name, "thread", at, 41_000.0, {}))
    if "moves_behind" in plan.decoys:  # on a thread of its own
        found += [
            Event("user_annotation", "eplb_rearrange", "thread", start, MOVE, {})
            for start in story.moves_behind()
        ]
    if "innocent_gc" in plan.decoys:
        found.append(
            Event("python_function", "Python GC", "host", story.end[plan.steps // 2] - 600.0, 80.0, {})
        )
    return found if rank == plan.seed % plan.ranks else []
