"""Lives worked by hand: peaks, packing, classes, shared buffers, addresses."""

import numpy as np
import pytest

from moexray.algorithms.intervals import (
    aligned,
    meetings,
    next_at,
    oldest_first,
    pack,
    pack_in_time,
    peak,
    peak_by_group,
    shared_buffers,
    size_class,
    touched,
)


def ints(*values):
    return np.array(values, np.int64)


# time      0 1 2 3 4 5 6
# A (4)     #########        [0, 4)
# B (2)       #####          [1, 3)
# C (3)           #######    [3, 6): begins when B ends
# D (1)               ###    [5, 7)
START, END, SIZE = ints(0, 1, 3, 5), ints(4, 3, 6, 7), ints(4, 2, 3, 1)


def test_the_peak_is_at_the_moment_of_most_live_bytes():
    assert peak(START, END, SIZE) == (7, 3)  # A and C; B has ended by then


def test_no_lives_have_no_peak():
    none = ints()
    assert peak(none, none, none) == (0, 0)
    assert peak_by_group(none, none, none, none, 2).tolist() == [0, 0]
    assert touched(none, none, none) == 0
    assert meetings(none, none) == 0


def test_peaks_of_groups():
    assert peak_by_group(ints(0, 1, 1, 0), START, END, SIZE, 3).tolist() == [4, 3, 0]


def test_meetings_count_pairs_that_share_a_moment():
    assert meetings(START, END) == 3  # AB, AC, CD
    assert meetings(ints(0, 0, 0), ints(1, 1, 1)) == 3
    assert meetings(ints(0, 1, 2), ints(1, 2, 3)) == 0


def test_largest_first_by_hand():
    # A at 0; C meets A: at 4; B meets A only (C begins as it ends): at 4; D meets C [4, 7): at 0
    order = ints(0, 2, 1, 3)
    assert pack(START, END, SIZE, order).tolist() == [0, 4, 4, 0]


def test_a_gap_is_used_and_a_gap_too_small_is_not():
    start, end = ints(0, 0, 0, 1, 1), ints(9, 1, 9, 9, 9)
    size = ints(1, 3, 1, 4, 3)
    # the second life leaves a gap of 3 between the first and the third: too small for 4, right for 3
    assert pack(start, end, size, np.arange(5)).tolist() == [0, 1, 4, 5, 1]


def test_packing_in_time_is_first_fit_by_start():
    assert pack_in_time(START, END, SIZE).tolist() == [0, 4, 4, 0]


@pytest.mark.parametrize(
    ("per_doubling", "sizes", "classes"),
    [
        (0, (1, 512, 513, 3000), (512, 512, 1024, 3072)),
        (1, (1, 512, 513, 3000, 4096, 4097), (512, 512, 1024, 4096, 4096, 8192)),
        (4, (8192, 8193, 10_241, 12_289, 16_384), (8192, 10_240, 12_288, 14_336, 16_384)),
        (8, (1025, 2047), (1536, 2048)),  # never finer than 512
    ],
)
def test_size_classes(per_doubling, sizes, classes):
    assert size_class(ints(*sizes), per_doubling).tolist() == list(classes)


def test_aligned():
    assert aligned(ints(0, 1, 512, 513)).tolist() == [0, 512, 512, 1024]


def test_shared_buffers_count_what_lives_at_once():
    # key 0: two of 8 at once, then one more in their place; key 1: its own
    start, end = ints(0, 1, 3, 0), ints(3, 2, 4, 9)
    rows, group = shared_buffers(start, end, ints(8, 8, 8, 8), ints(0, 0, 0, 1))
    assert rows.tolist() == [[0, 1], [8, 8], [2, 1]]
    assert group.tolist() == [0, 0, 0, 1]


def test_each_byte_of_address_space_counts_once():
    start = ints(0, 1, 2, 3)
    address, size = ints(100, 104, 104, 200), ints(4, 4, 8, 1)
    assert touched(start, address, size) == 4 + 8 + 1
    assert touched(start, ints(0, 0, 0, 0), ints(9, 3, 9, 1)) == 9


def test_memory_that_was_given_back_is_counted_while_it_was_there():
    never = 1 << 61
    # the first two lie in a segment that is freed at 5; the third in a new one at another address
    start, address, size = ints(0, 2, 6), ints(0, 4, 100), ints(4, 4, 5)
    assert touched(start, address, size, ints(5, 5, never)) == 8
    assert touched(start, address, size, ints(never, never, never)) == 13
    assert touched(ints(0, 2, 4), address, size, ints(5, 5, never)) == 13  # both were there at 4


def test_addresses_far_apart_and_many_groups():
    address = ints(0, 1 << 61, 0, 1 << 61)
    assert touched(ints(0, 0, 1, 1), address, ints(4, 4, 8, 8), ints(9, 9, 8, 8)) == 24


def test_the_next_event_of_the_same_key():
    key, is_start = ints(7, 7, 8, 7, 7), np.array([True, False, True, True, True])
    assert next_at(key, is_start).tolist() == [1, -1, -1, 4, -1]


def test_a_stop_ends_the_oldest_open_start():
    key = ints(1, 1, 2, 1, 1, 1, 2)
    is_start = np.array([True, True, True, False, False, False, False])
    assert oldest_first(key, is_start).tolist() == [3, 4, 6, -1, -1, -1, -1]
