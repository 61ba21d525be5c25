"""Segregated fit: size classes, each with its own slabs of equal cells.

Glossary: a *cell* is a block of the class's size; a *slab* is a row of cells taken from the space in
one piece; it is given back when its last cell is free.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import ClassVar

from moexray.algorithms.policies.fits import FirstFit
from moexray.algorithms.policies.policy import GRANULE, Policy

__all__ = ["Segregated"]

SLAB = 2 << 20  # bytes; as PyTorch's small segment, so that the two compare


@dataclass(slots=True)
class _Slab:
    """A row of cells; `free` holds the offsets of its free cells, the next one last."""

    base: int
    cell: int
    cells: int
    free: list[int]


class Segregated(Policy):
    """Size classes over a first-fit space.

    Args:
        capacity, granule: See Policy.
        classes: Classes per power of two; internal waste is at most 1/classes of a request of at
            least `classes` granules.
        slab: Bytes of a slab; a larger cell is a slab of its own.
    """

    name: ClassVar[str] = "segregated"

    def __init__(
        self, capacity: int | None = None, granule: int = GRANULE, classes: int = 4, slab: int = SLAB
    ) -> None:
        super().__init__(capacity, granule)
        self.classes, self.slab = classes, slab
        self._space = FirstFit(capacity, granule)
        self._slabs: dict[int, _Slab] = {}  # base -> slab
        self._owner: dict[int, int] = {}  # offset of a cell in use -> base of its slab
        self._open: dict[int, list[int]] = {}  # cell size -> bases of slabs with a free cell, sorted

    @property
    def high_water(self) -> int:
        """See Policy; slabs count as a whole."""
        return self._space.high_water

    def free_blocks(self) -> list[tuple[int, int]]:
        """See Policy; each free cell is a block."""
        cells = [(at, slab.cell) for slab in self._slabs.values() for at in slab.free]
        return sorted([*self._space.free_blocks(), *cells])

    def largest_free(self) -> int:
        """See Policy."""
        cell = max((size for size, row in self._open.items() if row), default=0)
        return max(cell, self._class_below(self._space.largest_free()))

    def class_size(self, size: int) -> int:
        """The cell size that serves `size` bytes (a multiple of the granule)."""
        step = max((1 << (size.bit_length() - 1)) // self.classes, self.granule)
        return -(-size // step) * step

    def _class_below(self, size: int) -> int:
        """The largest cell size within `size` bytes."""
        step = max((1 << (size.bit_length() - 1)) // self.classes, self.granule) if size else 1
        return size // step * step

    def _serve(self, size: int, alignment: int) -> tuple[int, int] | None:
        cell = self.class_size(size)
        while cell % alignment:
            cell = self.class_size(cell + self.granule)
        row = self._open.setdefault(cell, [])
        base = next((b for b in row if b % alignment == 0), None)
        if base is None:
            base = self._new(cell, alignment)
        if base is None:
            return None
        slab = self._slabs[base]
        offset = slab.free.pop()
        if not slab.free:
            del row[bisect_left(row, base)]
        self._owner[offset] = base
        return offset, cell

    def _new(self, cell: int, alignment: int) -> int | None:
        """Takes a slab; where the space is short, one of a single cell."""
        for cells in dict.fromkeys((max(self.slab // cell, 1), 1)):
            base = self._space.allocate(cell * cells, alignment)
            if base is not None:
                rows = [base + cell * i for i in reversed(range(cells))]
                self._slabs[base] = _Slab(base, cell, cells, rows)
                insort(self._open[cell], base)
                return base
        return None

    def _claim(self, offset: int, size: int) -> bool:
        if self.class_size(size) != size:
            return False
        self._space.claim(offset, size)
        self._slabs[offset] = _Slab(offset, size, 1, [])
        self._owner[offset] = offset
        self._open.setdefault(size, [])
        return True

    def _release(self, offset: int, given: int) -> None:
        slab = self._slabs[self._owner.pop(offset)]
        row = self._open[given]
        if not slab.free:
            insort(row, slab.base)
        slab.free.append(offset)
        if len(slab.free) == slab.cells:
            del row[bisect_left(row, slab.base)], self._slabs[slab.base]
            self._space.free(slab.base)
