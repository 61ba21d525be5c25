"""mem.* over time: growth at like load, fragmentation that drifts, standstills at full memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moexray.analyse.gpu import pair_up
from moexray.analyse.memory_series import dips, growth, like_load, load_at, rank_correlation, windows
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy
from moexray.diagnose.memory.oom_words import percent, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.analyse.gpu import Device, Pair
    from moexray.analyse.memory_series import Dips, Growth
    from moexray.core.limits import Limits
    from moexray.core.run import Row, Run

__all__ = ["fragmentation_drift", "growth_unattributed", "stall_from_samples"]

BLIND = "nvidia-smi cannot show the largest free block: that needs an allocator snapshot."
PAIRS = "two pairs of memory_stats and nvidia-smi under load, then an allocator snapshot"
SHOWN = 3


@dataclass(frozen=True, slots=True)
class _Grown:
    """A series that grows at like load, and how well the load is known."""

    grown: Growth
    limit: float
    total: float | None
    load: str  # requests, utilisation, unknown
    kept: tuple[int, ...]


def growth_unattributed(run: Run, limits: Limits, found: Sequence[Device]) -> list[Finding]:
    """mem.growth_unattributed: memory in use rises in window after window at like load."""
    loads = _loads(run)
    by_device = {id(p.device): p for p in pair_up(run, found)}
    out: list[Finding] = []
    told: set[tuple[Any, Any]] = set()
    for d in found:
        grown = _grows(d.numbers["t_s"], d.numbers["used_bytes"], _load_of(d, loads, limits), d, limits)
        if grown is None:
            continue
        pair = by_device.get(id(d))
        if pair is not None:
            told.add((pair.stats[0]["rank"], pair.stats[0]["device"]))
        out.append(_growth_finding(d, grown, pair))
    for (rank, index), rows in _stats(run).items():
        if (rank, index) in told or (out and rank is None and index is None):
            continue
        values = [math.nan if r["reserved_bytes"] is None else float(r["reserved_bytes"]) for r in rows]
        times = [math.nan if r["t_s"] is None else float(r["t_s"]) for r in rows]
        own = [r["running"] for r in rows]
        if not any(v is not None for v in own) and loads:
            own = load_at(times, loads)
        load: tuple[str, Sequence[float | None]] | None = ("requests", own)
        if not any(v is not None for v in own):
            load = ("unknown", [0.0] * len(rows)) if not loads else None
        grown = _grows(times, values, load, None, limits)
        if grown is not None:
            out.append(_reserved_finding(rows, grown, rank, index))
    return out


def _loads(run: Run) -> list[tuple[float, float]]:
    """Requests running over time, of statistics, load tables and metrics pages."""
    out = [(r["t_s"], r["running"]) for r in run.rows("memory_stats") if None not in (r["t_s"], r["running"])]
    for batch in run.batches("metrics"):
        if batch.attrs.get("t_s") is None:
            continue
        at = [v for m, v in zip(batch.columns["metric"], batch.columns["value"], strict=True)
              if m == "requests_running"]  # fmt: skip
        if at:
            out.append((float(batch.attrs["t_s"]), float(sum(at))))
    return sorted(out)


def _load_of(
    d: Device, loads: Sequence[tuple[float, float]], limits: Limits
) -> tuple[str, Sequence[float | None]] | None:
    """(what it is, load of each sample); None if a load is known that cannot be laid beside the samples."""
    g = limits.gpu
    if loads:
        at = load_at(d.numbers["t_s"], loads)
        if any(v is not None for v in at):
            return "requests", at
        values = [v for _, v in loads]
        if len(like_load(values, g.like_load_ratio)) == len(values):
            return "requests", [values[0]] * len(d)
        return None
    util = d.numbers["util_ratio"]
    if sum(not math.isnan(u) for u in util) >= g.known_util_ratio * len(d):
        return "utilisation", [None if math.isnan(u) or u < g.idle_ratio else 100 * u for u in util]
    return "unknown", [0.0] * len(d)


def _grows(
    times: Sequence[float],
    values: Sequence[float],
    load: tuple[str, Sequence[float | None]] | None,
    device: Device | None,
    limits: Limits,
) -> _Grown | None:
    g = limits.gpu
    if load is None:
        return None
    kind, at = load
    kept = [i for i in like_load(at, g.like_load_ratio) if not math.isnan(values[i])]
    if len(kept) < g.like_samples_ratio * len(values):
        return None
    grown = growth([values[i] for i in kept])
    total = device.last("total_bytes") if device is not None else None
    unknown = sum(math.isnan(t) for t in times)
    if grown is None or 0 < unknown < len(times):
        return None
    limit = g.growth_ratio * (total or grown.first)
    rises = grown.last - grown.first > limit and grown.rises >= g.growth_windows and not grown.settles
    return _Grown(grown, limit, total, kind, tuple(kept)) if rises else None


def _said(load: str) -> tuple[str, float]:
    """How the load is told, and the confidence that goes with it."""
    return {
        "requests": ("at like load (requests running)", 0.8),
        "utilisation": ("at like utilisation", 0.6),
        "unknown": ("(load not known)", 0.45),
    }[load]


def _growth_finding(d: Device, x: _Grown, pair: Pair | None) -> Finding:
    words, confidence = _said(x.load)
    rise = x.grown.last - x.grown.first
    share = f" ({percent(rise, x.total)} of total)" if x.total else f" ({percent(rise, x.grown.first)})"
    values: dict[str, object] = {
        "first_bytes": int(x.grown.first),
        "last_bytes": int(x.grown.last),
        "growth_bytes": int(rise),
        "growth_ratio": rise / (x.total or x.grown.first),
        "total_bytes": int(x.total) if x.total else None,
        "windows": len(x.grown.medians),
        "rising_windows": x.grown.rises,
    }
    parts = _split(pair, x)
    claim = (
        f"Memory in use on {d.label} rises from {size(x.grown.first)} to {size(x.grown.last)}{share} "
        f"{words}, in {x.grown.rises} of {len(x.grown.medians) - 1} windows, and does not come to rest. "
    )
    if parts:
        largest = max(parts, key=lambda k: parts[k])
        split = ", ".join(f"{k} {size(v)}" for k, v in parts.items())
        claim += f"Of the growth: {split}; look at {largest} first. "
        values |= {f"{k.replace(' ', '_').replace('-', '_')}_growth_bytes": int(v) for k, v in parts.items()}
    else:
        claim += f"Who owns it is not known. {BLIND}"
    return _growth_out(claim, confidence, x, d.device, None, Evidence(
        d.source, f"{d.where(x.kept[0])} to {d.where(x.kept[-1])}", pairs(values)))  # fmt: skip


def _split(pair: Pair | None, x: _Grown) -> dict[str, float]:
    """Growth of reserved and of the rest, where statistics of the same time stand beside."""
    rows = [r for r in pair.stats if r["reserved_bytes"] is not None] if pair else []
    if len(rows) < 2:
        return {}
    n = max(1, len(rows) // len(x.grown.medians))
    first = sorted(r["reserved_bytes"] for r in rows[:n])[n // 2]
    last = sorted(r["reserved_bytes"] for r in rows[-n:])[n // 2]
    reserved = float(last - first)
    return {"torch reserved": reserved, "non-torch": x.grown.last - x.grown.first - reserved}


def _reserved_finding(rows: Sequence[Row], x: _Grown, rank: int | None, device: int | None) -> Finding:
    words, confidence = _said(x.load)
    rise = x.grown.last - x.grown.first
    claim = (
        f"Memory reserved by PyTorch rises from {size(x.grown.first)} to {size(x.grown.last)} "
        f"({percent(rise, x.grown.first)}) {words}, in {x.grown.rises} of {len(x.grown.medians) - 1} "
        "windows, and does not come to rest."
    )
    allocated = [r["allocated_bytes"] for r in rows if r["allocated_bytes"] is not None]
    values: dict[str, object] = {
        "first_bytes": int(x.grown.first),
        "last_bytes": int(x.grown.last),
        "growth_bytes": int(rise),
        "growth_ratio": rise / x.grown.first,
    }
    if len(allocated) > 1:
        values["allocated_growth_bytes"] = allocated[-1] - allocated[0]
        claim += f" Allocated memory grows by {size(allocated[-1] - allocated[0])} of that."
    where = f"{rows[x.kept[0]]['where']} to {rows[x.kept[-1]]['where']}"
    return _growth_out(claim, confidence, x, device, rank, Evidence(rows[0]["source"], where, pairs(values)))


def _growth_out(
    claim: str, confidence: float, x: _Grown, device: int | None, rank: int | None, shown: Evidence
) -> Finding:
    return Finding(
        id="mem.growth_unattributed",
        severity="info" if x.load == "unknown" else "warn",
        confidence=confidence,
        claim=claim.rstrip(),
        subject=Subject(rank=rank, device=device),
        value=x.grown.last - x.grown.first,
        limit=x.limit,
        unit="bytes",
        evidence=(shown,),
        implied_by=("mem.fragmentation_drift",),
        remedies=(remedy("attribute-growth"),),
        settle_with=(*(("requests running over the same time",) if x.load != "requests" else ()), PAIRS),
        cost=x.grown.last - x.grown.first,
    )


def _stats(run: Run) -> dict[tuple[Any, Any], list[Row]]:
    """Statistics with a reserved size by rank and device, oldest first."""
    groups: dict[tuple[Any, Any], list[Row]] = {}
    for row in run.rows("memory_stats"):
        if row["reserved_bytes"]:
            groups.setdefault((row["rank"], row["device"]), []).append(row)
    return {k: sorted(v, key=lambda r: (r["t_s"] is None, r["t_s"] or 0.0)) for k, v in groups.items()}


def _fragments(row: Row) -> float | None:
    """Free bytes inside segments that are in use, else all that is reserved but not allocated."""
    if row["inactive_split_bytes"] is not None:
        return float(row["inactive_split_bytes"])
    return None if row["allocated_bytes"] is None else float(row["reserved_bytes"] - row["allocated_bytes"])


def fragmentation_drift(run: Run, limits: Limits) -> list[Finding]:
    """mem.fragmentation_drift: fragments / reserved and the step time rise together at like load."""
    g = limits.gpu
    out = []
    for (rank, device), rows in _stats(run).items():
        rows = [r for r in rows if _fragments(r) is not None]  # noqa: PLW2901
        load, how = [r["running"] for r in rows], "at like load"
        if not any(v is not None for v in load):
            load, how = [r["allocated_bytes"] for r in rows], "at like allocated memory (load not recorded)"
        kept = [rows[i] for i in like_load(load, g.like_load_ratio)]
        if len(kept) < max(g.drift_samples, g.like_samples_ratio * len(rows)):
            continue
        shares = [(_fragments(r) or 0.0) / r["reserved_bytes"] for r in kept]
        grown = growth(shares)
        if grown is None or grown.last - grown.first < g.drift_ratio or grown.rises < g.growth_windows:
            continue
        timed = [(s, t) for s, t in zip(shares, _steps(run, kept), strict=True) if t is not None]
        enough = len(timed) >= g.drift_samples
        together = rank_correlation([s for s, _ in timed], [t for _, t in timed]) if enough else None
        if timed and (together is None or together < g.drift_correlation):
            continue
        steps = windows([t for _, t in timed])
        values = {
            "first_ratio": shares[0], "last_ratio": shares[-1], "correlation": together,
            "first_step_s": timed[0][1] if timed else None, "last_step_s": timed[-1][1] if timed else None,
            "samples": len(kept),
        }  # fmt: skip
        claim = (
            f"Fragments / reserved rise from {100 * shares[0]:.1f} % to {100 * shares[-1]:.1f} % over "
            f"{len(kept)} samples {how}"
        )
        if timed and together is not None:
            ends = (timed[0][1], timed[-1][1]) if not steps else (steps[0], steps[-1])
            claim += (
                f", and the step time follows from {1e3 * ends[0]:.2f} to {1e3 * ends[1]:.2f} ms (rank "
                f"correlation {together:.2f} >= {g.drift_correlation})."
            )
        else:
            claim += ": whether step times follow is not known."
        proven = bool(timed) and how == "at like load"
        out.append(
            Finding(
                id="mem.fragmentation_drift",
                severity="warn" if timed else "info",
                confidence=(0.82 if proven else 0.65) if timed else 0.4,
                claim=claim,
                subject=Subject(rank=rank, device=device),
                value=together,
                limit=g.drift_correlation,
                unit="ratio",
                evidence=(
                    Evidence(rows[0]["source"], f"{kept[0]['where']} to {kept[-1]['where']}", pairs(values)),
                ),
                remedies=(remedy("clean-at-boundaries"), remedy("replay-history")),
                settle_with=("an allocator snapshot: what pins the fragments",)
                + (() if timed else ("step times of the same hours",)),
            )
        )
    return out


def _steps(run: Run, rows: Sequence[Row]) -> list[float | None]:
    """Step time of each sample: logged beside it, else the median of a latency series around it."""
    if any(r["step_s"] is not None for r in rows):
        return [r["step_s"] for r in rows]
    times = [r["t_s"] for r in rows]
    series = sorted(
        (float(t), float(v))
        for b in run.batches("latency")
        if "t_s" in b.columns
        for t, v in zip(b.columns["t_s"], b.columns["value_s"], strict=True)
        if not (math.isnan(t) or math.isnan(v))
    )
    if len(series) < 4 or any(t is None for t in times):
        return [None] * len(rows)
    return load_at([float(t) for t in times], series)


def stall_from_samples(_run: Run, limits: Limits, found: Sequence[Device]) -> list[Finding]:
    """mem.alloc_stall from samples alone: standstills under load, nearly all of them at full memory."""
    g = limits.gpu
    out = []
    for d in found:
        x = dips(d, g.idle_ratio, g.load_ratio, g.full_ratio)
        if x is None or x.count < g.stall_count or x.windows < g.stall_windows:
            continue
        if x.full < g.at_full_ratio * x.count:
            continue
        if x.interval_s is None or not 0 < x.interval_s <= g.stall_interval_s:
            continue
        contrast = x.busy_below >= g.stall_below_ratio or x.moved >= g.stall_moved_ratio * x.count
        if not contrast and x.count < g.stall_sure_count:
            continue
        out.append(_stall(d, x, limits, contrast=contrast))
    return out


def _stall(d: Device, x: Dips, limits: Limits, *, contrast: bool) -> Finding:
    g = limits.gpu
    total = d.last("total_bytes") or 0.0
    values = {
        "standstills": x.count, "standstills_at_full": x.full, "samples_at_standstill": x.samples,
        "longest_s": x.longest_s, "sample_interval_s": x.interval_s, "full_bytes": int(g.full_ratio * total),
        "total_bytes": int(total),
    }  # fmt: skip
    tail = (
        "the allocator may be giving memory back to the device before it can grow"
        if contrast
        else "but memory is never lower, so this may be idle time as well"
    )
    return Finding(
        id="mem.alloc_stall",
        severity="warn" if contrast else "info",
        confidence=min(0.55, g.stall_confidence) if contrast else 0.4,
        claim=(
            f"Utilisation of {d.label} falls to {100 * g.idle_ratio:.0f} % or less {x.count} times between "
            f"busy samples, {x.full} of them at >= {100 * g.full_ratio:.0f} % of {size(total)}: {tail}. "
            f"A trace decides. {BLIND}"
        ),
        subject=Subject(device=d.device),
        value=float(x.full),
        limit=2.0,
        unit="count",
        evidence=(Evidence(d.source, f"{d.label}, {len(d)} samples", pairs(values)),),
        remedies=(
            remedy("bucket-shapes"),
            remedy("preallocate-largest"),
            remedy("leave-headroom", setting="the memory fraction"),
        ),
        settle_with=("a trace of slow steps (device free and malloc calls)", "an allocator snapshot"),
    )
