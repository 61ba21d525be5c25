"""Binary buddies: blocks of 2^k bytes at multiples of their size, merged only with their own buddy.

Source: Knuth, The Art of Computer Programming 1, section 2.5, algorithms R and S.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import ClassVar

from moexray.algorithms.policies.policy import GRANULE, Policy

__all__ = ["Buddy"]

ENDLESS = 1 << 62  # bytes, stands for no capacity


class Buddy(Policy):
    """Binary buddy system; the smallest block that is large enough, the lowest address among equals.

    A capacity that is no power of two is a row of blocks of falling powers of two. Free blocks that
    lie partly above the high water count with their part below it.
    """

    name: ClassVar[str] = "buddy"

    def __init__(self, capacity: int | None = None, granule: int = GRANULE) -> None:
        super().__init__(capacity, granule)
        self._free: dict[int, list[int]] = {}  # order k -> offsets of the free blocks of 2^k, sorted
        self._orders = 0  # bit k: such a block is free
        self._high = 0
        total = ENDLESS if capacity is None else capacity // granule * granule
        at = 0
        for order in reversed(range(total.bit_length())):
            if total >> order & 1:
                self._add(order, at)
                at += 1 << order

    @property
    def high_water(self) -> int:
        """See Policy."""
        return self._high

    def free_blocks(self) -> list[tuple[int, int]]:
        """See Policy."""
        blocks = ((at, 1 << order) for order, row in self._free.items() for at in row)
        return sorted((at, min(size, self._high - at)) for at, size in blocks if at < self._high)

    def largest_free(self) -> int:
        """See Policy."""
        if self.capacity is None:
            return super().largest_free()
        return 1 << (self._orders.bit_length() - 1) if self._orders else 0

    def _serve(self, size: int, alignment: int) -> tuple[int, int] | None:
        order = (max(size, alignment) - 1).bit_length()
        larger = self._orders >> order
        if not larger:
            return None
        have = order + (larger & -larger).bit_length() - 1
        offset = self._free[have][0]
        self._remove(have, 0)
        while have > order:
            have -= 1
            self._add(have, offset + (1 << have))
        self._high = max(self._high, offset + (1 << order))
        return offset, 1 << order

    def _claim(self, offset: int, size: int) -> bool:
        order = size.bit_length() - 1
        if size != 1 << order or offset % size:
            return False
        for have in range(order, self._orders.bit_length()):
            start = offset >> have << have
            row = self._free.get(have, [])
            at = bisect_left(row, start)
            if at < len(row) and row[at] == start:
                self._remove(have, at)
                for low in reversed(range(order, have)):
                    half = 1 << low
                    self._add(low, start if offset & half else start + half)
                    start += offset & half
                self._high = max(self._high, offset + size)
                return True
        return False

    def _release(self, offset: int, given: int) -> None:
        order = given.bit_length() - 1
        while True:
            row = self._free.get(order, [])
            buddy = offset ^ (1 << order)
            at = bisect_left(row, buddy)
            if at == len(row) or row[at] != buddy:
                break
            self._remove(order, at)
            offset, order = min(offset, buddy), order + 1
        self._add(order, offset)

    def _add(self, order: int, offset: int) -> None:
        insort(self._free.setdefault(order, []), offset)
        self._orders |= 1 << order

    def _remove(self, order: int, at: int) -> None:
        del self._free[order][at]
        if not self._free[order]:
            self._orders &= ~(1 << order)
