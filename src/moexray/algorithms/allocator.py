"""PyTorch's caching allocator, stated plainly: what it does with a request under given settings.

Words: see algorithms/blocks.py. Source: PyTorch's allocator as of 2.10-2.13, rules restated; what no
recorded data confirm (expandable segments, split limits, garbage collection) is derived from the
source only, see docs/decisions/020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from moexray.algorithms.blocks import (
    MIN_BLOCK,
    SMALL_SEGMENT,
    SMALL_SIZE,
    Block,
    FreeList,
    Pool,
    Segment,
    Settings,
    is_small,
    link,
    round_size,
    segment_size,
)

__all__ = ["CachingAllocator", "Counters", "Driver", "OutOfMemoryError"]

DEFAULT: Pool = (0, 0)


class OutOfMemoryError(Exception):
    """The request does not fit: `size` is the rounded request."""

    def __init__(self, size: int) -> None:
        super().__init__(f"no room for {size} bytes")
        self.size = size


class Driver(Protocol):
    """The device: gives and takes segments and pages."""

    def allocate(self, size: int) -> int | None:
        """Address of `size` new bytes, or None where the device is full."""

    def release(self, address: int, size: int) -> None:
        """Takes bytes back."""


@dataclass(slots=True)
class Counters:
    """What torch.cuda.memory_stats counts, and peaks. Bytes or events."""

    reserved: int = 0
    allocated: int = 0
    peak_reserved: int = 0
    peak_allocated: int = 0
    retries: int = 0
    ooms: int = 0
    device_allocs: int = 0
    device_frees: int = 0
    maps: int = 0
    unmaps: int = 0

    def reserve(self, size: int) -> None:
        """Counts bytes taken from (or, negative, given back to) the driver."""
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def allocate(self, size: int) -> None:
        """Counts bytes handed out (or, negative, taken back)."""
        self.allocated += size
        self.peak_allocated = max(self.peak_allocated, self.allocated)


class CachingAllocator:
    """The allocator of one device.

    Args:
        settings: What PYTORCH_ALLOC_CONF sets.
        driver: The device.
        va_bytes: Address space that an expandable segment reserves.
        search_after_release: Search the pool again after cached segments were released; PyTorch
            up to 2.13 does not.
    """

    def __init__(
        self,
        settings: Settings,
        driver: Driver,
        *,
        va_bytes: int = 1 << 38,
        search_after_release: bool = False,
    ) -> None:
        self.settings, self.driver, self.va_bytes = settings, driver, va_bytes
        self.search_after_release = search_after_release
        self.counters = Counters()
        self.segments: dict[int, Segment] = {}
        self._lists: dict[tuple[Pool, bool], FreeList] = {}
        self._next_va = 1 << 50

    def free_list(self, pool: Pool, *, small: bool) -> FreeList:
        """The free blocks of a pool."""
        return self._lists.setdefault((pool, small), FreeList())

    def malloc(self, request: int, stream: int = 0, pool: Pool = DEFAULT) -> Block:
        """Serves a request of `request` bytes.

        Raises:
            OutOfMemoryError: nothing fits, even after cached segments were released.
        """
        size = round_size(request, self.settings)
        free = self.free_list(pool, small=is_small(size))
        block = self._find(free, size, stream)
        if block is None:
            self._collect_garbage()
            block = self._grow(free, size, stream, pool)
        if block is None and self._release_oversize(free, size, stream):
            block = self._grow(free, size, stream, pool)
        if block is None:
            self.release_cached()
            self.counters.retries += 1
            if self.search_after_release:
                block = self._find(free, size, stream)
            block = block or self._grow(free, size, stream, pool)
        if block is None:
            self.counters.ooms += 1
            raise OutOfMemoryError(size)
        return self._take(free, block, size)

    def free(self, block: Block) -> None:
        """Gives a block back; it merges with free neighbours of the same mapping."""
        self.counters.allocate(-block.size)
        block.used = False
        free = self.free_list(block.segment.pool, small=block.segment.small)
        free.add(self._merged(free, block))

    def release_cached(self) -> None:
        """empty_cache(): gives back segments that are free as a whole, and free pages."""
        for small in (False, True):
            free = self.free_list(DEFAULT, small=small)
            for block in free.whole():
                self.drop(free, block)
            for block in [b for b in free.blocks.values() if b.segment.expandable]:
                self._unmap(free, block)

    def adopt(self, segment: Segment, parts: list[tuple[int, bool]]) -> list[Block]:
        """Adds a segment that exists already, as blocks (size, used) from its start."""
        free = self.free_list(segment.pool, small=segment.small)
        self.segments[segment.address] = segment
        self.counters.reserve(segment.size)
        blocks: list[Block] = []
        at, before = segment.address, None
        for size, used in parts:
            block = Block(at, size, segment.stream, segment, used=used)
            link(before, block)
            if used:
                self.counters.allocate(size)
            else:
                free.add(block)
            blocks.append(block)
            at, before = at + size, block
        return blocks

    def all_free(self) -> list[Block]:
        """Every free mapped block."""
        return [b for free in self._lists.values() for b in free.blocks.values()]

    def stuck(self) -> int:
        """Free bytes in segments that hold a block in use: empty_cache cannot return them."""
        held = 0
        for block in self.all_free():
            if block.segment.expandable:
                start, end = self._whole_pages(block)
                held += block.size - max(end - start, 0)
            elif block.prev is not None or block.next is not None:
                held += block.size
        return held

    # ---- search and split

    def _find(self, free: FreeList, size: int, stream: int) -> Block | None:
        """Best fit; a first candidate that the split limits refuse ends the search."""
        free.searches += 1
        at = free.from_size(stream, size)
        while at < len(free.keys):
            block = free.blocks[free.keys[at]]
            if block.stream != stream:
                return None
            if block.segment.expandable and not self.settings.expandable:
                at += 1
                continue
            if self.settings.expandable:
                block = self._before_the_tail(free, at)
            split = self.settings.max_split
            if split is not None and size < split <= block.size:
                return None
            too_large = block.size >= size + self.settings.max_non_split_rounding
            return None if split is not None and size >= split and too_large else block
        return None

    @staticmethod
    def _before_the_tail(free: FreeList, at: int) -> Block:
        """Expandable segments: of fitting blocks, the one with the least room behind it."""

        def reach(block: Block) -> int:
            return block.size + (block.next.size if block.next is not None and not block.next.mapped else 0)

        block = free.blocks[free.keys[at]]
        for key in free.keys[at + 1 :]:
            other = free.blocks[key]
            if other.stream != block.stream or reach(other) >= reach(block):
                break
            block = other
        return block

    def _take(self, free: FreeList, block: Block, size: int) -> Block:
        """Removes a block from the free list, splitting off what the rules allow."""
        free.remove(block)
        rest = block.size - size
        if self._splits(block, size, rest):
            other = Block(block.address + size, rest, block.stream, block.segment)
            link(other, block.next)
            link(block, other)
            block.size = size
            free.add(other)
        block.used = True
        self.counters.allocate(block.size)
        return block

    def _splits(self, block: Block, size: int, rest: int) -> bool:
        if block.segment.small or block.segment.expandable:
            return rest >= MIN_BLOCK
        split = self.settings.max_split
        return rest > SMALL_SIZE and (split is None or size < split)

    @staticmethod
    def _merged(free: FreeList, block: Block) -> Block:
        """Joins a block that is not in the free list with its free neighbours."""
        before, after = block.prev, block.next
        if before is not None and not before.used and before.mapped == block.mapped:
            free.remove(before) if before.mapped else free.unmapped.remove(before)
            block.address, block.size = before.address, block.size + before.size
            link(before.prev, block)
        if after is not None and not after.used and after.mapped == block.mapped:
            free.remove(after) if after.mapped else free.unmapped.remove(after)
            block.size += after.size
            link(block, after.next)
        return block

    # ---- growing and giving back

    def _room(self, size: int) -> bool:
        return self.settings.limit is None or self.counters.reserved + size <= self.settings.limit

    def _grow(self, free: FreeList, size: int, stream: int, pool: Pool) -> Block | None:
        """A free block of at least `size` from the driver; None where the device is full."""
        wanted = segment_size(size, self.settings)
        if not self._room(wanted):
            return None
        if self.settings.expandable:
            return self._expand(free, size, stream, pool)
        address = self.driver.allocate(wanted)
        if address is None:
            return None
        self.counters.device_allocs += 1
        [block] = self.adopt(Segment(address, wanted, stream, pool, is_small(size)), [(wanted, False)])
        return block

    def _page(self, *, small: bool) -> int:
        return SMALL_SEGMENT if small else self.settings.large_segment

    def _whole_pages(self, block: Block) -> tuple[int, int]:
        """Start and end of the whole pages inside a block of an expandable segment."""
        page, base = self._page(small=block.segment.small), block.segment.address
        start = base + -(-(block.address - base) // page) * page
        return start, base + (block.address + block.size - base) // page * page

    def _expand(self, free: FreeList, size: int, stream: int, pool: Pool) -> Block | None:
        """Maps pages behind a free block (or at a hole) that has room for `size`."""
        block = next((b for b in map(_start, free.unmapped) if b.stream == stream and _run(b) >= size), None)
        if block is None:
            page = self._page(small=is_small(size))
            va = -(-self.va_bytes // page) * page
            segment = Segment(self._next_va, va, stream, pool, is_small(size), expandable=True)
            self._next_va += 2 * va
            self.segments[segment.address] = segment
            block = Block(segment.address, va, stream, segment, mapped=False)
            free.unmapped.append(block)
        while not block.mapped or block.size < size:
            have = block.size if block.mapped else 0
            mapped = self._map(free, block.next if block.mapped else block, size - have)
            if mapped is None:
                return None
            block = mapped
        return block

    def _map(self, free: FreeList, hole: Block | None, size: int) -> Block | None:
        """Maps the first pages of an unmapped range; the block that they then belong to."""
        if hole is None:
            return None
        page = self._page(small=hole.segment.small)
        size = min(-(-size // page) * page, hole.size)
        if self.driver.allocate(size) is None:
            return None
        self.counters.maps += size // page
        self.counters.reserve(size)
        free.unmapped.remove(hole)
        if hole.size > size:
            rest = Block(hole.address + size, hole.size - size, hole.stream, hole.segment, mapped=False)
            link(rest, hole.next)
            link(hole, rest)
            hole.size = size
            free.unmapped.append(rest)
            free.unmapped.sort(key=lambda b: b.address)
        hole.mapped = True
        free.add(self._merged(free, hole))
        return hole

    def _unmap(self, free: FreeList, block: Block) -> None:
        """Gives back the whole pages inside a free block of an expandable segment."""
        start, end = self._whole_pages(block)
        if end <= start:
            return
        free.remove(block)
        left, right = start - block.address, block.address + block.size - end
        if left:
            front = Block(block.address, left, block.stream, block.segment)
            link(block.prev, front)
            link(front, block)
            free.add(front)
        if right:
            back = Block(end, right, block.stream, block.segment)
            link(back, block.next)
            link(block, back)
            free.add(back)
        block.address, block.size, block.mapped = start, end - start, False
        self.counters.reserve(start - end)
        self.counters.unmaps += (end - start) // self._page(small=block.segment.small)
        self.driver.release(start, end - start)
        free.unmapped.append(self._merged(free, block))
        free.unmapped.sort(key=lambda b: b.address)

    def drop(self, free: FreeList, block: Block) -> None:
        """Gives a whole free segment back to the driver."""
        free.remove(block)
        segment = block.segment
        del self.segments[segment.address]
        self.counters.reserve(-segment.size)
        self.counters.device_frees += 1
        self.driver.release(segment.address, segment.size)

    def _release_oversize(self, free: FreeList, size: int, stream: int) -> bool:
        """With a split limit: gives back oversize blocks of this stream until `size` is covered."""
        split = self.settings.max_split
        if split is None:
            return False
        want = max(size, split)
        mine = [b for b in free.whole() if b.stream == stream]
        if fit := next((b for b in mine if b.size >= want), None):
            self.drop(free, fit)
            return True
        total = 0
        for block in reversed([b for b in mine if b.size >= split]):
            if total >= want:
                break
            total += block.size
            self.drop(free, block)
        return total >= want

    def _collect_garbage(self) -> None:
        """Frees unused segments of at least average age while the threshold is passed."""
        limit = self.settings.limit
        if not self.settings.gc_threshold or limit is None:
            return
        target = self.counters.reserved - int(self.settings.gc_threshold * limit)
        free = self.free_list(DEFAULT, small=False)
        while target > 0 and (whole := free.whole()):
            ages = [free.searches - b.born for b in whole]
            mean = sum(ages) / len(ages)
            for block, age in zip(whole, ages, strict=True):
                if age >= mean:
                    target -= block.size
                    self.drop(free, block)


def _start(hole: Block) -> Block:
    """Where mapping a hole would begin to serve: its free mapped predecessor, or itself."""
    before = hole.prev
    return before if before is not None and before.mapped and not before.used else hole


def _run(block: Block) -> int:
    """Bytes of free or unmapped neighbours from a block on."""
    total = 0
    at: Block | None = block
    while at is not None and not at.used:
        total, at = total + at.size, at.next
    return total
