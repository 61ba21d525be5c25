"""mem.*: what each out-of-memory record says about its cause, by the order of tests."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moexray.core.finding import Evidence, Finding, Subject
from moexray.diagnose.advice import ID as UNSAFE
from moexray.diagnose.advice import expandable_check, launches
from moexray.diagnose.gpu.process import with_process
from moexray.diagnose.memory.oom_buffers import explained, predict
from moexray.diagnose.memory.oom_numbers import Around, Decision, Figures, decide
from moexray.diagnose.memory.oom_remedies import remedies_for
from moexray.diagnose.memory.oom_series import growing, series_of
from moexray.diagnose.memory.oom_words import Story, figures_text, no_fragmentation, tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.limits import Limits
    from moexray.core.run import Row, Run
    from moexray.diagnose.memory.oom_series import Series

__all__ = ["budget_of", "order_of_tests", "records_of"]

SEPARATE = 4  # findings of one id; more devices are summed up in one
OUTSIDE = ("mem.non_torch", "mem.non_torch_buffers", "mem.other_process")
SHOWN = 8  # records quoted in one finding
CONFIDENCE = {
    "mem.oversubscription": 0.9,
    "mem.oom_unexplained": 0.4,
    "mem.limit_below_free": 0.85,
    "mem.capture_headroom": 0.85,
    "mem.other_process": 0.9,
    "mem.non_torch": 0.88,
    "mem.non_torch_buffers": 0.88,
    "mem.fragmentation": 0.93,
    "mem.fragmentation_contributes": 0.9,
    "mem.unbudgeted_activation": 0.85,
    "mem.true_exhaustion": 0.92,
}
SETTLE = {
    "mem.oom_unexplained": (
        "the full message of PyTorch's allocator",
        "nvidia-smi at that time",
        "an allocator snapshot",
    ),
    "mem.limit_below_free": (
        "launch line and environment",
        "nvidia-smi -q (MIG, compute mode)",
        "container limits",
    ),
    "mem.fragmentation": ("an allocator snapshot: it shows the largest free block and what pins it",),
    "mem.fragmentation_contributes": ("an allocator snapshot",),
    "mem.other_process": (
        "nvidia-smi --query-compute-apps=pid,used_memory --format=csv (AMD: amd-smi process)",
    ),
    "mem.non_torch": ("two pairs of memory_stats and nvidia-smi under load",),
}


def order_of_tests(run: Run, limits: Limits) -> list[Finding]:
    """One finding per verdict and device; what fragmentation cannot explain is ruled out with numbers."""
    found: dict[tuple[str, Any, Any], list[tuple[Decision, Story]]] = {}
    ruled_out: list[tuple[str, Story]] = []
    series = series_of(run, limits.memory)
    same = _identical(run)
    for row in records_of(run):
        story = _story(run, row, series, same, limits)
        around = Around(
            phase=row["phase"],
            budget=story.budget.get("budget_bytes"),
            context=story.budget.get("non_torch_bytes"),
            growing=story.series is not None,
        )
        decisions = _named(decide(story.figures, around, limits.memory), story, limits)
        for d in decisions:
            found.setdefault((d.id, row["rank"], row["device"]), []).append((d, story))
        if not any(d.id.startswith("mem.fragmentation") for d in decisions):
            words = no_fragmentation(story)
            if words:
                ruled_out.append((words, story))
    findings = [_finding(id, items, run, limits) for id, items in _grouped(found)]
    return [*_ranked(findings), *_negative(ruled_out), *_block(run, findings), *_earlier(run)]


def _named(decisions: tuple[Decision, ...], s: Story, limits: Limits) -> tuple[Decision, ...]:
    """Names the owner of memory outside PyTorch where the settings give it."""
    outside = s.figures.non_torch
    if s.buffers is None or outside is None:
        return decisions
    context = int(s.budget.get("non_torch_bytes") or limits.memory.context_bytes)
    owner = explained(s.buffers, outside, context, limits.memory)
    return tuple(
        replace(d, id="mem.non_torch_buffers") if owner and d.id == "mem.non_torch" else d for d in decisions
    )


def records_of(run: Run) -> list[Row]:
    """Records and bare errors that belong to the process at hand, from messages and snapshots."""
    records = [with_process(r, run) for r in run.rows("oom") if r["kind"] == "record" and not r["earlier"]]
    bare = [r for r in run.rows("oom") if r["kind"] == "bare" and not r["earlier"]]
    if "snapshot" in run.present:
        from moexray.diagnose.memory.snapshot_oom import failed_requests  # not on the text path

        records += failed_requests(run)
    alone = [b for b in bare if not any(_one_failure(b, r) for r in records)]
    return [*records, *alone]


def _one_failure(bare: Row, record: Row) -> bool:
    """A bare message in another file, written when the record was, is the same failure."""
    if bare["source"] == record["source"]:
        return False  # the reader has looked at these
    if bare["t_s"] is None or record["t_s"] is None:
        return False
    return bool(abs(bare["t_s"] - record["t_s"]) <= 300)


def budget_of(run: Run, row: Row) -> dict[str, Any]:
    """The engine's budget lines that hold for a record: its own file's, before it, its worker's first."""
    lines = [r for r in run.rows("log") if r["kind"] == "mem.budget"]
    own = [r for r in lines if r["source"] == row["source"] and _number(r) <= _number(row)]
    if not own and len({r["source"] for r in run.rows("oom")}) == 1:
        own = lines if len({r["source"] for r in lines}) == 1 else []
    mine = [r for r in own if r["worker"] == row["worker"]]
    budget: dict[str, Any] = {}
    for line in mine or own:
        budget.update(line["fields"])
    if "utilisation" not in budget and (share := _utilisation(run)) is not None:
        budget["utilisation"] = share
    return budget


def _utilisation(run: Run) -> float | None:
    """The share of the device that the launch settings give to the engine, if all that are given agree."""
    names = ("gpu_memory_utilization", "mem_fraction_static")
    values = {x.settings[n] for x in launches(run) for n in names if n in x.settings}
    value = values.pop() if len(values) == 1 else ""
    return float(value) if re.fullmatch(r"0?\.\d+|1(?:\.0*)?", value) else None


def _number(row: Row) -> int:
    digits = row["where"].removeprefix("line ")
    return int(digits) if digits.isdigit() else 0


def _story(
    run: Run, row: Row, series: Sequence[Series], same: dict[tuple[Any, ...], list[Row]], limits: Limits
) -> Story:
    figures = Figures.of(row)
    twins = same.get(_numbers(row), [])
    s = growing(row, series, limits.memory)
    fits = None
    if s is not None:
        left = (figures.free or 0) + (figures.fragments or 0)
        fits = (s.slope, max((left - s.offset) / s.slope, 0.0), s.r2)
    return Story(
        row=row,
        figures=figures,
        budget=budget_of(run, row),
        runs=len({t["source"] for t in twins}),
        varied=_varied(run, twins),
        series=fits,
        buffers=predict(run, row["source"]),
    )


def _numbers(row: Row) -> tuple[Any, ...]:
    names = ("request", "free", "total", "allocated", "fragments")
    return tuple(row[f"{n}_bytes"] for n in names)


def _identical(run: Run) -> dict[tuple[Any, ...], list[Row]]:
    """Records with the same numbers in several files: the same failure in several runs."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in run.rows("oom"):
        if row["kind"] == "record":
            groups.setdefault(_numbers(row), []).append(row)
    return groups


def _varied(run: Run, twins: Sequence[Row]) -> tuple[str, ...]:
    """Settings that differ between the files of identical records, if their launch lines are known."""
    sources = {t["source"] for t in twins}
    if len(sources) < 2:
        return ()
    values: dict[str, dict[str, str]] = {}
    for row in run.rows("launch"):
        if row["source"] in sources:
            values.setdefault(row["key"], {})[row["source"]] = row["value"]
    return tuple(k for k, v in values.items() if len(v) == len(sources) and len(set(v.values())) > 1)[:3]


def _grouped(
    found: dict[tuple[str, Any, Any], list[tuple[Decision, Story]]],
) -> list[tuple[str, list[tuple[Decision, Story]]]]:
    counts = Counter(id for id, _, _ in found)
    out: dict[tuple[Any, ...], list[tuple[Decision, Story]]] = {}
    for (id, rank, device), items in found.items():
        key = (id,) if counts[id] > SEPARATE else (id, rank, device)
        out.setdefault(key, []).extend(items)
    return [(key[0], items) for key, items in out.items()]


def _finding(id: str, items: list[tuple[Decision, Story]], run: Run, limits: Limits) -> Finding:
    decision, story = max(items, key=lambda x: (not x[0].at_margin, x[1].figures.request or 0))
    claim, value, limit, unit = tell(decision, story, limits.memory)
    places = {(s.row["rank"], s.row["device"]) for _, s in items}
    subject = Subject()
    if len(places) == 1:
        subject = Subject(rank=story.row["rank"], device=story.row["device"])
    else:
        claim = f"{len(places)} ranks or devices fail alike; the largest request: {claim}"
    evidence: list[Evidence] = []
    for _, s in items[:SHOWN]:
        evidence.append(Evidence(s.row["source"], s.row["where"], s.row["text"]))
        if text := figures_text(s):
            evidence.append(Evidence(s.row["source"], s.row["where"], text))
    return Finding(
        id=id,
        severity="warn" if all(s.row.get("survived") for _, s in items) else "error",
        confidence=_confidence(decision, story, limits),
        claim=claim,
        subject=subject,
        value=value,
        limit=limit,
        unit=unit,
        evidence=tuple(evidence),
        remedies=remedies_for(id, story, run),
        settle_with=_settle(id, story),
        cost=float(story.figures.request or 0),
    )


def _confidence(d: Decision, s: Story, limits: Limits) -> float:
    value = CONFIDENCE[d.id]
    if d.at_margin:
        value = min(value, limits.memory.margin_confidence)
    if d.id in ("mem.true_exhaustion", "mem.fragmentation") and (
        s.figures.free is None or s.figures.fragments is None
    ):
        value = min(value, 0.55)  # a clause is missing
    if d.id == "mem.limit_below_free" and s.figures.limit is not None:
        value = 0.93
    return value


def _settle(id: str, s: Story) -> tuple[str, ...]:
    if id == "mem.limit_below_free" and s.figures.limit is not None:
        return ()
    if id == "mem.true_exhaustion" and (s.figures.free is None or s.figures.fragments is None):
        return ("the whole message, to its end",)
    if s.row.get("largest_free_bytes") is not None:
        return tuple(x for x in SETTLE.get(id, ()) if "snapshot" not in x)
    return SETTLE.get(id, ())


def _ranked(findings: list[Finding]) -> list[Finding]:
    """Where memory outside PyTorch comes first, fragmentation of the same record stands below it."""
    firsts = {f.subject: f.confidence for f in findings if f.id in OUTSIDE}
    out = []
    for f in findings:
        above = firsts.get(f.subject)
        if f.id == "mem.fragmentation" and above is not None and f.confidence >= above:
            out.append(replace(f, confidence=round(above - 0.05, 2)))
        else:
            out.append(f)
    return out


def _negative(ruled_out: list[tuple[str, Story]]) -> list[Finding]:
    seen: dict[str, Finding] = {}
    for words, s in ruled_out:
        if words not in seen and len(seen) < SHOWN:
            seen[words] = Finding(
                id="not:mem.fragmentation",
                severity="info",
                confidence=0.95,
                claim=words,
                subject=Subject(rank=s.row["rank"], device=s.row["device"]),
                evidence=(Evidence(s.row["source"], s.row["where"], figures_text(s)),),
            )
    return list(seen.values())


def _block(run: Run, findings: Sequence[Finding]) -> list[Finding]:
    """The check before the remedy: says why expandable segments are not offered here."""
    fragmented = [f for f in findings if f.id in ("mem.fragmentation", "mem.fragmentation_contributes")]
    for f in fragmented:
        state, words = expandable_check(run, f.evidence[0].source)
        if state == "blocked" and not any(x.expandable for x in launches(run)):
            rows = run.rows("launch")
            return [
                Finding(
                    id=UNSAFE,
                    severity="info",
                    confidence=0.9,
                    claim="Expandable segments, the usual advice for fragmentation, are not offered: "
                    f"{words} is in use, and they do not work together.",
                    evidence=(Evidence(rows[0]["source"], rows[0]["where"], rows[0]["text"]),),
                )
            ]
    return []


def _earlier(run: Run) -> list[Finding]:
    """Records of an earlier process in the same log say nothing of the present one; they are only listed."""
    rows = [r for r in run.rows("oom") if r["earlier"]]
    if not rows:
        return []
    return [
        Finding(
            id="not:mem.oom_unexplained",
            severity="info",
            confidence=0.7,
            claim=f"{len(rows)} out-of-memory message(s) are of an earlier process: the server started and "
            "served again afterwards.",
            evidence=tuple(Evidence(r["source"], r["where"], r["text"]) for r in rows[:3]),
        )
    ]
