"""Stalls of a latency series against the log: rearrangements, compilation, snapshots, collections."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moexray.analyse import engine_log
from moexray.analyse.latency import Series, Stall, load_series, percentile
from moexray.analyse.meeting import best_meeting
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.analyse.engine_log import Episode
    from moexray.analyse.meeting import Meeting
    from moexray.core.limits import Limits
    from moexray.core.run import Run

__all__ = ["compile_in_hot_path", "gc_pause", "rearrange_stall", "snapshot_overhead"]

ALIKE = 0.5  # the shorter of a pause and a stall / the longer one from which they are taken for one thing
QUOTED = 3  # lines quoted per finding


def rearrange_stall(run: Run, limits: Limits) -> list[Finding]:
    """ep.rearrange_stall: stalls overlap at least half of the rearrangements while serving."""
    spike = limits.engine.spike
    episodes = engine_log.rearrangements(run)
    m = best_meeting(run, spike, episodes, lambda e, _: (e.start_s, e.end_s))
    if m is None:
        return []
    if not m.related:
        return [_unrelated("ep.rearrange_stall", "rearrangements", m)]
    filled = [i for i in m.met if m.filled(i) >= limits.engine.rearrange_fill]
    if not filled or len(filled) < limits.engine.rearrange_share * len(m.episodes):
        return []
    if len(m.met) < 2 and m.share < 0.5:
        return []
    if len(m.met) / len(m.episodes) - _stalled(m) < limits.engine.beyond_chance and not _begin(m):
        return []
    s, hit = m.series, m.hit
    p99, p999 = percentile(s, 0.99), percentile(s, 0.999)
    unseen = [name for name, value in (("P99", p99), ("P99.9", p999)) if value < spike * s.median_s]
    hidden = f"{' and '.join(unseen)} {'do' if len(unseen) > 1 else 'does'} not show them" if unseen else (
        "the percentiles show them"
    )
    facts = {
        "stalls": len(hit), "rearrangements": len(m.episodes), "mean_stall_s": m.stalled_s / len(hit),
        "max_stall_s": m.longest_s, "stalled_s": m.stalled_s, "median_ms": s.median_s * 1e3,
        "p99_ms": p99 * 1e3, "p99_9_ms": p999 * 1e3, "steps": s.steps,
        "share_of_steps_ratio": len(hit) / s.steps,
    }  # fmt: skip
    claim = (
        f"{len(m.met)} of {len(m.episodes)} rearrangements of experts while serving stop decoding: "
        f"{len(hit)} stalls of {_s(m.stalled_s / len(hit))} on average, {_s(m.longest_s)} at most, "
        f"{_s(m.stalled_s)} in all, against a median of {_s(s.median_s)}. They are {len(hit) / s.steps:.3%} "
        f"of {s.steps:,} steps: {hidden}{_assumed(m)}."
    )
    taken = [e.seconds for i, e in enumerate(m.episodes) if i in m.met and e.seconds is not None]
    more = _bench_percentiles(run)
    if taken:
        told = {"moves": len(taken), "mean_s": sum(taken) / len(taken), "min_s": min(taken),
                "max_s": max(taken), "total_s": sum(taken)}  # fmt: skip
        more.insert(0, Evidence(m.episodes[0].source, f"{len(taken)} completion lines", pairs(told)))
    finding = _say("ep.rearrange_stall", m, claim, facts, more, 0.9)
    remedies = (remedy("eplb-async"), remedy("eplb-interval", by=""), remedy("eplb-fewer-moves"))
    value = m.stalled_s / len(hit)
    return [replace(finding, value=value, limit=spike * s.median_s, unit="s", remedies=remedies)]


def _stalled(m: Meeting) -> float:
    """Share of the series' time that is stalled: so likely does a rearrangement meet a stall by chance."""
    length = m.series.span[1] - m.series.span[0]
    return sum(x.value_s for x in m.found) / length if length > 0 else 1.0


def _begin(m: Meeting) -> bool:
    """Whether most of the stalls begin with the rearrangement that they meet, to a step."""
    away = (abs(m.found[k].start_s - m.episodes[i].start_s) for k, i in m.hits.items())
    return 2 * sum(d <= 2 * m.series.median_s for d in away) > len(m.hits)


def compile_in_hot_path(run: Run, limits: Limits) -> list[Finding]:
    """jit.compile_in_hot_path: at least half of the spikes follow a compile line within two seconds."""
    lines = engine_log.compilations(run)
    e = limits.engine

    def window(c: Episode, _: float) -> tuple[float, float]:
        return c.start_s, c.end_s + e.compile_before_s  # a stall that begins in it, or lasts into it

    serving = [c for c in lines if c.serving is not False]
    m = best_meeting(run, e.spike, serving, window)
    if m is None:
        return _only_before_ready(run, limits, lines) if lines and not serving else []
    if not m.related:
        return [_unrelated("jit.compile_in_hot_path", "compilations", m)]
    facts = {
        "spikes": len(m.found), "spikes_with_compile": len(m.hit), "share_ratio": m.share,
        "median_ms": m.series.median_s * 1e3, "max_stall_s": m.longest_s, "stalled_s": m.stalled_s,
        "by_chance_ratio": m.chance,
    }  # fmt: skip
    if not m.hit:
        text = (
            f"None of the {len(m.found)} stalls follows one of the {len(m.episodes)} compile lines within "
            f"{e.compile_before_s:g} s."
        )
        return [_ruled_out("jit.compile_in_hot_path", text, m.series, facts)]
    if m.share < e.compile_share or m.share - m.chance < e.beyond_chance:
        return []
    shapes = sorted({str(x) for c in m.episodes if (x := c.row["fields"].get("shape"))})
    named = f" ({'; '.join(shapes[:4])}{'; ...' if len(shapes) > 4 else ''})" if shapes else ""
    claim = (
        f"{len(m.hit)} of {len(m.found)} latency spikes (above {e.spike:g}x the median of "
        f"{_s(m.series.median_s)}) begin within {e.compile_before_s:g} s of a compile line while "
        f"serving{named}; they cost {_s(m.stalled_s)}{_assumed(m)}."
    )
    finding = _say("jit.compile_in_hot_path", m, claim, facts, [], 0.85)
    remedies = (remedy("jit-warm-up"), remedy("jit-cache"), remedy("jit-leave-out"))
    return [replace(finding, value=m.share, limit=e.compile_share, unit="ratio", remedies=remedies)]


def snapshot_overhead(run: Run, limits: Limits) -> list[Finding]:
    """mem.snapshot_overhead: nearly all spikes begin within one dump duration of a snapshot write."""
    e = limits.engine

    def window(w: Episode, longest: float) -> tuple[float, float]:
        taken = w.seconds or longest
        return w.start_s - (taken if w.start_s == w.end_s else 0.0), w.end_s + taken

    m = best_meeting(run, e.spike, engine_log.snapshots(run), window, begins=True)
    if m is None:
        return []
    if not m.related:
        return [_unrelated("mem.snapshot_overhead", "snapshot writes", m)]
    if m.share < e.snapshot_share or m.share - m.chance < e.beyond_chance:
        return []
    entries = max((int(n) for w in m.episodes if (n := w.row["fields"].get("entries"))), default=None)
    mean_s = m.stalled_s / len(m.hit)
    facts = {
        "spikes": len(m.found), "spikes_with_dump": len(m.hit), "dumps": len(m.episodes),
        "mean_stall_s": mean_s, "max_stall_s": m.longest_s, "stalled_s": m.stalled_s,
        "median_ms": m.series.median_s * 1e3, "entries": entries,
    }  # fmt: skip
    more, cost = _snapshot_costs(run)
    claim = (
        f"{len(m.hit)} of {len(m.found)} latency spikes coincide with a write of a memory snapshot: each "
        f"stops serving for {_s(mean_s)}, {_s(m.stalled_s)} in all"
        f"{f' (history of {entries:,} entries)' if entries else ''}{cost}{_assumed(m)}."
    )
    finding = _say("mem.snapshot_overhead", m, claim, facts, more, 0.9)
    remedies = (remedy("snapshot-light"), remedy("snapshot-idle"))
    return [replace(finding, value=m.share, limit=e.snapshot_share, unit="ratio", remedies=remedies)]


def gc_pause(run: Run, limits: Limits) -> list[Finding]:
    """host.gc_pause without traces: collections that end with stalls, last as long, and not by chance."""
    e = limits.engine
    known = (s.median_s for s in load_series(run, e.spike) if s.median_s > 0)
    found = engine_log.collections(run, ALIKE * e.spike * min(known, default=float("inf")))
    m = best_meeting(run, e.spike, found, lambda c, _: (c.start_s, c.end_s))
    if "trace" in run.present or m is None or not m.related:
        return []
    lengths = {k: (m.found[k].value_s, m.episodes[i].seconds or 0.0) for k, i in m.hits.items()}
    alike = [k for k, (stall, pause) in lengths.items() if min(stall, pause) >= ALIKE * max(stall, pause)]
    share = len(alike) / len(m.found)
    if len(alike) < PAUSES or share < e.compile_share or share - m.chance < e.beyond_chance:
        return []
    if any(not f.cannot_tell for rule in OTHERS for f in rule(run, limits) if not f.id.startswith("not:")):
        return []
    paused = [m.episodes[m.hits[k]] for k in alike]
    ranks = {c.row["rank"] for c in paused}
    stalled_s, longest_s = (how(lengths[k][0] for k in alike) for how in (sum, max))
    facts = {
        "spikes": len(m.found), "spikes_with_collection": len(alike), "share_ratio": share,
        "collections": len(m.episodes), "collecting_s": sum(c.seconds or 0.0 for c in paused),
        "stalled_s": stalled_s, "max_stall_s": longest_s, "median_ms": m.series.median_s * 1e3,
        "by_chance_ratio": m.chance,
    }  # fmt: skip
    claim = (
        f"{len(alike)} of {len(m.found)} latency spikes (above {e.spike:g}x the median of "
        f"{_s(m.series.median_s)}) end with a run of the garbage collector that took as long: "
        f"{_s(stalled_s)} in all, {_s(longest_s)} at most{_assumed(m)}."
    )
    hit = [m.found[k] for k in alike]
    subject = replace(_subject(m.series, hit), rank=ranks.pop() if len(ranks) == 1 else None)
    proof = (Evidence(m.series.source, _lines(hit), pairs(facts)), *_quotes(paused))
    return [Finding(
        "host.gc_pause", "warn", m.confidence(0.69), claim, subject, share, e.compile_share, "ratio", proof,
        remedies=(remedy("host-freeze-gc"),), settle_with=(GC_TRACE,), cost=stalled_s,
    )]  # fmt: skip


def _say(
    id: str, m: Meeting, claim: str, facts: dict[str, Any], more: list[Evidence], best: float
) -> Finding:  # fmt: skip
    """A warning about stalls that meet episodes; number, limit and remedies are added by the rule."""
    quotes = _quotes([m.episodes[i] for i in sorted(m.met)])
    evidence = (Evidence(m.series.source, _lines(m.hit), pairs(facts)), *more, *quotes)
    return Finding(
        id, "warn", m.confidence(best), claim, _subject(m.series, m.hit), evidence=evidence, cost=m.stalled_s
    )


OTHERS = (rearrange_stall, compile_in_hot_path, snapshot_overhead)  # they say more where both are there
PAUSES = 2  # collections that must meet a stall of their length; own choice against flukes
GC_TRACE = "a trace of the worker that logs the collections, over one of them"


def _snapshot_costs(run: Run) -> tuple[list[Evidence], str]:
    """Measured times of a snapshot by the length of its history, as evidence and in words."""
    rows = sorted(run.rows("snapshot_cost"), key=lambda r: (-int(r["entries"]), not r["traces"]))
    evidence = []
    for r in rows[:6]:
        name = "with_traces_ms" if r["traces"] else "without_ms"
        facts = pairs({"entries": r["entries"], name: r["seconds"] * 1e3})
        evidence.append(Evidence(r["source"], r["where"], facts))
    words = [
        f"{r['seconds'] * 1e3:.4g} ms for {r['entries']:,} entries "
        f"{'with' if r['traces'] else 'without'} traces"
        for r in rows[:4]
    ]
    return evidence, f"; measured: {', '.join(words)}" if words else ""


def _only_before_ready(run: Run, limits: Limits, lines: list[Episode]) -> list[Finding]:
    """The negative answer that saves a search: compile lines, all of them before the engine was ready."""
    best = next((s for s in load_series(run, limits.engine.spike) if len(s.spikes)), None)
    if best is None:
        return []
    facts: dict[str, Any] = {"compile_lines": len(lines), "spikes": len(best.spikes)}
    text = f"All {len(lines)} compile lines lie before the engine was ready; none belongs to a spike."
    return [_ruled_out("jit.compile_in_hot_path", text, best, facts)]


def _ruled_out(id: str, claim: str, s: Series, facts: dict[str, Any]) -> Finding:
    return Finding(f"not:{id}", "info", 0.8, claim, evidence=(Evidence(s.source, "spikes", pairs(facts)),))


def _unrelated(id: str, what: str, m: Meeting) -> Finding:
    facts: dict[str, Any] = {
        "spikes": len(m.found),
        "happenings": len(m.episodes),
        "median_ms": m.series.median_s * 1e3,
        "max_stall_s": max(x.value_s for x in m.found),
    }
    return Finding(
        id,
        "info",
        0.3,
        f"There are {len(m.found)} latency spikes and {len(m.episodes)} {what} in the log, but nothing "
        "relates the clock of the series to that of the log: whether they coincide cannot be told.",
        evidence=(Evidence(m.series.source, "spikes", pairs(facts)), *_quotes(m.episodes)),
        settle_with=(
            "the latency series with the wall-clock time of each row",
            "a log of the same run with dates",
        ),
    )


def _subject(s: Series, hit: list[Stall]) -> Subject:
    if s.clock != "epoch" or not hit:
        return Subject(rank=s.rank)
    return Subject(rank=s.rank, t_from_ns=int(hit[0].start_s * 1e9), t_to_ns=int(hit[-1].end_s * 1e9))


def _lines(hit: list[Stall]) -> str:
    shown = ", ".join(str(x.line) for x in hit[:6])
    return f"line{'s' if len(hit) > 1 else ''} {shown}" + (
        f" and {len(hit) - 6} more" if len(hit) > 6 else ""
    )


def _quotes(episodes: Sequence[Episode]) -> list[Evidence]:
    return [Evidence(e.source, e.row["where"], e.row["text"]) for e in episodes[:QUOTED]]


def _assumed(m: Meeting) -> str:
    return f" ({m.how})" if m.how else ""


def _s(seconds: float | None) -> str:
    value = seconds or 0.0
    return f"{value:.3g} s" if value >= 0.995 else f"{value * 1e3:.3g} ms"


def _bench_percentiles(run: Run) -> list[Evidence]:
    """What the benchmark's tail percentile says of the same runs: it may well say nothing."""
    rows = [
        r for r in run.rows("bench") if r["figure"] in ("p99_itl_s", "p99_tpot_s", "p99_step_s") and r["run"]
    ]
    return [
        Evidence(
            r["source"],
            r["where"],
            pairs(
                {
                    "run": r["run"],
                    "level": r["level"],
                    f"p99_{r['run']}_ms".replace(" ", "_"): r["value"] * 1e3,
                }
            ),
        )
        for r in rows[:4]
    ]
