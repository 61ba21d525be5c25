"""Sequential fits: one list of free blocks, split on request, merged with free neighbours on free.

They differ in the order in which free blocks are tried. Source: Knuth, The Art of Computer
Programming 1, section 2.5; Wilson et al. 1995.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, bisect_right, insort
from typing import Any, ClassVar

from moexray.algorithms.policies.policy import GRANULE, Policy, round_up

__all__ = ["BestFit", "FirstFit", "NaiveFirstFit", "NextFit", "Space", "WorstFit"]


class Space(Policy):
    """Blocks that tile 0 .. `end`, with immediate merging; how free blocks are found is left open."""

    def __init__(self, capacity: int | None = None, granule: int = GRANULE) -> None:
        super().__init__(capacity, granule)
        self.end = 0
        self._free: dict[int, int] = {}  # offset -> size of each free block
        self._ends: dict[int, int] = {}  # end -> offset of each free block

    @property
    def high_water(self) -> int:
        """See Policy."""
        return self.end

    def free_blocks(self) -> list[tuple[int, int]]:
        """See Policy."""
        return sorted(self._free.items())

    def largest_free(self) -> int:
        """See Policy; the rest of the capacity joins a free block at the end."""
        most = max(self._free.values(), default=0)
        if self.capacity is None:
            return most
        return max(most, (self.capacity - self._tail()) // self.granule * self.granule)

    @abstractmethod
    def _find(self, size: int, alignment: int) -> int | None:
        """Offset of the free block to use."""

    @abstractmethod
    def _index(self, offset: int, size: int) -> None:
        """Notes a free block for `_find`."""

    @abstractmethod
    def _forget(self, offset: int, size: int) -> None:
        """Undoes `_index`."""

    def _serve(self, size: int, alignment: int) -> tuple[int, int] | None:
        start = self._find(size, alignment)
        return self._grow(size, alignment) if start is None else self._cut(start, size, alignment)

    def _cut(self, start: int, size: int, alignment: int) -> tuple[int, int]:
        """Uses a free block; what lies before and behind the request stays free."""
        stop = start + self._take(start)
        at = round_up(start, alignment)
        if at > start:
            self._add(start, at - start)
        if stop > at + size:
            self._add(at + size, stop - at - size)
        return at, size

    def _tail(self) -> int:
        """Where growing would begin: at a free block at the end, else at the end."""
        return self._ends.get(self.end, self.end)

    def _grow(self, size: int, alignment: int) -> tuple[int, int] | None:
        start = self._tail()
        at = round_up(start, alignment)
        if self.capacity is not None and at + size > self.capacity:
            return None
        if start < self.end:
            self._take(start)
        if at > start:
            self._add(start, at - start)
        self.end = at + size
        return at, size

    def _claim(self, offset: int, size: int) -> bool:
        stop = offset + size
        if self.capacity is not None and stop > self.capacity:
            return False
        if offset >= self.end:
            around = self._tail() if offset > self.end else offset
            free_to = offset
        else:
            around = next((s for s, n in self._free.items() if s <= offset < s + n), -1)
            free_to = around + self._free.get(around, 0)
            if free_to < min(stop, self.end):
                return False
        if around in self._free:
            self._take(around)
        if around < offset:
            self._add(around, offset - around)
        if free_to > stop:
            self._add(stop, free_to - stop)
        self.end = max(self.end, stop)
        return True

    def _release(self, offset: int, given: int) -> None:
        before = self._ends.get(offset)
        if before is not None:
            given += self._take(before)
            offset = before
        if offset + given in self._free:
            given += self._take(offset + given)
        self._add(offset, given)

    def _add(self, offset: int, size: int) -> None:
        self._free[offset] = size
        self._ends[offset + size] = offset
        self._index(offset, size)

    def _take(self, offset: int) -> int:
        """Removes a free block; its size."""
        size = self._free.pop(offset)
        del self._ends[offset + size]
        self._forget(offset, size)
        return size


class _Sorted(Space):
    """Free blocks in one sorted list of keys."""

    def __init__(self, capacity: int | None = None, granule: int = GRANULE) -> None:
        super().__init__(capacity, granule)
        self._keys: list[Any] = []

    @staticmethod
    def _key(offset: int, size: int) -> Any:
        """What the list is sorted by."""
        del size
        return offset

    def _index(self, offset: int, size: int) -> None:
        insort(self._keys, self._key(offset, size))

    def _forget(self, offset: int, size: int) -> None:
        del self._keys[bisect_left(self._keys, self._key(offset, size))]


class FirstFit(_Sorted):
    """The free block with the lowest address that is large enough."""

    name: ClassVar[str] = "first-fit"

    def _find(self, size: int, alignment: int) -> int | None:
        free = self._free
        if alignment == self.granule:
            return next((start for start in self._keys if free[start] >= size), None)
        starts = self._keys
        return next((s for s in starts if free[s] >= size + round_up(s, alignment) - s), None)


class NextFit(_Sorted):
    """As first fit, but the search goes on where the last one ended, and wraps round once."""

    name: ClassVar[str] = "next-fit"

    def __init__(self, capacity: int | None = None, granule: int = GRANULE) -> None:
        super().__init__(capacity, granule)
        self._rover = 0  # end of the block that was given last

    def _find(self, size: int, alignment: int) -> int | None:
        keys, free = self._keys, self._free
        first = bisect_right(keys, self._rover) - 1
        if first < 0 or keys[first] + free[keys[first]] <= self._rover:
            first += 1  # the block there does not reach the rover
        for at in (*range(first, len(keys)), *range(first)):
            start = keys[at]
            if free[start] >= size + round_up(start, alignment) - start:
                return int(start)
        return None

    def _serve(self, size: int, alignment: int) -> tuple[int, int] | None:
        place = super()._serve(size, alignment)
        if place is not None:
            self._rover = place[0] + size
        return place


class BestFit(_Sorted):
    """The smallest free block that is large enough, the lowest address among equals."""

    name: ClassVar[str] = "best-fit"

    @staticmethod
    def _key(offset: int, size: int) -> tuple[int, int]:
        return size, offset

    def _find(self, size: int, alignment: int) -> int | None:
        keys = self._keys
        for at in range(bisect_left(keys, (size, 0)), len(keys)):
            have, start = keys[at]
            if have >= size + round_up(start, alignment) - start:
                return int(start)
        return None


class WorstFit(_Sorted):
    """The largest free block, the lowest address among equals."""

    name: ClassVar[str] = "worst-fit"

    @staticmethod
    def _key(offset: int, size: int) -> tuple[int, int]:
        return -size, offset

    def _find(self, size: int, alignment: int) -> int | None:
        for less, start in self._keys:
            if -less < size:
                return None
            if -less >= size + round_up(start, alignment) - start:
                return int(start)
        return None


class NaiveFirstFit(FirstFit):
    """The baseline of textbooks: blocks are handed out whole, never split and never merged."""

    name: ClassVar[str] = "first-fit-naive"

    def _find(self, size: int, alignment: int) -> int | None:
        free = self._free
        return next((s for s in self._keys if free[s] >= size and s % alignment == 0), None)

    def _cut(self, start: int, size: int, alignment: int) -> tuple[int, int]:
        del size, alignment
        return start, self._take(start)

    def _claim(self, offset: int, size: int) -> bool:
        del offset, size
        return False  # it cannot split

    def _tail(self) -> int:
        return self.end

    def _release(self, offset: int, given: int) -> None:
        self._add(offset, given)
