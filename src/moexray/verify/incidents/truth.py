"""What is true of an incident, and what its bundle still lets one claim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.verify.incidents.machine import run
from moexray.verify.incidents.plan import PAUSES

if TYPE_CHECKING:
    from moexray.verify.incidents.machine import Noise, Story
    from moexray.verify.incidents.plan import Cause, Plan

__all__ = ["ACCUSING", "truth"]

# Verdicts that name a fault of the system; an incident without that fault must not get them (warn or above).
ACCUSING = (
    "a2a.buffer_limit", "a2a.count_mismatch", "a2a.silent_source", "comm.desync", "comm.missing_rank",
    "comm.no_progress", "comm.size_mismatch", "comm.slow_transfer", "comm.straggler_wait", "ep.async_stuck",
    "ep.drift", "ep.rearrange_stall", "ep.skew", "host.gc_pause", "host.stall", "jit.compile_in_hot_path",
    "jit.compile_skew", "mem.alloc_retry_recovered", "mem.alloc_stall", "mem.empty_cache_in_hot_path",
    "mem.fragmentation", "mem.true_exhaustion", "sched.dp_imbalance", "sched.preemption",
)  # fmt: skip


def truth(plan: Plan, noise: Noise, story: Story) -> dict[str, Any]:
    """The document beside the bundle.

    Keys: claims (per cause: root ids, all ids that may be said of it, rank, whether it can be told),
    must_not, steps (seconds with and without), share (of the excess that goes with each cause).
    """
    claims = [_claim(plan, c) for c in plan.causes]
    allowed = {id for c in claims for id in c["may"]}
    hurts = [c for c in plan.causes if c.kind != "hang"]
    first = max(plan.late_start)  # what came before is not in the traces of all ranks
    seen, calm = story.steps_s[first:], run(plan.without(*plan.causes), noise).steps_s[first:]
    steps, share = {"with": _times(seen), "without": _times(calm)}, {}
    for cause in hurts:
        alone = run(plan.without(cause), noise).steps_s[first:]
        steps[f"without {cause.kind}"] = _times(alone)
        share[cause.kind] = float((seen.mean() - alone.mean()) / (seen.mean() - calm.mean()))
    return {
        "schema": "moexray.incident/3", "seed": plan.seed, "kind": plan.kind, "claims": claims,
        "must_not": sorted(set(ACCUSING) - allowed), "steps": steps, "share": share,
        "withheld": sorted(plan.withheld), "decoys": list(plan.decoys),
    }  # fmt: skip


def _times(paces: np.ndarray) -> dict[str, float]:
    return {
        "p50_s": float(np.median(paces)),
        "p99_s": float(np.quantile(paces, 0.99)),
        "mean_s": float(paces.mean()),
    }


def _claim(plan: Plan, cause: Cause) -> dict[str, Any]:
    roots, may = _ids(plan, cause)
    rank: int | None = cause.rank
    if cause.kind == "slow_link" and "lines" in plan.withheld:
        rank = None  # all ranks leave a collective together: only transport lines name the slow one
    return {"cause": cause.kind, "roots": roots, "may": sorted({*roots, *may}), "rank": rank}


def _ids(plan: Plan, cause: Cause) -> tuple[list[str], list[str]]:
    """(roots that the evidence proves, what else may be said); no roots: the bundle cannot tell."""
    gone = plan.withheld
    traced = "trace" not in gone or cause.rank != plan.guilty[0]
    traced &= cause.kind in ("skew", "drift") or plan.notes != "none" or plan.ranks - ("trace" in gone) >= 2
    pair = plan.ranks - ("trace" in gone) >= 2  # one rank alone does not tell who waits for whom
    wait = ["comm.straggler_wait"] * pair
    if cause.kind == "alloc":
        cut, warned = "snapshot" not in gone, not {"lines", "stats"} <= gone
        told = ["mem.fragmentation"] * cut or ["mem.alloc_stall"] * traced
        told = told or ["mem.alloc_retry_recovered"] * warned
        may = [*wait, *["mem.alloc_stall"] * traced, *["mem.alloc_retry_recovered"] * warned]
        return told, may
    if cause.kind in PAUSES:
        id = {"gc": "host.gc_pause", "jit": "jit.compile_in_hot_path", "stall": "host.stall"}[cause.kind]
        recorded = cause.kind != "stall" and (not {"frames", "lines"} <= gone)
        if not traced:
            return [], [id] if recorded and cause.kind == "jit" and "lines" not in gone else []
        if not recorded:
            return ["host.stall"], wait
        if cause.kind == "jit" and "frames" in gone:
            return ["jit.compile_in_hot_path", "host.stall"], wait
        return [id], [*wait, "host.stall"]
    if cause.kind in ("skew", "drift"):
        id = "ep.drift" if cause.kind == "drift" else "ep.skew"
        if "counts" not in gone:
            return [id], ["ep.skew", *wait]
        return wait if traced else [], []
    if cause.kind == "slow_link":
        return ["comm.slow_transfer"] if traced else [], []
    if cause.layer == 1:
        return ["comm.desync"], ["comm.no_progress"]
    # A silent last rank is missed only by who knows the group; one reporter alone misses nobody.
    known = plan.ranks > 2 and not ("dumps" in gone and cause.rank == plan.ranks - 1)
    return ["comm.missing_rank"] * known, ["comm.missing_rank", "comm.no_progress"]
