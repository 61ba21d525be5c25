"""What is true of an incident, and what its bundle still lets one claim."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.verify.incidents.machine import run
from moexray.verify.incidents.plan import ALWAYS, PAUSES

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

    Keys: claims (per cause: root ids, all ids that may be said of it, rank, links of its chain, ids to be
    asked), must_not, steps (seconds with and without), share (of the excess that goes with each cause).
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
        "schema": "moexray.incident/4", "seed": plan.seed, "kind": plan.kind, "claims": claims,
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
    told = _told(plan, cause)
    rank: int | None = cause.rank
    if cause.kind == "rearrange" or (cause.kind == "slow_link" and "lines" in plan.withheld):
        rank = None  # all ranks stop; all ranks leave a collective together: only transport lines name one
    if cause.kind == "alloc" and not told.roots:
        rank = None
    return {
        "cause": cause.kind, "roots": told.roots, "may": sorted({*told.roots, *told.may}), "rank": rank,
        "links": told.links, "ask": told.ask,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Told:
    """What a bundle lets one say of a cause.

    Args:
        roots: Ids of which one has to be found for certain; none: the bundle cannot tell.
        may: What else may be said.
        links: (causes of which one has to be named, effect): the chain.
        ask: Ids that have to be raised as a question.
    """

    roots: list[str]
    may: list[str] = field(default_factory=list)
    links: list[tuple[list[str], str]] = field(default_factory=list)
    ask: list[str] = field(default_factory=list)


WAIT = "comm.straggler_wait"


def _told(plan: Plan, cause: Cause) -> Told:
    gone = plan.withheld
    first = cause.kind == "rearrange" or cause.rank == plan.guilty[0]
    lost = "traces" in gone or (bool(gone & {"trace", "rank"}) and first)
    left = 0 if "traces" in gone else plan.ranks - bool(gone & {"trace", "rank"})
    traced = not lost and (plan.notes != "none" or left >= 2 or cause.kind in ("skew", "drift"))
    pair = traced and left >= 2  # one rank alone does not tell who waits for whom
    if cause.kind == "alloc":
        return _alloc(gone, lost=lost, traced=traced, pair=pair)
    if cause.kind in PAUSES:
        return _pause(plan, cause.kind, traced=traced, pair=pair, left=left)
    if cause.kind == "clear":
        return _clear(gone, traced=traced, pair=pair)
    if cause.kind in ALWAYS:
        return Told([WAIT], ["ep.skew"]) if pair else Told([])
    if cause.kind == "rearrange":
        recorded = not {"frames", "lines"} <= gone
        id = "ep.rearrange_stall"
        seen = left >= 2 and "frames" not in gone if "lines" in gone else left >= 2
        return Told([id] if seen and recorded else [], [id])
    if cause.kind in ("skew", "drift"):
        id = "ep.drift" if cause.kind == "drift" else "ep.skew"
        if "counts" in gone:
            return Told([WAIT] if pair else [], ["ep.skew"])
        chain: list[tuple[list[str], str]] = [(["ep.drift"], "ep.skew")] if cause.kind == "drift" else []
        return Told([id], ["ep.skew", WAIT], [*chain, (["ep.skew"], WAIT)] if pair else chain)
    if cause.kind == "slow_link":
        return Told(["comm.slow_transfer"] if traced else [])
    if cause.layer == 1:
        return Told(["comm.desync"], ["comm.no_progress"])
    # A silent last rank is missed only by who knows the group; one reporter alone misses nobody.
    known = plan.ranks > 2 and not ("dumps" in gone and cause.rank == plan.ranks - 1)
    return Told(["comm.missing_rank"] * known, ["comm.missing_rank", "comm.no_progress"])


def _alloc(gone: frozenset[str], *, lost: bool, traced: bool, pair: bool) -> Told:
    cut = not gone & {"snapshot", "rank"}
    warned = not {"lines", "stats"} <= gone and not ("rank" in gone and "lines" in gone)
    calls = traced and "host" not in gone
    told = ["mem.fragmentation"] * cut or ["mem.alloc_stall"] * calls
    told = told or ["mem.alloc_retry_recovered"] * warned or [WAIT] * (pair and not lost)
    links = [(["mem.fragmentation"], "mem.alloc_stall")] * (cut and calls)
    links += [(["mem.alloc_stall"], WAIT)] * (calls and pair)
    may = [WAIT] * pair + ["mem.alloc_stall"] * traced + ["mem.alloc_retry_recovered"] * warned
    return Told(told, may, links)


def _pause(plan: Plan, kind: str, *, traced: bool, pair: bool, left: int) -> Told:
    gone = plan.withheld
    id = {"gc": "host.gc_pause", "jit": "jit.compile_in_hot_path", "stall": "host.stall"}[kind]
    recorded = kind != "stall" and not {"frames", "lines"} <= gone
    wait = [WAIT] * pair
    if not traced:
        may = [id] if recorded and kind == "jit" and "lines" not in gone else []
        return Told([], may, ask=[WAIT] if 0 < left < plan.ranks else [])
    if not recorded:  # without the host's calls the late rank is all that can be told
        return Told(["host.stall"] if "host" not in gone else wait, wait, _to_wait("host.stall", gone, wait))
    alternatives = ["host.stall"] * (kind == "jit" and "frames" in gone)
    return Told([id, *alternatives], [*wait, "host.stall"], [([id, *alternatives], WAIT)] * pair)


def _to_wait(id: str, gone: frozenset[str], wait: list[str]) -> list[tuple[list[str], str]]:
    return [([id], WAIT)] if wait and "host" not in gone else []


def _clear(gone: frozenset[str], *, traced: bool, pair: bool) -> Told:
    if not traced or "host" in gone:
        return Told([WAIT] if pair else [])
    id = "mem.alloc_stall" if "frames" in gone else "mem.empty_cache_in_hot_path"
    links = [([id], "mem.alloc_stall")] * (id != "mem.alloc_stall") + [(["mem.alloc_stall"], WAIT)] * pair
    return Told([id], ["mem.alloc_stall", WAIT], links)
