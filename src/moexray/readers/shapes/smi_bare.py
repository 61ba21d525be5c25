"""Names the columns of a `nvidia-smi --query-gpu --format=csv,noheader` table by what stands in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.core.pattern import lazy
from moexray.readers.gpu_samples import MIB, fault_of, quantity, size, when

if TYPE_CHECKING:
    from moexray.readers.csv_file import Grid

__all__ = ["name_columns"]

UUID = lazy(r"GPU-[0-9a-f-]{8,}")
BUS = lazy(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d")
PRODUCT = lazy(r"(?:NVIDIA|Tesla|Quadro|GeForce|GRID|Graphics)\b.*")
UNITS = {
    "%": ("utilization.gpu [%]", "utilization.memory [%]"),
    "mhz": ("clocks.sm [MHz]",),
    "w": ("power.draw [W]",),
}
LOOKED_AT = 200  # rows
SLACK_BYTES = 2 * 1024 * MIB  # used + free fall short of the total by what the driver reserves


def name_columns(grid: Grid) -> tuple[str, ...]:
    """Names for a table without a header; () if its content does not tell them.

    Units tell percent, clocks and power; among the sizes the largest that never changes is the total,
    and two that add up to it are used and free in nvidia-smi's order.
    """
    rows = [r for r in grid.rows[:LOOKED_AT] if len(r) == grid.width]
    if not rows:
        return ()
    columns = list(zip(*rows, strict=True))
    names = [_one(c) for c in columns]
    marks = ("timestamp", "uuid", "pci.bus_id", "name")
    if not any(n in marks or n.startswith("unit ") for n in names):
        return ()  # bare numbers only: no telling what they are
    for unit, given in UNITS.items():
        found = [i for i, n in enumerate(names) if n == f"unit {unit}"]
        for i, name in zip(found, given, strict=False):
            names[i] = name
    sizes = [i for i, n in enumerate(names) if n in ("unit mib", "unit gib", "unit kib")]
    for i, name in _memory({i: [size(c) for c in columns[i]] for i in sizes}).items():
        names[i] = name
    small = [i for i, n in enumerate(names) if n == "small"]
    if small and small[0] <= 2:
        names[small[0]] = "index"
    if len(small) > 1 or (small and small[0] > 2):
        names[small[-1]] = "temperature.gpu"
    return tuple(
        n if n[:5] not in ("unit ", "small", "?") else f"column {i + 1}" for i, n in enumerate(names)
    )


def _one(cells: tuple[str, ...]) -> str:
    """What one column may be: a name, "unit mib", "small" (bare integers) or "?"."""
    filled = [c for c in cells if not fault_of(c)]
    if not filled:
        return "?"
    for name, pattern in (("uuid", UUID), ("pci.bus_id", BUS), ("name", PRODUCT)):
        if all(pattern.fullmatch(c) for c in filled):
            return name
    if all(c.isdigit() for c in filled):
        return "small" if all(int(c) < 128 for c in filled) else "?"
    found = [quantity(c) for c in filled]
    units = {q[1] for q in found if q}
    if all(found) and len(units) == 1 and "" not in units:
        return f"unit {units.pop()}"
    if all(":" in c and when(c) is not None for c in filled):
        return "timestamp"
    return "?"


def _memory(sizes: dict[int, list[float | None]]) -> dict[int, str]:
    """Which columns of sizes are total, used and free."""
    top = {i: max((v for v in values if v is not None), default=0.0) for i, values in sizes.items()}
    fixed = [i for i, values in sizes.items() if len({v for v in values if v is not None}) == 1]
    if not top:
        return {}
    whole = max(top.values())
    total = next((i for i in fixed if top[i] == whole), None)
    if total is None or (len(sizes) == 1):
        return {next(iter(sizes)): "memory.used [MiB]"} if len(sizes) == 1 else {}
    rest = [i for i in sizes if i != total]
    named = {total: "memory.total [MiB]"}
    if len(rest) == 1:
        named[rest[0]] = "memory.used [MiB]"
    for i in rest:
        for j in rest:
            if i < j and len(named) == 1 and _adds_up(sizes[total], sizes[i], sizes[j]):
                named |= {i: "memory.used [MiB]", j: "memory.free [MiB]"}
    return named


def _adds_up(total: list[float | None], a: list[float | None], b: list[float | None]) -> bool:
    rows = [(t, x, y) for t, x, y in zip(total, a, b, strict=True) if t and x is not None and y is not None]
    return bool(rows) and all(-2 * MIB <= t - x - y <= SLACK_BYTES for t, x, y in rows)
