"""Hand-worked examples: expandable segments, deferred frees, private pools."""

from __future__ import annotations

import pytest

from moexray.algorithms.allocator import CachingAllocator, OutOfMemoryError
from moexray.algorithms.blocks import PoolRules, Settings
from moexray.algorithms.device import Device

MIB = 1 << 20


def allocator(capacity=None, **settings):
    return CachingAllocator(Settings(**settings), Device(capacity))


def test_expandable_segments_grow_by_whole_pages():
    a = allocator(expandable=True)
    seen = []
    for _ in range(8):
        a.malloc(16 * MIB)
        seen.append(a.counters.reserved // MIB)
    assert seen == [20, 40, 60, 80, 80, 100, 120, 140]
    assert a.counters.maps == 7
    assert a.counters.device_allocs == 0


def test_expandable_segments_fragment_too():
    a = allocator(expandable=True)
    blocks = [a.malloc(30 * MIB) for _ in range(8)]
    for b in blocks[::2]:
        a.free(b)
    a.release_cached()
    assert 0 < a.stuck() < 4 * 30 * MIB  # whole pages went back, the rests are stuck
    kept = a.counters.reserved
    assert kept == 240 * MIB - a.counters.unmaps * 20 * MIB
    a.malloc(60 * MIB)
    assert a.counters.reserved > kept


# ---- expandable segments


def test_the_block_at_the_growing_tail_is_used_last():
    """Blocks 30 | 50 | 30 in 120 MiB (6 pages), 10 free at the tail. Free: 50 in the middle, and the tail."""
    a = allocator(expandable=True)
    first, middle, last = (a.malloc(n * MIB) for n in (30, 50, 30))
    a.free(middle)
    # 8 MiB fit the tail (10) best, but the tail can grow to the whole space: the middle (50) is taken.
    assert a.malloc(8 * MIB).address == first.address + 30 * MIB
    assert a.counters.reserved == 120 * MIB
    a.free(last)  # tail: 40 free. 42 are free in the middle: 41 MiB fit there without growing.
    assert a.malloc(41 * MIB).address == first.address + 38 * MIB


def test_growing_begins_with_the_free_block_before_the_hole():
    # 16 MiB in one page of 20: 4 free. 24 MiB need 20 more: one page, and the block begins at 16 MiB.
    a = allocator(expandable=True)
    first = a.malloc(16 * MIB)
    block = a.malloc(24 * MIB)
    assert block.address == first.address + 16 * MIB
    assert (a.counters.maps, a.counters.map_calls, a.counters.reserved) == (2, 2, 40 * MIB)


def test_only_whole_pages_are_unmapped_and_the_lowest_hole_with_room_is_filled_first():
    # 30 | 30 | 30 | 30 in 120 MiB. Blocks 1 [30, 60) and 3 [90, 120) are freed: pages [40, 60), [100, 120) go.
    a = allocator(expandable=True)
    blocks = [a.malloc(30 * MIB) for _ in range(4)]
    base = blocks[0].address
    a.free(blocks[1])
    a.free(blocks[3])
    a.release_cached()
    assert (a.counters.unmaps, a.counters.unmap_calls, a.counters.reserved) == (2, 2, 80 * MIB)
    assert a.stuck() == 20 * MIB  # [30, 40) and [90, 100)
    # 25 MiB: the hole [40, 60) and 10 free MiB before it have room.
    assert a.malloc(25 * MIB).address == base + 30 * MIB
    # 35 MiB: 5 free MiB are left at 55; [90, 100) and the tail have room.
    assert a.malloc(35 * MIB).address == base + 90 * MIB


def test_a_segment_of_which_nothing_is_mapped_goes_and_a_full_one_is_followed_by_another():
    a = CachingAllocator(Settings(expandable=True), Device(), va_bytes=100 * MIB)
    first = a.malloc(90 * MIB)
    second = a.malloc(30 * MIB)  # 10 MiB are left: a second space
    assert len(a.segments) == 2
    assert second.segment is not first.segment
    a.free(second)
    a.release_cached()
    assert len(a.segments) == 1
    with pytest.raises(OutOfMemoryError):
        a.malloc(101 * MIB)  # more than an address space


def test_a_device_that_fills_up_while_growing_keeps_the_pages_it_gave():
    # Space: 20 hole (free pages given back) | 16 in use | hole. Device 60 MiB. 50 MiB need a run from the tail.
    a = allocator(capacity=60 * MIB, expandable=True)
    a.malloc(16 * MIB)
    with pytest.raises(OutOfMemoryError):
        a.malloc(70 * MIB)  # 4 + 80 wanted, 40 left: all or nothing for one hole
    assert (a.counters.reserved, a.counters.retries) == (20 * MIB, 1)
    assert a.malloc(44 * MIB).size == 44 * MIB
    assert a.counters.reserved == 60 * MIB


def test_large_blocks_are_cut_to_512_bytes_while_expandable_segments_are_on():
    a = allocator(expandable=True)
    assert a.malloc(19 * MIB + 512 * 1024).size == 19 * MIB + 512 * 1024
    assert a.counters.allocated == 19 * MIB + 512 * 1024
    assert a.malloc(MIB).segment.page == 2 * MIB  # the small pool has pages of its own
    assert allocator(expandable=True, large_segment=12 * MIB).malloc(2 * MIB).segment.page == 12 * MIB


def test_switched_off_expandable_blocks_are_passed_over():
    a = allocator(expandable=True)
    a.free(a.malloc(20 * MIB))
    a.settings = Settings()
    assert not a.malloc(15 * MIB).segment.expandable
    assert a.counters.device_allocs == 1


def test_oversize_release_stops_at_an_expandable_candidate_and_walks_down():
    # Free on stream 0: 130 (cudaMalloc) and 160 (expandable). Asked 150 with limit 100: first candidate of at
    # least 150 is expandable, so what lies below goes: 130 < 150 is not enough, hence a retry.
    a = allocator(capacity=340 * MIB, max_split=100 * MIB)
    plain = a.malloc(130 * MIB)
    a.settings = Settings(expandable=True, max_split=100 * MIB)
    grown = a.malloc(160 * MIB)
    a.free(plain)
    a.free(grown)
    a.settings = Settings(max_split=100 * MIB)
    a.malloc(150 * MIB)
    assert (a.counters.device_frees, a.counters.retries, a.counters.unmaps) == (1, 1, 8)


# ---- streams and private pools


def test_a_deferred_free_is_active_and_keeps_its_neighbours_apart():
    a = allocator()
    a.free(a.malloc(40 * MIB))
    left, late, right = a.malloc(12 * MIB), a.malloc(12 * MIB), a.malloc(12 * MIB)
    ticket = a.defer(late)
    assert (a.counters.allocated, a.counters.active) == (24 * MIB, 36 * MIB)
    a.free(left)
    a.free(right)
    assert sorted(b.size // MIB for b in a.all_free()) == [12, 16]
    a.complete(ticket)
    assert [b.size // MIB for b in a.all_free()] == [40]
    a.complete(ticket)  # once is enough
    assert a.counters.active == 0


def test_a_retry_waits_for_deferred_frees():
    a = allocator(capacity=60 * MIB)
    ticket = a.defer(a.malloc(60 * MIB))
    assert a.malloc(50 * MIB).size == 50 * MIB
    a.complete(ticket)
    assert a.counters.reserved == 50 * MIB


def test_private_pools_are_given_back_only_when_nobody_uses_them_small_before_large():
    gone = []

    class Watch(Device):
        def release(self, address, size):
            gone.append(size // MIB)
            super().release(address, size)

    a = CachingAllocator(Settings(), Watch())
    for size in (30 * MIB, 100):
        a.free(a.malloc(size, pool=(0, 1)))
    a.release_cached()
    assert gone == []
    a.rules[0, 1] = PoolRules(freeable=True)
    a.release_cached()
    assert gone == [2, 30]


def test_a_pool_for_need_serves_the_default_pool_before_anything_is_released():
    a = allocator(capacity=100 * MIB)
    a.rules[0, 1] = PoolRules(use_on_oom=True)
    a.free(a.malloc(60 * MIB, pool=(0, 1)))
    cached = a.malloc(40 * MIB)
    a.free(cached)
    block = a.malloc(50 * MIB)
    assert block.segment.pool == (0, 1)
    assert (a.counters.retries, a.counters.device_frees) == (0, 0)
    with pytest.raises(OutOfMemoryError):
        a.malloc(70 * MIB, pool=(0, 2))  # private pools are not served by it


def test_a_pool_that_does_not_split_hands_out_whole_blocks_and_a_custom_one_does_not_expand():
    a = allocator(expandable=True)
    a.rules = {(0, 1): PoolRules(no_split=True, custom=True)}
    block = a.malloc(2 * MIB, pool=(0, 1))
    assert (block.size, block.segment.expandable) == (20 * MIB, False)
