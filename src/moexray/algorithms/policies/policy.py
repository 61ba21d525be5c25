"""What every placement policy offers: offsets in one range of addresses that starts at 0.

Glossary: the *granule* is the least size and alignment of a block; *given* bytes are those of the
blocks handed out (asked bytes plus internal waste); the *high water* is the end of the highest
block ever handed out: the address space that a run needs. A policy grows only when no free block
serves, so a capacity at or above the high water changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from moexray.core.errors import UsageError

__all__ = ["GRANULE", "Policy", "round_up"]

GRANULE = 256  # bytes; the alignment that cudaMalloc promises (CUDA programming guide)


def round_up(value: int, step: int) -> int:
    """The least multiple of `step` that is not below `value`."""
    return -(-value // step) * step


class Policy(ABC):
    """A placement policy over the offsets 0 .. capacity.

    Args:
        capacity: Bytes of the space; None is endless.
        granule: Least size and alignment of a block, a power of two, bytes.
    """

    name: ClassVar[str]

    def __init__(self, capacity: int | None = None, granule: int = GRANULE) -> None:
        if granule < 1 or granule & (granule - 1):
            raise UsageError(f"a granule of {granule} bytes is no power of two")
        self.capacity, self.granule = capacity, granule
        self.given = 0
        self.used: dict[int, int] = {}  # offset -> bytes given

    def allocate(self, size: int, alignment: int = 1) -> int | None:
        """Places a request.

        Args:
            size: Bytes, at least 1.
            alignment: The offset is a multiple of it; a power of two.

        Returns:
            The offset, or None where nothing fits within the capacity.

        Raises:
            UsageError: a size below 1, or an alignment that is no power of two.
        """
        if size < 1:
            raise UsageError(f"a request of {size} bytes", hint="ask for at least 1 byte")
        if alignment < 1 or alignment & (alignment - 1):
            raise UsageError(f"an alignment of {alignment} is no power of two")
        step = self.granule
        place = self._serve(-(-size // step) * step, max(step, alignment))
        if place is None:
            return None
        offset, given = place
        self.used[offset] = given
        self.given += given
        return offset

    def free(self, offset: int) -> None:
        """Takes a block back.

        Raises:
            UsageError: no block in use starts at `offset` (freed twice, or never given).
        """
        given = self.used.pop(offset, None)
        if given is None:
            raise UsageError(f"no block in use starts at offset {offset}", hint="was it freed twice?")
        self.given -= given
        self._release(offset, given)

    def claim(self, offset: int, size: int) -> None:
        """Hands out exactly the bytes from `offset` on: for an arena that has moved its blocks.

        Args:
            offset: A multiple of the granule; of buddies and their `size` a multiple of it.
            size: Bytes as given, see `used`; of buddies a power of two.

        Raises:
            UsageError: they are not free, or this policy cannot choose places.
        """
        if offset % self.granule or size % self.granule or size < 1 or not self._claim(offset, size):
            raise UsageError(f"{size} bytes at offset {offset} cannot be claimed of {self.name}")
        self.used[offset] = size
        self.given += size

    def largest_free(self) -> int:
        """The largest free block, or what growing within the capacity could add, bytes."""
        return max((size for _, size in self.free_blocks()), default=0)

    def fragmentation(self) -> float:
        """1 - largest free block / free bytes below the high water; 0 where nothing is free."""
        sizes = [size for _, size in self.free_blocks()]
        return 1 - max(sizes) / sum(sizes) if sizes else 0.0

    def _claim(self, offset: int, size: int) -> bool:
        """Takes the range if all of it is free; False where it is not."""
        del offset, size
        return False

    @property
    @abstractmethod
    def high_water(self) -> int:
        """End of the address space needed so far, bytes."""

    @abstractmethod
    def free_blocks(self) -> list[tuple[int, int]]:
        """(offset, size) of each free block below the high water, by offset."""

    @abstractmethod
    def _serve(self, size: int, alignment: int) -> tuple[int, int] | None:
        """Offset and given bytes for `size`, a multiple of the granule; alignment >= granule."""

    @abstractmethod
    def _release(self, offset: int, given: int) -> None:
        """Makes a block free."""
