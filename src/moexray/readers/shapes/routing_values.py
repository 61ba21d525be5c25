"""Values of parsed documents: nested lists -> arrays, with what is wrong in them named."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.readers.shapes.routing_words import config_key, role_of, words

if TYPE_CHECKING:
    import numpy as np

    from moexray.core.run import Reading

__all__ = ["numbers_of", "texts_of", "to_array"]

_ARM_KEYS = ("engine", "framework", "backend", "arm", "variant", "impl", "implementation", "dtype",
             "precision")  # fmt: skip
_SEED_KEYS = ("seed", "batch_id", "run", "run_id")
_GROUPED = lazy(r"^-?\d{1,3}(?:[,' _.]\d{3})+$")


def numbers_of(document: dict[Any, Any]) -> dict[str, float]:
    """The numbers of a configuration among the items of a dict, by canonical name."""
    found: dict[str, float] = {}
    for key, value in document.items():
        name = config_key(str(key))
        if name is None:
            continue
        plain = value.item() if hasattr(value, "ndim") and value.ndim == 0 else value
        if isinstance(plain, int | float) and not isinstance(plain, bool) and math.isfinite(plain):
            found.setdefault(name, float(plain))
    return found


def texts_of(document: dict[Any, Any]) -> dict[str, Any]:
    """What names the engine, the variant and the seed of a record."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        name = words(str(key))
        if name in _ARM_KEYS and isinstance(value, str) and "arm" not in found:
            found["arm"] = value[:60]
        if name in ("engine", "framework") and isinstance(value, str):
            found["engine"] = value[:60]
        if name == "vllm_version":
            found["engine"] = "vllm"
        if name in _SEED_KEYS and isinstance(value, int | str):
            found.setdefault("seed", str(value)[:40])
    return found


def to_array(value: Any, name: str, out: Reading) -> np.ndarray | None:
    """A nested list of numbers as an array; odd rows are named and become NaN; None if it is none."""
    import numpy as np

    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return np.asarray(value)
    if not isinstance(value, list | tuple) or not value:
        return None
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        return _ragged(value, name, out)
    if array.dtype.kind in "iuf":
        return array
    return _ragged(value, name, out) if array.dtype.kind in "OU" else None


def _ragged(value: list[Any] | tuple[Any, ...], name: str, out: Reading) -> np.ndarray | None:
    """Rows of unlike length or with words in them: the odd ones become NaN rows and are named."""
    import numpy as np

    rows = value if isinstance(value[0], list | tuple) else [value]
    if any(not isinstance(r, list | tuple) for r in rows):
        return None
    if any(isinstance(x, list | tuple) for r in rows for x in r):
        parts = [_ragged(r, f"{name}[{i}]", out) for i, r in enumerate(rows)]
        sound = [p for p in parts if p is not None]
        return np.stack(sound) if sound and len({p.shape for p in sound}) == 1 else None
    lengths = [len(r) for r in rows]
    width = max(set(lengths), key=lengths.count)
    grid = np.full((len(rows), width), np.nan)
    for i, row in enumerate(rows):
        if len(row) != width:
            _dirty(out, name, i, f"{len(row)} values where other rows have {width}")
            continue
        for j, cell in enumerate(row):
            number = _number(cell)
            if number is None:
                _dirty(out, name, i, f"{cell!r} in column {j}", column=j)
                grid[i] = np.nan
                break
            grid[i, j] = number
    if role_of(name) is None and np.isnan(grid).all():
        return None
    return grid if isinstance(value[0], list | tuple) else grid[0]


def _number(cell: Any) -> float | None:
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        return float(cell)
    if isinstance(cell, str) and not _GROUPED.match(cell.strip()):
        try:
            return float(cell)
        except ValueError:
            return None
    return None


def _dirty(out: Reading, name: str, row: int, what: str, column: int | None = None) -> None:
    where = f"{name}: row {row}" + (f", column {column}" if column is not None else "")
    values: dict[str, object] = {"row": row}
    if column is not None:
        values["column"] = column
    out.problem("input.dirty_table", f"{what} ({where}); the row is not used",
                where=where, lost=1, values=values)  # fmt: skip
