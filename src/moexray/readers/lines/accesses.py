"""Patterns of shared-memory accesses in text: "stride=512 B width=16 B base=0"."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy
from moexray.readers.shapes.accesses import add_access

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Reading
    from moexray.readers.lines.line import Line

__all__ = ["parse"]

ABOUT = lazy(r"shared|smem|\bbank|lane", re.IGNORECASE)
PAIR = lazy(r"\b([a-z][a-z_]*)\s*[=:]\s*(\d+)\s*(bytes|b|words|floats|elements)?\b", re.IGNORECASE)
KERNEL = lazy(r"\bkernel\s*[=:]?\s*([A-Za-z_]\w*)")
SPAN = 8  # lines that one statement may take


def parse(lines: Sequence[Line], out: Reading) -> None:
    """Adds the accesses of lines (or a few lines together) that state stride and width."""
    stated = any("stride" in line.text.lower() for line in lines)
    if not stated or not any(ABOUT.search(line.text) for line in lines):
        return
    found: dict[str, int | str] = {}
    first, last = 0, -SPAN
    for line in lines:
        named = PAIR.findall(line.text.lower())
        pairs = {f"{name}_{unit}" if unit else name: int(value) for name, value, unit in named}
        if not any(k.startswith(("stride", "width", "base")) for k in pairs):
            continue
        if line.number - last > SPAN or found.keys() & pairs.keys():
            _close(found, first, out)
            found, first = {}, line.number
        found |= pairs
        first, last = first or line.number, line.number
        if m := KERNEL.search(line.text):
            found["kernel"] = m[1]
    _close(found, first, out)


def _close(found: dict[str, int | str], line: int, out: Reading) -> None:
    if any(k.startswith("stride") for k in found):
        add_access(found, f"line {line}", out)
