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

# Verdict -> what is taken out of the step graph: kinds of stalled segments, "even", "transfers" or "slow".
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
OTHERWISE = ("even", "transfers", "slow")  # no kinds of stalls
MOSTLY = 0.5  # share of a rank's lateness in which it computes
LEAST_CHANGE = 0.005  # of the mean step; below it the traces do not show that the cause costs anything


def add_counterfactuals(run: Run, findings: list[Finding]) -> list[Finding]:
    """Adds p50_s, p99_s, p50_without_s, p99_without_s, excess_share_ratio where traces tell them.

    Args:
        run: What was read.
        findings: Linked; what follows from a cause goes with it.
    """
    uneven = {f.subject.rank for f in findings if f.id == "ep.skew"}
    removed = {id(f): _removed(f, uneven) for f in findings}
    causes = [f for f in findings if removed[id(f)] and not f.cannot_tell]
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
    every = times(_paces(work, causes, removed))
    if seen.mean_s - every.mean_s < LEAST_CHANGE * seen.mean_s:
        return findings
    # Ranks that are not traced come late, too: all others wait for them, and it looks like a transfer.
    if not capture.collectives.complete.all():
        every = times(_paces(work, causes, removed, transfers=True))
    excess = seen.mean_s - every.mean_s
    out = []
    for f in findings:
        if f not in causes:
            out.append(f)
            continue
        after = times(_paces(work, [f, *_downstream(f, causes)], removed))
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


def _removed(f: Finding, uneven: set[int | None]) -> tuple[str, ...]:
    """What is taken out for a finding: also the excess of a rank that computes longer, nobody knows why.

    Args:
        f: The finding.
        uneven: Ranks that may have more tokens than the others: these would go to them.
    """
    if f.id == "comm.straggler_wait" and not f.implied_by:
        shares = re.findall(r"\bcompute_ratio=([\d.]+)", " ".join(e.text for e in f.evidence))
        if not shares or float(shares[0]) < MOSTLY or f.subject.rank is None:
            return ()
        return ("even",) if f.subject.rank in uneven else ("slow",)
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


def _paces(
    work: Clockwork, causes: list[Finding], removed: dict[int, tuple[str, ...]], *, transfers: bool = False
) -> NDArray[np.float64]:
    stalls = work.of((), None)
    wanted: set[str] = set()
    slow: set[int | None] = set()
    for f in causes:
        kinds = removed[id(f)]
        wanted |= set(kinds)
        stalls |= work.of(tuple(k for k in kinds if k not in OTHERWISE), f.subject.rank)
        slow |= {f.subject.rank} if "slow" in kinds else set()
    transfers = transfers or "transfers" in wanted
    return work.paces(stalls, even="even" in wanted, transfers=transfers, slow=frozenset(slow))
