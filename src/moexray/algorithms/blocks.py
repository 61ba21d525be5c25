"""The matter of PyTorch's caching allocator: settings, segments, blocks, free lists, rounding.

Glossary: a *segment* is what the driver gave (cudaMalloc); a *block* is a part of a segment; a
*pool* is small (requests <= 1 MiB) or large; *private* pools belong to CUDA graphs or MemPools;
*reserved* counts segments, *allocated* the blocks in use; *slack* is the part of a block beyond
the rounded request, left because a large block is not split for less than 1 MiB.

Sizes are bytes. Source: PyTorch's allocator as of 2.10-2.13, rules restated; see docs/decisions/020.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

__all__ = [
    "LARGE_SEGMENT",
    "MIN_BLOCK",
    "MIN_LARGE_ALLOC",
    "ROUND_LARGE",
    "SMALL_SEGMENT",
    "SMALL_SIZE",
    "Block",
    "FreeList",
    "Pool",
    "Segment",
    "Settings",
    "is_small",
    "link",
    "round_size",
    "segment_size",
]

Pool = tuple[int, int]  # (0, 0) is the default pool, others are private (graphs, MemPool)

MIB = 1 << 20
MIN_BLOCK = 512
SMALL_SIZE = MIB  # largest request of the small pool; also the large pool's split threshold
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
MIN_LARGE_ALLOC = 10 * MIB  # from here on a segment is the request rounded up to ROUND_LARGE
ROUND_LARGE = 2 * MIB


@dataclass(frozen=True, slots=True)
class Settings:
    """What PYTORCH_ALLOC_CONF and the memory fraction set. Defaults are PyTorch's.

    Args:
        max_split: Blocks of at least this size are not split; None is unlimited.
        max_non_split_rounding: How much larger than the request an unsplit block may be.
        roundup: Power-of-two divisions for [2^i MiB, 2^(i+1) MiB), 16 entries; 0 or 1 is off.
        gc_threshold: Share of `limit` above which unused segments are given back; 0 is off.
        limit: Bytes this process may reserve (memory fraction); None is no limit.
        expandable: expandable_segments:True.
        large_segment: Segment of requests between 1 and 10 MiB; page of expandable segments.
    """

    max_split: int | None = None
    max_non_split_rounding: int = LARGE_SEGMENT
    roundup: tuple[int, ...] = (0,) * 16
    gc_threshold: float = 0.0
    limit: int | None = None
    expandable: bool = False
    large_segment: int = LARGE_SEGMENT


@dataclass(slots=True, eq=False)
class Segment:
    """What the driver gave; of an expandable one `size` is the address space."""

    address: int
    size: int
    stream: int
    pool: Pool
    small: bool
    expandable: bool = False


@dataclass(slots=True, eq=False)
class Block:
    """A part of a segment.

    Args:
        address, size: Where it lies, slack included.
        stream: Stream of its pool.
        segment: Its segment.
        used: Allocated, or waiting for a stream (pending).
        mapped: False for the unmapped tail or hole of an expandable segment.
        born: The pool's count of searches when it became free (garbage collection).
    """

    address: int
    size: int
    stream: int
    segment: Segment
    used: bool = False
    mapped: bool = True
    prev: Block | None = None
    next: Block | None = None
    born: int = 0

    @property
    def key(self) -> tuple[int, int, int]:
        """Order of the free list."""
        return (self.stream, self.size, self.address)


@dataclass(slots=True)
class FreeList:
    """Free blocks of one pool, ordered by (stream, size, address), and its unmapped ranges."""

    keys: list[tuple[int, int, int]] = field(default_factory=list)
    blocks: dict[tuple[int, int, int], Block] = field(default_factory=dict)
    unmapped: list[Block] = field(default_factory=list)
    searches: int = 0

    def add(self, block: Block) -> None:
        """Adds a free, mapped block."""
        block.born = self.searches
        insort(self.keys, block.key)
        self.blocks[block.key] = block

    def remove(self, block: Block) -> None:
        """Takes a block out; its key must not have changed since it was added."""
        del self.keys[bisect_left(self.keys, block.key)]
        del self.blocks[block.key]

    def from_size(self, stream: int, size: int) -> int:
        """Index of the first key of at least (stream, size)."""
        return bisect_left(self.keys, (stream, size, 0))

    def whole(self) -> list[Block]:
        """Free blocks that are a segment of their own, not expandable, in order."""
        free = (self.blocks[k] for k in self.keys)
        return [b for b in free if b.prev is None and b.next is None and not b.segment.expandable]


def link(left: Block | None, right: Block | None) -> None:
    """Makes two blocks neighbours."""
    if left is not None:
        left.next = right
    if right is not None:
        right.prev = left


def round_size(request: int, settings: Settings | None = None) -> int:
    """The block size for a request: a multiple of 512, or a power-of-two division."""
    if request < MIN_BLOCK:
        return MIN_BLOCK
    divisions = 0
    if settings is not None and any(settings.roundup):
        divisions = settings.roundup[min(max(request.bit_length() - 1 - 20, 0), 15)]
    if divisions > 1 and request > MIN_BLOCK * divisions:
        floor = 1 << (request.bit_length() - 1)
        if request == floor:
            return request
        step = floor >> (divisions.bit_length() - 1)
        return -(-request // step) * step if step else 2 * floor
    return -(-request // MIN_BLOCK) * MIN_BLOCK


def is_small(rounded: int) -> bool:
    """Whether a rounded request belongs to the small pool."""
    return rounded <= SMALL_SIZE


def segment_size(rounded: int, settings: Settings) -> int:
    """Bytes asked from the driver for a rounded request."""
    if is_small(rounded):
        return SMALL_SEGMENT
    if rounded < MIN_LARGE_ALLOC:
        return settings.large_segment
    return -(-rounded // ROUND_LARGE) * ROUND_LARGE
