"""Numbers of the service as a whole: no progress, stalls that averages hide, prefill among decodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.metrics import scrapes, series
from moexray.analyse.requests import bench_runs, gap_summary, prefill_split
from moexray.core.finding import Evidence, Finding, pairs
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from moexray.analyse.metrics import Window
    from moexray.analyse.requests import GapSummary, PrefillSplit
    from moexray.core.limits import Limits
    from moexray.core.run import Batch, Run

__all__ = ["no_progress", "per_request_average", "prefill_interference"]



def no_progress(run: Run, limits: Limits) -> list[Finding]:
    """Token counters equal at two times with requests running, or GPUs that spin without memory traffic."""
    for chain in series(scrapes(run)):
        window = chain.windows[-1]
        stuck = [e for e in window.last.engines or [""] if _stands(window, e)]
        if stuck:
            return [_standstill(window, stuck, chain.basis, limits)]
    return _spinning(run, limits)


def _stands(window: Window, engine: str) -> bool:
    running = [s.get("requests_running", engine) or 0 for s in (window.first, window.last)]
    tokens = window.delta("generation_tokens", engine)
    return min(running) > 0 and tokens == 0 and window.delta("prompt_tokens", engine) in (0, None)


def _standstill(window: Window, stuck: list[str], basis: str, limits: Limits) -> Finding:
    first, last, seconds = window.first, window.last, window.seconds
    running = sum(last.get("requests_running", e) or 0 for e in stuck)
    waiting = sum(last.get("requests_waiting", e) or 0 for e in stuck)
    tokens = sum(last.get("generation_tokens", e) or 0 for e in stuck)
    sure = seconds is None or seconds >= limits.requests.standstill_s
    took = f" in {seconds:.0f} s" if seconds else " between two scrapes"
    who = f" on engine {', '.join(stuck)}" if stuck != [""] and len(last.engines) > 1 else ""
    claim = (
        f"{running:.0f} requests run and {waiting:.0f} wait{who}, but not one token was generated{took}: "
        f"the counter "
        f"stands at {tokens:.0f}. A health check that answers does not show this."
    )
    evidence = tuple(
        Evidence(
            s.source,
            s.where,
            pairs(
                {
                    "generation_tokens": int(sum(s.get("generation_tokens", e) or 0 for e in stuck)),
                    "running": int(sum(s.get("requests_running", e) or 0 for e in stuck)),
                    "waiting": int(sum(s.get("requests_waiting", e) or 0 for e in stuck)),
                    "seconds_s": seconds,
                }
            ),
        )
        for s in (first, last)
    )
    return Finding(
        "comm.no_progress",
        "error" if sure else "info",
        (0.92 if basis == "time stamps" else 0.85) if sure else 0.45,
        claim,
        value=0.0,
        limit=1.0,
        unit="tokens",
        evidence=evidence,
        implied_by=("comm.missing_rank", "comm.desync"),
        remedies=(remedy("comm-token-liveness"),),
        settle_with=("stacks of all ranks (py-spy dump)", "flight-recorder dumps of all ranks")
        if sure
        else ("scrapes a minute apart",),
        cost=running,
    )


def _spinning(run: Run, limits: Limits) -> list[Finding]:
    lim = limits.requests
    found: list[tuple[Batch, float]] = []
    for batch in run.batches("gpu"):
        if (seconds := _spin_seconds(batch, limits)) is not None:
            found.append((batch, seconds))
        elif "util_ratio" in batch.columns and len(batch.columns["util_ratio"]) > 1:
            return []  # another host's cards work
    if not found:
        return []
    seconds = min(s for _, s in found)
    claim = (
        f"All GPUs are {lim.spin_util:.0%} busy or more with at most {lim.spin_memory:.0%} memory activity "
        f"and near-idle "
        f"power for {seconds:.0f} s: kernels spin in a wait, nothing is computed."
    )
    return [
        Finding(
            "comm.no_progress",
            "error",
            0.75,
            claim,
            value=seconds,
            limit=lim.spin_s,
            unit="s",
            evidence=tuple(Evidence(b.source, "samples at the end", pairs(_spin_facts(b))) for b, _ in found),
            implied_by=("comm.missing_rank", "comm.desync"),
            remedies=(remedy("comm-token-liveness"),),
            settle_with=("two scrapes of the engine's metrics", "stacks of all ranks"),
            cost=seconds,
        )
    ]


def _column(batch: Batch, name: str) -> np.ndarray:
    rows = len(next(iter(batch.columns.values())))
    return np.asarray(batch.columns.get(name, np.full(rows, np.nan)), float)


def _spin_seconds(batch: Batch, limits: Limits) -> float | None:
    """How long all devices of a file spun at its end; None unless longer than the limit."""
    lim = limits.requests
    t, util, memory = (_column(batch, n) for n in ("t_s", "util_ratio", "mem_util_ratio"))
    power, top = _column(batch, "power_w"), _column(batch, "power_limit_w")
    low = np.where(np.isfinite(top), power <= lim.spin_power * top, power <= lim.spin_power_w)
    spins = (util >= lim.spin_util) & (memory <= lim.spin_memory) & low & np.isfinite(t)
    if not spins.any() or not np.isfinite(t).all():
        return None
    bad = t[~spins]
    since = bad.max() if len(bad) else -np.inf
    times = t[t > since]
    if len(times) < 2 or times.max() - times.min() < lim.spin_s:
        return None
    return float(times.max() - times.min())


def _spin_facts(batch: Batch) -> dict[str, object]:
    last = slice(-min(8, len(_column(batch, "t_s"))), None)
    return {
        "util_ratio": float(np.nanmin(_column(batch, "util_ratio")[last])),
        "mem_util_ratio": float(np.nanmax(_column(batch, "mem_util_ratio")[last])),
        "power_w": float(np.nanmax(_column(batch, "power_w")[last])),
    }


def per_request_average(run: Run, limits: Limits) -> list[Finding]:
    """Percentiles over per-request means stay low while single gaps are stalls."""
    out: list[Finding] = []
    for batch in run.batches("gaps"):
        g = gap_summary(batch, limits.requests.stall_factor)
        if g is None or g.requests < 2 or not g.stalls or g.median_s <= 0:
            continue
        if g.p99_mean_s > limits.requests.hidden_factor * g.median_s:
            continue  # the percentile shows it
        out.append(_hidden(batch, g, limits))
    return sorted(out, key=lambda f: -f.cost)[:1]


def _hidden(batch: Batch, g: GapSummary, limits: Limits) -> Finding:
    factor = limits.requests.stall_factor
    together = ""
    if g.at_once is not None and g.at_once > 1:
        together = (
            f" {g.at_once} requests stall at the same instant ({g.at_s:.3f} s): the server stood still."
        )
    claim = (
        f"P99 over per-request means is {g.p99_mean_s * 1e3:.1f} ms and hides {g.stalls} gaps above "
        f"{factor:.0f} "
        f"medians (longest {g.max_s:.3g} s, {g.stalled_s:.3g} s stalled in {g.hit} of {g.requests} requests; "
        f"median gap {g.median_s * 1e3:.1f} ms).{together}"
    )
    facts = {
        "requests": g.requests,
        "gaps": g.gaps,
        "median_ms": g.median_s * 1e3,
        "p99_pooled_ms": g.p99_s * 1e3,
        "p99_of_means_ms": g.p99_mean_s * 1e3,
        "max_ms": g.max_s * 1e3,
        "stalls": g.stalls,
        "stalled_s": g.stalled_s,
        "requests_at_once": g.at_once,
    }
    return Finding(
        "metric.per_request_average",
        "warn",
        0.9,
        claim,
        value=g.max_s,
        limit=factor * g.median_s,
        unit="s",
        evidence=(Evidence(batch.source, f"{g.requests} requests", pairs(facts)),),
        remedies=(remedy("metric-pool-gaps"),),
        settle_with=("server log at that time",) if g.at_once and g.at_once > 1 else (),
        cost=g.stalled_s,
    )


def prefill_interference(run: Run, limits: Limits) -> list[Finding]:
    """Steps with prefill on any rank last much longer, and they are many."""
    lim = limits.requests
    for batch in run.batches("steps"):
        split = prefill_split(batch)
        if split is None or min(split.with_prefill, split.steps - split.with_prefill) < lim.prefill_steps:
            continue
        ratio = split.median_with_s / split.median_without_s
        if ratio < lim.prefill_factor or split.with_prefill < lim.prefill_share * split.steps:
            continue
        return [_interference(run, batch, split, limits)]
    return []


def _interference(run: Run, batch: Batch, split: PrefillSplit, limits: Limits) -> Finding:
    floor = split.median_without_s
    gaps = [(r, *r.figures["p50_itl_s"]) for r in bench_runs(run.rows("bench")) if "p50_itl_s" in r.figures]
    worst = max(gaps, key=lambda x: x[1], default=None)
    itl = worst[1] if worst else split.median_s
    what = "median inter-token latency" if worst else "median step"
    ranks = batch.attrs.get("ranks") or 0
    some = (
        f" (on {split.ranks:.1f} of {ranks} ranks on average)"
        if ranks > 1 and split.ranks == split.ranks
        else ""
    )
    claim = (
        f"{split.with_prefill} of {split.steps} steps prefill on some rank{some} and last "
        f"{split.median_with_s * 1e3:.0f} ms against {floor * 1e3:.1f} ms without: all ranks wait for it."
    )
    if itl > limits.requests.itl_factor * floor:
        claim += f" The {what} of {itl * 1e3:.1f} ms is {itl / floor:.1f}x the decode floor."
    facts = {
        "steps": split.steps,
        "steps_with_prefill": split.with_prefill,
        "prefill_step_ms": split.median_with_s * 1e3,
        "floor_ms": round(floor * 1e3, 3),
        "median_step_ms": split.median_s * 1e3,
    }
    evidence = [Evidence(batch.source, f"{split.steps} steps", pairs(facts))]
    for r, value, where in gaps[:4]:
        evidence.append(
            Evidence(r.source, where, f"{r.name}: {pairs({'p50_itl_ms': round(value * 1e3, 4)})}")
        )
    return Finding(
        "sched.prefill_interference",
        "warn",
        0.9,
        claim,
        value=split.median_with_s / floor,
        limit=limits.requests.prefill_factor,
        unit="ratio",
        evidence=tuple(evidence),
        remedies=(remedy("sched-align-prefill"),),
        cost=(split.median_with_s - floor) * split.with_prefill,
    )
