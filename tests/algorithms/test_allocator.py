"""Hand-worked examples of the caching allocator's rules."""

from __future__ import annotations

import pytest

from moexray.algorithms.allocator import CachingAllocator, OutOfMemoryError
from moexray.algorithms.blocks import Settings, round_size, segment_size
from moexray.algorithms.device import Device

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

# ---- limits, release order


def test_a_power_of_two_division_fills_the_pool_by_its_rounded_size():
    # 9 MiB with 2 divisions: between 8 and 16 MiB the step is 4 MiB -> 12 MiB, >= 10 MiB: a segment of 12 MiB.
    a = allocator(roundup=(2,) * 16)
    assert a.malloc(9 * MIB).size == 12 * MIB
    assert a.counters.reserved == 12 * MIB
    assert (a.counters.requested, a.counters.allocated) == (9 * MIB, 12 * MIB)


def test_only_the_first_candidate_is_tried():
    """Free: 60 and 130 MiB; limit 100 MiB. A request of 70 MiB meets 130 first and looks no further."""
    a = allocator(max_split=100 * MIB)
    for size in (60, 130):
        a.free(a.malloc(size * MIB))
    assert a.malloc(70 * MIB).size == 70 * MIB
    assert a.counters.reserved == (60 + 130 + 70) * MIB


def test_an_oversize_block_serves_up_to_the_rounding():
    # Free: 150 MiB. A request n >= 100 MiB takes it unless 150 >= n + 40, that is n <= 110.
    for asked, taken in ((111, True), (110, False)):
        a = allocator(max_split=100 * MIB, max_non_split_rounding=40 * MIB)
        first = a.malloc(150 * MIB)
        a.free(first)
        assert (a.malloc(asked * MIB).address == first.address) is taken


def test_oversize_blocks_go_from_the_largest_down_until_the_sum_is_enough():
    # Device 600: free 110, 120, 130 (whole), 150 in use, 90 left. Asked 200 >= limit 100: no single block of
    # 200, so 130 goes (130 < 200), then 120 (250 >= 200): stop. 110 stays. No retry is counted.
    a = allocator(capacity=600 * MIB, max_split=100 * MIB)
    blocks = [a.malloc(n * MIB) for n in (110, 120, 130, 150)]
    for b in blocks[:3]:
        a.free(b)
    a.malloc(200 * MIB)
    assert a.counters.reserved == (110 + 150 + 200) * MIB
    assert (a.counters.device_frees, a.counters.retries) == (2, 0)


def test_an_oversize_release_that_is_not_enough_is_followed_by_a_release_of_everything():
    # Device 300: free 110 and 50. Asked 260: 110 goes, 110 < 260, so everything cached goes, then 260 fit.
    a = allocator(capacity=300 * MIB, max_split=100 * MIB)
    blocks = [a.malloc(n * MIB) for n in (110, 50)]
    for b in blocks:
        a.free(b)
    a.malloc(260 * MIB)
    assert (a.counters.device_frees, a.counters.retries, a.counters.reserved) == (2, 1, 260 * MIB)


def test_what_is_cached_goes_large_before_small_and_by_stream_size_address():
    gone = []

    class Watch(Device):
        def release(self, address, size):
            gone.append(size // MIB)
            super().release(address, size)

    a = CachingAllocator(Settings(), Watch())
    blocks = [a.malloc(n, stream=s) for n, s in ((100, 0), (40 * MIB, 0), (30 * MIB, 0), (12 * MIB, 7), (100, 7))]
    for b in blocks:
        a.free(b)
    a.release_cached()
    assert gone == [30, 40, 12, 2, 2]


def test_a_split_segment_freed_by_waiting_does_not_help_the_request():
    """pytorch issue 189504: after the release the pool is not searched again."""
    # 40 MiB segment: 10 in use, 30 deferred; the device is full. Waiting frees 30, but the segment is split and
    # cannot be given back: failure. The same request again is served.
    a = allocator(capacity=40 * MIB)
    a.free(a.malloc(40 * MIB))
    a.malloc(10 * MIB)
    a.defer(a.malloc(30 * MIB))
    with pytest.raises(OutOfMemoryError):
        a.malloc(25 * MIB)
    assert (a.counters.retries, a.counters.ooms) == (1, 1)
    assert a.malloc(25 * MIB).size == 25 * MIB
    b = CachingAllocator(Settings(), Device(40 * MIB), search_after_release=True)
    b.free(b.malloc(40 * MIB))
    b.malloc(10 * MIB)
    b.defer(b.malloc(30 * MIB))
    assert b.malloc(25 * MIB).size == 25 * MIB


def test_past_the_fraction_a_request_can_be_refused_before_anything_is_released():
    a = allocator(limit=100 * MIB, throw_on_oom=True)
    a.free(a.malloc(60 * MIB))
    with pytest.raises(OutOfMemoryError):
        a.malloc(70 * MIB)
    assert (a.counters.oom_rejections, a.counters.ooms, a.counters.retries) == (1, 1, 0)
    assert a.counters.reserved == 60 * MIB  # nothing was given back
    b = allocator(capacity=100 * MIB, throw_on_oom=True)  # no fraction: no effect
    b.free(b.malloc(60 * MIB))
    assert b.malloc(70 * MIB).size == 70 * MIB


def test_a_capture_releases_nothing():
    a = allocator(capacity=100 * MIB)
    a.free(a.malloc(60 * MIB))
    a.capturing = True
    with pytest.raises(OutOfMemoryError):
        a.malloc(70 * MIB, pool=(0, 1))
    assert (a.counters.retries, a.counters.reserved) == (0, 60 * MIB)
    a.capturing = False
    assert a.malloc(70 * MIB, pool=(0, 1)).size == 70 * MIB


# ---- garbage collection


def test_garbage_collection_frees_what_is_at_least_of_average_age_and_does_not_stop_early():
    """Limit 1000, threshold 0.5: 500 MiB. Searches of the large pool: one a request."""
    a = allocator(limit=1000 * MIB, gc_threshold=0.5)
    blocks = [a.malloc(n * MIB) for n in (200, 150, 100, 100)]  # searches 1 to 4; reserved 550
    a.free(blocks[0])  # born 4
    a.free(a.malloc(20 * MIB, stream=1))  # search 5, 570 > 500, GC: only 200 is free, age 1 = average: it goes
    assert a.counters.device_frees == 1
    assert a.counters.reserved == 370 * MIB  # 150 + 100 + 100 + 20
    a.free(blocks[1])  # born 5
    a.free(a.malloc(160 * MIB, stream=2))  # search 6; 370 <= 500: none collected; reserved 530, born 6
    a.free(blocks[2])  # born 6
    # Search 7, 530 > 500, target 30. Ages: 20 MiB (born 5) 2, 150 (born 5) 2, 160 (born 6) 1, 100 (born 6) 1;
    # average 1.5: 20 and 150 go in one pass although 20 and 150 > 30.
    a.malloc(300 * MIB, stream=3)
    assert a.counters.device_frees == 3
    assert a.counters.reserved == (100 + 100 + 160 + 300) * MIB


def test_garbage_collection_leaves_small_and_private_pools():
    a = allocator(limit=100 * MIB, gc_threshold=0.1)
    a.free(a.malloc(100))
    a.free(a.malloc(20 * MIB, pool=(0, 1)))
    a.malloc(12 * MIB)
    assert a.counters.device_frees == 0


# ---- figures


def test_the_figures_have_the_names_of_memory_stats():
    # 100 bytes: small segment 2 MiB, 512 in use, the rest split. 15 MiB: 16 MiB segment, slack 1 MiB stays inside.
    a = allocator()
    a.malloc(100)
    a.free(a.malloc(15 * MIB))
    s = a.statistics()
    assert s["allocated_bytes.all.current"] == s["active_bytes.small_pool.current"] == 512
    assert s["requested_bytes.all.peak"] == 100 + 15 * MIB
    assert s["allocated_bytes.large_pool.peak"] == 16 * MIB
    assert s["reserved_bytes.all.current"] == 18 * MIB
    assert s["inactive_split_bytes.all.current"] == 2 * MIB - 512
    assert (s["segment.all.current"], s["segment.small_pool.current"]) == (2, 1)
    assert (s["num_device_alloc"], s["num_alloc_retries"]) == (2, 0)
