"""comm.straggler_wait, comm.slow_transfer, comm.timeout_near from matched collectives."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.timeline import KERNEL
from moexray.analyse.timeline_comm import op_name
from moexray.analyse.timeline_late import late_ranks, slow_columns, waited
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.pattern import lazy
from moexray.core.remedies import remedy
from moexray.diagnose.timeline.untold import absent, one_rank
from moexray.diagnose.timeline.work import uneven_work

if TYPE_CHECKING:
    from moexray.analyse.timeline import Profile
    from moexray.analyse.timeline_comm import Capture, Collectives
    from moexray.analyse.timeline_late import Late
    from moexray.core.limits import Limits
    from moexray.core.run import Run

__all__ = ["late_table", "waits"]

MS = 1e6
DEFAULT = "its default, as no other was given"
WATCHED = lazy(r"[nr]ccl", re.IGNORECASE)  # only these pass the process group's watchdog
# Options of launchers and engines that set it -> seconds per unit.
TIMEOUT_KEYS = {
    "distributed_timeout_seconds": 1.0,
    "dist_timeout": 1.0,
    "ddp_timeout": 1.0,
    "distributed_timeout_minutes": 60.0,
}
BLAME = "The late rank is to blame, not the network."
SURE = 10  # collectives from which a pattern is called certain
HOST = (
    "host.gc_pause", "host.stall", "jit.compile_in_hot_path", "ep.rearrange_stall", "mem.snapshot_overhead",
)  # fmt: skip
DID = {
    "alloc": ("device allocator calls", ("mem.alloc_stall", "mem.empty_cache_in_hot_path")),
    "compile": ("kernel compilation", ("jit.compile_in_hot_path", "jit.compile_skew")),
    "host": ("no call of its host thread at all", HOST),
    "compute": ("computing longer than the others", ("ep.skew", "sched.dp_imbalance", "smi.throttled")),
    "untraced": ("mostly before its trace begins", ("jit.compile_skew",)),
    "unexplained": ("nothing that the trace shows", ("jit.compile_skew", *HOST)),
}


def waits(run: Run, capture: Capture, limits: Limits) -> list[Finding]:
    """Waiting and slow transfer in one capture; a question where a single rank cannot tell."""
    c = capture.collectives
    near = _timeout(run, capture.usable, limits)
    if len(capture.usable) == 1:
        return [*one_rank(run, capture.usable[0], limits), *near]
    if not len(c):
        return near
    t = limits.timeline
    late = late_ranks(c, t.lateness_ratio, t.burst_steps, t.lone_factor)
    found = [*(_straggler(c, x, limits) for x in late), *absent(run, c, limits)]
    return [*found, *uneven_work(run, c, late, limits), *_slow(c, limits), *near]


def _straggler(c: Collectives, late: Late, limits: Limits) -> Finding:
    t = limits.timeline
    who = c.profiles[late.rank].who if late.rank >= 0 else "no single rank"
    worst = max((p.lateness_ns for p in late.places), default=0.0)
    middle = float(np.median(c.lateness[late.columns]))
    transfer = float(np.median(c.transfer[late.columns]))
    parts = []
    if late.places:
        part = next((f", in the {p.part} of the capture" for p in late.places if p.part), "")
        ops = sorted({p.op for p in late.places})
        each = " step" if late.places[0].place < 0 else ""
        parts.append(
            f"{who} arrives last at {', '.join(ops[:3])}: the others wait {worst / MS:.3g} ms in the "
            f"median{each} ({worst / c.step_ns:.0%} of a step of {c.step_ns / MS:.3g} ms{part}), the "
            f"transfer itself takes {transfer / MS:.3g} ms"
        )
    if len(late.bursts):
        parts.append(
            f"in {len(late.bursts)} single step{'s' if len(late.bursts) > 1 else ''} {who} is late by "
            f"{late.burst_ns.max() / MS:.4g} ms at most and "
            f"{late.burst_ns.sum() / MS:.4g} ms in sum (median step {c.step_ns / MS:.3g} ms)"
        )
    doing = [(share, DID[key]) for key, share in sorted(late.did.items(), key=lambda kv: -kv[1])]
    spent = "; ".join(f"{share:.0%} of that time: {text}" for share, (text, _) in doing if share >= 0.1)
    causes = tuple(cause for share, (_, ids) in doing if share >= 0.1 for cause in ids)
    steps = c.step[late.columns]
    burst = not late.places
    open_to, settle = _open(c, late, who)
    sure = len(late.columns) >= SURE or (burst and len(late.bursts) >= 3)
    return Finding(
        id="comm.straggler_wait",
        severity="info" if open_to else "warn",
        confidence=0.45 if open_to else 0.6 if _began_later(late) else 0.9 if sure else 0.7,
        claim=f"{'; '.join(parts)}. "
        + (f"Meanwhile on {who}: {spent}. " if spent else "")
        + (open_to or _blame(late, who)),
        subject=Subject(
            rank=c.profiles[late.rank].rank if late.rank >= 0 else None,
            step_from=min(c.labels(steps)) if (steps >= 0).all() else None,
            step_to=max(c.labels(steps)) if (steps >= 0).all() else None,
        ),
        value=(late.burst_ns.max() if burst else worst) / 1e9,
        limit=(t.burst_steps if burst else t.lateness_ratio) * c.step_ns / 1e9,
        unit="s",
        evidence=_late_evidence(c, late, middle, transfer),
        implied_by=causes,
        remedies=(remedy("comm-find-late-work", who=who, what=spent or "see the evidence"),),
        settle_with=settle,
        cost=late.total_ns / 1e9,
    )


def _blame(late: Late, who: str) -> str:
    if late.rank < 0:
        return "The late rank changes."
    return f"Not the network: {who} was late, or its recording began later." if _began_later(late) else BLAME


def _began_later(late: Late) -> bool:
    """Most of the lateness lies before the trace of the late rank begins."""
    return late.did.get("untraced", 0) >= 0.5


def _open(c: Collectives, late: Late, who: str) -> tuple[str, tuple[str, ...]]:
    """(why it cannot be told that the rank is to blame, "" if it can; what would settle what is open)."""
    apart = c.apart[late.columns][c.doubtful[late.columns]]
    if 2 * len(apart) > len(late.columns):
        text = (
            f"The ends of these collectives lie {np.median(apart) / MS:.3g} ms apart even on one clock: they "
            "may be of several groups, and the traces do not note which."
        )
        return text, ("traces that note the process group of each collective (torch 2.4 and newer)",)
    if _began_later(late):
        text = f"Whether {who} was late or its recording began later, these traces cannot tell."
        return ("" if late.places else text), (f"a trace of {who} that begins a step earlier",)
    unknown = late.did.get("unexplained", 0) >= 0.5
    return "", ("stacks or operators of that rank in the late windows",) if unknown else ()


def _late_evidence(c: Collectives, late: Late, middle: float, transfer: float) -> tuple[Evidence, ...]:
    rank = c.profiles[late.rank].rank if late.rank >= 0 else None
    values = {
        "late_rank": rank,
        "lateness_ms": middle / MS,
        "transfer_ms": transfer / MS,
        "end_residual_ms": c.end_residual(late.columns) / MS,
        "step_ms": c.step_ns / MS,
        "collectives": len(late.columns),
        "bursts": len(late.bursts) or None,
        "burst_ms": float(np.median(late.burst_ns)) / MS if len(late.bursts) else None,
        "burst_sum_ms": float(late.burst_ns.sum()) / MS if len(late.bursts) else None,
        **{f"{key}_ratio": share for key, share in late.did.items()},
    }
    source = c.profiles[max(late.rank, 0)].source
    rows = [Evidence(source, f"{len(late.columns)} collectives of {len(c.profiles)} ranks", pairs(values))]
    for place in sorted(late.places, key=lambda p: -p.lateness_ns)[:4]:
        numbers = {
            "place": place.place if place.place >= 0 else None,
            "lateness_ms": place.lateness_ns / MS,
            "collectives": len(place.columns),
        }
        which = f"number {place.place} of its step" if place.place >= 0 else "sum over a step"
        rows.append(Evidence(source, f"{place.op}, {which}", pairs(numbers)))
    for step, length in list(zip(c.labels(late.bursts), late.burst_ns.tolist(), strict=True))[:12]:
        rows.append(Evidence(source, f"step {step}", pairs({"lateness_ms": length / MS})))
    for position, profile in enumerate(c.profiles[:16]):
        own = (
            np.nanmedian(c.duration[position, late.columns])
            if c.present[position, late.columns].any()
            else None
        )
        if own is not None:
            text = pairs({"rank": profile.rank, "in_collective_ms": float(own) / MS})
            rows.append(Evidence(profile.source, "median of these collectives", text))
    return tuple(rows)


def _slow(c: Collectives, limits: Limits) -> list[Finding]:
    t = limits.timeline
    slow = slow_columns(c, t.transfer_lateness_ratio, t.transfer_factor, t.slow_matches)
    if slow is None:
        return []
    columns, usual = slow.columns, slow.usual_ns
    steps = c.step[columns]
    steps = steps[steps >= 0]  # the last launch of a graph opens a step without an end
    touched = len(np.unique(steps)) or len(columns)
    if slow.cost_ns < t.lateness_ratio * touched * c.step_ns:
        return []
    middle = float(np.median(c.transfer[columns]))
    lateness = float(np.median(c.lateness[columns]))
    first, last = (min(c.labels(steps)), max(c.labels(steps))) if len(steps) else (None, None)
    where = f" in steps {first}-{last}" if len(steps) else ""
    members = sorted({c.profiles[r].who for r in np.flatnonzero(c.present[:, columns].any(axis=1))})
    among = f" among {', '.join(members[:8])}" if len(members) < len(c.profiles) else ""
    alike = "for the same size" if slow.size >= 0 else "at the same place (no sizes noted, equal compute)"
    values = {
        "slow_ms": middle / MS, "normal_ms": usual / MS, "lateness_ms": lateness / MS,
        "slow": len(columns), "normal": slow.normal, "elements": int(slow.size) if slow.size >= 0 else None,
        "step_ms": c.step_ns / MS,
    }  # fmt: skip
    on_host = any(p.host_lanes is not None for p in c.profiles)  # its cores carry the bytes
    asked = ("NCCL_DEBUG=INFO transport lines", "NIC and link counters of that time")
    return [
        Finding(
            id="comm.slow_transfer",
            severity="info" if on_host else "warn",
            confidence=0.45 if on_host else 0.85 if slow.size >= 0 else 0.7,
            claim=(
                f"{slow.op} takes {middle / MS:.3g} ms instead of {usual / MS:.3g} ms {alike} in "
                f"{len(columns)} of {len(columns) + slow.normal} cases{where}{among}, although all ranks had "
                f"arrived "
                f"(lateness {lateness / MS:.2g} ms = {lateness / middle:.1%}): the transfer itself is slow."
                + (" The host carries it: its link or busy cores, the traces do not tell." if on_host else "")
            ),
            subject=Subject(step_from=first, step_to=last),
            value=middle / usual,
            limit=t.transfer_factor,
            unit="ratio",
            evidence=tuple(
                Evidence(p.source, f"{len(columns)} collectives {slow.op}{where}", pairs(values))
                for p in c.profiles[:8]
            ),
            remedies=(remedy("comm-check-link", ranks=", ".join(members[:8])),),
            settle_with=("load of the hosts at that time (vmstat, sar)", *asked[1:]) if on_host else asked,
            cost=slow.cost_ns / 1e9,
        )
    ]


def _timeout(run: Run, profiles: list[Profile], limits: Limits) -> list[Finding]:
    """comm.timeout_near: the longest collective that completed against the watchdog's limit."""
    timeout, origin = _limit_in_force(run, limits)
    worst: tuple[float, Profile, int] | None = None
    for profile in profiles:
        rows = profile.named(WATCHED, KERNEL)
        if len(rows):
            row = int(rows[np.argmax(profile.end[rows] - profile.start[rows])])
            length = float(profile.end[row] - profile.start[row]) / 1e9
            if worst is None or length > worst[0]:
                worst = (length, profile, row)
    if worst is None or not limits.comm.timeout_near_ratio * timeout <= worst[0] < timeout:
        return []
    length, profile, row = worst
    name = op_name(profile.names[profile.name[row]])
    return [
        Finding(
            id="comm.timeout_near",
            severity="warn",
            confidence=0.8,
            claim=(
                f"The longest collective of the trace ({name} on {profile.who}) took {length:.4g} s, "
                f"{length / timeout:.0%} of the watchdog's limit of {timeout:.4g} s ({origin})."
            ),
            subject=Subject(
                rank=profile.rank, t_from_ns=int(profile.start[row]), t_to_ns=int(profile.end[row])
            ),
            value=length,
            limit=limits.comm.timeout_near_ratio * timeout,
            unit="s",
            evidence=(Evidence(profile.source, name, pairs({"wait_s": length, "timeout_s": timeout})),),
            implied_by=("comm.straggler_wait",),
            remedies=(
                remedy("comm-find-late-work", who="the rank that arrives last", what="before this one"),
            ),
            settle_with=() if origin != DEFAULT else ("launch line (the limit of the process group)",),
            cost=length,
        )
    ]


def _limit_in_force(run: Run, limits: Limits) -> tuple[float, str]:
    """The watchdog's limit in seconds and where it comes from."""
    for row in run.rows("launch"):
        factor = TIMEOUT_KEYS.get(str(row["key"]))
        try:
            value = float(row["value"] or "") * factor if factor else 0.0
        except ValueError:
            continue
        if value > 0:
            return value, f"{row['key']} in {row['source']}"
    return limits.comm.default_timeout_s, DEFAULT


def late_table(c: Collectives) -> list[dict[str, object]]:
    """Rows of the exhibit `waits`."""
    return [
        {"rank": p.rank, "late_s": late, "waited_s": own, "collectives": n, "source": p.source}
        for p, (late, own, n) in zip(c.profiles, waited(c), strict=True)
    ]
