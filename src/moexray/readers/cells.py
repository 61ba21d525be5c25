"""Cells of tables: numbers with or without a unit, placeholders, units in column names.

Glossary: a *placeholder* stands for "not measured" and is null, never 0 and never dirty. A number
with separators inside ("1,024") has two readings and is no number here.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy
from moexray.core.sizes import DECIMAL_UNITS

if TYPE_CHECKING:
    from moexray.core.run import Reading
    from moexray.readers.csv_file import Grid

__all__ = [
    "BASE",
    "base",
    "column",
    "is_number",
    "is_placeholder",
    "number",
    "quantity",
    "split_unit",
    "word_set",
    "words",
]

NUMBER = lazy(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
WITH_UNIT = lazy(r"(" + NUMBER.pattern + r")\s*([A-Za-z%µμ][A-Za-z%/µμ]*(?:/s(?:ec)?)?)?")
PLACEHOLDERS = frozenset(("", "-", "--", "n/a", "na", "null", "none", "nil", "#n/a", "?", "*"))
BRACKETS = lazy(r"\[[A-Za-z][A-Za-z /]*\]")
SHOWN = 8  # dirty cells named one by one

# unit as written, lower case -> (kind, factor to the base unit: s, bytes, per_s, ratio)
BASE: dict[str, tuple[str, float]] = {
    "s": ("s", 1.0), "sec": ("s", 1.0), "secs": ("s", 1.0), "second": ("s", 1.0), "seconds": ("s", 1.0),
    "ms": ("s", 1e-3), "msec": ("s", 1e-3), "msecs": ("s", 1e-3), "millis": ("s", 1e-3),
    "millisecond": ("s", 1e-3), "milliseconds": ("s", 1e-3),
    "us": ("s", 1e-6), "usec": ("s", 1e-6), "µs": ("s", 1e-6), "μs": ("s", 1e-6), "microseconds": ("s", 1e-6),
    "ns": ("s", 1e-9), "nsec": ("s", 1e-9), "nanoseconds": ("s", 1e-9), "nsecond": ("s", 1e-9),
    "usecond": ("s", 1e-6), "msecond": ("s", 1e-3), "min": ("s", 60.0), "minutes": ("s", 60.0),
    **{unit: ("bytes", float(factor)) for unit, factor in DECIMAL_UNITS.items() if unit},
    "%": ("ratio", 0.01), "pct": ("ratio", 0.01), "percent": ("ratio", 0.01), "ratio": ("ratio", 1.0),
    "tok/s": ("per_s", 1.0), "tokens/s": ("per_s", 1.0), "token/s": ("per_s", 1.0), "t/s": ("per_s", 1.0),
    "tokens/sec": ("per_s", 1.0), "tok/sec": ("per_s", 1.0), "tokens/second": ("per_s", 1.0),
    "req/s": ("per_s", 1.0), "requests/s": ("per_s", 1.0), "requests/sec": ("per_s", 1.0),
    "req/sec": ("per_s", 1.0), "per sec": ("per_s", 1.0), "per s": ("per_s", 1.0), "tps": ("per_s", 1.0),
    "rps": ("per_s", 1.0), "1/s": ("per_s", 1.0), "per second": ("per_s", 1.0),
}
IN_BRACKETS = lazy(r"^(.*?)\s*[\[(]\s*([^\])]+?)\s*[\])]\s*$")
_CAMEL = lazy(r"(?<=[a-z])(?=[A-Z])")
_SPLIT = lazy(r"[^a-z0-9.%]+")


def is_placeholder(cell: str) -> bool:
    """Whether a cell says that nothing was measured: empty, N/A, [Not Supported], ERR!."""
    low = cell.lower()
    return low in PLACEHOLDERS or low == "err!" or BRACKETS.fullmatch(cell) is not None


def is_number(cell: str) -> bool:
    """Whether a cell is one plain number (NaN and inf are not)."""
    return NUMBER.fullmatch(cell) is not None


def number(cell: str) -> float | None:
    """The value of a plain number; None for anything else, "1,024" and "nan" included."""
    return float(cell) if NUMBER.fullmatch(cell) else None


def quantity(cell: str) -> tuple[float, str] | None:
    """A number with its unit as written ("655.00 W" -> 655.0, "W"); None if it is no such cell."""
    m = WITH_UNIT.fullmatch(cell.strip())
    return (float(m[1]), m[2] or "") if m else None


def word_set(text: str) -> frozenset[str]:
    """The words of a text, for tables of names."""
    return frozenset(text.split())


def base(value: float, factor: float) -> float:
    """A value in its base unit, free of the dust of binary fractions (274.9 ms is 0.2749 s)."""
    return value * factor if factor >= 1.0 else round(value * factor, 12)


@lru_cache(maxsize=4096)
def words(name: str) -> str:
    """A name in lower case with single underscores: "Mean TTFT (ms)" -> "mean_ttft_ms"."""
    return _SPLIT.sub("_", _CAMEL.sub("_", name).lower()).strip("_")


@lru_cache(maxsize=4096)
def split_unit(name: str) -> tuple[str, str]:
    """Splits a column name into its words and its unit.

    Units stand in brackets ("memory.used [MiB]", "TTFT (ms)") or at the end ("itl_ms",
    "output_tok_s", "tokens_per_second").

    Returns:
        (words, unit): the unit in lower case as BASE knows it, "" if there is none.
    """
    m = IN_BRACKETS.match(name)
    if m and m[2].lower() in BASE:
        return words(m[1]), m[2].lower()
    w = words(name.replace("/", "_per_") if "/" in name else name)
    parts = w.split("_")
    for joined in ("per_second", "per_sec", "per_s"):
        if w.endswith("_" + joined):
            return w[: -len(joined) - 1], "per s"
    counted = len(parts) > 1 and parts[-2] in ("tok", "toks", "token", "tokens", "req", "reqs")
    if counted and parts[-1] == "s" and "per" not in parts:  # "tok_s", but not "time_per_output_token_s"
        return "_".join(parts[:-1]), "per s"
    if len(parts) > 1 and parts[-1] in ("tps", "rps"):
        return w, "per s"
    if len(parts) > 1 and parts[-1] in BASE and parts[-1] not in ("min", "b", "ratio"):
        return "_".join(parts[:-1]), parts[-1]
    return w, ""


def column(grid: Grid, index: int, out: Reading, *, name: str = "") -> list[float | None]:
    """One column as numbers; cells that are no numbers are reported once and become None.

    Args:
        grid: The table.
        index: The column.
        out: Takes one `input.dirty_table` problem for all bad cells of the column.
        name: What to call the column; its header by default.
    """
    if (fast := _plain(grid, index)) is not None:
        return fast
    values: list[float | None] = []
    bad: list[tuple[int, str]] = []
    for row, line in zip(grid.rows, grid.numbers, strict=True):
        cell = row[index] if index < len(row) else ""
        found = number(cell)
        if found is None:
            q = None if is_placeholder(cell) else quantity(cell)
            found = q[0] if q else None
            if q is None and not is_placeholder(cell):
                bad.append((line, cell))
        values.append(found)
    if bad:
        title = name or (grid.header[index] if index < len(grid.header) else f"{index + 1}")
        shown = ", ".join(f"line {line}: {cell[:40]!r}" for line, cell in bad[:SHOWN])
        more = f" and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
        out.problem(
            "input.dirty_table",
            f"column {title} holds cells that are no plain number ({shown}{more}); these rows are left out",
            where=f"line {bad[0][0]}",
            lost=len(bad),
        )
    return values


def _plain(grid: Grid, index: int) -> list[float | None] | None:
    """A column that holds nothing but plain numbers, at the speed of float()."""
    try:
        cells = [row[index] for row in grid.rows]
        values: list[float | None] = list(map(float, cells))
        sound = math.isfinite(math.fsum(map(float, cells)))
    except (ValueError, IndexError, OverflowError):
        return None
    return values if sound and "_" not in "".join(cells) else None  # float() takes 1_000 and nan, too
