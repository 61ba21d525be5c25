"""Jumps of a log's clock: it goes back by more than a second, or leaps by whole hours.

Each worker is compared with itself, for the lines of several workers interleave. A file that runs
backwards as a whole (newest line first, as viewers export it) has no jump.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moexray.readers.lines.line import Line

__all__ = ["Jump", "number_clocks"]

BACK_S = 1.0  # s; a step back beyond this is a jump (verdict catalogue, input.clock_jump)
HOUR_S = 3600.0
FEW_LEAPS = 2  # more gaps of whole hours are a habit of the log (an hourly line), not a clock
GAPS = 5  # ordinary gaps that must be known before a leap can be told from an idle hour
DENSE = 100  # a leap is at least so many ordinary gaps


@dataclass(frozen=True, slots=True)
class Jump:
    """One jump.

    Args:
        number: The first line after it.
        step_s: What the clock did, s; negative: it went back.
        leap: Forward by whole hours.
    """

    number: int
    step_s: float
    leap: bool


def number_clocks(lines: list[Line]) -> tuple[list[Line], list[Jump]]:
    """Numbers the stretches between jumps (Line.clock).

    Returns:
        (lines, jumps): the same list where the clock never jumped.
    """
    jumps, restarts, ascending = _find(lines)
    if not ascending:
        return lines, []
    if sum(j.leap for j in jumps) > FEW_LEAPS:
        jumps = [j for j in jumps if not j.leap]
    marks = sorted({*(j.number for j in jumps), *restarts})
    if not marks:
        return lines, []
    out, clock, ahead = [], 0, iter([*marks, float("inf")])
    mark = next(ahead)
    for line in lines:
        while line.number >= mark:
            clock, mark = clock + 1, next(ahead)
        out.append(replace(line, clock=clock) if clock else line)
    return out, jumps


def _find(lines: Iterable[Line]) -> tuple[list[Jump], list[int], bool]:
    """Jumps, starts of a new process (a relative clock at zero again), and whether time rises."""
    last: dict[str, tuple[float, bool]] = {}
    jumps: list[Jump] = []
    restarts: list[int] = []
    gaps: list[float] = []
    ups = downs = 0
    for line in lines:
        if line.t_s is None or not (line.known or line.relative):
            continue
        key = line.worker or (f"rank {line.rank}" if line.rank is not None else "")
        before = last.get(key)
        last[key] = (line.t_s, line.relative)
        if before is None or before[1] != line.relative:
            continue
        step = line.t_s - before[0]
        ups, downs = ups + (step > 0), downs + (step < 0)
        if step < -BACK_S:
            if line.relative and line.t_s < BACK_S:
                restarts.append(line.number)
            else:
                jumps.append(Jump(line.number, step, leap=False))
            last = {key: last[key]}
        elif not line.relative and _whole_hours(step, gaps):
            jumps.append(Jump(line.number, step, leap=True))
            last = {key: last[key]}
        elif 0 < step < HOUR_S / 2 and len(gaps) < 2000:
            gaps.append(step)
    return jumps, restarts, downs <= ups or downs <= 2


def _whole_hours(step: float, gaps: list[float]) -> bool:
    """Whether a gap is 1 to 14 hours, give or take an ordinary gap, in a log that is never idle."""
    from statistics import median

    if step < HOUR_S - BACK_S or len(gaps) < GAPS:
        return False
    usual = median(gaps)
    hours = round(step / HOUR_S)
    over = step - hours * HOUR_S
    return 1 <= hours <= 14 and step > DENSE * usual and -BACK_S <= over <= max(2.0, 2 * usual)
