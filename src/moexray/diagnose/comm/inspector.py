"""comm.straggler_wait and comm.slow_transfer from the times that NCCL Inspector wrote for several ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.comm_perf import Timed, timed
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moexray.core.limits import Limits
    from moexray.core.run import Run

__all__ = ["inspector"]

MS = 1e-3
SURE = 10  # collectives from which a pattern is called certain
MOSTLY = 0.5  # share of the lateness of one rank, from which it is named
VERBOSE = "dumps with NCCL_INSPECTOR_DUMP_VERBOSE=1, which hold the start of each kernel"


def inspector(run: Run, limits: Limits) -> list[Finding]:
    """Who came last in each communicator; and transfers that are slow though all had arrived."""
    found = timed(run)
    world = max((t.ranks for t in found), default=0)  # its ranks are the global ones
    late = [f for t in found if (f := _straggler(t, limits, named=t.ranks == world)) is not None]
    late = sorted(late, key=lambda f: (f.severity == "info", -f.cost))[:1]
    return [*late, *_slow(found, limits)]


def _straggler(t: Timed, limits: Limits, *, named: bool) -> Finding | None:
    least = limits.timeline
    if len(t) < least.slow_matches:
        return None
    middle, transfer = float(np.median(t.lateness)), float(np.median(t.transfer))
    known = t.distance_s > 0  # not NaN
    if known and middle < least.lateness_ratio * t.distance_s:
        return None
    if not known and middle < max(transfer, MS):
        return None  # no symptom: the wait is short
    ranks, at = np.unique(t.last, return_inverse=True)
    waited = np.bincount(at, t.lateness)
    rank = int(ranks[waited.argmax()]) if waited.max() >= MOSTLY * waited.sum() else None
    times = int((t.last == rank).sum()) if rank is not None else 0
    who = f"rank {rank}" if rank is not None else "no single rank"
    pace = "how far they lie apart is not recorded"
    if known:
        pace = f"{middle / t.distance_s:.0%} of the {t.distance_s / MS:.3g} ms from one to the next"
    claim = (
        f"In {t.title}, {who} arrives last" + (f" in {times} of {len(t)} collectives" if times else "")
        + f": the others wait {middle / MS:.3g} ms in the median ({pace}), the transfer itself takes "
        f"{transfer / MS:.3g} ms. " + ("The late rank is to blame, not the network." if rank is not None
        else "The late rank changes.")
    )  # fmt: skip
    values = {
        "late_rank": rank, "lateness_ms": middle / MS, "transfer_ms": transfer / MS, "collectives": len(t),
        "distance_ms": t.distance_s / MS if known else None, "lateness_sum_s": float(t.lateness.sum()),
        "last_ratio": float(waited.max() / waited.sum()) if waited.sum() else None,
    }  # fmt: skip
    worst = np.argsort(-t.lateness)[:3]
    shown = [
        Evidence(t.sources[0], f"{t.op[i]} of {t.title}", pairs({
            "late_rank": int(t.last[i]), "lateness_ms": float(t.lateness[i]) / MS,
            "transfer_ms": float(t.transfer[i]) / MS, "size_bytes": int(t.size[i])}))
        for i in worst
    ]  # fmt: skip
    where = f"{len(t)} collectives in {len(t.sources)} files"
    return Finding(
        id="comm.straggler_wait",
        severity="warn" if known else "info",
        confidence=(0.88 if len(t) >= SURE else 0.7) if known else 0.45,
        claim=claim,
        subject=Subject(rank=rank if named else None),
        value=middle,
        limit=least.lateness_ratio * t.distance_s if known else None,
        unit="s",
        evidence=(Evidence(t.sources[0], where, pairs(values)), *dict.fromkeys(shown)),
        implied_by=("jit.compile_skew", "ep.skew", "sched.dp_imbalance", "host.gc_pause"),
        remedies=(remedy("comm-find-late-work", who=who, what="not recorded here: see its trace or log"),),
        settle_with=() if known else (VERBOSE,),
        cost=float(t.lateness.sum()),
    )


def _slow(found: list[Timed], limits: Limits) -> list[Finding]:
    """Columns that all ranks timed, without a late rank, slower than their kind elsewhere."""
    least = limits.timeline
    groups: dict[tuple[str, int, int], list[tuple[int, NDArray[np.float64]]]] = {}
    for place, t in enumerate(found):
        whole = (t.present == t.ranks) & (t.size > 0)
        arrived = whole & (t.lateness < least.transfer_lateness_ratio * (t.transfer + t.lateness))
        code = np.unique(t.op, return_inverse=True)[1].reshape(-1)
        kinds, at = np.unique(np.stack((t.size, code)), axis=1, return_inverse=True)
        for kind in range(kinds.shape[1]):
            mine = np.flatnonzero((at.reshape(-1) == kind) & arrived)
            if len(mine):
                key = (str(t.op[mine[0]]), int(t.size[mine[0]]), t.ranks)
                groups.setdefault(key, []).append((place, t.transfer[mine]))
    made = []
    for key, parts in groups.items():
        for place, times in parts:
            elsewhere = [other for at_place, other in parts if at_place != place]
            for usual in (np.concatenate(elsewhere) if elsewhere else times[:0], times):
                middle = float(np.median(usual)) if len(usual) else np.inf
                slow, normal = times[times >= least.transfer_factor * middle], usual[usual < 1.5 * middle]
                if min(len(slow), len(normal)) >= least.slow_matches:
                    made.append(_slow_finding(found[place], key, slow, middle, limits))
                    break
    return sorted(made, key=lambda f: -f.cost)[:1]


def _slow_finding(
    t: Timed, kind: tuple[str, int, int], slow: NDArray[np.float64], usual: float, limits: Limits
) -> Finding:
    op, size, ranks = kind
    took = float(np.median(slow))
    claim = (
        f"In {t.title}, {len(slow)} {op} of {size:,} bytes take {took / MS:.3g} ms after the last rank had "
        f"arrived, {took / usual:.1f} times the {usual / MS:.3g} ms that others of the same kind take: the "
        "transfer itself is slow."
    )
    values = {
        "transfer_ms": took / MS, "usual_ms": usual / MS, "size_bytes": size, "ranks": ranks,
        "collectives": len(slow),
    }  # fmt: skip
    return Finding(
        id="comm.slow_transfer",
        severity="warn",
        confidence=0.8 if len(slow) >= SURE else 0.7,
        claim=claim,
        value=took,
        limit=limits.timeline.transfer_factor * usual,
        unit="s",
        evidence=(Evidence(t.sources[0], f"{len(slow)} {op} of {t.title}", pairs(values)),),
        remedies=(remedy("comm-check-link", ranks=f"the ranks of {t.title}"),),
        cost=float((slow - usual).sum()),
    )
