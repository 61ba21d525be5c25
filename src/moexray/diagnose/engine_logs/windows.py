"""Benchmark windows that hold a one-off event of the log."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moexray.analyse import engine_log
from moexray.analyse.alignment import year_offset
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from moexray.analyse.engine_log import Episode
    from moexray.core.limits import Limits
    from moexray.core.run import Row, Run

__all__ = ["contaminated"]

Window = tuple[str, float, float, "Row"]
SHOWN = 6  # windows quoted


def contaminated(run: Run, limits: Limits) -> list[Finding]:  # noqa: ARG001
    """metric.contaminated_window: an event that is not in every window lies inside one."""
    windows = _windows(run)
    if not windows:
        return []
    found: list[tuple[Window, Episode]] = []
    for events in _events(run):
        placed = _on_clock(events, windows)
        hits = [(w, e) for w in windows for e in placed if e.start_s <= w[2] and e.end_s >= w[1]]
        touched = {id(w) for w, _ in hits}
        if len(windows) > 1 and len(touched) == len(windows):
            continue  # what happens in every window is part of what was measured
        found += hits
    if not found:
        return []
    found.sort(key=lambda x: (x[0][1], x[1].start_s))
    names = list(dict.fromkeys(w[0] for w, _ in found))
    kinds = list(dict.fromkeys(e.kind for _, e in found))
    evidence = []
    for (name, start, end, row), e in found[:SHOWN]:
        facts = pairs({"window": name, "t_from_s": start, "t_to_s": end, "event_s": e.start_s})
        evidence += [
            Evidence(e.source, e.row["where"], f"{e.row['text']} {facts}"),
            Evidence(row["source"], row["where"], facts),
        ]
    (name, start, end, _), event = found[0]
    clean = len(windows) - len(names)
    claim = (
        f"{'Window' if len(names) == 1 else 'Windows'} {', '.join(names[:4])} of {len(windows)} "
        f"{'holds' if len(names) == 1 else 'hold'} a one-off event ({', '.join(kinds)}): the first "
        f"{max(event.start_s - start, 0.0):.1f} s after the start of '{name}', which lasts "
        f"{end - start:.4g} s. "
        f"{f'The other {clean} hold none; ' if clean else ''}the comparison is not like with like."
    )
    settle = ("a repeat of the marked window", "token times of the window, to see how much the event cost")
    return [Finding(
        "metric.contaminated_window", "warn", 0.85, claim, Subject(), float(len(names)), 0.0, "count",
        tuple(evidence), remedies=(remedy("window-repeat"),), settle_with=settle,
    )]  # fmt: skip


def _windows(run: Run) -> list[Window]:
    """(name, start, end, row) of every window that a benchmark file gives times for."""
    out: dict[tuple[str, float, float], Window] = {}
    for r in run.rows("bench"):
        start, end = r["t_from_s"], r["t_to_s"]
        if start is None or end is None or end <= start:
            continue
        setting = f"/{r['setting']}" if r["setting"] else ""
        name = f"{r['run'] or 'run'}{setting}"
        out.setdefault((r["source"], start, end), (name, start, end, r))
    count: dict[str, int] = {}
    named = []
    for name, start, end, row in out.values():
        count[name] = count.get(name, 0) + 1
        named.append((f"{name} #{count[name]}", start, end, row))
    return named


def _events(run: Run) -> list[list[Episode]]:
    """Episodes that disturb a measurement, by kind; moves in the background are none."""
    moved = [e for e in engine_log.rearrangements(run) if e.row["fields"].get("mode") != "async"]
    compiled = [e for e in engine_log.compilations(run) if e.serving is not False]
    return [moved, compiled, engine_log.snapshots(run), engine_log.starts(run)]


def _on_clock(events: list[Episode], windows: list[Window]) -> list[Episode]:
    """Episodes on the clock of the windows; those of another kind of clock are left out."""
    relative = engine_log.is_relative([x[1] for x in windows])
    known = [e for e in events if e.start_s == e.start_s and (e.start_s < engine_log.RELATIVE_S) == relative]
    out = []
    for e in known:
        yearless = not relative and e.start_s < engine_log.YEARLESS_S < windows[0][1]
        offset = year_offset(windows[0][1], e.start_s) if yearless else 0.0
        out.append(replace(e, start_s=e.start_s + offset, end_s=e.end_s + offset) if offset else e)
    return out
