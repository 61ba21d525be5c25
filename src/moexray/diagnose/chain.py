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
    ),
    "comm.no_progress": ("comm.missing_rank", "comm.desync"),
    "comm.timeout_near": ("comm.straggler_wait",),
    "mem.alloc_stall": ("mem.empty_cache_in_hot_path", "mem.fragmentation", "mem.churn"),
    "ep.skew": ("ep.drift",),
}

# Families that speak of an artefact or of a number that misleads; they lead only when no fault
# of the system is found at warn or above (VERDICTS, order of findings, 2).
ABOUT_INPUTS = ("input.", "snapshot.", "smi.", "trace.", "metric.")
ABOUT_NUMBERS = frozenset({"ep.metric_wrong_axis", "ep.counts_multiplied"})


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

    A hypothesis ("cannot tell") is never the cause of a finding that is certain.
    """
    found = {f.id for f in findings if not f.cannot_tell}
    linked = []
    for f in findings:
        named = f.implied_by or CAUSED_BY.get(f.id, ())
        causes = tuple(dict.fromkeys(c for c in named if c in found and c != f.id))
        linked.append(f.with_causes(causes))
    return linked


def order(findings: list[Finding]) -> list[Finding]:
    """Root causes first, then the system before its artefacts, then severity, confidence, cost."""
    depth = _depths(findings)
    system = any(not _aside(f) and f.severity != "info" for f in findings)

    def key(f: Finding) -> tuple[object, ...]:
        aside = _aside(f) and (system or f.severity == "info")
        worst = len(SEVERITIES) - SEVERITIES.index(f.severity)
        return (f.cannot_tell, aside, depth[f.id], worst, -f.confidence, -f.cost)

    return sorted(findings, key=key)


def _aside(f: Finding) -> bool:
    return f.id.startswith(ABOUT_INPUTS) or f.id in ABOUT_NUMBERS


def _depths(findings: list[Finding]) -> dict[str, int]:
    """How many causes stand above an id; cycles are cut where they close."""
    causes: dict[str, set[str]] = {}
    for f in findings:
        causes.setdefault(f.id, set()).update(f.implied_by)

    def depth(id: str, above: tuple[str, ...]) -> int:
        if id in above:
            return 0
        return max((1 + depth(c, (*above, id)) for c in causes.get(id, ())), default=0)

    return {id: depth(id, ()) for id in causes}
