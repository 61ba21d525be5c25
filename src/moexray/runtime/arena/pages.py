"""Pages for what grows and dies at any size, such as a sequence's keys and values: any free page serves.

Glossary: a *sequence* is a row of the *block table*, which names its pages in order; its last page may be
part empty, the only waste. There are no holes: a request fails only when fewer pages are free than it
needs.

All tables are made once; a steady state allocates nothing. Not for use by two threads at a time.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.core.errors import UsageError
from moexray.runtime.checks import is_whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moexray.runtime.arena.blocks import Arena

__all__ = ["Pages"]


class Pages:
    """See the head of this file.

    Args:
        arena: Where the pages lie; they are pinned there in one block.
        pages: How many.
        page_bytes: Bytes of a page, a multiple of the arena's alignment.
        sequences: Most sequences at a time.

    Attributes:
        table: int32 [sequences, pages]: page numbers, -1 behind a sequence's last; engines read it.
        length: int64 [sequences]: bytes in use of each sequence.
        view: uint8 [pages, page_bytes]: all pages.

    Raises:
        UsageError: the pages do not fit, or a page is not aligned.
    """

    def __init__(self, arena: Arena, *, pages: int, page_bytes: int, sequences: int) -> None:
        if not is_whole(pages, sequences):
            raise UsageError(f"{pages} pages for {sequences} sequences", hint="whole numbers from 1")
        if not is_whole(page_bytes) or page_bytes % arena.alignment:
            raise UsageError(f"a page of {page_bytes} bytes", hint=f"a multiple of {arena.alignment}")
        block = arena.allocate(pages * page_bytes, spill=not arena.guard.on)
        if block is None:
            raise UsageError(f"{pages} pages of {page_bytes} bytes do not fit into the arena",
                             hint=arena.fault or f"{arena.figures().free_bytes} bytes are left")  # fmt: skip
        self._arena, self._block = arena, block
        self.page_bytes = page_bytes
        self.view: Any = block.__enter__().reshape(pages, page_bytes)
        self.table: NDArray[np.int32] = np.full((sequences, pages), -1, np.int32)
        self.length: NDArray[np.int64] = np.zeros(sequences, np.int64)
        self._held = [0] * sequences  # pages of each sequence
        self._free_pages = list(range(pages))[::-1]
        self._free_rows = list(range(sequences))[::-1]
        self._open = [False] * sequences

    @property
    def free_pages(self) -> int:
        """Pages that nobody holds."""
        return len(self._free_pages)

    def open(self) -> int | None:
        """A new sequence of 0 bytes; None where all are taken."""
        if not self._free_rows:
            return None
        row = self._free_rows.pop()
        self._open[row] = True
        return row

    def extend(self, sequence: int, size: int) -> bool:
        """Lets a sequence grow by `size` bytes; False, and nothing changed, where pages are short.

        Raises:
            UsageError: no such sequence, or a negative size.
        """
        self._check(sequence, size)
        length = int(self.length[sequence]) + size
        held = self._held[sequence]
        more = -(-length // self.page_bytes) - held
        if more > len(self._free_pages):
            return False
        for i in range(more):
            self.table[sequence, held + i] = self._free_pages.pop()
        self._held[sequence] = held + max(more, 0)
        self.length[sequence] = length
        return True

    def close(self, sequence: int) -> None:
        """Frees a sequence's pages.

        Raises:
            UsageError: no such sequence.
        """
        self._check(sequence, 0)
        row = self.table[sequence]
        for i in reversed(range(self._held[sequence])):
            self._free_pages.append(int(row[i]))
            row[i] = -1
        self._held[sequence] = 0
        self.length[sequence] = 0
        self._open[sequence] = False
        self._free_rows.append(sequence)

    def write(self, sequence: int, at: int, data: Any) -> None:
        """Copies uint8 `data` into a sequence from byte `at` on.

        Raises:
            UsageError: no such sequence, or beyond its length.
        """
        done = 0
        for page, start, many in self._pieces(sequence, at, len(data)):
            self.view[page, start : start + many] = data[done : done + many]
            done += many

    def read(self, sequence: int, at: int, into: Any) -> None:
        """Copies bytes of a sequence from byte `at` on into uint8 `into`.

        Raises:
            UsageError: no such sequence, or beyond its length.
        """
        done = 0
        for page, start, many in self._pieces(sequence, at, len(into)):
            into[done : done + many] = self.view[page, start : start + many]
            done += many

    def release(self) -> None:
        """Gives the pages back to the arena; all sequences end. Safe twice."""
        if self.view is None:
            return
        self.view = None
        self._open = []
        self._free_rows = []
        self._free_pages = []
        self._block.__exit__(None, None, None)
        self._arena.free(self._block)

    def _pieces(self, sequence: int, at: int, size: int) -> list[tuple[int, int, int]]:
        """(page, first byte in it, bytes) of a range of a sequence."""
        self._check(sequence, min(at, size))
        if at + size > self.length[sequence]:
            raise UsageError(f"byte {at + size} of a sequence of {self.length[sequence]} bytes")
        pieces = []
        while size:
            number, start = divmod(at, self.page_bytes)
            many = min(size, self.page_bytes - start)
            pieces.append((int(self.table[sequence, number]), start, many))
            at, size = at + many, size - many
        return pieces

    def _check(self, sequence: int, size: int) -> None:
        try:
            sequence, size = operator.index(sequence), operator.index(size)
        except TypeError:
            raise UsageError(f"{size!r} bytes of sequence {sequence!r}", hint="whole numbers") from None
        if not (0 <= sequence < len(self._open) and self._open[sequence]):
            raise UsageError(f"there is no sequence {sequence}", hint="was it closed?")
        if size < 0:
            raise UsageError(f"a size of {size} bytes")
