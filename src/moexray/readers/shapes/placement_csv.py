"""Placements in a text table: a row per slot, with the logical expert that lies in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy
from moexray.readers.shapes.routing_words import role_of, words

if TYPE_CHECKING:
    from moexray.core.run import Reading
    from moexray.core.source import Source
    from moexray.readers.csv_file import Grid

__all__ = ["read_placement"]

_LOGICAL = lazy(r"^(?:logical_)?(?:expert|experts)(?:_id|_idx)?$|^logical(?:_id)?$")
_SLOT = lazy(r"^(?:global_)?slot(?:_id|_idx)?$|^(?:physical|phy)(?:_expert|_slot)?(?:_id|_idx)?$")
_RANK = lazy(r"^(?:ep_)?(?:rank|gpu|device)(?:_id|_idx)?$")
_OTHER = frozenset(("model", "replica", "replica_id", "node", "node_id", "host"))
MAX_SLOTS = 1 << 14


def read_placement(grid: Grid, source: Source, out: Reading) -> bool:
    """`layer, rank, slot, expert`, `physical_id, logical_id` and the like; anything else beside: no."""
    names = [words(h) for h in grid.header]
    found = {k: next((i for i, n in enumerate(names) if pattern.match(n)), None)
             for k, pattern in (("slot", _SLOT), ("rank", _RANK), ("expert", _LOGICAL))}  # fmt: skip
    layer = next((i for i, n in enumerate(names) if role_of(n) == "layer"), None)
    known = {i for i in (*found.values(), layer) if i is not None}
    others = {n for i, n in enumerate(names) if i not in known}
    if found["expert"] is None or found["slot"] is None or others - _OTHER:
        return False
    rows: dict[int, list[tuple[int, int, int]]] = {}
    for row in grid.rows:
        cells = [_number(row, i) for i in (layer, found["rank"], found["slot"], found["expert"])]
        if cells[2] is None or cells[3] is None:
            return False
        rows.setdefault(-1 if cells[0] is None else cells[0], []).append((cells[1] or 0, cells[2], cells[3]))
    return _add(rows, source, out)


def _number(row: tuple[str, ...], column: int | None) -> int | None:
    m = None if column is None or column >= len(row) else re.search(r"-?\d+(?=\D*$)", row[column])
    return int(m[0]) if m else None


def _add(rows: dict[int, list[tuple[int, int, int]]], source: Source, out: Reading) -> bool:
    """One row of slots per layer, in the order of ranks and slots."""
    import numpy as np

    width = max(len(slots) for slots in rows.values())
    ranks = {r for slots in rows.values() for r, _, _ in slots}
    whole = all(len(slots) == width for slots in rows.values()) and width % max(len(ranks), 1) == 0
    if not 2 <= width <= MAX_SLOTS or not whole:
        return False
    layers = sorted(rows)
    table = np.array([[e for _, _, e in sorted(rows[y], key=lambda s: s[:2])] for y in layers], np.int64)
    facts = {"ep_size": len(ranks)} if len(ranks) > 1 else {}
    out.add_columns(
        "placement", {"step": np.full(len(layers), -1), "layer": np.array(layers), "slots": table},
        source=source.path, rows=len(layers), layout="csv", **facts,
    )  # fmt: skip
    return True
