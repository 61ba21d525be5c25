"""A simulated device: gives segments, address space and pages up to a capacity.

Which address the driver gives is the one thing that settings do not decide; as ties of best fit go to
the lowest address, a simulation can be tried in several orders of addresses.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["ORDERS", "Device", "Driver", "Order"]

Order = Literal["ascending", "descending", "recorded"]
ORDERS: tuple[Order, ...] = ("ascending", "descending", "recorded")

# Recorded addresses of devices lie below 2^47 (x86-64 user space), mostly near its top.
ABOVE = 1 << 48  # fresh segments, ascending
BELOW = 1 << 46  # fresh segments, descending; they may pass zero
SPACE = 1 << 52  # address space of expandable segments, either way


class Driver(Protocol):
    """What the allocator asks of a device."""

    def allocate(self, size: int) -> int | None:
        """Address of `size` new bytes (cudaMalloc), or None where the device is full."""

    def release(self, address: int, size: int) -> None:
        """Takes bytes back (cudaFree)."""

    def reserve(self, size: int) -> int:
        """Address space without memory."""

    def map(self, address: int, size: int) -> bool:
        """Puts memory behind reserved addresses: all of `size`, or nothing where the device is full."""

    def unmap(self, address: int, size: int) -> None:
        """Takes that memory back."""


class Device:
    """A device with addresses of its own.

    Args:
        capacity: Bytes it can give; None is endless.
        order: Fresh segments lie above all earlier ones, below them, or ("recorded") where the
            recording had segments of that size, in its order, as far as these places are free.
        places: (address, size) of the recording's segments, for the order "recorded".
    """

    def __init__(
        self,
        capacity: int | None = None,
        *,
        order: Order = "ascending",
        places: Iterable[tuple[int, int]] = (),
    ) -> None:
        self.capacity, self.used, self.down = capacity, 0, order == "descending"
        self._next, self._space = BELOW if self.down else ABOVE, SPACE
        self._places: dict[int, list[int]] = {}
        self._track, self._taken = order == "recorded", list[tuple[int, int]]()
        self._kept: list[tuple[int, int]] = []
        if self._track:
            for address, size in places:
                self._places.setdefault(size, []).append(address)

    def keep(self, address: int, size: int) -> None:
        """Gives no addresses of a range that exists from the start."""
        insort(self._kept, (address, size))

    def occupy(self, address: int, size: int) -> None:
        """Counts a segment."""
        self.used += size
        if self._track:
            insort(self._taken, (address, size))

    def allocate(self, size: int) -> int | None:
        """See Driver."""
        if not self._fits(size):
            return None
        address = next((a for a in self._places.get(size, ()) if self.is_free(a, size)), None)
        if address is None:
            address, self._next = self._fresh(self._next, size)
        self.occupy(address, size)
        return address

    def release(self, address: int, size: int) -> None:
        """See Driver."""
        self.used -= size
        if self._track:
            self._taken.remove((address, size))

    def reserve(self, size: int) -> int:
        """See Driver."""
        address, self._space = self._fresh(self._space, size)
        return address

    def map(self, address: int, size: int) -> bool:
        """See Driver."""
        del address
        fits = self._fits(size)
        self.used += size if fits else 0
        return fits

    def unmap(self, address: int, size: int) -> None:
        """See Driver."""
        del address
        self.used -= size

    def _fits(self, size: int) -> bool:
        return self.capacity is None or self.used + size <= self.capacity

    def _fresh(self, place: int, size: int) -> tuple[int, int]:
        """The next address from `place` on that is not kept, and the place after it."""
        while True:
            address = place - size if self.down else place
            hit = _overlap(self._kept, address, size)
            if hit is None:
                return address, address if self.down else address + size
            place = hit[0] if self.down else sum(hit)

    def is_free(self, address: int, size: int) -> bool:
        """Whether nothing given out lies there; only known for the order "recorded"."""
        return _overlap(self._taken, address, size) is None


def _overlap(ranges: list[tuple[int, int]], address: int, size: int) -> tuple[int, int] | None:
    """A range of the sorted (address, size) that overlaps; the ranges do not overlap each other."""
    at = bisect_left(ranges, (address + size, 0))
    return ranges[at - 1] if at and sum(ranges[at - 1]) > address else None
