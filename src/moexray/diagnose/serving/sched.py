"""sched.preemption, sched.saturated: requests evicted or queued, from scrapes, logs and statistics."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from moexray.analyse.load import Point, engine_points, points
from moexray.analyse.metrics import scrapes, series
from moexray.core.finding import Evidence, Finding, pairs
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from moexray.analyse.metrics import Scrape, Series, Window
    from moexray.core.finding import Remedy
    from moexray.core.limits import Limits
    from moexray.core.run import Run

__all__ = ["preemption", "saturated"]

SHOWN = 6
LIMIT_KEYS = ("max_num_seqs", "max_running_requests", "max_batch_size")


def preemption(run: Run, limits: Limits) -> list[Finding]:
    """Preemptions rise while the KV cache is full; a counter that stands says the opposite."""
    found: list[Finding] = []
    known = False
    for chain in series(scrapes(run)):
        counted = [w for w in chain.windows if w.delta("preemptions") is not None]
        if not counted:
            continue
        known = True
        found += _counter_moved(run, chain, counted, limits)
    if not known:
        found += _preempted_in_log(run, limits) or _paused(run, limits)
    worst = max((f for f in found if not f.id.startswith("not:")), key=lambda f: f.value or 0, default=None)
    return [worst] if worst else found[:1]


def _counter_moved(run: Run, chain: Series, windows: list[Window], limits: Limits) -> list[Finding]:
    full = limits.requests.kv_full
    moved, uses, sure = 0.0, [], True
    for w in windows:
        for engine in w.last.engines or [""]:
            delta = w.delta("preemptions", engine) or 0.0
            ends = (w.first.get("kv_usage", engine), w.last.get("kv_usage", engine))
            use = [u for u in ends if u is not None]
            if delta > 0 and (not use or max(use) >= full):
                moved += delta
                uses += use
                sure &= bool(use)
    if not moved:
        return _stands(chain, limits)
    first, last, seconds = chain.scrapes[0], chain.scrapes[-1], chain.whole.seconds
    rate = f" in {seconds:.0f} s ({moved / seconds:.1f} per s)" if seconds else " between the scrapes"
    used = f"KV use up to {max(uses):.1%}" if uses else "KV use unknown"
    balance, extra = _balance(run, limits)
    claim = (
        f"{moved:.0f} preemptions{rate} with {used}: evicted requests are computed again: that makes the "
        f"tail."
    )
    facts = {
        "preemptions_delta": int(moved),
        "kv_usage": max(uses, default=None),
        "seconds_s": seconds,
        "itl_mean_s": chain.whole.mean("itl"),
    }
    ends_of = (_scrape_evidence(first), _scrape_evidence(last))
    return [
        Finding(
            "sched.preemption",
            "warn" if sure else "info",
            0.92 if sure else 0.45,
            claim + balance,
            value=moved,
            limit=0.0,
            unit="count",
            evidence=(Evidence(last.source, f"up to {last.where}", pairs(facts)), *ends_of, *extra),
            remedies=_preemption_remedies(last),
            settle_with=() if sure else ("a scrape that has the KV cache use",),
            cost=moved,
        )
    ]


def _stands(chain: Series, limits: Limits) -> list[Finding]:
    """Nothing is preempted now, though the cache is full and the counter is not 0: ruled out."""
    last, count = chain.scrapes[-1], chain.scrapes[-1].get("preemptions") or 0
    use = last.get("kv_usage") or 0.0
    if use < limits.requests.kv_full or not count or chain.whole.delta("preemptions"):
        return []
    claim = (
        f"The preemption counter stands at {count:.0f}: nothing is preempted now, though KV use is "
        f"{use:.0%}."
    )
    evidence = tuple(_scrape_evidence(s) for s in (chain.scrapes[0], last))
    return [Finding("not:sched.preemption", "info", 0.9, claim, value=0.0, unit="count", evidence=evidence)]


def _preemption_remedies(last: Scrape) -> tuple[Remedy, ...]:
    running, use = last.get("requests_running"), last.get("kv_usage")
    seqs = int(running * 0.9) if running and use else None
    out = [remedy("sched-more-kv")]
    if seqs:
        out.append(remedy("sched-fewer-seqs", seqs=seqs))
    return tuple(out)


def _scrape_evidence(scrape: Scrape) -> Evidence:
    facts = {
        name: scrape.get(metric)
        for name, metric in (
            ("preemptions", "preemptions"),
            ("kv_usage", "kv_usage"),
            ("running", "requests_running"),
            ("waiting", "requests_waiting"),
            ("generation_tokens", "generation_tokens"),
        )
    }
    return Evidence(scrape.source, scrape.where, pairs({k: _plain(v) for k, v in facts.items()}))


def _plain(value: float | None) -> float | int | None:
    return int(value) if value is not None and value == int(value) and abs(value) < 1e15 else value


def _balance(run: Run, limits: Limits) -> tuple[str, tuple[Evidence, ...]]:
    """Balancedness that the log states, as the counter-check: a sentence and its line."""
    rows = [
        r
        for r in run.rows("log")
        if r["kind"] == "eplb.balance"
        and isinstance((r["fields"] or {}).get("balancedness"), int | float)
        and not (r["fields"] or {}).get("dummy")
    ]
    if not rows:
        return "", ()
    value = median(float(r["fields"]["balancedness"]) for r in rows)
    last = rows[-1]
    if value < limits.routing.balancedness:
        return f" The logged balancedness of the experts is {value:.2f}, which is a matter of its own.", ()
    evidence = Evidence(
        last["source"], last["where"], f"{last['text']} {pairs({'balancedness': round(value, 3)})}"
    )
    return f" The experts are even (balancedness {value:.2f}): they are not the cause.", (evidence,)


def _preempted_in_log(run: Run, limits: Limits) -> list[Finding]:
    rows = [r for r in run.rows("log") if r["kind"] == "sched.preempt" and r["phase"] != "startup"]
    if not rows:
        return []
    totals = [t for r in rows if isinstance(t := (r["fields"] or {}).get("total"), int | float)]
    count = max(len(rows), int(max(totals) - min(totals)) + 1 if totals else 0)
    use = max((p.kv for p in points(run) if p.kv is not None), default=None)
    said = any(
        w in r["text"].lower() for r in rows for w in ("not enough kv", "kv cache pool is full", "not enough")
    )
    full = (use is not None and use >= limits.requests.kv_full) or (use is None and said)
    if use is not None and use < limits.requests.kv_full and not said:
        return []
    sure = full and count > 1
    balance, extra = _balance(run, limits)
    used = f" at KV use up to {use:.1%}" if use is not None else ""
    claim = f"The log reports {count} preemptions{used}: evicted requests are computed again.{balance}"
    evidence = tuple(Evidence(r["source"], r["where"], r["text"]) for r in (*rows[:2], *rows[-1:]))
    facts = pairs({"preemptions": count, "kv_usage": use})
    return [
        Finding(
            "sched.preemption",
            "warn" if sure else "info",
            0.8 if sure else 0.4,
            claim,
            value=float(count),
            limit=0.0,
            unit="count",
            evidence=(
                Evidence(rows[-1]["source"], rows[-1]["where"], facts),
                *dict.fromkeys(evidence),
                *extra,
            ),
            remedies=(remedy("sched-more-kv"),),
            settle_with=() if sure else ("two scrapes of the engine's metrics under load",),
            cost=float(count),
        )
    ]


def _paused(run: Run, limits: Limits) -> list[Finding]:
    """Iteration statistics: requests that are paused while the KV cache is full."""
    best: Finding | None = None
    for batch in run.batches("iterations"):
        paused, use, ran = (batch.columns[c] for c in ("paused", "kv_usage", "running"))
        least = limits.requests.kv_full
        full = [i for i, (n, u) in enumerate(zip(paused, use, strict=True)) if n > 0 and u >= least]
        if not full or (best and len(full) <= best.cost):
            continue
        most = max(full, key=lambda i: paused[i])
        claim = (
            f"Requests are paused in {len(full)} of {len(paused)} iterations, up to {paused[most]:.0f} of "
            f"{ran[most]:.0f} at once, with KV use at {use[most]:.1%}: what was computed of them is computed "
            "again."
        )
        facts = {"iterations": len(full), "paused": int(paused[most]), "kv_usage": float(use[most])}
        quoted = [
            (f"iteration {i + 1} of the file", {"paused": int(paused[i]), "kv_usage": float(use[i])})
            for i in (full[0], most, full[-1])
        ]
        best = Finding(
            "sched.preemption",
            "warn" if len(full) > 1 else "info",
            0.9 if len(full) > 1 else 0.45,
            claim,
            value=float(len(full)),
            limit=0.0,
            unit="count",
            evidence=(
                Evidence(batch.source, "all iterations", pairs(facts)),
                *dict.fromkeys(Evidence(batch.source, where, pairs(f)) for where, f in quoted),
            ),
            remedies=(remedy("sched-more-kv"),),
            settle_with=() if len(full) > 1 else ("statistics over a longer time under load",),
            cost=float(len(full)),
        )
    return [best] if best else []


def saturated(run: Run, limits: Limits) -> list[Finding]:
    """The queue grows while the engine runs at its maximum and its steps stay as fast as before."""
    allowed = _allowed(run)
    chains = [_of_series(c) for c in series(scrapes(run)) if len(c.scrapes) > limits.requests.rising_windows]
    chains += list(engine_points(run).values())
    out = [f for chain in chains if (f := _queue(chain, allowed, limits)) is not None]
    return sorted(out, key=lambda f: -(f.value or 0))[:1]


def _allowed(run: Run) -> int | None:
    for row in run.rows("launch"):
        if row["key"] in LIMIT_KEYS and str(row["value"]).isdigit():
            return int(row["value"])
    return None


def _of_series(chain: Series) -> list[Point]:
    return [_point(chain.scrapes[0], None), *(_point(w.last, w) for w in chain.windows)]


def _point(scrape: Scrape, window: Window | None) -> Point:
    engines = [e for e in scrape.engines if e]
    return Point(
        source=scrape.source,
        where=scrape.where,
        t_s=scrape.t_s,
        running=scrape.get("requests_running"),
        waiting=scrape.get("requests_waiting"),
        kv=scrape.get("kv_usage"),
        step_s=(window.mean("itl") or window.mean("iteration_latency")) if window else None,
        preempted=window.delta("preemptions") if window else None,
        engines=max(len(engines), 1),
    )


def _queue(chain: list[Point], allowed: int | None, limits: Limits) -> Finding | None:
    """The longest rise of the queue in one server's points, if all conditions hold."""
    lim = limits.requests
    start, end = _longest_rise(chain)
    rise = chain[start : end + 1]
    if end - start < lim.rising_windows or not rise[-1].waiting:
        return None
    running = [p.running for p in rise if p.running is not None]
    if len(running) < len(rise) or not min(running):
        return None
    top = allowed * max(p.engines for p in rise) if allowed else None
    # the queue may begin to grow just when the last place is taken
    full = running[1:]
    at_max = (
        min(full) >= (1 - lim.running_same) * top
        if top
        else max(full) - min(full) <= lim.running_same * max(full)
    )
    if not at_max or any((p.kv or 0) >= lim.kv_full and p.preempted for p in rise):
        return None
    steps = [p.step_s for p in chain[: end + 1] if p.step_s]
    if steps and max(steps) > (1 + lim.step_time_same) * min(steps):
        return None
    return _queue_finding(rise, steps, allowed, top, limits)


def _queue_finding(
    rise: list[Point], steps: list[float], allowed: int | None, top: int | None, limits: Limits
) -> Finding:
    sure = len(steps) >= limits.requests.rising_windows
    running = [p.running or 0.0 for p in rise]
    queue = ", ".join(f"{p.waiting:.0f}" for p in (rise if len(rise) <= SHOWN else [*rise[:3], *rise[-3:]]))
    most = f"--max-num-seqs {top}" if top else f"{max(running):.0f}, constant"
    pace = f"; the time per token stays at {median(steps) * 1e3:.1f} ms" if steps else ""
    claim = (
        f"Requests wait because arrivals exceed capacity: waiting {queue} over {len(rise) - 1} windows, "
        f"running at its maximum ({most}){pace}."
    )
    kv = max((p.kv for p in rise if p.kv is not None), default=None)
    facts = {
        "waiting_first": _plain(rise[0].waiting),
        "waiting_last": _plain(rise[-1].waiting),
        "windows": len(rise) - 1,
        "running": _plain(running[-1]),
        "max_num_seqs": allowed,
        "kv_usage": kv,
        "step_min_ms": min(steps) * 1e3 if steps else None,
        "step_max_ms": max(steps) * 1e3 if steps else None,
    }
    evidence = tuple(
        Evidence(
            p.source,
            p.where,
            pairs(
                {
                    "waiting": _plain(p.waiting),
                    "running": _plain(p.running),
                    "kv_usage": p.kv,
                    "step_ms": p.step_s * 1e3 if p.step_s else None,
                }
            ),
        )
        for p in rise[:SHOWN]
    )
    remedies = [remedy("sched-more-replicas")]
    if kv is not None and kv < limits.requests.kv_room:
        remedies.append(remedy("sched-raise-limit", running=f"{running[-1]:.0f}", kv=f"{kv:.0%}"))
    return Finding(
        "sched.saturated",
        "warn" if sure else "info",
        0.9 if sure else 0.45,
        claim,
        value=rise[-1].waiting,
        limit=0.0,
        unit="count",
        evidence=(Evidence(rise[-1].source, rise[-1].where, pairs(facts)), *evidence),
        remedies=tuple(remedies),
        settle_with=() if sure else ("scrapes with the inter-token latency histogram",),
        cost=rise[-1].waiting or 0.0,
    )


def _longest_rise(chain: list[Point]) -> tuple[int, int]:
    """First and last index of the longest run in which `waiting` rises from point to point."""
    best, start = (0, 0), 0
    for i in range(1, len(chain)):
        a, b = chain[i - 1].waiting, chain[i].waiting
        if a is None or b is None or b <= a:
            start = i
        if i - start > best[1] - best[0]:
            best = (start, i)
    return best
