"""Two-level segregated fit: constant-time search by two levels of bitmaps.

Glossary: the *first level* is the power of two of a size, the *second level* cuts it into 2^L equal
classes. A search rounds the request up to the next class, whose blocks all fit (good fit): a free
block that is less than 1/2^L larger than the request may be passed over.

Source: Masmano et al., TLSF: a new dynamic memory allocator for real-time systems, 2004.
"""

from __future__ import annotations

from typing import ClassVar

from moexray.algorithms.policies.fits import Space
from moexray.algorithms.policies.policy import GRANULE

__all__ = ["Tlsf"]

Class = tuple[int, int]  # first level, second level


class Tlsf(Space):
    """TLSF with immediate merging; of a class the block freed last is used first.

    Args:
        capacity, granule: See Policy.
        log_classes: L; 2^L classes per power of two.
    """

    name: ClassVar[str] = "tlsf"

    def __init__(self, capacity: int | None = None, granule: int = GRANULE, log_classes: int = 5) -> None:
        super().__init__(capacity, granule)
        self._log = log_classes
        self._first = 0  # bit i: second level i has a block
        self._second: dict[int, int] = {}  # first level -> bits of its classes with a block
        self._lists: dict[Class, dict[int, None]] = {}  # class -> its blocks, the last one freed last

    def _class(self, units: int) -> Class:
        """The class of a size in granules; sizes below 2^L have a class each."""
        low = units.bit_length() - 1 - self._log
        return (0, units) if low < 0 else (low + 1, (units >> low) - (1 << self._log))

    def _find(self, size: int, alignment: int) -> int | None:
        units = (size + alignment - self.granule) // self.granule
        low = units.bit_length() - 1 - self._log
        level, at = self._class(units + (1 << low) - 1 if low > 0 else units)
        bits = self._second.get(level, 0) >> at << at
        if not bits:
            higher = self._first >> (level + 1) << (level + 1)
            if not higher:
                return None
            level = (higher & -higher).bit_length() - 1
            bits = self._second[level]
        return next(reversed(self._lists[level, (bits & -bits).bit_length() - 1]))

    def _index(self, offset: int, size: int) -> None:
        level, at = key = self._class(size // self.granule)
        self._lists.setdefault(key, {})[offset] = None
        self._second[level] = self._second.get(level, 0) | 1 << at
        self._first |= 1 << level

    def _forget(self, offset: int, size: int) -> None:
        level, at = key = self._class(size // self.granule)
        blocks = self._lists[key]
        del blocks[offset]
        if not blocks:
            self._second[level] &= ~(1 << at)
            if not self._second[level]:
                self._first &= ~(1 << level)
