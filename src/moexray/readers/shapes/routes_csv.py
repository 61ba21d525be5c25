"""Router choices in a text table: a row per token (and layer), the chosen experts beside it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy
from moexray.readers.shapes.routing_words import role_of, words

if TYPE_CHECKING:
    from moexray.core.run import Reading
    from moexray.core.source import Source
    from moexray.readers.csv_file import Grid

__all__ = ["read_routes"]

_TOKEN = frozenset(
    ("token", "token_idx", "token_index", "token_pos", "token_position", "position", "pos", "row")
)
_ARM = ("engine", "framework", "backend", "arm", "variant", "impl")
_CHOICE = lazy(r"^(?:top_?k|k|e|expert|choice|selected|sel|id|rank)(?:_?(?:id|idx|expert))?_?(\d{1,2})$")
MAX_K = 32


def read_routes(grid: Grid, source: Source, out: Reading) -> bool:
    """`engine, layer, token, k0, ..., k7`, or the ids of a token in one cell ("3 17 2 9")."""
    names = [words(h) for h in grid.header]
    token = next((i for i, n in enumerate(names) if n in _TOKEN), None)
    if token is None:
        return False
    wide = {int(m[1]): i for i, n in enumerate(names) if (m := _CHOICE.match(n))}
    joined = next((i for i, n in enumerate(names) if n == "experts" or role_of(n) == "topk"), None)
    columns = [wide[k] for k in sorted(wide)] or ([] if joined is None else [joined])
    if not columns or len(columns) > MAX_K or (not wide and joined is None):
        return False
    layer = next((i for i, n in enumerate(names) if role_of(n) == "layer"), None)
    arm = next((i for n in _ARM for i, name in enumerate(names) if name == n), None)
    groups: dict[str, list[tuple[int, int, list[int]]]] = {}
    width = 0
    for row in grid.rows:
        if len(row) != len(names):
            continue
        ids = [int(x) for i in columns for x in re.findall(r"-?\d+", row[i])]
        if not ids or len(set(ids)) != len(ids) or max(ids) > 1 << 14:
            return False  # no set of experts
        width = width or len(ids)
        if len(ids) == width:
            key = row[arm] if arm is not None else ""
            groups.setdefault(key, []).append((_label(row, layer, -1), _label(row, token, 0), ids))
    for name, records in groups.items():
        _add(name, "engine" if arm is not None and names[arm] in _ARM[:2] else "arm", records, source, out)
    return bool(groups)


def _label(row: tuple[str, ...], column: int | None, default: int) -> int:
    m = None if column is None else re.search(r"\d+(?=\D*$)", row[column])
    return int(m[0]) if m else default


def _add(
    name: str, key: str, records: list[tuple[int, int, list[int]]], source: Source, out: Reading
) -> None:
    """One batch of one engine, by layer and token."""
    import numpy as np

    records.sort(key=lambda r: r[:2])
    facts = {"arm": name[:60], **({"engine": name[:60]} if key == "engine" else {})} if name else {}
    out.add_columns(
        "routes",
        {"layer": np.array([r[0] for r in records]), "token": np.array([r[1] for r in records]),
         "ids": np.array([r[2] for r in records], np.int32)},
        source=source.path, rows=len(records), layout="csv", **facts,
    )  # fmt: skip
