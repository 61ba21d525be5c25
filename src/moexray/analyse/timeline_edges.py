"""Whether what each rank sends in an all-to-all is what its peer expects: R = S transposed, edge by edge."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moexray.analyse.timeline_comm import Collectives

__all__ = ["edges_ok", "element_bytes", "splits"]

BYTES = {
    "double": 8, "long": 8, "int64": 8, "float64": 8, "float": 4, "int": 4, "int32": 4, "float32": 4,
    "half": 2, "bfloat16": 2, "float16": 2, "short": 2, "int16": 2,
    "char": 1, "byte": 1, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


def element_bytes(dtype: str | None) -> int | None:
    """Bytes of an element of a type as c10d writes it; None if unknown."""
    name = (dtype or "").lower().removeprefix("torch.")
    return 1 if name.startswith("float8") else BYTES.get(name)


def edges_ok(found: Collectives, column: int) -> bool | None:
    """Whether rank i's split for j equals what j expects from i, for all pairs.

    Returns:
        None where a rank of the group is missing, or splits are even, cut or not recorded.
    """
    here = [rank for rank in range(len(found.profiles)) if found.present[rank, column]]
    rows = [splits(found, rank, column) for rank in here]
    sent = [s for s, _ in rows]
    expected = [r for _, r in rows]
    count = len(rows)
    if count < 2 or any(x is None or len(x) != count for x in (*sent, *expected)):
        return None
    return all(sent[i][j] == expected[j][i] for i in range(count) for j in range(count))  # type: ignore[index]


def splits(found: Collectives, rank: int, column: int) -> tuple[list[int] | None, list[int] | None]:
    """Rows that a rank sends to and expects from each peer; None where not recorded, even or cut."""
    profile = found.profiles[rank]
    if profile.comm is None:
        return None, None
    at = profile.comm_at.get(int(found.row[rank, column]))
    if at is None:
        return None, None
    return _numbers(profile.comm["in_splits"][at]), _numbers(profile.comm["out_splits"][at])


def _numbers(text: str | None) -> list[int] | None:
    try:
        found = json.loads(text or "")
    except ValueError:
        return None  # long lists are cut with "..."
    sound = isinstance(found, list) and found and all(type(x) is int for x in found)
    return found if sound else None
