"""The matter of PyTorch's caching allocator: settings, segments, blocks, free lists, rounding.

Glossary: a *segment* is what the driver gave (cudaMalloc), or the address space of an *expandable*
segment, whose *pages* are mapped as needed; a *block* is a part of a segment; a *hole* is an unmapped
part; a *pool* is small (requests <= 1 MiB) or large; *private* pools belong to CUDA graphs or
MemPools; *reserved* counts segments and mapped pages, *allocated* the blocks in use; *slack* is the
part of a block beyond the rounded request, left because a large block is not split for 1 MiB or less.

Sizes are bytes. Source: PyTorch's allocator as of 2.10-2.13, rules restated; see docs/decisions/020.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field, replace

__all__ = [
    "DEFAULT_POOL",
    "LARGE_SEGMENT",
    "MIN_BLOCK",
    "MIN_LARGE_ALLOC",
    "ROUND_LARGE",
    "SMALL_SEGMENT",
    "SMALL_SIZE",
    "Block",
    "ContradictionError",
    "FreeList",
    "Pool",
    "PoolRules",
    "Segment",
    "Settings",
    "is_small",
    "limited",
    "link",
    "round_size",
    "segment_size",
]

Pool = tuple[int, int]  # (0, 0) is the default pool, others are private (graphs, MemPool)
DEFAULT_POOL: Pool = (0, 0)

MIB = 1 << 20
MIN_BLOCK = 512
SMALL_SIZE = MIB  # largest request of the small pool; also the large pool's split threshold
SMALL_SEGMENT = 2 * MIB  # also the small pool's page of expandable segments
LARGE_SEGMENT = 20 * MIB
MIN_LARGE_ALLOC = 10 * MIB  # from here on a segment is the request rounded up to ROUND_LARGE
ROUND_LARGE = 2 * MIB
LEAST_ADDRESS = -(1 << 62)  # a simulation's own addresses may pass zero


class ContradictionError(ValueError):
    """A history says what cannot be, such as two segments at one place."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What PYTORCH_ALLOC_CONF and the memory fraction set. Defaults are PyTorch's.

    Args:
        max_split: Blocks of at least this size are not split; None is unlimited.
        max_non_split_rounding: How much larger than the request an unsplit block may be.
        roundup: Power-of-two divisions for [2^i MiB, 2^(i+1) MiB), 16 entries; 0 or 1 is off.
        gc_threshold: Share of `limit` above which unused segments are given back; 0 is off.
        limit: Bytes this process may reserve; None is no limit.
        expandable: expandable_segments:True.
        large_segment: Segment of requests between 1 and 10 MiB; page of expandable segments.
        throw_on_oom: throw_on_cudamalloc_oom:True: past the limit fail before anything is released.
        fraction: per_process_memory_fraction; `limited` turns it into `limit`.
    """

    max_split: int | None = None
    max_non_split_rounding: int = LARGE_SEGMENT
    roundup: tuple[int, ...] = (0,) * 16
    gc_threshold: float = 0.0
    limit: int | None = None
    expandable: bool = False
    large_segment: int = LARGE_SEGMENT
    throw_on_oom: bool = False
    fraction: float = 1.0


@dataclass(frozen=True, slots=True)
class PoolRules:
    """What makes a private pool special; a snapshot does not tell.

    Args:
        freeable: No graph and no MemPool uses it any more: its whole free segments may be given back.
        use_on_oom: It serves requests of the default pool for which the device has no room.
        no_split: It hands out whole blocks.
        custom: It has an allocator of its own: no expandable segments in it.
    """

    freeable: bool = False
    use_on_oom: bool = False
    no_split: bool = False
    custom: bool = False


@dataclass(slots=True, eq=False)
class Segment:
    """What the driver gave; of an expandable one `size` is the address space.

    Args:
        page: Bytes that an expandable segment maps at a time; 0 for a segment of cudaMalloc.
    """

    address: int
    size: int
    stream: int
    pool: Pool
    small: bool
    page: int = 0

    @property
    def expandable(self) -> bool:
        """Whether its pages are mapped and unmapped one by one."""
        return self.page > 0


@dataclass(slots=True, eq=False)
class Block:
    """A part of a segment.

    Args:
        address, size: Where it lies, slack included.
        stream: Stream of its pool.
        segment: Its segment.
        used: Allocated, or waiting for a stream (deferred).
        mapped: False for a hole of an expandable segment.
        born: The pool's count of searches when it became free (garbage collection).
        requested: Bytes that were asked for; stale while it is free.
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
    requested: int = 0

    @property
    def key(self) -> tuple[int, int, int]:
        """Order of the free list."""
        return (self.stream, self.size, self.address)

    @property
    def split(self) -> bool:
        """Whether its segment holds anything else, holes included."""
        return self.prev is not None or self.next is not None


@dataclass(slots=True)
class FreeList:
    """Free blocks of one pool, ordered by (stream, size, address), and its holes by (stream, address)."""

    keys: list[tuple[int, int, int]] = field(default_factory=list)
    blocks: dict[tuple[int, int, int], Block] = field(default_factory=dict)
    hole_keys: list[tuple[int, int]] = field(default_factory=list)
    holes: dict[tuple[int, int], Block] = field(default_factory=dict)
    searches: int = 0

    def add(self, block: Block) -> None:
        """Adds a free block or a hole.

        Raises:
            ContradictionError: there is one of that size at that place: the history contradicts itself.
        """
        taken = block.key in self.blocks if block.mapped else (block.stream, block.address) in self.holes
        if taken:
            raise ContradictionError(f"two blocks are free at {block.address:#x}")
        if block.mapped:
            block.born = self.searches
            insort(self.keys, block.key)
            self.blocks[block.key] = block
        else:
            place = (block.stream, block.address)
            insort(self.hole_keys, place)
            self.holes[place] = block

    def remove(self, block: Block) -> None:
        """Takes a block or hole out; its place and size must not have changed since it was added."""
        if block.mapped:
            del self.keys[bisect_left(self.keys, block.key)]
            del self.blocks[block.key]
        else:
            place = (block.stream, block.address)
            del self.hole_keys[bisect_left(self.hole_keys, place)]
            del self.holes[place]

    def from_size(self, stream: int, size: int) -> int:
        """Index of the first key of at least (stream, size)."""
        return bisect_left(self.keys, (stream, size, LEAST_ADDRESS))

    def whole(self) -> list[Block]:
        """Free blocks that are a segment of their own, not expandable, in order."""
        return [b for b in self.in_order() if not b.split and not b.segment.expandable]

    def in_order(self) -> list[Block]:
        """Free blocks in the order of their keys."""
        return [self.blocks[k] for k in self.keys]

    def holes_of(self, stream: int) -> list[Block]:
        """Holes of a stream by address."""
        at = bisect_left(self.hole_keys, (stream, 0))
        end = bisect_left(self.hole_keys, (stream + 1, 0))
        return [self.holes[k] for k in self.hole_keys[at:end]]


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


def limited(settings: Settings, device_bytes: int) -> Settings:
    """The settings with the limit that their memory fraction means on a device of `device_bytes`."""
    if settings.fraction >= 1 or settings.limit is not None:
        return settings
    return replace(settings, limit=int(settings.fraction * device_bytes))
