"""A one-way stream of bytes through shared memory: one writer, one reader, cursors told by message.

Writer and reader hold a `Ring` each over the same bytes. Cursors count bytes since the start and
never shrink; they travel in messages (wire.py), whose system calls also order the memory accesses,
so the shared memory itself holds payload only.
"""

from __future__ import annotations

import zlib

from moexray.core.errors import ExchangeError

__all__ = ["ALIGNMENT_BYTES", "Ring"]

# Each exchange starts on a cache line (x86 and most ARM), else copies after an odd length are slow.
ALIGNMENT_BYTES = 64


class Ring:
    """One end of the stream.

    Args:
        memory: [capacity] bytes; writable at the writer's end.

    Attributes:
        written: Bytes put in since the start.
        consumed: Bytes taken out since the start.
    """

    __slots__ = ("capacity", "consumed", "memory", "written")

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        self.capacity = len(memory)
        self.written = self.consumed = 0

    def free(self) -> int:
        """Bytes that may be put in now."""
        return max(0, self.capacity - (self.written - self.consumed))  # padding may overshoot

    def held(self) -> int:
        """Bytes that may be taken out now."""
        return self.written - self.consumed

    def put(self, data: memoryview) -> None:
        """Appends bytes, at most `free()` (the caller's duty)."""
        size, at = len(data), self.written % self.capacity
        first = min(size, self.capacity - at)
        self.memory[at : at + first] = data[:first]
        if first < size:
            self.memory[: size - first] = data[first:]
        self.written += size

    def take(self, into: memoryview) -> None:
        """Removes the oldest bytes, at most `held()` (the caller's duty)."""
        size, at = len(into), self.consumed % self.capacity
        first = min(size, self.capacity - at)
        into[:first] = self.memory[at : at + first]
        if first < size:
            into[first:] = self.memory[: size - first]
        self.consumed += size

    def announce(self, written: int) -> int:
        """The writer's cursor, as told to the reader; gives the number of new bytes.

        Raises:
            ExchangeError: the cursor ran back, or over bytes that were not taken out yet.
        """
        if not self.written <= written <= self.consumed + self.capacity:
            limit = self.consumed + self.capacity
            raise ExchangeError(f"write cursor {written} outside [{self.written}, {limit}]")
        new = written - self.written
        self.written = written
        return new

    def credit(self, consumed: int) -> None:
        """The reader's cursor, as told to the writer.

        Raises:
            ExchangeError: the cursor ran back, or ahead of what was written.
        """
        if not self.consumed <= consumed <= self.written:
            raise ExchangeError(f"read cursor {consumed} outside [{self.consumed}, {self.written}]")
        self.consumed = consumed

    def crc(self, new: int) -> int:
        """CRC-32 of the last `new` bytes written."""
        at = (self.written - new) % self.capacity
        first = min(new, self.capacity - at)
        value = zlib.crc32(self.memory[at : at + first])
        return zlib.crc32(self.memory[: new - first], value) if first < new else value

    def pad_writer(self) -> None:
        """After the last byte of an exchange: the next one starts aligned."""
        self.written += -self.written % ALIGNMENT_BYTES

    def pad_reader(self) -> None:
        """The reader's twin of `pad_writer`."""
        self.consumed += -self.consumed % ALIGNMENT_BYTES
        self.written = max(self.written, self.consumed)
