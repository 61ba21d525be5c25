"""Tables in text: CSV of any dialect, parsed once into Grids, then offered to the shapes.

Read: comma, semicolon, tab or pipe; decimal commas; quotes; byte order marks; lines before the
header, comments, repeated headers, blank lines; tables without a header; several tables in one file
(each with its own header, as some benchmarks write them). What is no table of a known shape is read
as text after all.
"""

from __future__ import annotations

import csv
import io
import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moexray.core.errors import ReadError
from moexray.core.pattern import lazy
from moexray.core.source import decode
from moexray.readers import text as text_reader
from moexray.readers.cells import is_number, is_placeholder, quantity
from moexray.readers.shapes import first_that_takes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["SHAPES", "Grid", "parse", "read", "sniff"]

SEPARATORS = (",", ";", "\t", "|")
MAX_BYTES = 64 << 20  # of text, decompressed; what lies behind is left out, with a note
MAX_CELLS = 4_000_000  # about 400 MB; the same
MAX_NAME = 160  # characters of a column name; a longer one is prose
MAX_NAME_WORDS = 8
SHOWN = 5  # ragged rows named one by one
TIME = lazy(r"\d{4}[-/]\d\d[-/]\d\d|\d{1,2}:\d\d:\d\d|[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-")
DEVICE = lazy(r"(?:GPU|MIG)-[0-9a-f]{8}|/[\w.-]+/")
COMMA = lazy(r"[-+]?(?:\d{1,3}(?:\.\d{3})+|\d+),\d+(?:[eE][-+]?\d+)?(?:\s*[A-Za-z%]\S*)?")
GROUPS = lazy(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+")
RULER = lazy(r"[\s|:+=-]+")
RULERS = lazy(r"\s*\|?(?:\s*:?-{2,}:?\s*\|)+(?:\s*:?-{2,}:?\s*)?")  # below a Markdown header
PROSE = lazy(r": |=|[({\[]$|^[\[({]")


@dataclass(frozen=True, slots=True)
class Grid:
    """A parsed table.

    Args:
        header: Column names as written, stripped; empty if the table has none.
        rows: Cells as text, stripped, decimal commas made points; ragged rows keep their length.
        numbers: Line number of each row in the file, from 1.
        comments: Lines that are no rows: before the table, or starting with "#" or "==".
        separator: "," ";" tab or "|".
        decimal: What the file has as decimal sign.
        cut: Line of a last row that ends too early in a file without final line feed; dropped.
        ragged: Lines whose rows are longer or shorter than most.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[int, ...]
    comments: tuple[str, ...] = ()
    separator: str = ","
    decimal: str = "."
    cut: int | None = None
    ragged: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """Number of columns: of the header, else of the first row."""
        return len(self.header) or (len(self.rows[0]) if self.rows else 0)


# Each takes (grid, source, out) and returns whether the table was its own. First yes wins.
SHAPES: tuple[str, ...] = (
    "moexray.readers.shapes.smi:query_gpu",
    "moexray.readers.shapes.smi:query_apps",
    "moexray.readers.shapes.nsys_stats:stats_table",
    "moexray.readers.shapes.bench_table:card_table",
    "moexray.readers.shapes.memory_stats:memory_stats_csv",
    "moexray.readers.shapes.matrix:read_table",
    "moexray.readers.shapes.routes_csv:read_routes",
    "moexray.readers.shapes.placement_csv:read_placement",
    "moexray.readers.shapes.routing_csv:read_csv",
    "moexray.readers.shapes.ncu:ncu_table",
    "moexray.readers.shapes.accesses:access_table",
    "moexray.readers.shapes.numerics:logprob_table",
    "moexray.readers.shapes.evals:harness_table",
    "moexray.readers.shapes.numerics:score_table",
    "moexray.readers.shapes.requests:token_table",
    "moexray.readers.shapes.requests:request_table",
    "moexray.readers.shapes.step_log:step_table",
    "moexray.readers.shapes.latency:latency_series",
    "moexray.readers.shapes.bench_table:bench_table",
    "moexray.readers.shapes.bench_table:metric_table",
    "moexray.readers.shapes.memory_stats:load_csv",
    "moexray.readers.shapes.latency:guess_series",
)


def sniff(head: bytes) -> bool:
    """Most of the first lines have the same number of cells, and the first row is short names or values."""
    lines = decode(head)[0].splitlines()[:60]
    if len(head) >= 1 << 16:
        lines = lines[:-1] or lines
    found = _split(lines)
    if found is None:
        return False
    _, rows, _ = found
    widths = [len(cells) for _, cells in rows if cells]
    wide = [w for w in widths if w > 1]
    if not wide:
        return False
    common = max(set(wide), key=wide.count)
    first = next(cells for _, cells in rows if len(cells) == common)
    # a row fits if it has as many cells as most or as a neighbour: a file may hold several tables
    near = zip([0, *widths], widths, [*widths[1:], 0], strict=False)
    fit = sum(w > 1 and w in (common, a, b) for a, w, b in near)
    if fit < 0.6 * len(widths) - (len(widths) < 3) or first[0].startswith(("{", "<")):
        return False
    return all(len(c) <= MAX_NAME and len(c.split()) <= MAX_NAME_WORDS and not PROSE.search(c) for c in first)


def read(source: Source, out: Reading) -> None:
    """Parses the tables and gives each to the first shape that knows its header.

    Raises:
        ReadError: no shape knows any of them, and it is no text of a known form either.
    """
    text, encoding = decode(_content(source, out))
    taken = 0
    for grid in parse(text, out):
        if first_that_takes(SHAPES, grid, source, out):
            taken += 1
            _judge(grid, out)
    if taken:
        if encoding != "utf-8":
            said = f"the text is {encoding}, not plain UTF-8; it was read as such"
            out.problem("input.encoding", said, values={"encoding": encoding})
        return
    out.reader = "text"
    text_reader.read(source, out)
    if not out.rows:
        out.reader = "csv"
        out.notes.clear()
        out.problems[:] = [p for p in out.problems if p.id != "input.encoding"]
        raise ReadError("a table whose columns are not known", where=source.path, hint="see docs/capture.md")


def _content(source: Source, out: Reading) -> bytes:
    """The text, or its first whole lines if it is longer than we hold in memory."""
    if source.disk_bytes <= MAX_BYTES and not source.compression:
        return source.data()
    data = b"".join(source.chunks(limit=MAX_BYTES + 1))
    if len(data) <= MAX_BYTES:
        return data
    out.problem("input.huge", f"only the first {MAX_BYTES >> 20} MiB were read", lost=None)
    return data[: data.rfind(b"\n", 0, MAX_BYTES) + 1]


def parse(text: str, out: Reading | None = None) -> list[Grid]:
    """Splits text into its tables.

    Args:
        text: The decoded file.
        out: Takes a note where a file is too long to be read in full.
    """
    lines = text.splitlines()
    found = _split(lines)
    if found is None:
        return []
    separator, rows, end = found
    if end < len(lines) and out is not None:
        said = f"only the first {end} of {len(lines)} lines were read"
        out.problem("input.huge", said, lost=len(lines) - end)
    numbers = {n for n, _ in rows}
    comments = tuple(x for i, x in enumerate(lines, 1) if i not in numbers and x.strip())[:200]
    ended = text.endswith(("\n", "\r"))
    grids = [_grid(part, separator, comments) for part in _blocks(rows)]
    if grids and not ended:
        grids[-1] = _cut(grids[-1])
    return [_decimals(g) for g in grids if g.header or g.rows]


def _judge(grid: Grid, out: Reading) -> None:
    """Notes what was unusual or wrong with the form of a table that a shape has taken."""
    said = []
    if grid.separator in (";", "|"):
        said.append(f"columns are separated by {grid.separator!r}")
    if grid.decimal == ",":
        said.append("the decimal sign is a comma")
    if said:
        out.problem("input.dialect", f"{' and '.join(said)}, in all rows; read so")
    if grid.cut is not None:
        text = f"the last row ends in the middle; {len(grid.rows)} whole rows were used"
        out.problem("input.truncated", text, where=f"line {grid.cut}", lost=1)
    if grid.ragged:
        shown = ", ".join(f"line {n}" for n in grid.ragged[:SHOWN])
        more = f" and {len(grid.ragged) - SHOWN} more" if len(grid.ragged) > SHOWN else ""
        out.problem(
            "input.dirty_table",
            f"rows with more or fewer cells than the {grid.width} of the header: {shown}{more}",
            where=f"line {grid.ragged[0]}",
            lost=len(grid.ragged),
        )


def _split(lines: Sequence[str]) -> tuple[str, list[tuple[int, tuple[str, ...]]], int] | None:
    """Cells of all lines; None where nothing looks like a table.

    Returns:
        (separator, rows, end): rows as (line number, cells), no cells for a blank line, which may stand
        between two tables; end is the line up to which they were read.
    """
    body = [(i, x) for i, x in enumerate(lines, 1) if not x.lstrip().startswith(("#", "=="))]
    sample = [x for _, x in body if x.strip()][:60]
    best: tuple[bool, float, str] = (False, 0.0, "")
    for separator in SEPARATORS:
        if separator == "|" and not any(RULERS.fullmatch(x) for x in sample[:20]):
            continue
        counts = [len(_row(x, separator)) for x in sample]
        wide = [c for c in counts if c > 1]
        if wide:
            common = max(set(wide), key=lambda c: (wide.count(c), c))
            share = wide.count(common) / len(counts)
            # widest wins only where the rows agree as well; decimal commas agree in all rows but the header
            best = max(best, (share == 1, round(share, 1) + min(common, 40) / 1000, separator))
    if not best[2]:
        return None
    separator, total = best[2], 0
    rows: list[tuple[int, tuple[str, ...]]] = []
    for i, line in body:
        row = _row(line, separator)
        if separator == "|":
            row = row[1 if row[:1] == ("",) else 0 : -1 if row[-1:] == ("",) and len(row) > 1 else None]
            if all(RULER.fullmatch(c) for c in row if c) and any(row):
                continue
        total += len(row)
        if total > MAX_CELLS:
            return separator, rows, i - 1
        rows.append((i, row if any(row) else ()))
    return separator, rows, len(lines)


def _row(line: str, separator: str) -> tuple[str, ...]:
    """Cells of a line, stripped; a quoted cell does not run over the end of its line."""
    if '"' not in line:
        return tuple([c.strip() for c in line.split(separator)])
    try:
        row = next(csv.reader(io.StringIO(line), delimiter=separator, skipinitialspace=True), [])
    except csv.Error:
        row = line.split(separator)
    return tuple([c.strip() for c in row])


def _blocks(rows: list[tuple[int, tuple[str, ...]]]) -> list[list[tuple[int, tuple[str, ...]]]]:
    """Cuts rows into tables: a new one begins after a blank line (and a title) with a header of its own."""
    blocks: list[list[tuple[int, tuple[str, ...]]]] = [[]]
    blank = False
    for i, cells in rows:
        if not cells:
            blank = True
            continue
        if blank and len(cells) == 1:
            continue  # the title of the next table
        now = blocks[-1]
        if blank and now and len(cells) != len(now[0][1]) and len(cells) > 1 and _is_header(cells, ()):
            blocks.append([])
        blank = False
        blocks[-1].append((i, cells))
    return blocks


def _grid(rows: list[tuple[int, tuple[str, ...]]], separator: str, comments: tuple[str, ...]) -> Grid:
    """One table: what stands before its first row of the common width is no part of it."""
    widths = [len(c) for _, c in rows[:200] if len(c) > 1]
    if not widths:
        return Grid((), (), (), comments)
    common = max(set(widths), key=lambda w: (widths.count(w), w))
    start = next(i for i, (_, c) in enumerate(rows) if len(c) == common)
    if start and len(rows[start - 1][1]) > 1 and _is_header(rows[start - 1][1], rows[start][1]):
        start -= 1  # a header that is longer or shorter than the rows
    above = tuple(separator.join(c) for _, c in rows[:start])
    rows = rows[start:]
    head = rows[0][1]
    named = _is_header(head, rows[1][1] if len(rows) > 1 else ())
    body = [(i, c) for i, c in rows[1 if named else 0 :] if not (named and c == head)]
    if named and body and (joined := _joined(head, body[0][1])):
        head, body = joined, body[1:]
    header = _trim(head) if named else _commented(comments, separator, common)
    width = len(header) or common
    body = [(i, c[:width] if len(c) > width and not any(c[width:]) else c) for i, c in body]
    return Grid(
        header=header,
        rows=tuple(c for _, c in body),
        numbers=tuple(i for i, _ in body),
        comments=(*above, *comments),
        separator=separator,
        ragged=tuple(i for i, c in body if len(c) != width),
    )


def _joined(head: tuple[str, ...], below: tuple[str, ...]) -> tuple[str, ...]:
    """The names of a header of two rows ("TTFT (ms)" over "mean", "median", "p99"); () if it has one."""
    spans = [i for i, c in enumerate(head) if not c]
    if not spans or not head[0] or len(below) != len(head) or not all(below):
        return ()
    if any(is_placeholder(c) or is_number(c) for c in below) or not _is_header(below, ()):
        return ()
    top: list[str] = []
    for name in head:
        top.append(name or top[-1])
    return tuple(f"{b} {t}" for t, b in zip(top, below, strict=True))


def _commented(comments: tuple[str, ...], separator: str, width: int) -> tuple[str, ...]:
    """The header of a table that has it behind "#", as numpy writes it; () if there is none."""
    for line in comments:
        names = tuple(c.strip() for c in line.lstrip("# ").split(separator))
        if line.startswith("#") and len(names) == width and _is_header(names, ()):
            return names
    return ()


def _trim(header: tuple[str, ...]) -> tuple[str, ...]:
    """Without empty names at the end (a separator closes each line)."""
    end = len(header)
    while end > 1 and not header[end - 1]:
        end -= 1
    return header[:end]


def _is_header(cells: tuple[str, ...], below: tuple[str, ...]) -> bool:
    """Whether a first row holds names: no measured value, time stamp or placeholder in it."""
    if any(TIME.search(c) or DEVICE.match(c) for c in cells):
        return False
    numeric = [c for c in cells if is_number(c)]
    if any(not c.isdigit() for c in numeric):
        return False
    if any((q := quantity(c)) and q[1] and len(q[1]) > 1 and " " in c for c in cells):
        return False  # "81559 MiB"
    if not numeric:
        named = [c for c in cells if c and not is_placeholder(c)]
        return bool(named) and (not below or cells != below)
    ids = [int(c) for c in numeric]
    ascending = all(b == a + 1 for a, b in itertools.pairwise(ids))
    return ascending and len(ids) >= min(len(cells), 2) and (ids[0] in (0, 1) or len(ids) > 3)


def _cut(grid: Grid) -> Grid:
    """Drops a last row that is shorter than the rest in a file that does not end with a line feed."""
    if not grid.rows or len(grid.rows[-1]) >= grid.width:
        return grid
    line = grid.numbers[-1]
    return replace(
        grid,
        rows=grid.rows[:-1],
        numbers=grid.numbers[:-1],
        cut=line,
        ragged=tuple(n for n in grid.ragged if n != line),
    )


def _decimals(grid: Grid) -> Grid:
    """Makes decimal commas points where only one reading exists; else leaves every cell as it is."""
    if not any("," in c for row in grid.rows for c in row):
        return grid
    found = [c for row in grid.rows for c in row if "," in c and COMMA.fullmatch(c)]
    if not found:
        return grid
    sure = any(not GROUPS.fullmatch(c) for c in found)
    grouped = any(c.count(",") > 1 for row in grid.rows for c in row if GROUPS.fullmatch(c))
    pointed = any("." in c and is_number(c) for row in grid.rows for c in row)
    if not sure or grouped or pointed:
        return grid

    def point(cell: str) -> str:
        return cell.replace(".", "").replace(",", ".") if "," in cell and COMMA.fullmatch(cell) else cell

    return replace(grid, rows=tuple(tuple(map(point, row)) for row in grid.rows), decimal=",")
