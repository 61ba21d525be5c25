"""Matrices over pairs of ranks: what each sent to or received from each, or waited for. CSV and JSON.

Storage by sender and storage by receiver are both legal; the header, the axes or the keys say
which index is which, and where they do not, `rows_are` stays null.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.readers.shapes.matrix_words import direction, directions, is_key, is_rank, label, quantity, unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from moexray.core.run import Reading
    from moexray.core.source import Source
    from moexray.readers.csv_file import Grid

__all__ = ["read_json", "read_table"]

Cells = dict[tuple[int, int], float]
NAMED = lazy(
    r"matri|all.?to.?all|a2a|traffic|pair|send|recv|sent|received|splits|dispatch|combine", re.IGNORECASE
)
AXES = (
    "axes",
    "axis",
    "rows",
    "layout",
    "index",
    "order",
    "orientation",
    "convention",
    "stored_by",
    "format",
)
MAX_RANKS = 4096


def read_table(grid: Grid, source: Source, out: Reading) -> bool:
    """Takes a CSV matrix or edge list into a2a_matrix; False if it is neither."""
    grid = _without_totals(grid)
    head = grid.header
    hint = " ".join(grid.comments)
    if (edges := _edge_columns(head)) is not None:
        return _edges_of(grid, edges, hint, source, out)
    first = next((i for i, h in enumerate(head) if label(h) is not None and i > 0), None)
    if first is None or not all(label(h) is not None for h in head[first:]):
        return _bare(grid, hint, source, out)
    lead = head[:first]
    at = next((i for i in reversed(range(first)) if is_rank(lead[i])), None)
    if at is None or not all(is_key(h) for i, h in enumerate(lead) if i != at):
        return _bare(grid, hint, source, out)
    cols = [label(h) for h in head[first:]]
    ids = [c[1] for c in cols if c is not None]
    slices: dict[str, Cells] = {}
    for number, row in zip(grid.numbers, grid.rows, strict=True):
        name = label(row[at]) if len(row) > at else None
        if name is None or len(row) != len(head):
            continue  # the reader of tables names ragged rows
        key = " ".join(f"{h} {row[i]}" for i, h in enumerate(lead) if i != at)
        for id_, cell in zip(ids, row[first:], strict=True):
            slices.setdefault(key, {})[name[1], id_] = _value(cell, number, head[first], out)
    word = next((c[0] for c in cols if c is not None), "")
    rows_are = _rows_are(head[at], word) or _rows_of(hint)
    good = {k: c for k, c in slices.items() if _square(c, set(ids))}
    if not good or (rows_are is None and not is_rank(head[at])):
        return False
    return _emit(good, (f"{head[at]} {word}", hint), rows_are, source, out)


def _rows_are(row: str, col: str) -> str | None:
    r"""Which side the rows stand for: "src_rank" | "dst", "rank" | "from", "src\dst"."""
    both = directions(row)
    if len(both) == 2:
        return both[0]
    if both:
        return both[0]
    side = direction(col)
    if side is None:
        side = {"sent": "receiver", "received": "sender"}.get(quantity(col) or "")
    return {"sender": "receiver", "receiver": "sender"}.get(side or "")


def _rows_of(hint: str) -> str | None:
    """Comments such as "rows are receivers"."""
    m = re.search(r"\brows?\b(.*)", hint, re.IGNORECASE)
    return next(iter(directions(m[1])), None) if m else None


def _without_totals(grid: Grid) -> Grid:
    """Sums beside and below a matrix are no ranks."""
    total = re.compile(r"totals?|sums?|all", re.IGNORECASE)
    keep = [i for i, h in enumerate(grid.header) if not total.fullmatch(h)]
    lines = [i for i, r in enumerate(grid.rows) if not (r and total.fullmatch(r[0]))]
    if len(keep) == len(grid.header) and len(lines) == len(grid.rows):
        return grid
    return replace(
        grid,
        header=tuple(grid.header[i] for i in keep),
        rows=tuple(tuple(grid.rows[i][k] for k in keep if k < len(grid.rows[i])) for i in lines),
        numbers=tuple(grid.numbers[i] for i in lines),
    )


def _edge_columns(head: tuple[str, ...]) -> tuple[int, int, list[int]] | None:
    """(sender column, receiver column, value columns) of an edge list."""
    sides = [direction(h) if is_rank(h) else None for h in head]
    if sides.count("sender") != 1 or sides.count("receiver") != 1:
        return None
    src, dst = sides.index("sender"), sides.index("receiver")
    values = [
        i
        for i, h in enumerate(head)
        if i not in (src, dst)
        and not is_key(h)
        and (quantity(h) or unit(h) or re.search(r"count|token|size|byte|value|numel", h, re.IGNORECASE))
    ]
    return (src, dst, values) if values else None


def _edges_of(grid: Grid, edges: tuple[int, int, list[int]], hint: str, source: Source, out: Reading) -> bool:
    src, dst, values = edges
    tables: dict[tuple[int, str], Cells] = {}
    for number, row in zip(grid.numbers, grid.rows, strict=True):
        a = label(row[src]) if len(row) == len(grid.header) else None
        b = label(row[dst]) if a is not None else None
        if a is None or b is None:
            out.problem(
                "input.dirty_table",
                f"row {number} of an edge list has no pair of ranks",
                where=f"line {number}",
                lost=1,
            )
            continue
        key = " ".join(f"{h} {row[i]}" for i, h in enumerate(grid.header) if is_key(h))
        for v in values:
            tables.setdefault((v, key), {})[a[1], b[1]] = _value(row[v], number, grid.header[v], out)
    done = False
    for v in values:
        slices = {k: c for (i, k), c in tables.items() if i == v}
        done = _emit(slices, (grid.header[v], hint), "sender", source, out) or done
    return done


def _bare(grid: Grid, hint: str, source: Source, out: Reading) -> bool:
    """Numbers only, as many rows as columns; taken where comment or name say what it is."""
    rows = [*([grid.header] if grid.header else []), *grid.rows]
    if len(rows) < 2 or not NAMED.search(f"{hint} {source.name}"):
        return False
    if any(len(r) != len(rows) for r in rows) or not all(
        re.fullmatch(r"\d+(?:\.\d+)?", c) for r in rows for c in r
    ):
        return False
    cells = {(i, j): float(c) for i, r in enumerate(rows) for j, c in enumerate(r)}
    found = directions(hint)
    return _emit({"": cells}, (hint,), found[0] if found else None, source, out)


def read_json(document: Any, source: Source, out: Reading) -> bool:
    """Takes matrices of a JSON document into a2a_matrix; False if there is none."""
    done = False
    for name, cells, rows_are in _in_json(document, "", 0):
        done = _emit({"": cells}, (name,), rows_are, source, out) or done
    return done


def _in_json(value: Any, name: str, depth: int) -> Iterator[tuple[str, Cells, str | None]]:
    if depth > 3:
        return
    if isinstance(value, list):
        if (cells := _from_lists(value)) is not None:
            if NAMED.search(name) or quantity(name):
                yield name, cells, _axes_of(name)
        elif value and all(isinstance(v, dict) for v in value):
            yield from _from_records(value)
    elif isinstance(value, dict):
        if (nested := _from_nested(value)) is not None:
            yield name, *nested
            return
        axes = next((value[k] for k in AXES if k in value and not _is_matrix(value[k])), None)
        for key, inner in value.items():
            for label_, cells, rows_are in _in_json(inner, f"{name} {key}".strip(), depth + 1):
                said = axes.get(key) if isinstance(axes, dict) else axes
                own = str(said).partition(key)  # one text may speak of each key in turn
                first = directions(own[2] if own[1] else own[0]) if said is not None else []
                yield label_, cells, rows_are or (first[0] if first else None)


def _axes_of(name: str) -> str | None:
    """Keys such as "recv[dst][src]" or "sent_src_dst" name their axes in order."""
    found = directions(name)
    return found[0] if len(found) == 2 else None


def _is_matrix(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], list)


def _from_lists(value: list[Any]) -> Cells | None:
    size = len(value)
    if not 2 <= size <= MAX_RANKS or not all(isinstance(r, list) and len(r) == size for r in value):
        return None
    if not all(_is_number(v) for r in value for v in r):
        return None
    return {(i, j): _float(v) for i, r in enumerate(value) for j, v in enumerate(r)}


def _from_nested(value: dict[str, Any]) -> tuple[Cells, str | None] | None:
    """{"src0": {"dst0": 5, ...}, ...}."""
    if len(value) < 2 or not all(isinstance(v, dict) and v for v in value.values()):
        return None
    cells: Cells = {}
    words = ("", "")
    for row, inner in value.items():
        a = label(row)
        for col, v in inner.items():
            b = label(str(col))
            if a is None or b is None or not _is_number(v):
                return None
            cells[a[1], b[1]], words = _float(v), (a[0], b[0])
    return (cells, _rows_are(*words)) if _square(cells, {j for _, j in cells}) else None


def _from_records(records: list[dict[str, Any]]) -> Iterator[tuple[str, Cells, str | None]]:
    """A record per edge, or a record per rank with one vector per direction."""
    edges: dict[str, Cells] = {}
    vectors: dict[str, Cells] = {}
    for record in records:
        sides = {direction(k): v for k, v in record.items() if is_rank(k) and isinstance(v, int)}
        rank = next(
            (record[k] for k in ("rank", "global_rank", "ep_rank") if isinstance(record.get(k), int)), None
        )
        for key, value in record.items():
            if (
                "sender" in sides
                and "receiver" in sides
                and not is_rank(key)
                and _is_number(value)
                and not is_key(key)
            ):
                edges.setdefault(key, {})[sides["sender"], sides["receiver"]] = _float(value)
            elif (
                rank is not None
                and quantity(key)
                and isinstance(value, list)
                and all(_is_number(v) for v in value)
            ):
                for peer, v in enumerate(value[:MAX_RANKS]):
                    vectors.setdefault(key, {})[rank, peer] = _float(v)
    for key, cells in edges.items():
        yield key, cells, "sender"
    for key, cells in vectors.items():
        yield key, cells, "sender" if quantity(key) == "sent" else "receiver"


def _square(cells: Cells, cols: set[int]) -> bool:
    rows = {i for i, _ in cells}
    return len(rows) >= 2 and rows == cols and len(cells) == len(rows) ** 2 and len(rows) <= MAX_RANKS


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _float(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _value(cell: str, number: int, column: str, out: Reading) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = float("nan")
    if not math.isfinite(value) or value < 0:
        if cell.strip():
            out.problem(
                "input.dirty_table",
                f"row {number} of a rank matrix ({column} ...): {cell!r} is no count",
                where=f"line {number}",
                lost=1,
            )
        return float("nan")
    return value


def _emit(
    slices: dict[str, Cells], said: Iterable[str], rows_are: str | None, source: Source, out: Reading
) -> bool:
    """Adds one batch per matrix; the name of the file is kept as a label, and as nothing more."""
    import numpy as np

    text = " ".join(said)
    what, from_ = quantity(text), "content"
    if what is None and quantity(source.name) is not None:
        what, from_ = quantity(source.name), "name"
    for key, cells in slices.items():
        ranks = {i for pair in cells for i in pair}
        if len(ranks) < 2:
            continue
        out.add_columns(
            "a2a_matrix",
            {
                "row": np.array([i for i, _ in cells], dtype=np.int64),
                "col": np.array([j for _, j in cells], dtype=np.int64),
                "value": np.array(list(cells.values()), dtype=np.float64),
            },
            source=source.path,
            rows=len({i for i, _ in cells}),
            name=text.strip(),
            rows_are=rows_are,
            quantity=what,
            quantity_from=from_ if what else None,
            unit=unit(text) or unit(source.name),
            slice=key,
            size=len(ranks),
        )
    return any(len(c) > 1 for c in slices.values())
