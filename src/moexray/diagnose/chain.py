"""Links findings cause -> effect and puts the root cause first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.core.finding import SEVERITIES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moexray.core.finding import Finding

__all__ = ["CAUSED_BY", "link", "order", "unique"]

CAUSED_BY: dict[str, tuple[str, ...]] = {
    # consequence: the causes that it may follow from (VERDICTS, "usual chains")
    "comm.straggler_wait": (
        "jit.compile_skew",
        "jit.compile_in_hot_path",
        "ep.skew",
        "sched.dp_imbalance",
        "mem.alloc_stall",
        "mem.empty_cache_in_hot_path",
        "host.gc_pause",
        "host.stall",
        "ep.rearrange_stall",
        "mem.snapshot_overhead",
    ),
    "comm.missing_rank": ("jit.compile_skew", "mem.host_oom", "mem.true_exhaustion"),
    "comm.no_progress": ("comm.missing_rank", "comm.desync"),
    "comm.timeout_near": ("comm.straggler_wait",),
    "mem.alloc_retry_recovered": ("mem.alloc_stall", "mem.fragmentation"),
    "mem.alloc_stall": ("mem.empty_cache_in_hot_path", "mem.fragmentation", "mem.churn"),
    "ep.skew": ("ep.drift",),
    "mem.true_exhaustion": ("ep.skew_to_oom",),
    "mem.fragmentation_contributes": ("ep.skew_to_oom",),
    "mem.unbudgeted_activation": ("ep.skew_to_oom",),
}

# Families that speak of an artefact or of a number that misleads; they lead only when no fault
# of the system is found at warn or above (VERDICTS, order of findings, 2).
ABOUT_INPUTS = ("input.", "snapshot.", "smi.", "trace.", "metric.")
BANDS = (0.5, 0.7, 0.9)  # hypothesis, co-movement, specific pattern, arithmetic (VERDICTS, confidence)
ABOUT_NUMBERS = frozenset({"ep.metric_wrong_axis", "ep.counts_multiplied"})
# Causes that act on the rank that has them, and on no other.
OF_ONE_RANK = ("host.", "mem.", "jit.compile_in_hot_path", "ep.rearrange_stall")
VICTIMS = frozenset({"comm.timeout_near", "comm.no_progress"})  # their rank is one that waits


def unique(findings: Iterable[Finding]) -> list[Finding]:
    """Keeps one finding per id and subject (rank, device, layer): the most certain one."""
    best: dict[tuple[object, ...], Finding] = {}
    for f in findings:
        s = f.subject
        key = (f.id, s.rank, s.device, s.layer)
        if key not in best or f.confidence > best[key].confidence:
            best[key] = f
    return list(best.values())


def link(findings: list[Finding]) -> list[Finding]:
    """Drops causes that were not found; adds the usual chains where a rule named none.

    A hypothesis ("cannot tell") is never the cause of a finding that is certain, and what stops
    one rank is not the cause of what another rank does. A question that another input has answered
    (the same id is found for certain, on that rank if it names one) is dropped.
    """
    answered = {(f.id, rank) for f in findings if not f.cannot_tell for rank in (f.subject.rank, None)}
    findings = [f for f in findings if not f.cannot_tell or (f.id, f.subject.rank) not in answered]
    linked = []
    for f in findings:
        found = {c.id for c in findings if not c.cannot_tell and _reaches(c, f)}
        named = f.implied_by or CAUSED_BY.get(f.id, ())
        causes = tuple(dict.fromkeys(c for c in named if c in found and c != f.id))
        linked.append(f.with_causes(causes))
    return linked


def _reaches(cause: Finding, effect: Finding) -> bool:
    """Whether a cause can have this effect as far as their ranks go."""
    ranks = (cause.subject.rank, effect.subject.rank)
    alike = None in ranks or ranks[0] == ranks[1]
    return alike or effect.id in VICTIMS or not cause.id.startswith(OF_ONE_RANK)


def order(findings: list[Finding]) -> list[Finding]:
    """Puts causes before their consequences, and otherwise the gravest first.

    Of the findings whose causes are all said, the next is the one that speaks of the system (not
    of an artefact), leads to the worst severity, and is the most certain and costly. Of causes of
    one consequence that are about as certain, the one that explains more of it leads: a rule names
    them in that order. Hypotheses ("cannot tell") come last.
    """
    system = any(not _aside(f) and f.severity != "info" for f in findings)
    weight, place = _weights(findings), _places(findings)

    def key(f: Finding) -> tuple[object, ...]:
        aside = _aside(f) and (system or f.severity == "info")
        grave = (-weight[f.id], -SEVERITIES.index(f.severity))
        band = sum(f.confidence >= level for level in BANDS)
        return (f.cannot_tell, aside, *grave, -band, place.get(f.id, 0), -f.confidence, -f.cost)

    rest, out = sorted(findings, key=key), []
    while rest:
        waiting = {f.id for f in rest}
        free = (i for i, f in enumerate(rest) if not waiting.intersection(f.implied_by))
        out.append(rest.pop(next(free, 0)))  # a circle of causes is cut at its gravest member
    return out


def _aside(f: Finding) -> bool:
    return f.id.startswith(ABOUT_INPUTS) or f.id in ABOUT_NUMBERS


def _places(findings: list[Finding]) -> dict[str, int]:
    """Place of an id among the causes of what follows from it, from 0; handed on to its own causes."""
    causes: dict[str, tuple[str, ...]] = {f.id: f.implied_by for f in findings}
    places: dict[str, int] = {}
    todo = [(id, i) for named in causes.values() for i, id in enumerate(named)]
    while todo:
        id, at = todo.pop()
        if at < places.get(id, len(causes) + 1):
            places[id] = at
            todo += [(c, at) for c in causes.get(id, ())]
    return places


def _weights(findings: list[Finding]) -> dict[str, int]:
    """Worst severity of an id and of all that follows from it."""
    effects: dict[str, set[str]] = {f.id: set() for f in findings}
    own: dict[str, int] = {}
    for f in findings:
        own[f.id] = max(own.get(f.id, 0), SEVERITIES.index(f.severity))
        for cause in f.implied_by:
            effects.setdefault(cause, set()).add(f.id)

    def worst(id: str, above: tuple[str, ...]) -> int:
        below = (worst(e, (*above, id)) for e in effects.get(id, ()) if e not in above)
        return max(own.get(id, 0), max(below, default=0))

    return {id: worst(id, ()) for id in own}
