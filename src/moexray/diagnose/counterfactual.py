"""What P50 and P99 would be without a cause: the steps of the traces re-timed, added to its evidence."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from moexray.core.finding import Evidence, pairs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from moexray.analyse.retime import Clockwork
    from moexray.core.finding import Finding
    from moexray.core.run import Run

__all__ = ["add_counterfactuals"]

# Verdict -> what is taken out of the step graph: kinds of stalled segments, "even" or "transfers".
MEMORY, HOST = ("memory",), ("jit", "gc", "host")
WITHOUT: dict[str, tuple[str, ...]] = {
    "mem.fragmentation": MEMORY,
    "mem.alloc_stall": MEMORY,
    "mem.empty_cache_in_hot_path": MEMORY,
    "mem.alloc_retry_recovered": MEMORY,
    "jit.compile_in_hot_path": ("jit", "host"),
    "jit.compile_skew": ("jit", "host"),
    "host.gc_pause": ("gc", "host"),
    "host.stall": HOST,
    "ep.rearrange_stall": HOST,
    "ep.skew": ("even",),
    "ep.drift": ("even",),
    "comm.slow_transfer": ("transfers",),
}
MOSTLY = 0.5  # share of a rank's lateness in which it computes
LEAST_CHANGE = 0.005  # of the mean step; below it the traces do not show that the cause costs anything


def add_counterfactuals(run: Run, findings: list[Finding]) -> list[Finding]:
    """Adds p50_s, p99_s, p50_without_s, p99_without_s, excess_share_ratio where traces tell them.

    Args:
        run: What was read.
        findings: Linked; what follows from a cause goes with it.
    """
    causes = [f for f in findings if _removed(f) and not f.cannot_tell]
    if not causes:
        return findings
    from moexray.analyse.retime import clockwork, times
    from moexray.analyse.timeline_comm import survey

    for capture in survey(run):
        work = clockwork(capture.collectives)
        if work is not None:
            break
    else:
        return findings
    seen = times(work.paces())
    every = times(_paces(work, causes))
    if seen.mean_s - every.mean_s < LEAST_CHANGE * seen.mean_s:
        return findings
    # Ranks that are not traced come late, too: all others wait for them, and it looks like a transfer.
    if not capture.collectives.complete.all():
        every = times(_paces(work, causes, transfers=True))
    excess = seen.mean_s - every.mean_s
    out = []
    for f in findings:
        if f not in causes:
            out.append(f)
            continue
        after = times(_paces(work, [f, *_downstream(f, causes)]))
        unseen = f.subject.rank not in (None, *(p.rank for p in work.profiles))  # its work is not traced
        if unseen or seen.mean_s - after.mean_s < LEAST_CHANGE * seen.mean_s:
            out.append(f)
            continue
        share = (seen.mean_s - after.mean_s) / excess
        text = pairs(
            {
                "p50_s": seen.p50_s,
                "p99_s": seen.p99_s,
                "p50_without_s": after.p50_s,
                "p99_without_s": after.p99_s,
                "p99_without_low_s": after.low_s,
                "p99_without_high_s": after.high_s,
                "excess_share_ratio": share,
            }
        )
        where = f"{len(work.last)} steps of {len(work.profiles)} ranks, re-timed without it"
        claim = (
            f"{f.claim} Re-timed without it, the P99 of a step is {after.p99_s * 1e3:.1f} ms instead of "
            f"{seen.p99_s * 1e3:.1f} ms; it makes up {share:.0%} of the time that the causes found cost."
        )
        proof = Evidence(work.profiles[0].source, where, text)
        out.append(replace(f, claim=claim, evidence=(*f.evidence, proof)))
    return out


def _removed(f: Finding) -> tuple[str, ...]:
    """What is taken out for a finding: also the work of a rank that computes longer, nobody knows why."""
    if f.id == "comm.straggler_wait" and not f.implied_by:
        shares = re.findall(r"\bcompute_ratio=([\d.]+)", " ".join(e.text for e in f.evidence))
        return ("even",) if shares and float(shares[0]) >= MOSTLY else ()
    return WITHOUT.get(f.id, ())


def _downstream(cause: Finding, causes: list[Finding]) -> list[Finding]:
    """Causes that follow from this one, on any way."""
    found: list[Finding] = []
    todo = [cause.id]
    while todo:
        above = todo.pop()
        for f in causes:
            if above in f.implied_by and f is not cause and f not in found:
                found.append(f)
                todo.append(f.id)
    return found


def _paces(work: Clockwork, removed: list[Finding], *, transfers: bool = False) -> NDArray[np.float64]:
    stalls = work.of((), None)
    for f in removed:
        kinds = tuple(k for k in _removed(f) if k not in ("even", "transfers"))
        if kinds:
            stalls |= work.of(kinds, f.subject.rank)
    wanted = {k for f in removed for k in _removed(f)}
    return work.paces(stalls, even="even" in wanted, transfers=transfers or "transfers" in wanted)
