"""Expandable segments: which hole grows next, mapping and unmapping of whole pages.

Words: see algorithms/blocks.py. Source: PyTorch's allocator as of 2.10-2.13, rules restated; no
recorded data confirm them, see docs/decisions/020.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.algorithms.blocks import SMALL_SEGMENT, Block, ContradictionError, Segment, is_small, link

if TYPE_CHECKING:
    from moexray.algorithms.allocator import CachingAllocator
    from moexray.algorithms.blocks import FreeList, Pool

__all__ = [
    "before_the_tail",
    "expand",
    "growth",
    "map_range",
    "next_step",
    "open_segment",
    "unmap_range",
    "whole_pages",
]


def whole_pages(block: Block) -> tuple[int, int]:
    """Start and end of the whole pages inside a block; end <= start where there are none."""
    page, base = block.segment.page, block.segment.address
    start = base + -(-(block.address - base) // page) * page
    return start, base + (block.address + block.size - base) // page * page


def before_the_tail(free: FreeList, at: int) -> Block:
    """Best fit from the fitting block at index `at` on: moves on while the next one can grow less far."""
    block = free.blocks[free.keys[at]]
    for i in range(at + 1, len(free.keys)):
        other = free.blocks[free.keys[i]]
        stop = not block.segment.expandable or other.stream != block.stream
        if stop or _reach(other) >= _reach(block):
            break
        block = other
    return block


def _reach(block: Block) -> int:
    """Bytes that a block has or can grow to."""
    return block.size + (block.next.size if block.next is not None and not block.next.mapped else 0)


def growth(free: FreeList, size: int, stream: int) -> Block | None:
    """The hole of lowest address with room for `size` bytes, or the free block before it.

    Room counts the free blocks and holes that follow. None where a new segment is needed.
    """
    for hole in free.holes_of(stream):
        before = hole.prev
        block = hole if before is None or before.used else before
        if _has_room(block, size):
            return block
    return None


def _has_room(block: Block | None, size: int) -> bool:
    while block is not None and not block.used and size > 0:
        size -= block.size
        block = block.next
    return size <= 0


def next_step(block: Block, size: int) -> tuple[Block, int]:
    """The hole to map next, and how many bytes of it, so that `block` grows to `size` bytes."""
    hole, missing = (block.next, size - block.size) if block.mapped else (block, size)
    if hole is None:  # `growth` has made sure of the room
        raise ContradictionError("an expandable segment has no room where it should grow")
    page = block.segment.page
    return hole, min(-(-missing // page) * page, hole.size)


def open_segment(
    a: CachingAllocator, stream: int, pool: Pool, *, small: bool, address: int | None = None
) -> Block:
    """Reserves address space (where nobody says: the device's) for a new expandable segment: one hole."""
    page = SMALL_SEGMENT if small else a.settings.large_segment
    size = -(-a.va_bytes // page) * page
    start = a.driver.reserve(size) if address is None else address
    segment = Segment(start, size, stream, pool, small, page)
    a.segments[start] = segment
    hole = Block(start, size, stream, segment, mapped=False)
    a.list_of(segment).add(hole)
    return hole


def expand(a: CachingAllocator, size: int, stream: int, pool: Pool) -> Block | None:
    """A free block of at least `size`, grown by whole pages; None where the device is full.

    Pages that were mapped before it was full stay.
    """
    small = is_small(size)
    free = a.free_list(pool, small=small)
    if size > a.va_bytes:
        return None
    block = growth(free, size, stream) or open_segment(a, stream, pool, small=small)
    while not block.mapped or block.size < size:
        hole, wanted = next_step(block, size)
        if not a.driver.map(hole.address, wanted):
            return None
        block = map_range(a, hole, wanted)
    return block


def map_range(a: CachingAllocator, hole: Block, size: int) -> Block:
    """Maps the first `size` bytes of a hole; the free block that they then belong to."""
    free = a.list_of(hole.segment)
    free.remove(hole)
    if hole.size > size:
        rest = Block(hole.address + size, hole.size - size, hole.stream, hole.segment, mapped=False)
        link(rest, hole.next)
        link(hole, rest)
        hole.size = size
        free.add(rest)
    hole.mapped = True
    a.merge(free, hole)
    free.add(hole)
    a.count_reserved(hole.segment, size)
    a.counters.maps += size // hole.segment.page
    a.counters.map_calls += 1
    return hole


def unmap_range(a: CachingAllocator, block: Block, start: int, end: int) -> None:
    """Unmaps [start, end), whole pages inside a free block; the rest of the block stays free.

    A segment of which nothing is mapped any more goes.
    """
    free = a.list_of(block.segment)
    free.remove(block)
    if start > block.address:
        front = Block(block.address, start - block.address, block.stream, block.segment)
        link(block.prev, front)
        link(front, block)
        free.add(front)
    if end < block.address + block.size:
        back = Block(end, block.address + block.size - end, block.stream, block.segment)
        link(back, block.next)
        link(block, back)
        free.add(back)
    block.address, block.size, block.mapped = start, end - start, False
    a.merge(free, block)
    a.count_reserved(block.segment, start - end)
    a.counters.unmaps += (end - start) // block.segment.page
    a.counters.unmap_calls += 1
    a.driver.unmap(start, end - start)
    if block.split:
        free.add(block)
    else:
        del a.segments[block.segment.address]
