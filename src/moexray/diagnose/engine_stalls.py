"""Stalls of a latency series against the log: rearrangements, compilation, snapshot writes."""

from __future__ import annotations

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

__all__ = ["compile_in_hot_path", "rearrange_stall", "snapshot_overhead"]

QUOTED = 3  # lines quoted per finding


def rearrange_stall(run: Run, limits: Limits) -> list[Finding]:
    """ep.rearrange_stall: stalls overlap at least half of the rearrangements while serving."""
    episodes = engine_log.rearrangements(run)
    best = best_meeting(run, limits.engine.spike, episodes, lambda e, _: (e.start_s, e.end_s))
    if best is None:
        return []
    if not best.related:
        return [_unrelated("ep.rearrange_stall", "rearrangements", best)]
    if not best.met or len(best.met) < limits.engine.rearrange_share * len(best.episodes):
        return []
    if len(best.met) < 2 and best.share < 0.5:
        return []
    hit = [best.found[i] for i in best.hits]
    taken = [e.seconds for i, e in enumerate(best.episodes) if i in best.met and e.seconds is not None]
    s = best.series
    stalled = sum(x.value_s for x in hit)
    p99, p999 = percentile(s, 0.99), percentile(s, 0.999)
    hidden = (
        "P99 and P99.9 do not show them"
        if max(p99, p999) < limits.engine.spike * s.median_s
        else (
            "P99 does not show them"
            if p99 < limits.engine.spike * s.median_s
            else "the percentiles show them"
        )
    )
    facts: dict[str, Any] = {
        "stalls": len(hit),
        "rearrangements": len(best.episodes),
        "mean_stall_s": stalled / len(hit),
        "max_stall_s": max(x.value_s for x in hit),
        "stalled_s": stalled,
        "median_ms": s.median_s * 1e3,
        "p99_ms": p99 * 1e3,
        "p99_9_ms": p999 * 1e3,
        "steps": s.steps,
        "share_of_steps_ratio": len(hit) / s.steps if s.steps else None,
    }
    claim = (
        f"{len(best.met)} of {len(best.episodes)} rearrangements of experts while serving stop decoding: "
        f"{len(hit)} stalls of {_s(facts['mean_stall_s'])} on average, {_s(facts['max_stall_s'])} at most, "
        f"{_s(stalled)} in all, against a median of {_s(s.median_s)}. They are {len(hit) / s.steps:.3%} of "
        f"{s.steps:,} steps: {hidden}{_assumed(best)}."
    )
    evidence = [Evidence(s.source, _lines(hit), pairs(facts))]
    if taken:
        text = pairs(
            {
                "moves": len(taken),
                "mean_s": sum(taken) / len(taken),
                "min_s": min(taken),
                "max_s": max(taken),
                "total_s": sum(taken),
            }
        )
        evidence.append(Evidence(best.episodes[0].source, f"{len(taken)} completion lines", text))
    evidence += _quotes([best.episodes[i] for i in sorted(best.met)])
    evidence += _bench_percentiles(run)
    return [
        Finding(
            "ep.rearrange_stall",
            "warn",
            best.confidence(0.9),
            claim,
            _subject(s, hit),
            stalled / len(hit),
            limits.engine.spike * s.median_s,
            "s",
            tuple(evidence),
            remedies=(remedy("eplb-async"), remedy("eplb-interval", by=""), remedy("eplb-fewer-moves")),
            cost=stalled,
        )
    ]


def compile_in_hot_path(run: Run, limits: Limits) -> list[Finding]:
    """jit.compile_in_hot_path: at least half of the spikes follow a compile line within two seconds."""
    lines = engine_log.compilations(run)
    before = limits.engine.compile_before_s

    def window(e: Episode, _: float) -> tuple[float, float]:
        return e.start_s, e.end_s + before  # a stall that begins in it, or lasts into it, meets it

    serving = [e for e in lines if e.serving is not False]
    best = best_meeting(run, limits.engine.spike, serving, window)
    if best is None:
        return _only_before_ready(run, limits, lines) if lines and not serving else []
    if not best.related:
        return [_unrelated("jit.compile_in_hot_path", "compilations", best)]
    share, e = best.share, limits.engine
    hit = [best.found[i] for i in best.hits]
    s = best.series
    facts: dict[str, Any] = {
        "spikes": len(best.found),
        "spikes_with_compile": len(hit),
        "share_ratio": share,
        "median_ms": s.median_s * 1e3,
        "max_stall_s": max(x.value_s for x in best.found),
        "stalled_s": sum(x.value_s for x in hit),
        "by_chance_ratio": best.chance,
    }
    if share < e.compile_share or share - best.chance < e.beyond_chance:
        if not hit:
            return [
                _ruled_out(
                    "jit.compile_in_hot_path",
                    f"None of the {len(best.found)} stalls follows one of the "
                    f"{len(best.episodes)} compile lines within {before:g} s.",
                    s,
                    facts,
                )
            ]
        return []
    shapes = sorted(
        {str(x.row["fields"].get("shape")) for x in best.episodes if x.row["fields"].get("shape")}
    )
    named = f" ({'; '.join(shapes[:4])}{'; ...' if len(shapes) > 4 else ''})" if shapes else ""
    claim = (
        f"{len(hit)} of {len(best.found)} latency spikes (above {e.spike:g}x the median of {_s(s.median_s)}) "
        f"begin within {before:g} s of a compile line while serving{named}; they cost "
        f"{_s(facts['stalled_s'])}{_assumed(best)}."
    )
    evidence = (
        Evidence(s.source, _lines(hit), pairs(facts)),
        *_quotes([best.episodes[i] for i in sorted(best.met)]),
    )
    return [
        Finding(
            "jit.compile_in_hot_path",
            "warn",
            best.confidence(0.85),
            claim,
            _subject(s, hit),
            share,
            e.compile_share,
            "ratio",
            evidence,
            remedies=(remedy("jit-warm-up"), remedy("jit-cache"), remedy("jit-leave-out")),
            cost=float(facts["stalled_s"] or 0),
        )
    ]


def snapshot_overhead(run: Run, limits: Limits) -> list[Finding]:
    """mem.snapshot_overhead: nearly all spikes begin within one dump duration of a snapshot write."""
    episodes = engine_log.snapshots(run)

    def window(e: Episode, longest: float) -> tuple[float, float]:
        taken = e.seconds or longest
        return e.start_s - (taken if e.start_s == e.end_s else 0.0), e.end_s + taken

    best = best_meeting(run, limits.engine.spike, episodes, window, begins=True)
    if best is None:
        return []
    if not best.related:
        return [_unrelated("mem.snapshot_overhead", "snapshot writes", best)]
    e = limits.engine
    if best.share < e.snapshot_share or best.share - best.chance < e.beyond_chance:
        return []
    hit = [best.found[i] for i in best.hits]
    s = best.series
    stalled = sum(x.value_s for x in hit)
    entries = sorted({int(x.row["fields"]["entries"]) for x in best.episodes if "entries" in x.row["fields"]})
    costs = sorted(run.rows("snapshot_cost"), key=lambda r: (-int(r["entries"]), not r["traces"]))
    facts: dict[str, Any] = {
        "spikes": len(best.found),
        "spikes_with_dump": len(hit),
        "dumps": len(best.episodes),
        "mean_stall_s": stalled / len(hit),
        "max_stall_s": max(x.value_s for x in hit),
        "stalled_s": stalled,
        "median_ms": s.median_s * 1e3,
        "entries": entries[-1] if entries else None,
    }
    cost = ""
    if costs:
        cost = "; measured: " + ", ".join(
            f"{r['seconds'] * 1e3:.4g} ms for {r['entries']:,} entries "
            f"{'with' if r['traces'] else 'without'} traces"
            for r in costs[:4]
        )
    claim = (
        f"{len(hit)} of {len(best.found)} latency spikes coincide with a write of a memory snapshot: each "
        f"stops serving for {_s(stalled / len(hit))}, {_s(stalled)} in all"
        f"{f' (history of {entries[-1]:,} entries)' if entries else ''}{cost}{_assumed(best)}."
    )
    evidence = [
        Evidence(s.source, _lines(hit), pairs(facts)),
        *_quotes([best.episodes[i] for i in sorted(best.met)]),
    ]
    evidence += [
        Evidence(
            r["source"],
            r["where"],
            pairs(
                {
                    "entries": r["entries"],
                    "with_traces_ms" if r["traces"] else "without_ms": r["seconds"] * 1e3,
                }
            ),
        )
        for r in costs[:6]
    ]
    return [
        Finding(
            "mem.snapshot_overhead",
            "warn",
            best.confidence(0.9),
            claim,
            _subject(s, hit),
            best.share,
            e.snapshot_share,
            "ratio",
            tuple(evidence),
            remedies=(remedy("snapshot-light"), remedy("snapshot-idle")),
            cost=stalled,
        )
    ]


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
