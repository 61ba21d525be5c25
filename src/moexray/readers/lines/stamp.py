"""Time stamps of log lines, in every dialect that engines, runtimes and containers print.

Epoch seconds where the stamp has a date: zone offsets are applied, a stamp without a zone counts as
UTC. A date without a year (vLLM, glog, syslog) takes the year that the caller knows, else 1970.
"""

from __future__ import annotations

import re
from functools import lru_cache

from moexray.core.pattern import lazy

__all__ = ["CLOCK", "ISO", "MONTHS", "epoch", "iso_seconds", "year_of"]

CLOCK = r"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
ISO = r"((?:19|20)\d\d)[-/](\d\d)[-/](\d\d)[T ]" + CLOCK + r" ?(Z|UTC|[+-]\d\d:?\d\d)?"
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
YEAR = lazy(
    r"(?:^\[?|\": ?\"|\) |\| )((?:19|20)\d\d)[-/]\d\d[-/]\d\d[T ]\d\d:|^\[\d\d/\d\d/((?:19|20)\d\d)-\d\d:",
    re.MULTILINE,
)


@lru_cache(maxsize=4096)
def _days(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01 of the proleptic Gregorian calendar, for any month 1-12."""
    y = year - (month <= 2)
    shifted = (month + 9) % 12
    return y * 365 + y // 4 - y // 100 + y // 400 + (shifted * 153 + 2) // 5 + day - 719_469


def epoch(
    date: tuple[int, int, int], clock: tuple[str | None, ...], zone: str | None = None
) -> float | None:
    """Seconds from 1970-01-01 UTC.

    Args:
        date: (year, month, day).
        clock: hour, minute, second, fraction as matched by CLOCK.
        zone: "Z", "UTC", "+08:00", "+0800" or None (taken as UTC).

    Returns:
        None where the stamp is no date or no time of day.
    """
    year, month, day = date
    hour, minute, second = (int(c or 0) for c in clock[:3])
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second <= 60):
        return None
    fraction = clock[3] if len(clock) > 3 else None
    total = _days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second
    if zone and zone[0] in "+-":
        offset = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        total += -offset if zone[0] == "+" else offset
    return total + (float("0." + fraction) if fraction else 0.0)


_ISO = lazy(ISO)


def iso_seconds(text: str) -> float | None:
    """The epoch seconds of an ISO stamp at the start of a text; None if there is none."""
    m = _ISO.match(text)
    if not m:
        return None
    g = m.groups()
    return epoch((int(g[0]), int(g[1]), int(g[2])), g[3:7], g[7])


def year_of(head: str) -> int:
    """The year to give to stamps that have none: the first full date at a line's start, or 1970."""
    m = YEAR.search(head)
    return int(m[1] or m[2]) if m else 1970
