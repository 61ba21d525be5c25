"""PyTorch's caching allocator, stated plainly: what it does with a request under given settings.

Words: see algorithms/blocks.py. Source: PyTorch's allocator as of 2.10-2.13, rules restated; what no
recorded data confirm (expandable segments, split limits, garbage collection, deferred frees, private
pools) is derived from the source only, see docs/decisions/020.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.algorithms.blocks import (
    DEFAULT_POOL,
    MIN_BLOCK,
    SMALL_SIZE,
    Block,
    FreeList,
    Pool,
    PoolRules,
    Segment,
    Settings,
    is_small,
    link,
    round_size,
    segment_size,
)
from moexray.algorithms.counters import Counters, Usage
from moexray.algorithms.expandable import before_the_tail, expand, unmap_range, whole_pages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moexray.algorithms.device import Driver

__all__ = ["CachingAllocator", "OutOfMemoryError"]

PLAIN = PoolRules()
VA_BYTES = 1 << 40  # address space where the device's size is not known: more than any has


class OutOfMemoryError(Exception):
    """The request does not fit: `size` is the rounded request."""

    def __init__(self, size: int) -> None:
        super().__init__(f"no room for {size} bytes")
        self.size = size


class CachingAllocator:
    """The allocator of one device.

    Args:
        settings: What PYTORCH_ALLOC_CONF sets.
        driver: The device.
        va_bytes: Address space that an expandable segment reserves; PyTorch takes 9/8 of the device.
        search_after_release: Search the pool again after cached segments were released; PyTorch
            up to 2.13 does not.

    Attributes:
        counters: Figures of all pools; `usage` holds them for the small (True) and large pools.
        segments: Segments by address.
        rules: Private pools that are special.
        pending: Deferred frees by ticket, oldest first.
        capturing: A CUDA graph is being captured: nothing cached is released for a request.
    """

    def __init__(
        self,
        settings: Settings,
        driver: Driver,
        *,
        va_bytes: int = VA_BYTES,
        search_after_release: bool = False,
    ) -> None:
        self.settings, self.driver, self.va_bytes = settings, driver, va_bytes
        self.search_after_release = search_after_release
        self.counters = Counters()
        self.usage = {True: Usage(), False: Usage()}
        self.segments: dict[int, Segment] = {}
        self.rules: dict[Pool, PoolRules] = {}
        self.pending: dict[int, Block] = {}
        self.capturing = False
        self._lists: dict[tuple[Pool, bool], FreeList] = {}
        self._tickets = 0

    def free_list(self, pool: Pool, *, small: bool) -> FreeList:
        """The free blocks of a pool."""
        return self._lists.setdefault((pool, small), FreeList())

    def list_of(self, segment: Segment) -> FreeList:
        """The free blocks of the pool of a segment."""
        return self.free_list(segment.pool, small=segment.small)

    def malloc(self, request: int, stream: int = 0, pool: Pool = DEFAULT_POOL) -> Block:
        """Serves a request of `request` bytes.

        Raises:
            OutOfMemoryError: nothing fits, even after cached segments were released.
        """
        size = round_size(request, self.settings)
        block = self._search(size, stream, pool)
        if block is None:
            self._collect_garbage()
            block = self._grow(size, stream, pool) or self._last_resorts(size, stream, pool)
        if block is None:
            self.counters.ooms += 1
            raise OutOfMemoryError(size)
        return self.take(block, size, request, expandable=block.segment.pool == pool and self.expands(pool))

    def free(self, block: Block) -> None:
        """Gives a block back; it merges with free neighbours of the same mapping."""
        self._count_freed(block)
        self._insert(block)

    def defer(self, block: Block) -> int:
        """Gives a block back that another stream still uses; its ticket for `complete`."""
        self._count_freed(block)
        self._tickets += 1
        self.pending[self._tickets] = block
        return self._tickets

    def complete(self, ticket: int) -> None:
        """The other streams are done with a block; nothing happens if `release_cached` waited for them."""
        block = self.pending.pop(ticket, None)
        if block is not None:
            self._insert(block)

    def release_cached(self) -> None:
        """empty_cache(): waits for deferred frees, then gives back whole free segments and free pages."""
        for ticket in list(self.pending):
            self.complete(ticket)
        self._release_pool(DEFAULT_POOL, (False, True))
        for pool, rules in self.rules.items():
            if rules.freeable and pool != DEFAULT_POOL:
                self._release_pool(pool, (True, False))

    def adopt(self, segment: Segment, parts: Iterable[tuple[int, int, bool, bool]]) -> list[Block]:
        """Adds a segment that exists already.

        Args:
            segment: The segment.
            parts: (size, requested, used, mapped) of its blocks and holes from its start.
        """
        free = self.list_of(segment)
        self.segments[segment.address] = segment
        blocks: list[Block] = []
        at, before = segment.address, None
        for size, requested, used, mapped in parts:
            block = Block(at, size, segment.stream, segment, used, mapped, requested=requested)
            link(before, block)
            blocks.append(block)
            at, before = at + size, block
        self.count_reserved(segment, sum(b.size for b in blocks if b.mapped))
        for block in blocks:
            if block.used:
                self._count_used(block)
            else:
                free.add(block)
                if block.split:
                    self._count_split(segment, block.size)
        return blocks

    def all_free(self) -> list[Block]:
        """Every free mapped block."""
        return [b for free in self._lists.values() for b in free.blocks.values()]

    def stuck(self) -> int:
        """Free bytes in segments that hold a block in use: empty_cache cannot return them."""
        held = 0
        for block in self.all_free():
            if block.segment.expandable:
                start, end = whole_pages(block)
                held += block.size - max(end - start, 0)
            elif block.split:
                held += block.size
        return held

    def statistics(self) -> dict[str, int]:
        """The counters under the names of torch.cuda.memory_stats()."""
        return self.counters.statistics(self.usage[True], self.usage[False])

    # ---- search and split

    def expands(self, pool: Pool) -> bool:
        """Whether a pool grows by expandable segments."""
        return self.settings.expandable and not self.rules.get(pool, PLAIN).custom

    def find(self, free: FreeList, size: int, stream: int, *, expandable: bool) -> Block | None:
        """Best fit; a first candidate that the split limits refuse ends the search. Changes nothing."""
        at = free.from_size(stream, size)
        end = len(free.keys)
        block = free.blocks[free.keys[at]] if at < end else None
        while block is not None and block.segment.expandable and not expandable and block.stream == stream:
            at += 1
            block = free.blocks[free.keys[at]] if at < end else None
        if block is None or block.stream != stream:
            return None
        if expandable and block.segment.expandable:
            block = before_the_tail(free, at)
        split = self.settings.max_split
        if split is None:
            return block
        too_large = block.size >= (split if size < split else size + self.settings.max_non_split_rounding)
        return None if too_large else block

    def take(self, block: Block, size: int, request: int, *, expandable: bool) -> Block:
        """Hands out a free block, splitting off what the rules allow.

        Args:
            block: The free block.
            size: Rounded bytes.
            request: Requested bytes.
            expandable: Expandable segments are on for this request.
        """
        free, was_split = self.list_of(block.segment), block.split
        free.remove(block)
        rest = block.size - size
        if self._splits(block.segment, size, rest, expandable=expandable):
            other = Block(block.address + size, rest, block.stream, block.segment)
            link(other, block.next)
            link(block, other)
            block.size = size
            free.add(other)
            self._count_split(block.segment, -size if was_split else rest)
        elif was_split:
            self._count_split(block.segment, -block.size)
        block.used, block.requested = True, request
        self._count_used(block)
        return block

    def _splits(self, segment: Segment, size: int, rest: int, *, expandable: bool) -> bool:
        if self.rules.get(segment.pool, PLAIN).no_split:
            return False
        if segment.small or expandable:
            return rest >= MIN_BLOCK
        split = self.settings.max_split
        return rest > SMALL_SIZE and (split is None or size < split)

    def _insert(self, block: Block) -> None:
        block.used = False
        segment, free = block.segment, self.list_of(block.segment)
        for usage in (self.counters, self.usage[segment.small]):
            usage.active -= block.size
            usage.requested -= block.requested
        swallowed = self.merge(free, block)
        free.add(block)
        self._count_split(segment, (block.size if block.split else 0) - swallowed)

    @staticmethod
    def merge(free: FreeList, block: Block) -> int:
        """Joins a block that is not in the free list with its free neighbours; the bytes it gains."""
        before, after, size = block.prev, block.next, block.size
        if before is not None and not before.used and before.mapped == block.mapped:
            free.remove(before)
            block.address, block.size = before.address, block.size + before.size
            link(before.prev, block)
        if after is not None and not after.used and after.mapped == block.mapped:
            free.remove(after)
            block.size += after.size
            link(block, after.next)
        return block.size - size

    # ---- growing and giving back

    def _search(self, size: int, stream: int, pool: Pool) -> Block | None:
        free = self.free_list(pool, small=is_small(size))
        free.searches += 1
        return self.find(free, size, stream, expandable=self.expands(pool))

    def _has_room(self, size: int) -> bool:
        return self.settings.limit is None or self.counters.reserved + size <= self.settings.limit

    def _grow(self, size: int, stream: int, pool: Pool) -> Block | None:
        """A free block of at least `size` from the driver; None where the device is full."""
        wanted = segment_size(size, self.settings)
        if not self._has_room(wanted):
            return None
        if self.expands(pool):
            return expand(self, size, stream, pool)
        address = self.driver.allocate(wanted)
        if address is None:
            return None
        self.counters.device_allocs += 1
        segment = Segment(address, wanted, stream, pool, is_small(size))
        return self.adopt(segment, [(wanted, 0, False, True)])[0]

    def _last_resorts(self, size: int, stream: int, pool: Pool) -> Block | None:
        """The device is full: overflow pools, oversize blocks, at last everything cached."""
        if self.settings.throw_on_oom and not self._has_room(segment_size(size, self.settings)):
            self.counters.oom_rejections += 1
            return None
        block = self._overflow(size, stream) if pool == DEFAULT_POOL else None
        if block is None and self._release_oversize(size, stream, pool):
            block = self._grow(size, stream, pool)
        if block is None and not self.capturing:
            self.release_cached()
            self.counters.retries += 1
            if self.search_after_release:
                block = self._search(size, stream, pool)
            block = block or self._grow(size, stream, pool)
        return block

    def _overflow(self, size: int, stream: int) -> Block | None:
        """A free block of a private pool that serves the default pool in need."""
        for pool in [p for p, rules in self.rules.items() if rules.use_on_oom]:
            free = self.free_list(pool, small=is_small(size))
            free.searches += 1
            block = self.find(free, size, stream, expandable=False)
            if block is not None:
                return block
        return None

    def _release_oversize(self, size: int, stream: int, pool: Pool) -> bool:
        """With a split limit: gives back oversize blocks of this stream until `size` is covered.

        A block that is no whole segment (left by other settings) is passed over like an expandable one.
        """
        split = self.settings.max_split
        if split is None:
            return False
        free, want, total = self.free_list(pool, small=is_small(size)), max(size, split), 0
        at = free.from_size(stream, want)
        first = free.blocks[free.keys[at]] if at < len(free.keys) else None
        if first is not None and first.stream == stream and not first.split and not first.segment.expandable:
            self.drop(first)
            return True
        for block in [free.blocks[k] for k in reversed(free.keys[:at])]:
            if total >= want or block.size < split or block.stream != stream:
                break
            if not block.split and not block.segment.expandable:
                total += block.size
                self.drop(block)
        return total >= want

    def _collect_garbage(self) -> None:
        """Frees unused segments of at least average age while the threshold is passed."""
        limit = self.settings.limit
        if not self.settings.gc_threshold or limit is None:
            return
        target = self.counters.reserved - int(self.settings.gc_threshold * limit)
        free = self.free_list(DEFAULT_POOL, small=False)
        while target > 0:
            ages = [(free.searches - b.born, b) for b in free.in_order() if not b.split]
            total = sum(age for age, _ in ages)
            old = [b for age, b in ages if age * len(ages) >= total and not b.segment.expandable]
            if not old:
                return
            for block in old:
                target -= block.size
                self.drop(block)

    def _release_pool(self, pool: Pool, kinds: tuple[bool, bool]) -> None:
        for small in kinds:
            free = self.free_list(pool, small=small)
            pages = [b for b in free.in_order() if b.segment.expandable]
            for block in free.whole():
                self.drop(block)
            for block in pages:
                start, end = whole_pages(block)
                if start < end:
                    unmap_range(self, block, start, end)

    def drop(self, block: Block) -> None:
        """Gives a whole free segment back to the driver."""
        segment = block.segment
        self.list_of(segment).remove(block)
        del self.segments[segment.address]
        self.count_reserved(segment, -segment.size)
        self.counters.device_frees += 1
        self.driver.release(segment.address, segment.size)

    # ---- counting

    def count_reserved(self, segment: Segment, size: int) -> None:
        """Counts bytes of a segment taken from (or, negative, given back to) the driver."""
        sign = 0 if segment.expandable else (1 if size > 0 else -1)
        self.counters.reserve(size, sign)
        self.usage[segment.small].reserve(size, sign)
        if sign and self._oversize(segment.size):
            self.counters.oversize_segments += sign

    def _oversize(self, size: int) -> bool:
        return self.settings.max_split is not None and size >= self.settings.max_split

    def _count_used(self, block: Block) -> None:
        self.counters.hand_out(block.size, block.requested)
        self.usage[block.segment.small].hand_out(block.size, block.requested)
        self.counters.oversize_allocations += self._oversize(block.size)

    def _count_freed(self, block: Block) -> None:
        self.counters.allocated -= block.size
        self.usage[block.segment.small].allocated -= block.size
        self.counters.oversize_allocations -= self._oversize(block.size)

    def _count_split(self, segment: Segment, change: int) -> None:
        if change and not segment.expandable:
            self.counters.set_split(change)
            self.usage[segment.small].set_split(change)

