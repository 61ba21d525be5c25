"""mem.* from allocator statistics beside nvidia-smi, without an out-of-memory record."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from moexray.analyse.gpu import pair_up, processes_of
from moexray.analyse.memory_series import growth
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy
from moexray.diagnose.gpu.process import own_process
from moexray.diagnose.memory.oom_buffers import explained, predict
from moexray.diagnose.memory.oom_remedies import settings_name
from moexray.diagnose.memory.oom_words import percent, size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moexray.analyse.gpu import Device, Pair
    from moexray.core.limits import Limits
    from moexray.core.run import Row, Run
    from moexray.diagnose.memory.oom_buffers import Buffers

__all__ = ["Share", "beside_nvidia_smi", "cliff", "oversubscribed", "shares"]


@dataclass(frozen=True, slots=True)
class Share:
    """Who holds the memory of a device, in bytes; None where unknown.

    Args:
        pair: Device and statistics.
        used: By all processes, as nvidia-smi says.
        allocated: By PyTorch.
        reserved: By PyTorch, cache included.
        own: By the process of the statistics: from the list of processes, else all that is in use.
        other: By other processes of the list; 0 where a list names none.
        others: These processes.
    """

    pair: Pair
    used: float
    allocated: float | None
    reserved: float
    own: float
    other: float
    others: tuple[Row, ...]

    @property
    def non_torch(self) -> float:
        """What the process holds outside PyTorch's allocator."""
        return self.own - self.reserved

    @property
    def cached(self) -> float | None:
        """Reserved but unallocated."""
        return None if self.allocated is None else self.reserved - self.allocated


def shares(run: Run, found: Sequence[Device]) -> list[Share]:
    """The split of each device that statistics and nvidia-smi tell together, from their newest samples."""
    out = []
    for pair in pair_up(run, found):
        used, last = pair.device.last("used_bytes"), pair.stats[-1]
        reserved = last["reserved_bytes"]
        if used is None or reserved is None:
            continue
        listed = processes_of(run, pair.device)
        own = own_process(listed, reserved)
        others = tuple(p for p in listed if own is not None and p["pid"] != own["pid"])
        other = float(sum(p["used_bytes"] for p in others))
        out.append(Share(pair, used, last["allocated_bytes"], reserved, used - other, other, others))
    return out


def beside_nvidia_smi(run: Run, limits: Limits, found: Sequence[Device]) -> list[Finding]:
    """mem.cached_not_leaked, mem.non_torch, mem.other_process: what used memory is made of."""
    if any(r["kind"] in ("record", "bare") and not r["earlier"] for r in run.rows("oom")):
        return []  # the order of tests of the record decides
    out: list[Finding] = []
    for s in shares(run, found):
        if not s.pair.sure or any(r["num_ooms"] for r in s.pair.stats):
            continue
        if s.non_torch < -limits.gpu.slack_bytes - 0.005 * s.used:
            continue  # samples of different times: they do not fit together
        said = [rule(s, run, limits) for rule in (_cached, _non_torch, _other)]
        out += [f for f in said if f is not None]
    return out


def _values(s: Share) -> dict[str, object]:
    total = s.pair.device.last("total_bytes")
    values: dict[str, object] = {
        "smi_used_bytes": int(s.used),
        "smi_total_bytes": None if total is None else int(total),
        "allocated_bytes": s.allocated,
        "reserved_bytes": int(s.reserved),
        "cached_bytes": None if s.cached is None else int(s.cached),
        "non_torch_bytes": int(s.non_torch),
        "other_bytes": int(s.other) if s.others else None,
    }
    for name in ("smi_used", "smi_total", "non_torch"):  # as nvidia-smi prints them
        value = values[f"{name}_bytes"]
        values[f"{name}_mib"] = value >> 20 if isinstance(value, int) else None
    return values


def _finding(s: Share, more: tuple[Evidence, ...] = (), **given: Any) -> Finding:
    d, last = s.pair.device, s.pair.stats[-1]
    return Finding(
        subject=Subject(rank=last["rank"], device=last["device"] if d.device is None else d.device),
        evidence=(
            Evidence(last["source"], last["where"], pairs(_values(s))),
            Evidence(d.source, d.where(len(d) - 1), pairs({"used_bytes": int(s.used), "device": d.device})),
            *more,
            *(
                Evidence(p["source"], p["where"], pairs({"pid": p["pid"], "process_bytes": p["used_bytes"]}))
                for p in s.others[:4]
            ),
        ),
        unit="bytes",
        **given,
    )


def _cached(s: Share, _run: Run, limits: Limits) -> Finding | None:
    g, cached = limits.gpu, s.cached
    if cached is None or cached < max(g.cached_ratio * s.reserved, g.cached_bytes):
        return None
    if s.non_torch > limits.memory.context_bytes:
        return None
    series = [float(r["allocated_bytes"]) for r in s.pair.stats if r["allocated_bytes"] is not None]
    grown = growth(series)
    if grown is not None and grown.rises >= g.growth_windows and not grown.settles:
        return None
    return _finding(
        s,
        id="mem.cached_not_leaked",
        severity="info",
        confidence=0.92,
        claim=(
            f"Of the {size(s.used)} that nvidia-smi shows, {size(cached)} are cached by PyTorch and reusable "
            f"({size(s.allocated)} are allocated); {size(s.non_torch)} are the context and libraries of the "
            "process. Nothing is lost: empty_cache returns the cache if another process needs it."
        ),
        value=float(cached),
        limit=g.cached_ratio * s.reserved,
        remedies=(remedy("empty-cache-once"),),
    )


def _non_torch(s: Share, run: Run, limits: Limits) -> Finding | None:
    total = s.pair.device.last("total_bytes")
    excess = s.non_torch - limits.memory.context_bytes
    bar = max(s.cached or 0.0, limits.gpu.own_ratio * (total or s.used))
    if excess <= bar:
        return None
    listed = bool(processes_of(run, s.pair.device))
    buffers = predict(run, s.pair.stats[-1]["source"])
    if buffers and explained(buffers, int(s.non_torch), limits.memory.context_bytes, limits.memory):
        return _buffers(s, buffers, run)
    return _finding(
        s,
        id="mem.non_torch",
        severity="warn",
        confidence=0.75 if listed else 0.65,
        claim=(
            f"{size(s.non_torch)} of the {size(s.own)} in use lie outside PyTorch's allocator "
            f"({size(s.reserved)} reserved), {size(excess)} more than a normal worker's context and libraries"
            + (
                "."
                if listed
                else "; without a list of processes this includes whatever other processes hold."
            )
        ),
        value=s.non_torch,
        limit=float(limits.memory.context_bytes),
        remedies=(remedy("sample-non-torch"), remedy("fewer-channels")),
        settle_with=("two pairs of memory_stats and nvidia-smi under load",)
        + (() if listed else ("nvidia-smi --query-compute-apps=pid,used_memory --format=csv",)),
        cost=excess,
    )


def _buffers(s: Share, b: Buffers, run: Run) -> Finding:
    last = s.pair.stats[-1]
    values = {"buffers_bytes": b.size, "experts": b.experts, "tokens": b.tokens, "token_bytes": b.token_bytes}
    return _finding(
        s,
        (Evidence(last["source"], last["where"], pairs(values)),),
        id="mem.non_torch_buffers",
        severity="warn",
        confidence=0.85,
        claim=(
            f"{size(s.non_torch)} of the {size(s.own)} in use lie outside PyTorch's allocator, and the "
            f"all-to-all buffers account for {size(b.size)} of it: {b.experts} experts x {b.tokens} tokens "
            f"per rank x {b.token_bytes} bytes per token (dispatch + combine) x {b.copies} copies."
        ),
        value=float(b.size),
        limit=s.non_torch,
        remedies=(
            remedy("lower-dispatch-tokens"),
            remedy("leave-headroom", setting=settings_name(run)),
        ),
        settle_with=("two pairs of memory_stats and nvidia-smi under load",),
        cost=float(b.size),
    )


def _other(s: Share, run: Run, limits: Limits) -> Finding | None:
    total = s.pair.device.last("total_bytes")
    if not total or s.other <= max(limits.memory.other_bytes, limits.gpu.other_ratio * total):
        return None
    pids = ", ".join(f"pid {p['pid']} {size(p['used_bytes'])}" for p in s.others[:4])
    return _finding(
        s,
        id="mem.other_process",
        severity="warn",
        confidence=0.85,
        claim=(
            f"{size(s.other)} of the {size(s.used)} in use on {s.pair.device.label} are held by other "
            f"processes ({pids}), {percent(s.other, total)} of the card."
        ),
        value=s.other,
        limit=limits.gpu.other_ratio * total,
        remedies=(
            remedy("free-other-process", bytes=size(s.other), pids=f" ({pids})"),
            remedy("budget-beside-others", setting=settings_name(run), by=f"{s.other / total:.2f}"),
        ),
        cost=s.other,
    )


def oversubscribed(run: Run, limits: Limits, found: Sequence[Device]) -> list[Finding]:
    """mem.oversubscription without an error: the allocator's peak passes the card's memory."""
    if any(r["kind"] in ("record", "bare") for r in run.rows("oom")):
        return []
    sized = [d for d in found if d.last("total_bytes")]
    totals = {d.last("total_bytes") for d in sized}
    paired = {id(r): p.device for p in pair_up(run, sized) if p.sure for r in p.stats}
    worst: dict[tuple[Any, Any], tuple[float, Row, Device]] = {}
    for row in run.rows("memory_stats"):
        device = paired.get(id(row)) or (sized[0] if len(totals) == 1 else None)
        peak = _peak(row)
        if device is None or peak is None or row["num_ooms"]:
            continue
        total = device.last("total_bytes") or 0.0
        place = (row["rank"], row["device"])
        if peak > total and (place not in worst or peak > worst[place][0]):
            worst[place] = (peak, row, device)
    return [_over(peak, row, device) for peak, row, device in worst.values()] or cliff(run, limits, found)


def cliff(run: Run, limits: Limits, found: Sequence[Device]) -> list[Finding]:
    """mem.oversubscription by speed: it collapses where the peak passes the card's memory, sizes sorted."""
    totals = {d.last("total_bytes") for d in found if d.last("total_bytes")}
    total = totals.pop() if len(totals) == 1 else None
    out = []
    for source, rows in run.by_source("memory_stats"):
        points = sorted((p, s, i) for i, r in enumerate(rows) if (p := _peak(r)) and (s := _speed(r)))
        for (low, before, _), (peak, after, i) in pairwise(points):
            upper = [s for p, s, _ in points if p >= peak]
            lower = [s for p, s, _ in points if p <= low]
            if max(upper) > before * limits.gpu.cliff_ratio or len(lower) < 2:
                continue
            if total is not None and not low <= total <= peak * (1 + limits.gpu.same_total_ratio):
                continue
            values = {
                "peak_bytes": int(peak), "last_fast_peak_bytes": int(low),
                "total_bytes": None if total is None else int(total),
                "peak_ratio": None if total is None else peak / total, "speed_ratio": after / before,
            }  # fmt: skip
            card = f"the card's {size(total)}" if total else "what is probably the card's memory (not given)"
            out.append(
                Finding(
                    id="mem.oversubscription",
                    severity="warn",
                    confidence=0.85 if total else 0.6,
                    claim=(
                        f"Speed falls to {after / before:.2f} of before as the peak goes from {size(low)} to "
                        f"{size(peak)}, past {card}: the driver spills to host memory."
                    ),
                    value=peak / total if total else None,
                    limit=1.0,
                    unit="ratio",
                    evidence=(Evidence(source, rows[i]["where"], pairs(values)),),
                    remedies=(remedy("stay-below-total"),),
                    settle_with=() if total else ("the card's memory (nvidia-smi)",),
                    cost=peak - low,
                )
            )
            break
    return out


def _speed(row: Mapping[str, Any]) -> float | None:
    """Work per second: throughput, else batch (or one) per step time."""
    if row["per_s"]:
        return float(row["per_s"])
    return (row["running"] or 1.0) / row["step_s"] if row["step_s"] else None


def _peak(row: Mapping[str, Any]) -> float | None:
    names = ("reserved_peak_bytes", "allocated_peak_bytes", "reserved_bytes", "allocated_bytes")
    return max((float(row[n]) for n in names if row[n] is not None), default=None)


def _over(peak: float, row: Row, device: Device) -> Finding:
    total = device.last("total_bytes") or 1.0
    values = {"peak_bytes": int(peak), "total_bytes": int(total), "peak_ratio": peak / total}
    return Finding(
        id="mem.oversubscription",
        severity="warn",
        confidence=0.9,
        claim=(
            f"PyTorch's peak of {size(peak)} exceeds the card's {size(total)} ({peak / total:.2f} times): "
            "the driver spills to host memory, and speed collapses before any error."
        ),
        subject=Subject(
            rank=row["rank"], device=row["device"] if row["device"] is not None else device.device
        ),
        value=peak / total,
        limit=1.0,
        unit="ratio",
        evidence=(
            Evidence(row["source"], row["where"], pairs(values)),
            Evidence(device.source, device.where(len(device) - 1), pairs({"total_bytes": int(total)})),
        ),
        remedies=(remedy("stay-below-total"),),
        cost=peak - total,
    )
