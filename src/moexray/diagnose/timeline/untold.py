"""Long waits that the traces at hand cannot explain: questions, with what would answer them.

The rank that comes late may not be among the traces. Where its log tells of collections or compilations
that fall into the waits of the others, that is said as a guess, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.timeline import Cover
from moexray.analyse.worker_lines import lines_in, worker_lines
from moexray.core.finding import Evidence, Finding, Subject, pairs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moexray.analyse.timeline import Profile
    from moexray.analyse.timeline_comm import Collectives
    from moexray.core.limits import Limits
    from moexray.core.run import Run

__all__ = ["absent", "one_rank"]

MS = 1e6
SHOWN = 8
GUESSES = (("host.gc_pause", "host.gc", "the garbage collector ran"),
           ("jit.compile_in_hot_path", "jit.compile", "kernels were compiled"))  # fmt: skip


def absent(run: Run, c: Collectives, limits: Limits) -> list[Finding]:
    """A question: all ranks that are there wait equally long, and members of the group are missing."""
    columns = np.flatnonzero(~c.complete)
    if not len(columns) or not 0 < c.step_ns < np.inf:
        return []
    transfer = c.transfer[columns]
    excess = transfer - _usual(c, columns)
    long = excess > c.step_ns
    steps = max(1, sum(len(p.steps) for p in c.profiles) // len(c.profiles))
    share = limits.timeline.lateness_ratio * steps * c.step_ns
    often = long.sum() >= limits.timeline.often and excess[long].sum() >= share
    if not often and not (excess > limits.timeline.burst_steps * c.step_ns).any():
        return []
    worlds = [p.world_size for p in c.profiles if p.world_size]
    missing = sorted(set(range(max(worlds, default=0))) - {p.rank for p in c.profiles if p.rank is not None})
    longest = float(transfer.max())
    who = ", ".join(f"rank {r}" for r in missing[:SHOWN]) or "a rank that is not here"
    values = {"shortest_ms": longest / MS, "median_ms": float(np.median(transfer)) / MS,
              "long_waits": int(long.sum()), "long_sum_ms": float(excess[long].sum()) / MS,
              "step_ms": c.step_ns / MS}  # fmt: skip
    question = Finding(
        id="comm.straggler_wait",
        severity="info",
        confidence=0.45,
        claim=(
            f"All {len(c.profiles)} traced ranks sit up to {longest / MS:.4g} ms in one collective (median "
            f"{np.median(transfer) / MS:.3g} ms), {int(long.sum())} times longer than a step takes. Whether "
            f"{who} came late or the transfer took that long, these traces cannot tell."
        ),
        subject=Subject(rank=missing[0] if len(missing) == 1 else None),
        value=longest / 1e9,
        limit=c.step_ns / 1e9,
        unit="s",
        evidence=(Evidence(c.profiles[0].source, "shortest duration over ranks", pairs(values)),),
        settle_with=tuple(f"trace of rank {r}" for r in missing[:SHOWN]) or ("traces of the other ranks",),
        cost=longest / 1e9,
    )
    at = columns[long]
    first = np.argmax(c.present[:, at], axis=0)
    source = c.profiles[int(first[0])] if len(first) else c.profiles[0]
    end = c.end[first, at]
    return [question, *_guesses(run, source, (end - excess[long].astype(np.int64), end), limits)]


def _usual(c: Collectives, columns: NDArray[np.int64]) -> NDArray[np.float64]:
    """Median transfer of each column's operation and place in the step, ns."""
    keys: dict[tuple[str, int], list[int]] = {}
    for i, column in enumerate(columns.tolist()):
        keys.setdefault((str(c.op[column]), int(c.place[column])), []).append(i)
    out = np.zeros(len(columns))
    for rows in keys.values():
        out[rows] = np.median(c.transfer[columns[rows]])
    return out


def one_rank(run: Run, profile: Profile, limits: Limits) -> list[Finding]:
    """A question, not a verdict: one rank alone cannot separate waiting from transfer."""
    if not len(profile.comm_rows) or (profile.world_size or 2) < 2:
        return []
    start, end = profile.start[profile.comm_rows], profile.end[profile.comm_rows]
    own = Cover(start, end)
    exposed = own.end - own.start - profile.compute.within(own.start, own.end)
    begin, stop = profile.window
    share = float(exposed.sum() / max(1, stop - begin))
    step = profile.steps.median_ns
    long = float((end - start).max())
    burst = np.isfinite(step) and long > limits.timeline.burst_steps * step
    if share < limits.timeline.exposed_ratio and not burst:
        return []
    values = {
        "communication_ratio": share, "longest_ms": long / MS, "collectives": len(start),
        "median_ms": float(np.median(end - start)) / MS, "step_ms": step / MS if np.isfinite(step) else None,
    }  # fmt: skip
    pair = profile.world_size == 2  # the only one that it can wait for
    question = Finding(
        id="comm.straggler_wait",
        severity="info",
        confidence=0.4,
        claim=(
            f"{profile.who} spends {share:.0%} of its time in collectives without computing (longest "
            f"{long / MS:.3g} ms). From this rank alone it cannot be told whether it waits for another rank "
            "or the transfer takes that long."
        ),
        subject=Subject(rank=1 - profile.rank if pair and profile.rank in (0, 1) else None),
        value=share,
        limit=limits.timeline.exposed_ratio,
        unit="ratio",
        evidence=(Evidence(profile.source, profile.who, pairs(values)),),
        settle_with=("a trace of at least one other rank of the same steps",),
        cost=float(exposed.sum()) / 1e9,
    )
    waits = end - start > limits.timeline.burst_steps * (step if np.isfinite(step) else float("inf"))
    return [question, *_guesses(run, profile, (start[waits], end[waits]), limits)]


def _guesses(
    run: Run, profile: Profile, waits: tuple[NDArray[np.int64], NDArray[np.int64]], limits: Limits
) -> list[Finding]:
    """What the log of a rank without a trace says of most of the waits."""
    t = limits.timeline
    windows = [(a / 1e9, b / 1e9) for a, b in zip(*(x.tolist() for x in waits), strict=True)]
    lengths = [b - a for a, b in windows]
    found: list[Finding] = []
    for id, kind, what in GUESSES if windows else ():
        lines = [x for x in worker_lines(run, kind) if x.rank is not None and x.rank != profile.rank]
        for rank in sorted({x.rank for x in lines if x.rank is not None}):
            told = lines_in([x for x in lines if x.rank == rank], windows, t.line_slack_s)
            met = [n for n, line in zip(lengths, told, strict=True) if line is not None]
            if sum(met) <= t.silence_share * sum(lengths):
                continue
            facts = {"waits": len(windows), "met": len(met), "sum_ms": sum(met) * 1e3}
            quoted = [Evidence(x.source, x.where, x.text) for x in told if x is not None][:SHOWN]
            claim = (
                f"{len(met)} of {len(windows)} long waits of {profile.who} ({sum(met):.3g} s in sum) fall "
                f"together with times in which {what} on rank {rank}, by its log. Without the trace of "
                f"rank {rank} it cannot be told that they wait for it."
            )
            proof = (Evidence(profile.source, f"long waits of {profile.who}", pairs(facts)), *quoted)
            settle = (f"trace of rank {rank}",)
            found.append(Finding(
                id, "info", 0.45, claim, Subject(rank=rank), max(met), None, "s", proof, settle_with=settle,
                cost=sum(met),
            ))  # fmt: skip
    return found
