"""Compilation: ranks that finish it far apart, and runs that are slow until it is over."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean
from typing import TYPE_CHECKING

from moexray.analyse.engine_log import compilations
from moexray.core.finding import Evidence, Finding, pairs
from moexray.core.pattern import lazy
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from moexray.core.limits import Limits
    from moexray.core.run import Row, Run

__all__ = ["cold_runs", "compile_skew"]

RATES = ("output_tokens_per_s", "total_tokens_per_s", "tokens_per_s", "requests_per_s", "steps_per_s")
STATED = lazy(r"(?:after|limit|timeout)[ =:(]*(\d+(?:\.\d+)?) ?(ms|s|sec|seconds)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Compiled:
    """When one node (a log, or a worker of a shared log) was done compiling.

    Args:
        node: Its file, or file and worker.
        start_s: First line of the session.
        end_s: Its last line of it; the true end is later where `finished` is False.
        finished: The log says so (100 %, "done").
        row: The line of the end.
    """

    node: str
    start_s: float
    end_s: float
    finished: bool
    row: Row


def compile_skew(run: Run, limits: Limits) -> list[Finding]:
    """jit.compile_skew: ends of compilation lie as far apart as the time limit that fired meanwhile."""
    nodes = sorted(_sessions(run), key=lambda c: c.end_s)
    if len(nodes) < 2:
        return []
    first, last = nodes[0], nodes[-1]
    slack = limits.engine.timeout_slack_s
    for row, limit, stated in _timeouts(run, limits):
        at = row["t_s"]
        if at is None or at < first.end_s - slack or (last.finished and at > last.end_s + slack):
            continue
        waited = at - first.end_s
        spread = (last.end_s if last.finished else max(last.end_s, at)) - first.end_s
        if spread < limit - slack or waited < limit - slack:
            continue
        return [_skew(nodes, row, limit, spread, stated=stated)]
    return []


def cold_runs(run: Run, limits: Limits) -> list[Finding]:
    """jit.compile_in_hot_path: throughput climbs over identical runs and settles, and kernels compile."""
    runs = _same_runs(run, limits.engine.cold_runs)
    if runs is None or run.batches("latency"):
        return []
    e = limits.engine
    figure, rows = runs
    values = [float(r["value"]) for r in rows]
    warm = _settled(values, e.settled)
    if warm is None or warm == 0 or values[0] >= e.cold * mean(values[warm:]):
        return []
    lines = [c for c in compilations(run) if c.serving is not False]
    steady = mean(values[warm:])
    shown = ", ".join(f"{v:,.6g}" for v in values[:8])
    facts = {
        "runs": len(values), "warm_after": warm + 1, "first": values[0], "steady": steady,
        "first_of_steady_ratio": values[0] / steady, "compile_lines": sum(len(c.rows) for c in lines),
    }  # fmt: skip
    text = " ".join(f"run_{i}={v:.6g}" for i, v in enumerate(values, 1))
    evidence = [
        Evidence(rows[0]["source"], f"{rows[0]['where']} to {rows[-1]['where']}", f"{text} {pairs(facts)}")
    ]
    evidence += [Evidence(c.source, c.row["where"], c.row["text"]) for c in lines[:3]]
    climb = f"{figure.removesuffix('_per_s').replace('_', ' ')} per second over identical runs: {shown}"
    remedies = (remedy("jit-warm-up"), remedy("jit-cache"), remedy("jit-leave-out"))
    if not lines:
        return [
            Finding(
                "jit.compile_in_hot_path", "info", 0.4,
                f"{climb}: it settles at run {warm + 1}. That is what compilation on first use looks like, "
                "but no log says that anything was compiled.",
                value=values[0] / steady, limit=e.cold, unit="ratio", evidence=tuple(evidence),
                remedies=remedies,
                settle_with=("the server log of these runs (compile lines after ready)",),
            )
        ]  # fmt: skip
    return [
        Finding(
            "jit.compile_in_hot_path", "warn", 0.8,
            f"{climb}. They settle at run {warm + 1}; until then kernels are compiled while serving "
            f"({facts['compile_lines']} lines, {len(lines)} moments).",
            value=values[0] / steady, limit=e.cold, unit="ratio", evidence=tuple(evidence),
                remedies=remedies,
        )
    ]  # fmt: skip


def _skew(nodes: list[Compiled], row: Row, limit: float, spread: float, *, stated: bool) -> Finding:
    first, last = nodes[0], nodes[-1]
    facts = {
        "limit_s": limit, "spread_s": spread, "first_end_s": first.end_s - first.start_s,
        "last_end_s": last.end_s - last.start_s, "waited_s": row["t_s"] - first.end_s, "nodes": len(nodes),
    }  # fmt: skip
    percent = last.row["fields"].get("percent")
    reached = f" (its last line says {percent:g} %)" if percent is not None else ""
    done = (
        f"finished compiling {spread:.0f} s after {first.node} ({facts['last_end_s']:.0f} s against "
        f"{facts['first_end_s']:.0f} s)"
        if last.finished
        else f"was still compiling{reached} {spread:.0f} s after {first.node} had finished"
    )
    known = "" if stated else " (DeepEP's own limit, as the log gives none)"
    claim = (
        f"{last.node} {done}; the other side gave up after the limit of {limit:.0f} s{known}. "
        "The time-out is a consequence."
    )
    evidence = [Evidence(row["source"], row["where"], f"{row['text']} {pairs(facts)}")]
    for node in (first, last):
        times = pairs({"compile_s": node.end_s - node.start_s})
        evidence.append(Evidence(node.row["source"], node.row["where"], f"{node.row['text']} {times}"))
    return Finding(
        "jit.compile_skew", "error", 0.9 if last.finished else 0.8, claim,
        value=spread, limit=limit, unit="s",
        evidence=tuple(evidence), remedies=(remedy("jit-precompile"), remedy("jit-barrier")), cost=spread,
    )  # fmt: skip


def _sessions(run: Run) -> list[Compiled]:
    """The compile session of each log; of each worker where only one log has any."""
    rows = [
        r for r in run.rows("log")
        if r["kind"] in ("jit.progress", "jit.session", "jit.done", "jit.compile") and r["t_s"] is not None
        and r["phase"] != "serving"
    ]  # fmt: skip
    by_source: dict[str, list[Row]] = {}
    for r in rows:
        by_source.setdefault(r["source"], []).append(r)
    if len(by_source) == 1:
        shared: dict[str, list[Row]] = {}
        for r in rows:
            if r["worker"] or r["rank"] is not None:
                shared.setdefault(r["worker"] or f"rank {r['rank']}", []).append(r)
        by_source = shared
    return [c for node, own in by_source.items() if (c := _session(node, own))]


def _session(node: str, rows: list[Row]) -> Compiled | None:
    """Only a session with progress, an end, or a duration tells when it was over."""
    ends = [
        r for r in rows
        if r["kind"] == "jit.done" or (r["kind"] == "jit.progress" and r["fields"]["percent"] >= 100)
        or (r["kind"] == "jit.compile" and "seconds" in r["fields"])
    ]  # fmt: skip
    if not ends and not any(r["kind"] == "jit.progress" for r in rows):
        return None
    last = max(ends or rows, key=lambda r: r["t_s"])
    start = min(r["t_s"] - (r["fields"].get("seconds") or 0.0) for r in rows)
    return Compiled(node, start, last["t_s"], bool(ends), last)


def _timeouts(run: Run, limits: Limits) -> list[tuple[Row, float, bool]]:
    """Time limits that fired: (line, limit in s, whether the log states the limit)."""
    out: list[tuple[Row, float, bool]] = []
    for r in run.rows("a2a_event"):
        if r["kind"] in ("cpu_timeout", "timeout"):
            m = STATED.search(r["text"] or "")
            limit = float(m[1]) / (1000 if m[2].startswith("m") else 1) if m else None
            out.append((r, limit or limits.engine.deepep_cpu_timeout_s, limit is not None))
    out += [
        (r, float(r["timeout_s"]), True)
        for r in run.rows("comm_report")
        if r["kind"] == "timeout" and r["timeout_s"] and not r["stale"]
    ]
    return sorted((x for x in out if x[0]["t_s"] is not None), key=lambda x: float(x[0]["t_s"]))


def _same_runs(run: Run, least: int) -> tuple[str, list[Row]] | None:
    """The throughput of three or more runs of one file that differ in nothing, in their order."""
    for _, rows in run.by_source("bench"):
        for figure in RATES:
            found = sorted((r for r in rows if r["figure"] == figure), key=lambda r: r["order"] or 0)
            same = len({(r["level"], r["setting"]) for r in found}) == 1
            numbered = all(r["run"] is None or any(c.isdigit() for c in str(r["run"])) for r in found)
            if len(found) >= least and same and numbered:
                return figure, found
    return None


def _settled(values: list[float], within: float) -> int | None:
    """The first run from which on each run is within `within` of the next; None if the end still moves."""
    at = len(values) - 1
    for i, (a, b) in reversed(list(enumerate(pairwise(values)))):
        if abs(a - b) > within * max(a, b):
            break
        at = i
    return at if at < len(values) - 1 else None
