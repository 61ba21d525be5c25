"""Numbers as people read them: bytes, seconds, ratios and counts turned into short text.

The inside of moexray holds base units (bytes, seconds, plain ratios); the terminal output and the
report turn them into text with `human`, and nowhere else. All functions are pure.

Glossary:
    base unit: bytes (B), seconds (s), ratio (no unit, 0.8 is 80 %), count (no unit).
    unknown: null, NaN or a missing value; never shown as 0.
"""

from datetime import UTC, datetime

from moexray.core.sizes import human_bytes

__all__ = [
    "counted", "human", "human_bytes", "human_count", "human_fact", "human_moment", "human_ratio",
    "human_seconds",
]  # fmt: skip

_UNKNOWN = "unknown"
_SECOND_STEPS = (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3))
_SECONDS_PER = {"s": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_STEP_FULL = 1000.0
_TEN_S = 10.0
_HOUR_S = 3600.0
_SMALLEST_TWO_DIGIT_RATIO = 0.01
_TOO_LARGE = 10**300
_EPOCH_S = 1e8  # later than 1973 when counted from 1970; uptimes and runs stay below


def human(value: float | None, unit: str) -> str:
    """Give a value in a base unit as text for people.

    Args:
        value: the number; None, NaN and numbers that are none give "unknown".
        unit: "bytes", "s" (also "seconds", "ms", "us", "ns"), "ratio", "count", or "" for no
            unit. Any other unit, such as "tokens", is written behind the number.

    Returns:
        For instance "736.9 MiB", "66.0 ms", "0.80", "240", "12,000 tokens" or "unknown".
    """
    if value is None or isinstance(value, bool) or value != value:  # noqa: PLR0124 (NaN)
        return _UNKNOWN
    if abs(value) > _TOO_LARGE:
        return "infinite" if value > 0 else "-infinite"
    if unit == "bytes":
        return human_bytes(value)
    if unit in _SECONDS_PER:
        return human_seconds(value * _SECONDS_PER[unit])
    if unit == "ratio":
        return human_ratio(value)
    text = human_count(value)
    return text if unit in ("count", "") else f"{text} {unit}"


def human_fact(value: float, unit: str) -> str:
    """As `human`, but a time that can only be a clock's is given as its date: see `human_moment`."""
    seconds = value * _SECONDS_PER.get(unit, 0.0)
    return human(value, unit) if seconds < _EPOCH_S else human_moment(seconds)


def human_moment(seconds: float) -> str:
    """Give seconds since 1970 as UTC clock time, such as "2026-10-30 01:35:41.832 UTC".

    Below 1973, and beyond what a calendar holds, it is a time span: a clock that started with the machine.
    """
    if seconds < _EPOCH_S:
        return human_seconds(seconds)
    try:
        moment = datetime.fromtimestamp(seconds, tz=UTC)
    except (OverflowError, OSError, ValueError):
        return human_seconds(seconds)
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def human_seconds(value: float) -> str:
    """Give a finite number of seconds: 0.066 is "66.0 ms", 5400 is "1 h 30 min"."""
    sign, span = ("-", -value) if value < 0 else ("", value)
    if span == 0:
        return "0 s"
    if span >= _HOUR_S:
        hours, minutes = divmod(round(span / 60), 60)
        return f"{sign}{hours:,} h {minutes:02d} min"
    for name, size in _SECOND_STEPS:
        if round(span / size, 1) < _STEP_FULL:
            return f"{sign}{span / size:.1f} {name}"
    return f"{sign}{span:.{2 if span < _TEN_S else 1}f} s"


def human_ratio(value: float) -> str:
    """Give a finite ratio with two decimals, or two significant digits below 0.01."""
    if value != 0 and abs(value) < _SMALLEST_TWO_DIGIT_RATIO:
        return f"{value:.2g}"
    return f"{value:,.2f}"


def human_count(value: float) -> str:
    """Give a finite count with thousands separators: 1234567 is "1,234,567"."""
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.3g}"


def counted(number: int, what: str, many: str = "") -> str:
    """Give a number of things: "1 file", "2 files"; `many` is the plural where it is no plain s."""
    return f"{number} {what}" if number == 1 else f"{number:,} {many or what + 's'}"
