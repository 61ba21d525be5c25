"""Stated patterns of shared-memory accesses: stride, width and base, as JSON or as a table."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.readers.cells import column, word_set, words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moexray.core.run import Reading
    from moexray.core.source import Source
    from moexray.readers.csv_file import Grid

__all__ = ["access_json", "access_table", "add_access"]

_UNIT = r"(?:_(bytes|b|elements|elems|words|floats))?"
STRIDE = lazy(r"(?:.*_)?(?:stride|pitch|row_size|leading_dim(?:ension)?|ld)" + _UNIT)
WIDTH = lazy(r"(?:(?:access|vector|vec|load|store|lane|thread)_)?(?:width|size|bytes)" + _UNIT)
BASE = lazy(r"(?:.*_)?(?:base|offset|start)(?:_address|_addr)?" + _UNIT)
CONTEXT = lazy(rb"shared.?mem|smem|\bbank|warp|lanes\b|access|stride_bytes", re.IGNORECASE)
ELEMENT = word_set("element_bytes elem_bytes element_size itemsize dtype_bytes bytes_per_element elem_size")
LANES = word_set("lanes threads num_threads active_lanes active_threads warp_size n_threads")
NAME = word_set("kernel name access op kernel_name label")
TYPES = {
    "float": 4, "float32": 4, "fp32": 4, "int": 4, "int32": 4, "float2": 8, "float4": 16, "int4": 16,
    "uint4": 16, "int2": 8, "uint2": 8, "half": 2, "half2": 4, "bf16": 2, "bfloat16": 2, "float16": 2,
    "fp16": 2, "fp8": 1, "int8": 1, "double": 8, "double2": 16, "char4": 4, "half8": 16, "char": 1,
    "uint8": 1,
}
TYPE = word_set("dtype type vector_type access_type vector element_type load_type")
MAX_DEPTH = 4
WIDTHS = (1, 2, 4, 8, 16)
MAX_BYTES = 1 << 18  # no shared memory is larger


def access_json(document: Any, source: Source, out: Reading) -> bool:
    """Objects with a stride and a width, at any place of the document."""
    before = out.rows
    if not CONTEXT.search(source.head):
        return False
    _walk(document, "", 0, out)
    return out.rows > before


def _walk(node: Any, where: str, depth: int, out: Reading) -> None:
    if isinstance(node, dict) and not add_access(node, where or "document", out) and depth < MAX_DEPTH:
        for key, value in node.items():
            _walk(value, f"{where}.{key}".lstrip("."), depth + 1, out)
    elif isinstance(node, list) and depth < MAX_DEPTH:
        for i, value in enumerate(node[:1000]):
            _walk(value, f"{where}[{i}]", depth + 1, out)


def access_table(grid: Grid, source: Source, out: Reading) -> bool:
    """A row per access: kernel, stride_bytes, width_bytes, base_bytes."""
    names = [words(h) for h in grid.header]
    wide = any(WIDTH.fullmatch(n) or n in TYPE for n in names)
    if not wide or not any(STRIDE.fullmatch(n) for n in names) or not CONTEXT.search(source.head):
        return False
    text = {i for i, n in enumerate(names) if n in NAME or n in TYPE}
    parts = {i: column(grid, i, out) for i in range(len(names)) if i not in text}
    before = out.rows
    for r, (row, line) in enumerate(zip(grid.rows, grid.numbers, strict=True)):
        if len(row) >= len(names):
            record = {n: row[i] if i in text else parts[i][r] for i, n in enumerate(names)}
            add_access(record, f"line {line}", out)
    return out.rows > before


def add_access(record: Mapping[str, Any], where: str, out: Reading) -> bool:
    """Adds the access that a record states; False if it states none."""
    plain = {words(str(k)): v for k, v in record.items()}
    types = [t for k, v in plain.items() if k in TYPE and (t := TYPES.get(str(v).lower()))]
    element = next((_whole(v) for k, v in plain.items() if k in ELEMENT), None) or (types or [4])[0]
    found: dict[str, int] = {}
    sure = False  # strides and widths exist elsewhere, too
    for role, pattern in (("stride", STRIDE), ("width", WIDTH), ("base", BASE)):
        for key, value in plain.items():
            m, n = pattern.fullmatch(key), _whole(value)
            if m is None or n is None or key in ELEMENT or role in found:
                continue
            unit = 4 if m[1] in ("words", "floats") else element if (m[1] or "").startswith("elem") else 1
            found[role] = n * unit
            sure |= role == "base" or (role == "stride" and m[1] is not None)
    width = found.get("width") or (types[0] if types else None)
    if not sure or "stride" not in found or width not in WIDTHS or not 0 <= found["stride"] <= MAX_BYTES:
        return False
    lanes = next((n for k, v in plain.items() if k in LANES and (n := _whole(v))), 32)
    name = next((str(v)[:120] for k, v in plain.items() if k in NAME and isinstance(v, str)), None)
    out.add(
        "accesses", where=where, kernel=name, stride_bytes=found["stride"], width_bytes=width,
        base_bytes=found.get("base", 0), lanes=min(lanes, 32),
    )
    return True


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1 << 40:
        return None
    return int(value) if value == int(value) else None
