"""Reads numbers as a page displays them, without the code that wrote them: value, unit and how far it was rounded."""

import re
from dataclasses import dataclass
from decimal import Decimal

SIZES = {
    "bytes": {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50},
    "s": {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1},
    "share": {"%": 0.01},
}
HOURS = re.compile(r"([\d,]+) h (\d\d) min")
NUMBER = re.compile(r"(-?[\d,]+(?:\.\d+)?(?:e[-+]\d+)?) ?(\D.*)?")
FLOAT = 1e-9  # relative: what a sum in another order may differ by


@dataclass(frozen=True)
class Number:
    """What a cell should say: a value in a base unit (None: unknown)."""

    value: float | None
    unit: str

    def is_said_by(self, text):
        if self.value is None:
            return text == "unknown"
        read = _read(text, self.unit)
        return read is not None and abs(read[0] - self.value) <= read[1] + FLOAT * abs(self.value)


def _read(text, unit):
    """Value in the base unit and half of its last digit; None where the text is no number of this unit."""
    if unit == "s" and (hours := HOURS.fullmatch(text)):
        return int(hours[1].replace(",", "")) * 3600 + int(hours[2]) * 60, 30
    found = NUMBER.fullmatch(text)
    if not found:
        return None
    digits, written = Decimal(found[1].replace(",", "")), found[2] or ""
    if unit in SIZES:
        size = SIZES[unit].get(written)
    else:
        size = 1 if written == ("" if unit in ("ratio", "count") else unit) else None
    return None if size is None else (float(digits) * size, 0.5 * 10.0 ** digits.as_tuple().exponent * size)


def says(cell, wanted):
    return wanted.is_said_by(cell) if isinstance(wanted, Number) else cell == wanted


def differences(rows, wanted):
    """Cells that do not say what they should, with row and column; the rows must be as many and as long."""
    assert [len(row) for row in rows] == [len(row) for row in wanted], (rows[:3], wanted[:3])
    return [
        (i, j, cell, want)
        for i, (row, wants) in enumerate(zip(rows, wanted, strict=True))
        for j, (cell, want) in enumerate(zip(row, wants, strict=True))
        if not says(cell, want)
    ]
