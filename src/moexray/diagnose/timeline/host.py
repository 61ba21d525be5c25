"""When the host thread of a rank stood still, or that of all ranks at once, and which record says why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.timeline_host import (
    COLLECT,
    COMPILE,
    REARRANGE,
    SNAPSHOT,
    Silences,
    cover_of,
    has_host,
    silences,
)
from moexray.analyse.worker_lines import count_in, lines_in, worker_lines
from moexray.diagnose.timeline.still import Spikes, Stops, compiled, moved, paused, stalled, written

if TYPE_CHECKING:
    import re

    from numpy.typing import NDArray

    from moexray.analyse.timeline import Profile
    from moexray.analyse.timeline_comm import Capture
    from moexray.analyse.worker_lines import WorkerLine
    from moexray.core.finding import Finding
    from moexray.core.limits import Limits
    from moexray.core.limits.timeline import TimelineLimits
    from moexray.core.run import Run

__all__ = ["standing"]


@dataclass(frozen=True, slots=True)
class Record:
    """What may stop a host, and what it leaves behind.

    Args:
        frames: Names of slices that run meanwhile.
        lines: Kinds of log lines about it.
        own_lane: Only slices of a launching thread count: elsewhere it runs in the background.
        shared: All ranks take part: a line of one speaks for all, and says nothing of a rank alone.
    """

    frames: re.Pattern[str]
    lines: tuple[str, ...]
    own_lane: bool = False
    shared: bool = False


MOVED, WRITTEN, COMPILED, COLLECTED = range(4)
RECORDS = (  # the first that explains a silence names it
    Record(REARRANGE, ("eplb.done",), own_lane=True, shared=True),
    Record(SNAPSHOT, ("mem.snapshot",)),
    Record(COMPILE, ("jit.compile",)),
    Record(COLLECT, ("host.gc", "gc")),
)


def standing(run: Run, capture: Capture, limits: Limits) -> list[Finding]:
    """One finding per rank and cause; one for all ranks where they stood still together."""
    t = limits.timeline
    found: list[Finding] = []
    still: dict[int, Silences] = {}
    costly: dict[int, NDArray[np.int64]] = {}
    for at, profile in enumerate(capture.usable):
        step = _step(profile, capture)
        if not np.isfinite(step):
            continue
        still[at] = silences(profile, t.burst_steps * step)
        costly[at] = _that_cost(profile, still[at], capture, t.still_share)
        found += _of_rank(run, profile, still[at], costly[at], capture, limits)
    if still:
        found += _of_all(run, capture, still, costly, limits)
    return found


def _step(profile: Profile, capture: Capture) -> float:
    own = profile.steps.median_ns
    return own if np.isfinite(own) or not len(capture.collectives) else capture.collectives.step_ns


def _that_cost(
    profile: Profile, still: Silences, capture: Capture, share: float
) -> NDArray[np.int64]:
    """Silences that others waited for; on a rank alone: those inside a step."""
    c = capture.collectives
    if not len(c) or profile not in c.profiles:
        annotated = profile.steps.derived == "annotation"  # only these tell work from idle time
        return np.flatnonzero((still.step >= 0) & annotated)
    rank = c.profiles.index(profile)
    mine = np.flatnonzero((c.late == rank) & (c.cause == rank))
    arrival, lateness = c.start[rank, mine], c.lateness[mine]
    keep = []
    for i in range(len(still)):
        length = still.end[i] - still.start[i]
        after = (arrival >= still.start[i]) & (arrival - lateness < still.end[i])
        if (after & (lateness >= share * length)).any():
            keep.append(i)
    return np.array(keep, np.int64)


def _of_rank(
    run: Run, profile: Profile, still: Silences, costly: NDArray[np.int64], capture: Capture, limits: Limits
) -> list[Finding]:
    """What the silences of one rank that cost time come from, and compilation inside its steps."""
    start, end = still.start[costly], still.end[costly]
    step = _step(profile, capture)
    alone = len(capture.usable) > 1
    why, lines = _explained(run, profile, (start, end), limits.timeline, alone=alone)
    stops = Stops(profile, start, end, lines, step, seen=has_host(profile))
    found: list[Finding] = []
    if (why == MOVED).any():
        found.append(moved(stops.only(why == MOVED), limits))
    if (why == WRITTEN).any():
        found.append(written(stops.only(why == WRITTEN), limits))
    spikes = _compile_spikes(profile, capture, limits)
    found += compiled(stops, why == COMPILED, spikes, limits)
    if (why == COLLECTED).any():
        found.append(paused(stops.only(why == COLLECTED), limits))
    unknown = why < 0
    length = end - start
    if stops.seen and length[unknown].sum() > limits.timeline.silence_share * length.sum():
        found.append(stalled(stops.only(unknown), limits))
    return found


def _explained(
    run: Run, profile: Profile, windows: tuple[NDArray[np.int64], NDArray[np.int64]], t: TimelineLimits, *,
    alone: bool,
) -> tuple[NDArray[np.int64], list[WorkerLine | None]]:  # fmt: skip
    """(index into RECORDS of each silence, -1 unknown; the log line that tells it, if one does)."""
    start, end = windows
    why = np.full(len(start), -1)
    lines: list[WorkerLine | None] = [None] * len(start)
    seconds = [(a / 1e9, b / 1e9) for a, b in zip(start.tolist(), end.tolist(), strict=True)]
    for at, record in enumerate(RECORDS if len(start) else ()):
        frames = cover_of(profile, record.frames, own_lane=record.own_lane)
        hit = frames.within(start, end) >= t.silence_share * (end - start)
        for i, line in enumerate(_lines(run, profile, record, seconds, t, alone=alone)):
            if why[i] < 0 and (hit[i] or line is not None):
                why[i], lines[i] = at, line
    return why, lines


def _lines(
    run: Run, profile: Profile, record: Record, windows: list[tuple[float, float]], t: TimelineLimits, *,
    alone: bool,
) -> list[WorkerLine | None]:  # fmt: skip
    """The line of each silence that tells this record of it."""
    every = worker_lines(run, *record.lines)
    if record.shared:
        told = lines_in([] if alone else every, windows, t.line_slack_s, t.move_most)
        begin, stop = profile.window
        meant = count_in(every, (begin / 1e9, stop / 1e9), t.line_slack_s)
        few = sum(x is not None for x in told) < t.move_share * meant
        return [None] * len(windows) if few else told  # most moves stopped nothing: they ran behind it
    own = [x for x in every if x.rank is not None and x.rank == profile.rank]
    slack = t.gc_log_slack_s if record is RECORDS[COLLECTED] else t.line_slack_s
    return lines_in(own, windows, slack)


def _compile_spikes(profile: Profile, capture: Capture, limits: Limits) -> Spikes:
    """Steps that take far longer than the others without waiting for anybody, and compiler frames in them."""
    steps = profile.steps
    own = _own_time(profile, capture)
    spikes = np.flatnonzero(own > limits.timeline.burst_steps * steps.median_ns)
    spikes = spikes[spikes > 1]  # the first steps of a trace warm up
    start, end = steps.start[spikes], steps.end[spikes]
    covered = cover_of(profile, COMPILE).within(start, end)
    hit = covered >= limits.timeline.silence_share * (own[spikes] - steps.median_ns)
    return Spikes(start, end, covered, hit)


def _own_time(profile: Profile, capture: Capture) -> NDArray[np.int64]:
    """[steps] ns of each step without the waiting for ranks that came later."""
    own = profile.steps.duration.copy()
    c = capture.collectives
    if len(own) and len(c) and profile in c.profiles:
        rank = c.profiles.index(profile)
        here = np.flatnonzero(c.present[rank])
        step = profile.steps.of(c.start[rank, here])
        waited = c.duration[rank, here] - c.transfer[here]
        np.subtract.at(own, step[step >= 0], waited[step >= 0].astype(np.int64))
    return own


def _of_all(
    run: Run, capture: Capture, still: dict[int, Silences], costly: dict[int, NDArray[np.int64]],
    limits: Limits,
) -> list[Finding]:  # fmt: skip
    """Silences of all ranks at the same time: a move of experts or a dump stops the engine as a whole.

    Without a record they are no fault: a server without requests stands still, too.
    """
    base = min(still)
    profile, mine = capture.usable[base], still[base]
    together = np.setdiff1d(np.arange(len(mine)), costly[base])
    for at, other in still.items():
        if at != base:
            shift = capture.collectives.shift(capture.usable[at], profile)
            shared = other.within(mine.start + shift, mine.end + shift)
            enough = shared >= limits.timeline.still_share * (mine.end - mine.start)
            together = together[enough[together]]
    start, end = mine.start[together], mine.end[together]
    why, lines = _explained(run, profile, (start, end), limits.timeline, alone=False)
    stops = Stops(profile, start, end, lines, _step(profile, capture), everyone=len(still) > 1)
    found = [moved(stops.only(why == MOVED), limits)] if (why == MOVED).any() else []
    return found + ([written(stops.only(why == WRITTEN), limits)] if (why == WRITTEN).any() else [])
