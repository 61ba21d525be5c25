"""host.gc_pause, host.stall and compilation inside steps: when the host thread of a rank stood still."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.collector import collector_lines, lines_in
from moexray.analyse.timeline_host import COLLECT, COMPILE, REARRANGE, cover_of, silences
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moexray.analyse.collector import CollectorLine
    from moexray.analyse.timeline import Profile
    from moexray.analyse.timeline_comm import Capture
    from moexray.analyse.timeline_host import Silences
    from moexray.core.limits import Limits
    from moexray.core.run import Run

__all__ = ["standing"]

MS = 1e6
STACKS = ("stacks of the launching thread (py-spy dump --native)", "scheduler trace (perf sched)",
          "a profile with the GIL enabled (with_stack=True, nsys --python-sampling)")  # fmt: skip
SHOWN = 8
HALF = 0.5  # lateness / silence from which the silence is what the others waited for


def standing(run: Run, capture: Capture, limits: Limits) -> list[Finding]:
    """One finding per rank and cause."""
    found: list[Finding] = []
    for profile in capture.usable:
        step = profile.steps.median_ns
        if not np.isfinite(step):
            step = capture.collectives.step_ns if len(capture.collectives) else float("nan")
        if not np.isfinite(step):
            continue
        found += _compiles(profile, _own_time(profile, capture), step, limits)
        still = silences(profile, limits.timeline.burst_steps * step)
        keep = _that_cost(profile, still, capture)
        if len(keep):
            found += _silent(run, profile, still, keep, step, limits)
    return found


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


def _that_cost(profile: Profile, still: Silences, capture: Capture) -> NDArray[np.int64]:
    """Silences that others waited for; on a rank alone: those inside a step."""
    c = capture.collectives
    if not len(c) or profile not in c.profiles:
        annotated = profile.steps.derived == "annotation"  # only these tell work from idle time
        return np.flatnonzero((still.step >= 0) & annotated)
    rank = c.profiles.index(profile)
    mine = np.flatnonzero((c.late == rank) & c.present[rank])
    keep = []
    for i in range(len(still)):
        length = still.end[i] - still.start[i]
        arrival = c.start[rank, mine]
        after = (arrival >= still.start[i]) & (arrival - c.lateness[mine] < still.end[i])
        if (after & (c.lateness[mine] >= HALF * length)).any():
            keep.append(i)
    return np.array(keep, np.int64)


def _silent(
    run: Run, profile: Profile, still: Silences, keep: NDArray[np.int64], step: float, limits: Limits
) -> list[Finding]:
    share = limits.timeline.silence_share
    start, end = still.start[keep], still.end[keep]
    length = end - start
    other = cover_of(profile, COMPILE).within(start, end) + cover_of(profile, REARRANGE).within(start, end)
    open_ones = np.flatnonzero(other < share * length)
    if not len(open_ones):
        return []
    start, end, length = start[open_ones], end[open_ones], length[open_ones]
    collected = cover_of(profile, COLLECT).within(start, end) >= share * length
    lines = _log_lines(run, profile, start, end, limits)
    collected |= np.array([line is not None for line in lines], bool)
    found = []
    if collected.any():
        found.append(_pause(profile, start, end, collected, lines, step, limits))
    unknown = ~collected
    if length[unknown].sum() > share * length.sum():
        found.append(_stall(profile, start[unknown], end[unknown], step, limits))
    return found


def _log_lines(
    run: Run, profile: Profile, start: NDArray[np.int64], end: NDArray[np.int64], limits: Limits
) -> list[CollectorLine | None]:
    lines = [x for x in collector_lines(run) if x.rank == profile.rank and x.rank is not None]
    windows = [(a / 1e9, b / 1e9) for a, b in zip(start.tolist(), end.tolist(), strict=True)]
    return lines_in(lines, windows, limits.timeline.gc_log_slack_s)


def _window(profile: Profile, start: NDArray[np.int64], end: NDArray[np.int64]) -> Subject:
    step = profile.steps.of((start + end) // 2)
    label = profile.steps.label
    inside = step >= 0
    return Subject(
        rank=profile.rank,
        step_from=int(label[step[inside][0]]) if inside.any() else None,
        step_to=int(label[step[inside][-1]]) if inside.any() else None,
        t_from_ns=int(start[0]),
        t_to_ns=int(end[-1]),
    )


def _gap_rows(profile: Profile, start: NDArray[np.int64], end: NDArray[np.int64]) -> list[Evidence]:
    rows = []
    steps = profile.steps.of((start + end) // 2)
    for a, b, step in list(zip(start.tolist(), end.tolist(), steps.tolist(), strict=True))[:SHOWN]:
        name = f"step {int(profile.steps.label[step])}" if step >= 0 else "between steps"
        rows.append(
            Evidence(
                profile.source, f"{name}, launching thread", pairs({"gap_ms": (b - a) / MS, "from_ns": a})
            )
        )
    return rows


def _pause(
    profile: Profile, start: NDArray[np.int64], end: NDArray[np.int64], collected: NDArray[np.bool_],
    lines: list[CollectorLine | None], step: float, limits: Limits,
) -> Finding:  # fmt: skip
    start, end = start[collected], end[collected]
    length = (end - start) / MS
    rows = profile.named(COLLECT)
    quoted = [Evidence(x.source, x.where, x.text) for x in lines if x is not None][:SHOWN]
    frames = sorted({profile.names[i] for i in profile.name[rows]})[:3]
    record = f"{len([x for x in lines if x])} log lines of this rank" if quoted else f"'{', '.join(frames)}'"
    numbers = {
        "pauses": len(length),
        "pause_ms": float(np.median(length)),
        "longest_ms": float(length.max()),
        "sum_ms": float(length.sum()),
        "step_ms": step / MS,
    }
    return Finding(
        id="host.gc_pause",
        severity="warn",
        confidence=0.9,
        claim=(
            f"{profile.who}: its launching thread stood still {len(length)} times for "
            f"{np.median(length):.4g} ms "
            f"in the median ({length.max():.4g} ms at most, {length.sum():.4g} ms in sum; a step takes "
            f"{step / MS:.3g} ms) while the garbage collector ran ({record}); its launches came late."
        ),
        subject=_window(profile, start, end),
        value=float(length.max()) / 1e3,
        limit=limits.timeline.burst_steps * step / 1e9,
        unit="s",
        evidence=(
            Evidence(profile.source, f"{profile.who}, silences of the launching thread", pairs(numbers)),
            *_gap_rows(profile, start, end),
            *quoted,
        ),
        remedies=(remedy("host-freeze-gc"),),
        cost=float(length.sum()) / 1e3,
    )


def _stall(
    profile: Profile, start: NDArray[np.int64], end: NDArray[np.int64], step: float, limits: Limits
) -> Finding:
    length = (end - start) / MS
    numbers = {"pauses": len(length), "pause_ms": float(np.median(length)), "longest_ms": float(length.max()),
               "sum_ms": float(length.sum()), "step_ms": step / MS}  # fmt: skip
    return Finding(
        id="host.stall",
        severity="warn",
        confidence=0.6,
        claim=(
            f"{profile.who}: its launching thread stood still {len(length)} times for "
            f"{np.median(length):.4g} ms "
            f"in the median ({length.max():.4g} ms at most; a step takes {step / MS:.3g} ms) without any "
            f"call, "
            "and nothing that was given says why."
        ),
        subject=_window(profile, start, end),
        value=float(length.max()) / 1e3,
        limit=limits.timeline.burst_steps * step / 1e9,
        unit="s",
        evidence=(
            Evidence(profile.source, f"{profile.who}, silences of the launching thread", pairs(numbers)),
            *_gap_rows(profile, start, end),
        ),
        remedies=(remedy("host-stacks"),),
        settle_with=STACKS,
        cost=float(length.sum()) / 1e3,
    )


def _compiles(profile: Profile, own: NDArray[np.int64], step: float, limits: Limits) -> list[Finding]:
    """jit.compile_in_hot_path: compiler frames fill at least half of the spikes that are this rank's own."""
    steps = profile.steps
    spikes = np.flatnonzero(own > limits.timeline.burst_steps * step)
    spikes = spikes[spikes > 1]  # the first steps of a trace warm up
    if not len(spikes):
        return []
    covered = cover_of(profile, COMPILE).within(steps.start[spikes], steps.end[spikes])
    excess = own[spikes] - step
    hit = covered >= limits.timeline.silence_share * excess
    if hit.sum() < 2 or hit.sum() < 0.5 * len(spikes):
        return []
    rows = profile.named(COMPILE)
    names = [profile.names[i] for i in profile.name[rows]]
    frame = max(dict.fromkeys(names), key=names.count)
    numbers = {
        "spikes": len(spikes), "with_compile": int(hit.sum()),
        "compile_ms": float(np.median(covered[hit])) / MS,
        "compile_sum_ms": float(covered[hit].sum()) / MS, "step_ms": step / MS,
        "longest_step_ms": float(steps.duration[spikes].max()) / MS,
    }  # fmt: skip
    return [
        Finding(
            id="jit.compile_in_hot_path",
            severity="warn",
            confidence=0.85,
            claim=(
                f"{profile.who} compiles kernels while serving: compiler frames fill {int(hit.sum())} of "
                f"{len(spikes)} steps that take more than {limits.timeline.burst_steps:.0f} median steps "
                f"({np.median(covered[hit]) / MS:.3g} ms each; a normal step takes {step / MS:.3g} ms)."
            ),
            subject=_window(profile, steps.start[spikes], steps.end[spikes]),
            value=float(hit.sum() / len(spikes)),
            limit=0.5,
            unit="ratio",
            evidence=(Evidence(profile.source, f"{profile.who}, frames such as {frame}", pairs(numbers)),),
            remedies=(remedy("jit-warm-up"), remedy("jit-cache")),
            cost=float(covered[hit].sum()) / 1e9,
        )
    ]
