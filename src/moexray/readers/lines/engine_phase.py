"""Whether an engine was starting or serving when a line was written, told from the file itself.

Serving begins at the last ready line of a start ("Application startup complete", after it SGLang's
"ready to roll" once its warm-up request is through) and ends where an engine starts anew. A log
without a ready line that shows traffic is one of serving from its first traffic on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moexray.readers.lines.line import Line

__all__ = ["Event", "with_phases"]

Event = tuple["Line", str, dict[str, Any]]
Moment = tuple[int, float, int]  # clock, time, line number: what orders events of one file


def with_phases(events: list[Event]) -> Iterator[tuple[Line, str, dict[str, Any], str | None]]:
    """Adds the phase to each event: "startup", "serving" or None where the file cannot tell."""
    moments = list(_moments(events))
    marks = _marks(events, moments)
    order = sorted(range(len(events)), key=lambda i: moments[i])
    phases: list[str | None] = [None] * len(events)
    at, phase = 0, "startup" if marks and marks[0][1] == "serving" and marks[0][2] else None
    for i in order:
        while at < len(marks) and marks[at][0] <= moments[i]:
            phase = marks[at][1]
            at += 1
        phases[i] = phase
    for (line, kind, fields), found in zip(events, phases, strict=True):
        yield line, kind, fields, found


def _moments(events: list[Event]) -> Iterator[Moment]:
    """A line without a time stands at the time of the line before it."""
    last = float("-inf")
    clock = 0
    for line, _, _ in events:
        if line.clock != clock:
            clock, last = line.clock, float("-inf")
        if line.t_s is not None:
            last = line.t_s
        yield clock, last, line.number


def _marks(events: list[Event], moments: list[Moment]) -> list[tuple[Moment, str, bool]]:
    """(moment, phase that begins, whether a ready line says so), in order."""
    marks: list[tuple[Moment, str, bool]] = []
    warm = any(kind == "engine.ready" and fields.get("warm") for _, kind, fields in events)
    serving = False  # by a ready line since the last start
    traffic: Moment | None = None
    for (_, kind, fields), moment in sorted(zip(events, moments, strict=True), key=lambda x: x[1]):
        if kind == "engine.start":
            if traffic is not None and not serving:
                marks.append((traffic, "serving", False))
            marks.append((moment, "startup", False))
            serving, traffic = False, None
        elif kind == "engine.ready" and (fields.get("warm") or not warm):
            marks.append((moment, "serving", True))
            serving = True
        elif traffic is None and (kind == "batch" or (kind == "stats" and fields.get("running"))):
            traffic = moment
    if traffic is not None and not serving:
        marks.append((traffic, "serving", False))
    return sorted(marks)
