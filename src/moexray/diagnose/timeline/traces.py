"""What traces say: allocator stalls, clocks, the set of ranks; waits and silences stand beside it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.timeline import ANNOTATION, OPERATOR, PYTHON
from moexray.analyse.timeline_comm import survey
from moexray.analyse.timeline_host import EMPTY_CACHE, alloc_calls
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy
from moexray.diagnose.timeline.host import standing
from moexray.diagnose.timeline.waits import waits

if TYPE_CHECKING:
    from moexray.analyse.timeline import Profile
    from moexray.analyse.timeline_comm import Capture, Collectives
    from moexray.analyse.timeline_host import AllocCalls
    from moexray.core.limits import Limits
    from moexray.core.run import Run

__all__ = ["find"]

MS = 1e6
SHOWN = 4
DERIVED_LEAST = 3  # steps with calls that must be seen where steps are not annotated but derived
MOST_RANKS = 1 << 16  # a world size above is taken for damage


def find(run: Run, limits: Limits) -> list[Finding]:
    """All that traces say; the captures are matched once."""
    captures = survey(run)
    found: list[Finding] = []
    for capture in captures:
        found += waits(run, capture, limits)
        if not any(p.cut for p in capture.profiles):
            found += allocator(capture, limits)
            found += standing(run, capture, limits)
    return [*found, *clocks(captures, limits), *rank_set(captures)]


def allocator(capture: Capture, limits: Limits) -> list[Finding]:
    """mem.alloc_stall, mem.empty_cache_in_hot_path: one finding per rank."""
    found: list[Finding] = []
    for profile in capture.profiles:
        if not len(profile.steps):
            continue
        calls = alloc_calls(profile, capture.collectives.waiting(profile))
        if len(calls.steps) < (1 if profile.steps.derived == "annotation" else DERIVED_LEAST):
            continue
        time = profile.steps.duration[calls.steps]
        share = float(calls.exposed.sum() / max(1, time.sum()))
        if share < limits.timeline.alloc_ratio:
            continue
        cleared = _empty_cache_steps(profile)
        hot = cleared >= limits.timeline.empty_cache_ratio * len(profile.steps)
        found.append(_stall(profile, calls, share, limits, cause=hot))
        if hot:
            found.append(_empty_cache(profile, calls, cleared, share, limits))
    return found


def _empty_cache_steps(profile: Profile) -> int:
    """Steps in which an empty_cache frame runs."""
    rows = profile.named(EMPTY_CACHE, PYTHON, ANNOTATION, OPERATOR)
    step = profile.steps.of(profile.start[rows])
    return len(np.unique(step[step >= 0]))


def _numbers(profile: Profile, calls: AllocCalls) -> dict[str, object]:
    steps = profile.steps
    with_calls = np.isin(np.arange(len(steps)), calls.steps)
    count = len(calls.steps)
    length = profile.end[calls.row] - profile.start[calls.row]
    frees, allocs = calls.release, ~calls.release
    return {
        "stall_steps": count,
        "steps": len(steps),
        "normal_step_ms": _median(steps.duration[~with_calls]),
        "stall_step_ms": _median(steps.duration[with_calls]),
        "stall_ms_per_step": float(np.median(calls.total)) / MS,
        "free_calls_per_stall": float(frees.sum() / count),
        "malloc_calls_per_stall": float(allocs.sum() / count),
        "free_ms": _median(length[frees]),
        "malloc_ms": _median(length[allocs]),
        "idle_stall_ms": float(calls.exposed.sum()) / MS,
        "calls_outside_steps": calls.outside,
    }


def _median(values: np.ndarray) -> float | None:
    return float(np.median(values)) / MS if len(values) else None


def _stall(profile: Profile, calls: AllocCalls, share: float, limits: Limits, *, cause: bool) -> Finding:
    n = _numbers(profile, calls)
    steps = profile.steps
    names = sorted({profile.names[i] for i in profile.name[calls.row]})
    normal = f" against {n['normal_step_ms']:.1f} ms of the others" if n["normal_step_ms"] is not None else ""
    growth = (
        remedy("bucket-shapes"),
        remedy("preallocate-largest"),
        remedy("gc-threshold", env="PYTORCH_ALLOC_CONF"),
        remedy("leave-headroom", setting="the engine's memory share"),
        remedy("try-segments"),
    )
    evidence = [Evidence(profile.source, f"{profile.who}, steps with {', '.join(names)}", pairs(n))]
    for position in calls.steps[np.argsort(-calls.exposed)][:SHOWN]:
        here = calls.step == position
        evidence.append(_step_evidence(profile, calls, int(position), here))
    first, last = int(calls.steps[0]), int(calls.steps[-1])
    return Finding(
        id="mem.alloc_stall",
        severity="warn",
        confidence=0.9 if n["normal_step_ms"] is not None else 0.8,
        claim=f"{_did(profile, n, share)}; such a step takes {n['stall_step_ms']:.1f} ms{normal}.",
        subject=Subject(
            rank=profile.rank,
            step_from=int(steps.label[first]),
            step_to=int(steps.label[last]),
            t_from_ns=int(steps.start[first]),
            t_to_ns=int(steps.end[last]),
        ),
        value=share,
        limit=limits.timeline.alloc_ratio,
        unit="ratio",
        evidence=tuple(evidence),
        implied_by=("mem.empty_cache_in_hot_path",) if cause else ("mem.fragmentation", "mem.churn"),
        remedies=(remedy("no-empty-cache"),) if cause else growth,
        settle_with=()
        if cause
        else ("allocator snapshot with history of this rank (what could not be reused)",),
        cost=float(calls.exposed.sum()) / 1e9,
    )


def _did(profile: Profile, n: dict[str, object], share: float) -> str:
    """What the steps with calls of the allocator do."""
    head = f"{profile.who}: {n['stall_steps']} of {n['steps']} steps"
    spent = f"{n['stall_ms_per_step']:.1f} ms on the launching thread, {share:.0%} of these steps"
    if profile.host_lanes is not None:
        return (
            f"{head} move the blocks of an arena to make room for a request "
            f"({n['malloc_calls_per_stall']:.3g} x {_ms(n['malloc_ms'])} = {spent})"
        )
    return (
        f"{head} give device memory back and fetch it again ({n['free_calls_per_stall']:.3g} x "
        f"{_ms(n['free_ms'])} release and {n['malloc_calls_per_stall']:.3g} x {_ms(n['malloc_ms'])} "
        f"allocation = {spent}) while the GPU is idle"
    )


def _ms(value: object) -> str:
    return _time(value * MS) if isinstance(value, int | float) else "-"


def _time(ns: float) -> str:
    unit, name = (1e9, "s") if ns >= 1e9 else (MS, "ms") if ns >= 0.1 * MS else (1e3, "us")
    return f"{ns / unit:.3g} {name}"


def _step_evidence(profile: Profile, calls: AllocCalls, position: int, here: np.ndarray) -> Evidence:
    steps = profile.steps
    length = (profile.end[calls.row] - profile.start[calls.row])[here]
    values = {
        "step_ms": float(steps.duration[position]) / MS,
        "free_calls": int(calls.release[here].sum()),
        "malloc_calls": int((~calls.release[here]).sum()),
        "stall_ms": float(length.sum()) / MS,
        "longest_call_ms": float(length.max()) / MS,
    }
    return Evidence(profile.source, f"step {int(steps.label[position])}", pairs(values))


def _empty_cache(profile: Profile, calls: AllocCalls, cleared: int, share: float, limits: Limits) -> Finding:
    n = _numbers(profile, calls)
    rows = profile.named(EMPTY_CACHE, PYTHON, ANNOTATION, OPERATOR)
    frame = profile.names[profile.name[rows[0]]]
    values = {"empty_cache_steps": cleared, "empty_cache_calls": len(rows), **n}
    return Finding(
        id="mem.empty_cache_in_hot_path",
        severity="warn",
        confidence=0.95,
        claim=(
            f"{profile.who}: empty_cache runs in {cleared} of {n['steps']} steps, and each pays "
            f"{n['stall_ms_per_step']:.1f} ms ({share:.0%} of the step) for releasing device memory and "
            f"fetching "
            "it again while the GPU is idle."
        ),
        subject=Subject(rank=profile.rank),
        value=cleared / len(profile.steps),
        limit=limits.timeline.empty_cache_ratio,
        unit="ratio",
        evidence=(Evidence(profile.source, f"{profile.who}, frame {frame}", pairs(values)),),
        remedies=(remedy("no-empty-cache"),),
        cost=float(calls.exposed.sum()) / 1e9,
    )


def clocks(captures: list[Capture], limits: Limits) -> list[Finding]:
    """trace.clock_skew: offsets between the ranks' clocks from the ends of matching collectives."""
    skews = (_skew(c.collectives, limits) for c in captures)
    return [f for f in skews if f][:1]


def _skew(collectives: Collectives, limits: Limits) -> Finding | None:
    if not len(collectives):
        return None
    t = limits.timeline
    typical = float(np.nanmedian(collectives.duration))
    large = [
        o
        for o in collectives.offsets
        if abs(o.offset_ns)
        >= max(t.skew_least_ns, t.skew_factor * o.residual_ns, t.skew_material_ratio * typical)
    ]
    if not large:
        return None
    worst = max(large, key=lambda o: abs(o.offset_ns))
    residual = max(o.residual_ns for o in large)
    base, who = collectives.profiles[0], collectives.profiles[worst.rank]
    late = float(np.median(collectives.lateness)) / MS
    evidence = tuple(
        Evidence(
            collectives.profiles[o.rank].source,
            f"{collectives.profiles[o.rank].who} against {base.who}, {o.matches} matching collectives",
            pairs(
                {
                    "offset_ms": o.offset_ns / MS,
                    "residual_ms": o.residual_ns / MS,
                    "drift_ppm": o.drift_ppm,
                    "matches": o.matches,
                }
            ),
        )
        for o in large
    )
    return Finding(
        id="trace.clock_skew",
        severity="warn",
        confidence=0.9 if worst.matches >= 10 else 0.75,  # ends of ten agree by no accident
        claim=(
            f"The clocks of the ranks differ: {who.who} is {_time(abs(worst.offset_ns))} "
            f"{'ahead of' if worst.offset_ns > 0 else 'behind'} {base.who} ({_time(residual)} are left "
            f"after alignment). Times between ranks hold only after alignment; aligned, collectives are "
            f"late by {late:.3g} ms in the median."
        ),
        subject=Subject(rank=who.rank),
        value=abs(worst.offset_ns) / 1e9,
        limit=t.skew_factor * worst.residual_ns / 1e9,
        unit="s",
        evidence=evidence,
        remedies=(remedy("clock-align"),),
    )


def rank_set(captures: list[Capture]) -> list[Finding]:
    """input.rank_set: ranks that are missing from a set of traces or occur twice in it."""
    found = []
    for group in (c.profiles for c in captures):
        ranks = sorted(p.rank for p in group if p.rank is not None)
        double = sorted({r for r in ranks if ranks.count(r) > 1})
        worlds = [p.world_size for p in group if p.world_size]
        expected = set(range(max(worlds))) if worlds and max(worlds) <= MOST_RANKS else _members(group)
        if not expected or len(ranks) < 2:
            continue
        missing = sorted(expected - set(ranks))
        world = max(worlds, default=len(expected))
        if missing or double:
            found.append(_ranks_finding(group, ranks, double, missing, world))
    return found[:1]


def _members(group: list[Profile]) -> set[int]:
    """Ranks that the groups of the collectives name; empty if a list is cut."""
    texts = {t for p in group if p.comm is not None for t in p.comm["ranks"] if t and "..." not in t}
    return {int(n) for text in texts for n in re.findall(r"\d+", text)}


def _ranks_finding(
    group: list[Profile], ranks: list[int], double: list[int], missing: list[int], world: int | None
) -> Finding:
    parts = []
    if double:
        files = [p.source for p in group if p.rank in double]
        parts.append(
            f"rank {_some(double)} occurs more than once ({', '.join(files[:4])}); none of these is merged"
        )
    if missing:
        parts.append(f"rank {_some(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    text = {"world_size": world, "found": len(ranks), "missing": len(missing), "double": len(double)}
    return Finding(
        id="input.rank_set",
        severity="warn",
        confidence=0.95,
        claim=f"The traces are of ranks {_some(ranks)}"
        + (f" of a world of {world}: " if world else ": ")
        + "; ".join(parts)
        + ". What needs all ranks is weaker.",
        value=float(len(missing) + len(double)),
        limit=0.0,
        unit="count",
        evidence=tuple(
            Evidence(p.source, "distributedInfo" if p.world_size else "name", pairs({"rank": p.rank, **text}))
            for p in group[:20]
        ),
        settle_with=tuple(f"the trace of rank {r}" for r in missing[:8]),
    )


def _some(ranks: list[int]) -> str:
    text = ", ".join(map(str, ranks[:12]))
    return text + (f" and {len(ranks) - 12} more" if len(ranks) > 12 else "")
