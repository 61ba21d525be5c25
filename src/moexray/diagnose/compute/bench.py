"""What benchmark tables show: tails that differ while medians agree, throughput that falls off a cliff."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from moexray.analyse.requests import bench_runs
from moexray.core.finding import Evidence, Finding, pairs
from moexray.core.remedies import remedy
from moexray.core.sizes import human_bytes

if TYPE_CHECKING:
    from moexray.analyse.requests import Run1
    from moexray.core.limits import Limits
    from moexray.core.run import Run

__all__ = ["oversubscription", "tail_shapes"]

QUANTITIES = ("itl", "tpot", "ttft", "e2e", "latency", "step")
MAX_PAIRS = 20_000
ROUNDING = 1.005  # printed sizes carry three digits
EXPLAINED = ("jit.compile", "jit.progress", "eplb.done")  # events that make spikes of their own


def tail_shapes(run: Run, limits: Limits) -> list[Finding]:
    """Two runs with like medians whose tails are far apart."""
    if any(r["kind"] in EXPLAINED and r["phase"] != "startup" for r in run.rows("log")):
        return []
    runs = bench_runs(run.rows("bench"))
    worst: tuple[float, Finding] | None = None
    for a, b in itertools.islice(_pairs(runs), MAX_PAIRS):
        for quantity in QUANTITIES:
            found = _tail(a, b, quantity, limits)
            if found is not None and (worst is None or found[0] > worst[0]):
                worst = found
    return [worst[1]] if worst else []


def _pairs(runs: list[Run1]) -> itertools.chain[tuple[Run1, Run1]]:
    """Runs of different arms or files, or the only two of one file, at one level and setting."""
    groups: dict[tuple[object, ...], list[Run1]] = {}
    for r in runs:
        groups.setdefault((r.level, r.setting), []).append(r)
    return itertools.chain.from_iterable(
        (pair for pair in itertools.combinations(g, 2) if len(g) == 2 or _apart(*pair))
        for g in groups.values()
    )


def _apart(a: Run1, b: Run1) -> bool:
    return (a.source, a.run) != (b.source, b.run)


def _title(r: Run1, other: Run1) -> str:
    """What to call a run beside another one."""
    if r.name != other.name:
        return r.name
    return r.source if r.source != other.source else f"run {r.order + 1} of {r.source}"


def _tail(a: Run1, b: Run1, quantity: str, limits: Limits) -> tuple[float, Finding] | None:
    lim = limits.requests
    medians = [r.figures.get(f"p50_{quantity}_s", (0.0, ""))[0] for r in (a, b)]
    if min(medians) <= 0 or max(medians) > (1 + lim.tail_medians) * min(medians):
        return None
    ratio, said = 0.0, ""
    tails = [r.figures.get(f"p99_{quantity}_s", (0.0, ""))[0] for r in (a, b)]
    means = [r.figures.get(f"mean_{quantity}_s", (0.0, ""))[0] for r in (a, b)]
    if min(tails) > 0 and max(tails) > lim.tail_p99 * min(tails):
        ratio = max(tails) / min(tails)
        slow = tails.index(max(tails))
        said = f"P99 {max(tails) * 1e3:.4g} ms against {min(tails) * 1e3:.4g} ms ({ratio:.1f}x)"
    else:
        skew = [m / p for m, p in zip(means, medians, strict=True)]
        if not (max(skew) > lim.tail_mean >= min(skew) > 0):
            return None
        slow, ratio = skew.index(max(skew)), max(skew)
        said = f"mean/median {max(skew):.1f} against {min(skew):.1f}"
    bad, good = (a, b) if slow == 0 else (b, a)
    at = f" at level {a.level:g}" if a.level is not None else ""
    claim = (
        f"{_title(bad, good)} and {_title(good, bad)} agree in the median {quantity} "
        f"({medians[slow] * 1e3:.4g} and {medians[1 - slow] * 1e3:.4g} ms){at} and differ in the "
        f"tail: {said}. A few shapes are very slow in {_title(bad, good)}."
    )
    evidence = (_figures(bad, good, quantity), _figures(good, bad, quantity))
    finding = Finding(
        "kernel.tail_shapes",
        "warn",
        0.75,
        claim,
        value=ratio,
        limit=lim.tail_p99 if "P99" in said else lim.tail_mean,
        unit="ratio",
        evidence=evidence,
        remedies=(remedy("kernel-slow-shapes"),),
        settle_with=("a trace of the slow run, grouped by kernel shape",),
        cost=max(tails) - min(tails),
    )
    return ratio, finding


def _figures(r: Run1, other: Run1, quantity: str) -> Evidence:
    names = (f"{stat}_{quantity}_s" for stat in ("mean", "p50", "p90", "p95", "p99", "max"))
    facts = {n.removesuffix("_s") + "_ms": r.figures[n][0] * 1e3 for n in names if n in r.figures}
    where = r.figures[f"p50_{quantity}_s"][1]
    return Evidence(r.source, where, f"{_title(r, other)}: {pairs(facts)}")


def oversubscription(run: Run, limits: Limits) -> list[Finding]:
    """Throughput collapses exactly where the peak of memory passes the card."""
    groups: dict[tuple[object, ...], list[Run1]] = {}
    for r in bench_runs(run.rows("bench")):
        if "peak_memory_bytes" in r.figures:
            same = r.source if r.level is None else (r.source, r.run)
            groups.setdefault((same, r.setting if r.level is not None else None), []).append(r)
    card = _card(run, limits)
    found = [f for g in groups.values() if (f := _cliff(g, card, limits)) is not None]
    found = found or [f for g in groups.values() if (f := _over(g, card)) is not None]
    return sorted(found, key=lambda f: -f.confidence)[:1]


def _card(run: Run, limits: Limits) -> float | None:
    """Memory of the card that other inputs state; None if unknown or if cards differ."""
    totals = {float(r["total_bytes"]) for r in run.rows("oom") if r["total_bytes"]}
    for batch in run.batches("gpu"):
        totals |= {float(t) for t in batch.columns.get("total_bytes", ()) if t > 0}
    return min(totals) if totals and max(totals) < (1 + limits.requests.same_card) * min(totals) else None


def _speed(r: Run1) -> float | None:
    """Steps, tokens or requests per second of a run, or the inverse of a duration."""
    for name in (
        "output_tokens_per_s",
        "tokens_per_s",
        "total_tokens_per_s",
        "items_per_s",
        "steps_per_s",
        "requests_per_s",
        "input_tokens_per_s",
    ):
        if name in r.figures:
            return r.figures[name][0]
    for name in (
        "step_s",
        "mean_step_s",
        "latency_s",
        "mean_latency_s",
        "p50_latency_s",
        "p50_step_s",
        "mean_itl_s",
        "mean_tpot_s",
    ):
        if name in r.figures and r.figures[name][0] > 0:
            # a step of a larger batch does more: per item where the level is a batch
            return (r.level or 1.0) / r.figures[name][0]
    return None


def _cliff(group: list[Run1], card: float | None, limits: Limits) -> Finding | None:
    fits = 1 + limits.requests.card_slack
    ordered = sorted(group, key=lambda r: r.figures["peak_memory_bytes"][0])
    stated = [r.figures["memory_total_bytes"][0] for r in ordered if "memory_total_bytes" in r.figures]
    total = max(stated) if stated else card
    speeds = [(r, s) for r in ordered if (s := _speed(r)) is not None]
    for (before, fast), (after, slow) in itertools.pairwise(speeds):
        peak, below = (r.figures["peak_memory_bytes"][0] for r in (after, before))
        if slow >= limits.requests.cliff * fast or peak <= below:
            continue
        if total is not None and not below <= fits * total < fits * peak:
            continue
        if total is None and after.level is None:
            continue  # rows of unlike things
        later = [s for r, s in speeds if r.figures["peak_memory_bytes"][0] >= peak]
        if max(later) >= fast:
            continue  # a single slow run
        return _cliff_finding((before, fast), (after, slow), total, limits)
    return None


def _over(group: list[Run1], card: float | None) -> Finding | None:
    """The run whose peak passes the card by most, however fast it was."""
    known = [
        (r.figures["peak_memory_bytes"], total, r)
        for r in group
        if (total := r.figures["memory_total_bytes"][0] if "memory_total_bytes" in r.figures else card)
    ]
    (peak, where), total, run = max(known, key=lambda k: k[0][0] / k[1], default=((0.0, ""), 1.0, group[0]))
    if peak <= ROUNDING * total:
        return None
    level = f"{run.level:g}" if run.level is not None else run.name
    claim = (
        f"At level {level} the peak of {human_bytes(peak)} passes the card's {human_bytes(total)} "
        f"({peak / total:.2f}x): the driver spills to host memory, and speed collapses before any error."
    )
    speed = _speed(run)
    facts = {"level": run.level, "peak_bytes": int(peak), "total_bytes": int(total), "throughput": speed}
    return Finding(
        "mem.oversubscription",
        "warn",
        0.85,
        claim,
        value=peak / total,
        limit=1.0,
        unit="ratio",
        evidence=(Evidence(run.source, where, pairs(facts)),),
        remedies=(remedy("bench-below-card", level=level),),
        cost=peak - total,
    )


def _cliff_finding(
    before: tuple[Run1, float], after: tuple[Run1, float], total: float | None, limits: Limits
) -> Finding:
    (good, fast), (bad, slow) = before, after
    peak = bad.figures["peak_memory_bytes"][0]
    level = f"{bad.level:g}" if bad.level is not None else bad.name
    claim = (
        f"Throughput falls from {fast:.4g} to {slow:.4g} ({fast / slow:.1f}x) at level {level}, where the "
        f"peak of {human_bytes(peak)} "
    )
    if total is not None:
        passed = f"passes the card's {human_bytes(total)} ({peak / total:.2f}x)"
        claim += f"{passed}: the driver spills to host memory."
    else:
        claim += "is larger than before; if it passes the card's memory, the driver spills to host memory."
    evidence = tuple(
        Evidence(
            r.source,
            r.figures["peak_memory_bytes"][1],
            pairs(
                {
                    "level": r.level,
                    "peak_bytes": int(r.figures["peak_memory_bytes"][0]),
                    "total_bytes": int(total) if total else None,
                    "throughput": s,
                }
            ),
        )
        for r, s in (before, after)
    )
    return Finding(
        "mem.oversubscription",
        "warn",
        0.9 if total is not None else 0.55,
        claim,
        value=peak / total if total else slow / fast,
        limit=1.0 if total else limits.requests.cliff,
        unit="ratio",
        evidence=evidence,
        remedies=(remedy("bench-below-card", level=level),),
        settle_with=() if total is not None else ("the card's memory (nvidia-smi)",),
        cost=max(peak - (total or good.figures["peak_memory_bytes"][0]), 0.0),
    )
