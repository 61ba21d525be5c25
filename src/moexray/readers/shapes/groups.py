"""Lists of process groups in JSON: {"PG 3 (GUID 21)": [0, 1]}, {"groups": ...}, [{"name":, "ranks":}]."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.readers.lines.comm import group_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["read"]

KEY = lazy(
    r"\b(?:pg|process_?groups?|groups?|guid|world)\b|^(?:tp|dp|ep|pp|cp|dcp|world)\w*$|_(?:pg|group|groups)\b",
    re.IGNORECASE,
)
RANKS = ("ranks", "members", "global_ranks")


def read(document: Any, source: Source, out: Reading) -> bool:
    """Takes groups into comm_group; False if the document holds none, or anything beside them."""
    del source
    found: list[tuple[str, list[int]]] = []
    for name, members in _walk(document, "", 0):
        if members is None:
            return False
        found.append((name, members))
    for name, members in found:
        if members:
            known = group_name(name)
            known["desc"] = known["desc"] or (name if known["group"] is None else None)
            out.add(
                "comm_group",
                where=name or "top",
                origin="list",
                members=sorted(members),
                size=len(members),
                **known,
            )
    return out.rows > 0


def _walk(value: Any, name: str, depth: int) -> Iterator[tuple[str, list[int] | None]]:
    """(name, members) of each group; members None where something is not a group."""
    if depth > 3 or not isinstance(value, dict | list) or not value:
        yield name, None
    elif isinstance(value, list) and all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        good = (
            min(value) >= 0 and len(set(value)) == len(value) and (depth > 0 and KEY.search(name) is not None)
        )
        yield name, value if good else None
    elif isinstance(value, list):
        for i, v in enumerate(value):
            yield from _walk(v, f"{name} {i}".strip(), depth + 1)
    elif (key := next((k for k in RANKS if isinstance(value.get(k), list)), None)) is not None:
        label = " ".join(
            str(value[k]) for k in ("name", "desc", "group_name", "pg_name", "id") if value.get(k) is not None
        )
        yield from _walk(value[key], f"group {label or name}", depth + 1)
    elif isinstance(value.get("world_size"), int) and len(value) == 1:
        yield "world", list(range(min(value["world_size"], 1 << 16)))
    else:
        for k, v in value.items():
            if k in ("world_size", "schema", "version", "comment") and not isinstance(v, dict | list):
                continue
            yield from _walk(v, _join(name, str(k)), depth + 1)


def _join(name: str, key: str) -> str:
    """Keys below a container named groups are groups: "ep" is called "group ep"."""
    container = re.fullmatch(r"(?:process_?)?groups?|pg_config|pgs?", name, re.IGNORECASE)
    return f"group {key}" if container else key
