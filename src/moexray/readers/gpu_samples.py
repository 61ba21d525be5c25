"""Device samples on their way into table `gpu`: values with units, placeholders, clock reasons, times.

Glossary: a *sample* is what one device told at one time; *missing* is a field that is not supported or not
permitted; an *error* is a field that should have had a value (ERR!, Unknown Error, GPU is lost).
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy
from moexray.core.sizes import BINARY_UNITS
from moexray.readers.lines.stamp import epoch, iso_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moexray.core.run import Reading

__all__ = ["MIB", "NUMBERS", "Sample", "Samples", "fault_of", "flags_of", "quantity", "size", "when"]

MIB = 1 << 20
CELLS = 1 << 16  # different cells that are remembered: a series repeats the same few
NAN = float("nan")
LONGEST_NUMBER = 100  # characters; longer ones are no measurement

# Number columns of table gpu, in their order.
NUMBERS = (
    "t_s", "total_bytes", "reserved_bytes", "used_bytes", "free_bytes", "util_ratio", "mem_util_ratio",
    "sm_mhz", "sm_max_mhz", "power_w", "power_limit_w", "temp_c",
)  # fmt: skip

QUANTITY = lazy(r"([-+]?\d+(?:[.,]\d+)?)\s*([A-Za-z%°µ]*)")
LOST = lazy(r"gpu is lost|fallen off the bus", re.IGNORECASE)
ERROR = lazy(r"err!|unknown error|gpu requires reset|reset required|gpu access blocked", re.IGNORECASE)
DENIED = lazy(
    r"n/?a|not (?:supported|available|found)|requested functionality has been deprecated|none|null"
    r"|-+|unknown|\?",
    re.IGNORECASE,
)
FORBIDDEN = lazy(r"insufficient permissions?|no permissions?", re.IGNORECASE)
# NVML's bits of nvmlClocksEventReasons (nvml.h).
BITS = (
    (0x1, "gpu_idle"), (0x2, "applications_clocks_setting"), (0x4, "sw_power_cap"), (0x8, "hw_slowdown"),
    (0x10, "sync_boost"), (0x20, "sw_thermal_slowdown"), (0x40, "hw_thermal_slowdown"),
    (0x80, "hw_power_brake_slowdown"), (0x100, "display_clocks_setting"),
)  # fmt: skip


@lru_cache(maxsize=CELLS)
def quantity(text: str) -> tuple[float, str] | None:
    """A number and its unit in lower case ("700.00 W" -> 700.0, "w"); None if it is no number."""
    m = QUANTITY.fullmatch(text.strip())
    return (float(m[1].replace(",", ".")), m[2].lower()) if m and len(m[1]) < LONGEST_NUMBER else None


@lru_cache(maxsize=CELLS)
def size(text: str, unit: str = "") -> float | None:
    """Bytes of "81559 MiB"; a bare number counts in `unit`, else in MiB as nvidia-smi does."""
    found = quantity(text)
    if found is None:
        return None
    factor = BINARY_UNITS.get(found[1] or unit.lower() or "mib")
    return None if factor is None or found[0] < 0 else found[0] * factor


@lru_cache(maxsize=CELLS)
def fault_of(text: str) -> str:
    """What stands in place of a value: "lost", "error", "denied", "missing"; "" if it may be one."""
    bare = text.strip().strip("[]()").strip()
    if LOST.search(bare):
        return "lost"
    if ERROR.fullmatch(bare) or bare.lower().startswith("unknown error"):
        return "error"
    if FORBIDDEN.fullmatch(bare):
        return "denied"
    return "missing" if not bare or DENIED.fullmatch(bare) else ""


def flags_of(text: str) -> str | None:
    """Names of the clock reasons in NVML's bit mask, hexadecimal or decimal; None if it is no mask."""
    try:
        mask = int(text.strip(), 16) if text.strip().lower().startswith("0x") else int(text)
    except ValueError:
        return None
    return " ".join(name for bit, name in BITS if mask & bit)


@dataclass(slots=True)
class Sample:
    """What one device told at one time; filled field by field.

    Args:
        key: Tells devices of the file apart.
        device: Index as nvidia-smi counts, if known.
        line: Where it stands.
    """

    key: str
    device: int | None = None
    line: int | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    flags: list[str] | None = None
    errors: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    lost: bool = False

    def put(self, name: str, text: str, scale: float = 1.0) -> None:
        """Takes a field; a placeholder is noted by name, text that is no number is left out."""
        fault = fault_of(text)
        if fault:
            self.note(name, fault)
        elif name.endswith("_bytes"):
            if (value := size(text)) is not None:
                self.numbers[name] = value
        elif found := quantity(text):
            self.numbers[name] = found[0] * scale

    def note(self, name: str, fault: str) -> None:
        """Notes a placeholder instead of a value."""
        short = name.partition("_bytes")[0]
        if fault == "denied":
            self.missing.append(f"{short}(denied)")
        else:
            (self.missing if fault == "missing" else self.errors).append(short)
        self.lost = self.lost or fault == "lost"

    def flag(self, name: str, text: str) -> None:
        """Takes one clock reason: Active, Not Active."""
        word = text.strip().lower()
        if word in ("active", "not active"):
            self.flags = self.flags or []
            if word == "active" and name not in self.flags:
                self.flags.append(name)


class Samples:
    """Collects samples of one file and form, column by column; `flush` writes the batch."""

    def __init__(self, form: str) -> None:
        self.form = form
        self.driver = ""
        self.names: dict[str, str] = {}
        self.mig: dict[str, bool] = {}
        self.numbers = {name: array("d") for name in NUMBERS}
        self.device = array("q")
        self.line = array("q")
        self.words: dict[str, list[str]] = {"key": [], "flags": [], "errors": [], "missing": []}

    def __len__(self) -> int:
        return len(self.device)

    def add(self, sample: Sample, t_s: float | None = None) -> None:
        """Takes a finished sample."""
        known = sample.numbers
        if t_s is not None:
            known["t_s"] = t_s
        for name, column in self.numbers.items():
            column.append(known.get(name, NAN))
        self.device.append(-1 if sample.device is None else sample.device)
        self.line.append(-1 if sample.line is None else sample.line)
        self.words["key"].append(_same(sample.key))
        self.words["flags"].append("?" if sample.flags is None else _same(" ".join(sample.flags)))
        errors = (*sample.errors, "gpu_lost") if sample.lost else sample.errors
        self.words["errors"].append(_same(" ".join(dict.fromkeys(errors))))
        self.words["missing"].append(_same(" ".join(dict.fromkeys(sample.missing))))

    def flush(self, out: Reading, source: str) -> None:
        """Writes the batch, if there is any sample."""
        if len(self):
            columns = {**self.numbers, "device": self.device, "line": self.line, **self.words}
            out.add_columns(
                "gpu",
                columns,
                source=source,
                rows=len(self),
                form=self.form,
                driver=self.driver,
                names=dict(self.names),
                mig=dict(self.mig),
            )


@lru_cache(maxsize=4096)
def _same(text: str) -> str:
    """One object for equal texts: a series repeats the same few."""
    return text


CLOCK = lazy(r"(\d{1,2}):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?:\s*([AaPp])\.?[Mm]\.?)?")
DAY_TIME = lazy(r"(\d{4})(\d\d)(\d\d)[ T_-]+(.*)")
# Opening letters of month names that locales print, without accents.
MONTHS = (
    ("jan", "ene", "gen", "sty"), ("feb", "fev", "fév", "lut"), ("mar", "mär", "mrz", "mrt"),
    ("apr", "avr", "abr", "kwi"), ("may", "mai", "mag", "mei", "maj"), ("jun", "juin", "giu", "cze"),
    ("jul", "juil", "lug", "lip"), ("aug", "aou", "aoû", "ago", "sie"), ("sep", "set", "wrz"),
    ("oct", "okt", "ott", "out", "paź"), ("nov", "lis"), ("dec", "dez", "déc", "dic", "gru"),
)  # fmt: skip


@lru_cache(maxsize=1024)
def when(text: str) -> float | None:
    """Seconds of a time stamp in any form that tools and locales print; None if it is none.

    A date gives epoch seconds (UTC where no zone is named), a bare clock the seconds of the day, a plain
    number itself (milliseconds and finer of an epoch are scaled to seconds).
    """
    text = text.strip()
    try:
        value = float(text)
    except ValueError:
        pass
    else:
        while value > 1e11:  # an epoch in ms, us or ns
            value /= 1e3
        return value if value >= 0 else None
    if (iso := iso_seconds(text)) is not None:
        return iso
    if m := DAY_TIME.fullmatch(text):
        text = f"{m[1]}-{m[2]}-{m[3]} {m[4]}"
    clock = CLOCK.search(text)
    if not clock:
        return None
    hour = int(clock[1])
    if clock[5]:
        hour = hour % 12 + (12 if clock[5] in "pP" else 0)
    parts = (str(hour), clock[2], clock[3], clock[4])
    date = _date(text[: clock.start()] + " " + text[clock.end() :])
    if date is None:
        return epoch((1970, 1, 1), parts)
    return epoch(date, parts)


def _date(text: str) -> tuple[int, int, int] | None:
    """Year, month, day of a date in words or numbers."""
    numbers = [(int(n), n) for n in re.findall(r"\d+", text)]
    year = next((n for n, _ in numbers if 1970 <= n <= 2100), None)
    if year is None:
        return None
    rest = [n for n, _ in numbers if n != year and 1 <= n <= 31]
    month = _month(re.findall(r"[^\W\d_]{3,}", text.lower()))
    if month and rest:
        return year, month, rest[0]
    if len(rest) < 2:
        return None
    first, second = rest[:2]
    if numbers[0][0] == year or (first <= 12 and "." not in text and "/" in text):
        month, day = first, second
    else:
        month, day = second, first
    if month > 12:
        month, day = day, month
    return year, month, day


def _month(words: Iterable[str]) -> int | None:
    """Month that one of the words names; weekdays come first in a stamp, so the last match counts."""
    found = None
    for word in words:
        for i, openings in enumerate(MONTHS, 1):
            if word.startswith(openings):
                found = i
    return found
