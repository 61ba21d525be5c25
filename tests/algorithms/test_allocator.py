"""Hand-worked examples of the caching allocator's rules."""

from __future__ import annotations

import pytest

from moexray.algorithms.allocator import CachingAllocator, OutOfMemoryError
from moexray.algorithms.blocks import Settings, round_size, segment_size
from moexray.algorithms.replay import Device

MIB = 1 << 20


def allocator(capacity=None, **settings):
    return CachingAllocator(Settings(**settings), Device(capacity))


def divided(d):
    return Settings(roundup=(d,) * 16)


@pytest.mark.parametrize(
    ("request_", "want"), [(1, 512), (511, 512), (512, 512), (513, 1024), (1200, 1536), (MIB + 1, MIB + 512)]
)
def test_rounding_to_512(request_, want):
    assert round_size(request_) == want


@pytest.mark.parametrize(
    ("request_", "want"), [(1200, 1536), (3000, 3072), (5000, 5120), (9000, 10240), (8192, 8192)]
)
def test_power_of_two_divisions(request_, want):
    assert round_size(request_, divided(4)) == want


@pytest.mark.parametrize(
    ("size", "want"),
    [(MIB, 2 * MIB), (MIB + 512, 20 * MIB), (10 * MIB - 512, 20 * MIB), (10 * MIB, 10 * MIB), (11 * MIB, 12 * MIB)],
)
def test_segment_sizes(size, want):
    assert segment_size(size, Settings()) == want


def test_best_fit_takes_the_smallest_and_then_the_lowest():
    a = allocator()
    blocks = [a.malloc(n * MIB) for n in (30, 12, 20, 12)]
    for b in blocks:
        a.free(b)
    assert a.malloc(11 * MIB + 512 * 1024).address == blocks[1].address
    assert a.malloc(12 * MIB).address == blocks[3].address


def test_a_large_block_is_not_split_for_a_mebibyte_or_less():
    a = allocator()
    a.free(a.malloc(20 * MIB))
    block = a.malloc(19 * MIB)
    assert block.size == 20 * MIB  # slack of exactly 1 MiB stays inside
    a.free(block)
    assert a.malloc(19 * MIB - 512).size == 19 * MIB - 512


def test_small_blocks_share_a_segment_and_merge_when_freed():
    a = allocator()
    first, second, third = (a.malloc(1000) for _ in range(3))
    assert a.counters.device_allocs == 1
    a.free(first)
    a.free(third)
    assert a.stuck() == 2 * MIB - 1024
    a.free(second)
    assert a.stuck() == 0
    [block] = a.all_free()
    assert block.size == 2 * MIB


def test_streams_and_pools_do_not_lend():
    a = allocator()
    a.free(a.malloc(20 * MIB, stream=0))
    assert a.malloc(20 * MIB, stream=7).segment.stream == 7
    assert a.malloc(20 * MIB, pool=(0, 1)).segment.pool == (0, 1)
    assert a.counters.device_allocs == 3


def test_order_of_sizes_decides_what_is_reserved():
    a = allocator()
    blocks = [a.malloc(16 * MIB) for _ in range(8)]
    for b in blocks:
        a.free(b)
    for _ in range(4):
        a.malloc(32 * MIB)
    assert a.counters.reserved == 256 * MIB
    b = allocator()
    for block in [b.malloc(32 * MIB) for _ in range(4)]:
        b.free(block)
    for _ in range(8):
        b.malloc(16 * MIB)
    assert b.counters.reserved == 128 * MIB


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


def test_a_full_device_releases_cached_segments_then_fails():
    a = allocator(capacity=100 * MIB)
    kept, cached = a.malloc(30 * MIB), a.malloc(60 * MIB)
    a.free(cached)
    block = a.malloc(64 * MIB)
    assert (a.counters.retries, a.counters.device_frees) == (1, 1)
    with pytest.raises(OutOfMemoryError):
        a.malloc(20 * MIB)
    assert a.counters.ooms == 1
    a.free(block)
    a.free(kept)
    a.release_cached()
    assert a.counters.reserved == 0


def test_a_memory_fraction_refuses_like_a_full_device():
    a = allocator(limit=50 * MIB)
    a.malloc(40 * MIB)
    with pytest.raises(OutOfMemoryError):
        a.malloc(20 * MIB)


def test_oversize_blocks_are_kept_whole_and_released_first():
    a = allocator(capacity=400 * MIB, max_split=100 * MIB)
    big = a.malloc(200 * MIB)
    a.free(big)
    assert a.malloc(50 * MIB).address != big.address  # below the limit: an oversize block is not split
    assert a.malloc(190 * MIB).size == 200 * MIB  # above: unsplit, within the rounding
    a.malloc(120 * MIB)
    cached = a.malloc(20 * MIB)
    a.free(cached)
    with pytest.raises(OutOfMemoryError):
        a.malloc(150 * MIB)


def test_an_oversize_release_spares_the_other_cached_segments():
    a = allocator(capacity=300 * MIB, max_split=100 * MIB)
    a.free(a.malloc(150 * MIB))
    a.free(a.malloc(50 * MIB))
    a.malloc(240 * MIB)
    assert a.counters.device_frees == 2  # 150 went first, was not enough, then all cached ones
    assert a.counters.retries == 1
    b = allocator(capacity=300 * MIB, max_split=100 * MIB)
    b.free(b.malloc(180 * MIB))
    b.free(b.malloc(50 * MIB))
    b.malloc(150 * MIB)  # 180 is 30 MiB too large to hand out whole: given back, enough, 50 stays
    assert (b.counters.retries, b.counters.device_frees) == (0, 1)
    assert b.counters.reserved == 200 * MIB


def test_garbage_collection_frees_the_old_ones_only_above_the_threshold():
    a = allocator(limit=1000 * MIB, gc_threshold=0.5)
    old, young = a.malloc(200 * MIB), a.malloc(210 * MIB)
    a.free(old)
    for _ in range(20):
        a.free(a.malloc(12 * MIB, stream=0))
    a.free(young)
    a.malloc(300 * MIB)
    assert a.counters.device_frees == 0  # 422 MiB reserved of 1000: below the threshold
    a.malloc(150 * MIB, stream=3)
    assert a.counters.device_frees >= 1
