"""comm.straggler_wait from recorder dumps: who launched a collective long after the others, and why.

A dump holds the moment at which each rank's host launched each collective. The median difference to
the other ranks is taken for the clocks; what lies far beyond it in single collectives is lateness.
A constant lateness looks like a clock, so only bursts are told.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from moexray.analyse.worker_lines import lines_in, worker_lines
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.analyse.comm_flight import GroupView, Recorders
    from moexray.analyse.worker_lines import WorkerLine
    from moexray.core.limits import Limits
    from moexray.core.run import Run

__all__ = ["late_launches"]

LEAST = 8  # collectives that all dumps of a group share, from which a median is trusted
SURE = 3  # bursts from which it is a pattern
SHOWN = 8
VICTIM = 0.5  # share of a lateness that the wait for another rank must make up
CAUSES = ("host.gc_pause", "jit.compile_in_hot_path")


@dataclass(frozen=True, slots=True)
class Burst:
    """One collective that a rank launched late.

    Args:
        seq: Its number.
        launched_ns: When, on the clock of that rank.
        late_ns: After the first of the others.
    """

    seq: int
    launched_ns: float
    late_ns: float


def late_launches(dumps: Recorders, run: Run, limits: Limits) -> list[Finding]:
    """Ranks that launched single collectives late, and what their logs say of these moments."""
    if len(list(run.batches("trace"))) > 1:
        return []  # traces of several ranks tell it better
    late: list[tuple[GroupView, float, dict[int, list[Burst]]]] = []
    for group in dumps.groups.values():
        pace = _pace(group)
        late.append((group, pace, _bursts(group, limits.timeline.burst_steps * pace)))
    found: list[Finding] = []
    for group, pace, by_rank in late:
        others = [(g, ranks) for g, _, ranks in late if g is not group]
        for rank, every in by_rank.items():
            if bursts := [b for b in every if not _waited(rank, b, others)]:
                found.append(_straggler(group, rank, bursts, pace, limits))
                found += _why(run, group, rank, bursts, limits)
    return found


def _waited(rank: int, late: Burst, others: list[tuple[GroupView, dict[int, list[Burst]]]]) -> bool:
    """Whether a rank was late because it waited in another group for one that was late there."""
    for group, by_rank in others:
        own = group.positions[rank].entries if rank in group.positions else {}
        for culprit, bursts in by_rank.items():
            for b in bursts if culprit != rank else ():
                since = late.launched_ns - own[b.seq].created_ns if b.seq in own else -1.0
                if VICTIM * late.late_ns <= b.late_ns and 0 <= since <= late.late_ns / VICTIM:
                    return True
    return False


def _shared(group: GroupView) -> list[int]:
    """Numbers that all dumps of a group hold as completed, with the time of their launch."""
    held = [
        {s for s, e in p.entries.items() if e.done and e.created_ns > 0} for p in group.positions.values()
    ]
    return sorted(set.intersection(*held)) if len(held) > 1 else []


def _pace(group: GroupView) -> float:
    """Median time between two collectives of one operation and type, ns; infinite if there are too few."""
    from statistics import median

    first = next(iter(group.positions.values()), None)
    times: dict[tuple[str, str], list[float]] = {}
    for seq in _shared(group):
        entry = first.entries[seq] if first else None
        if entry:
            times.setdefault((entry.op, entry.dtype), []).append(entry.created_ns)
    gaps = [b - a for t in times.values() for a, b in pairwise(t)]
    return float(median(gaps)) if len(gaps) >= LEAST else float("inf")


def _bursts(group: GroupView, least_ns: float) -> dict[int, list[Burst]]:
    """Rank -> its late launches; of neighbours in a row the latest stands for all."""
    from statistics import median

    shared = _shared(group)
    ranks = sorted(group.positions)
    if len(shared) < LEAST or least_ns == float("inf"):
        return {}
    at = {r: [group.positions[r].entries[s].created_ns for s in shared] for r in ranks}
    clock = {r: median(b - a for a, b in zip(at[ranks[0]], at[r], strict=True)) for r in ranks}
    out: dict[int, list[Burst]] = {}
    previous: tuple[int, int] | None = None  # (rank, index) of the burst before
    for i, seq in enumerate(shared):
        when = {r: at[r][i] - clock[r] for r in ranks}
        rank = max(when, key=lambda r: when[r])
        late = when[rank] - min(when.values())
        if late <= least_ns:
            continue
        mine = out.setdefault(rank, [])
        burst = Burst(seq, at[rank][i], late)
        if previous == (rank, i - 1):
            mine[-1] = max(mine[-1], burst, key=lambda b: b.late_ns)
        else:
            mine.append(burst)
        previous = (rank, i)
    return out


def _straggler(group: GroupView, rank: int, bursts: Sequence[Burst], pace: float, limits: Limits) -> Finding:
    total, most = sum(b.late_ns for b in bursts), max(b.late_ns for b in bursts)
    facts = {"late_rank": rank, "bursts": len(bursts), "burst_ms": most / 1e6, "burst_sum_ms": total / 1e6,
             "distance_ms": pace / 1e6}  # fmt: skip
    rows = [
        Evidence(group.positions[rank].source, f"{group.title} number {b.seq}",
                 pairs({"seq": b.seq, "lateness_ms": b.late_ns / 1e6}))
        for b in bursts[:SHOWN]
    ]  # fmt: skip
    return Finding(
        "comm.straggler_wait",
        "warn",
        0.75 if len(bursts) >= SURE else 0.6,
        f"{group.title}: rank {rank} launches {len(bursts)} collectives up to {most / 1e6:.4g} ms after the "
        f"others ({total / 1e6:.4g} ms in sum; they follow each other every {pace / 1e6:.3g} ms). The late "
        "rank is to blame, not the network.",
        Subject(rank=rank),
        most / 1e9,
        limits.timeline.burst_steps * pace / 1e9,
        "s",
        (Evidence(group.positions[rank].source, "launches of its host", pairs(facts)), *rows),
        implied_by=CAUSES,
        remedies=(remedy("comm-find-late-work", who=f"rank {rank}", what="see the evidence"),),
        settle_with=(f"the trace of rank {rank} over these moments",),
        cost=total / 1e9,
    )


def _why(run: Run, group: GroupView, rank: int, bursts: list[Burst], limits: Limits) -> list[Finding]:
    """A collector or compiler line of that rank in most of the times in which it was awaited."""
    t = limits.timeline
    windows = [((b.launched_ns - b.late_ns) / 1e9, b.launched_ns / 1e9) for b in bursts]
    asked = (("host.gc_pause", "host.gc", t.gc_log_slack_s),
             ("jit.compile_in_hot_path", "jit.compile", t.line_slack_s))  # fmt: skip
    for id, kind, slack in asked:
        own = [x for x in worker_lines(run, kind) if x.rank == rank]
        told = lines_in(own, windows, slack)
        met = [b.late_ns for b, line in zip(bursts, told, strict=True) if line is not None]
        if sum(met) > t.silence_share * sum(b.late_ns for b in bursts):
            return [_told(id, group, rank, met, [x for x in told if x])]
    return []


def _told(id: str, group: GroupView, rank: int, met: list[float], lines: list[WorkerLine]) -> Finding:
    gc = id == "host.gc_pause"
    what = "the garbage collector ran" if gc else "kernels were compiled"
    facts = {"pauses": len(met), "longest_ms": max(met) / 1e6, "sum_ms": sum(met) / 1e6}
    return Finding(
        id,
        "warn",
        0.7,
        f"rank {rank}: its host launched {len(met)} collectives late, by {max(met) / 1e6:.4g} ms at most and "
        f"{sum(met) / 1e6:.4g} ms in sum, while {what} ({len(lines)} log lines of this rank).",
        Subject(rank=rank),
        max(met) / 1e9,
        None,
        "s",
        (Evidence(group.positions[rank].source, "launches of its host", pairs(facts)),
         *(Evidence(x.source, x.where, x.text) for x in lines[:SHOWN])),
        remedies=(remedy("host-freeze-gc"),) if gc else (remedy("jit-warm-up"), remedy("jit-cache")),
        settle_with=(f"the trace of rank {rank} over these moments",),
        cost=sum(met) / 1e9,
    )  # fmt: skip
