"""Tables in text: CSV of any dialect, parsed once into a Grid, then offered to the shapes."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moexray.core.errors import ReadError
from moexray.core.source import decode

if TYPE_CHECKING:
    from collections.abc import Callable

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["SHAPES", "Grid", "read", "sniff"]


@dataclass(frozen=True, slots=True)
class Grid:
    """A parsed table.

    Args:
        header: Column names as written, stripped.
        rows: Cells as text, stripped; ragged rows keep their length.
        numbers: Line number of each row in the file, from 1.
        comments: Lines before or among the rows that start with "#".
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...]
    comments: tuple[str, ...] = ()


# Each takes (grid, source, out) and returns whether the table was its own. First yes wins.
SHAPES: tuple[Callable[[Grid, Source, Reading], bool], ...] = ()


def sniff(head: bytes) -> bool:
    """At least two lines with the same separator count > 0, none of them prose."""
    text = decode(head)[0]
    lines = [x for x in text.splitlines()[:6] if x.strip() and not x.startswith("#")]
    if not lines:
        return False
    for separator in (",", ";", "\t"):
        counts = {x.count(separator) for x in lines[:-1] or lines}
        if len(counts) == 1 and counts != {0} and "{" not in lines[0] and len(lines[0]) < 4096:
            return all(len(cell.split()) <= 6 for cell in lines[0].split(separator))
    return False


def read(source: Source, out: Reading) -> None:
    """Parses the table and gives it to the first shape that knows its header."""
    grid = parse(decode(source.data())[0])
    for shape in SHAPES:
        if shape(grid, source, out):
            return
    raise ReadError("a table whose columns are not known", where=source.path, hint="see docs/capture.md")


def parse(text: str) -> Grid:
    """Splits text into a Grid; the separator is the one that all rows share."""
    lines = [(i, x) for i, x in enumerate(text.splitlines(), 1) if x.strip()]
    body = [(i, x) for i, x in lines if not x.startswith("#")]
    separator = max((",", ";", "\t"), key=lambda s: body[0][1].count(s) if body else 0)
    cells = list(csv.reader(io.StringIO("\n".join(x for _, x in body)), delimiter=separator))
    rows = tuple(tuple(c.strip() for c in r) for r in cells)
    return Grid(
        header=rows[0] if rows else (),
        rows=rows[1:],
        numbers=tuple(i for i, _ in body[1:]),
        comments=tuple(x for _, x in lines if x.startswith("#")),
    )
