"""Laws of packing, and both packings against each other and against a naive walk over time."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from moexray.algorithms import intervals as plain
from moexray.kernels import intervals as kernel

LIFE = st.tuples(st.integers(0, 40), st.integers(1, 15), st.integers(1, 9), st.integers(0, 2))
LIVES = st.lists(LIFE, min_size=1, max_size=40)


def columns(rows):
    start, length, size, group = np.array(rows, np.int64).T.copy()
    return start, start + length, size, group


def overlaps(start, end, size, offset):
    """Pairs that share a moment and a byte."""
    n = range(len(start))
    return [
        (i, j) for i in n for j in n
        if i < j and start[i] < end[j] and start[j] < end[i]
        and offset[i] < offset[j] + size[j] and offset[j] < offset[i] + size[i]
    ]  # fmt: skip


def naive_pack(start, end, size, order):
    """Every place from 0 on is tried."""
    offset = {}
    for i in order.tolist():
        near = [j for j in offset if start[j] < end[i] and start[i] < end[j]]
        at = 0
        while any(at < offset[j] + size[j] and offset[j] < at + size[i] for j in near):
            at += 1
        offset[i] = at
    return np.array([offset[i] for i in range(len(start))])


def naive_peak(start, end, size):
    return max(int(size[(start <= t) & (t < end)].sum()) for t in range(int(end.max())))


@settings(max_examples=150, deadline=None)
@given(LIVES, st.randoms(use_true_random=False))
def test_packings_agree_with_the_naive_one_and_keep_apart_what_meets(rows, random):
    start, end, size, _ = columns(rows)
    order = list(range(len(start)))
    random.shuffle(order)
    order = np.array(order, np.int64)
    offset = plain.pack(start, end, size, order)
    assert offset.tolist() == naive_pack(start, end, size, order).tolist()
    assert offset.tolist() == kernel.pack(start, end, size, order).tolist()
    assert overlaps(start, end, size, offset) == []
    in_time = plain.pack_in_time(start, end, size)
    assert in_time.tolist() == kernel.pack_in_time(start, end, size).tolist()
    bound = plain.peak(start, end, size)[0]
    assert bound == naive_peak(start, end, size)
    assert min((offset + size).max(), (in_time + size).max()) >= bound


def test_the_compiled_packing_sorts_where_looking_takes_too_long():
    # a ladder: each step is only free of the one below it, seen from the top down
    count = 200
    start, end = np.zeros(count, np.int64), np.full(count, 5, np.int64)
    size = np.ones(count, np.int64)
    order = np.arange(count)[::-1].copy()
    again = np.append(order, count)
    offset = kernel.pack(np.append(start, 1), np.append(end, 2), np.append(size, 1), again)
    assert offset.tolist() == [*range(count - 1, -1, -1), count]


@settings(max_examples=60, deadline=None)
@given(LIVES, st.randoms(use_true_random=False), st.integers(2, 7))
def test_permutation_and_scale(rows, random, factor):
    start, end, size, group = columns(rows)
    mixed = list(range(len(start)))
    random.shuffle(mixed)
    order = np.lexsort((size, end, start, -size))
    offset = plain.pack(start, end, size, order)
    # Equal lives may trade places; what the whole takes does not change.
    there = plain.pack(start[mixed], end[mixed], size[mixed], np.lexsort((size[mixed], end[mixed], start[mixed], -size[mixed])))
    assert (there + size[mixed]).max() == (offset + size).max()
    assert plain.peak(start[mixed], end[mixed], size[mixed])[0] == plain.peak(start, end, size)[0]
    assert plain.pack(factor * start, factor * end, factor * size, order).tolist() == (factor * offset).tolist()
    assert plain.peak(factor * start, factor * end, factor * size)[0] == factor * plain.peak(start, end, size)[0]
    assert plain.meetings(start, end) == plain.meetings(factor * start[mixed], factor * end[mixed])
    most = plain.peak_by_group(group, start, end, size, 3)
    assert most.max() <= plain.peak(start, end, size)[0] <= most.sum()


@settings(max_examples=100, deadline=None)
@given(LIVES)
def test_meetings_groups_and_bytes_touched_against_counting(rows):
    start, end, size, group = columns(rows)
    n = range(len(start))
    assert plain.meetings(start, end) == sum(start[i] < end[j] and start[j] < end[i] for i in n for j in n if i < j)
    for g in range(3):
        mine = group == g
        wanted = naive_peak(start[mine], end[mine], size[mine]) if mine.any() else 0
        assert plain.peak_by_group(group, start, end, size, 3)[g] == wanted
    address = (start * 7 + size) % 23
    bytes_seen = {b for a, s in zip(address.tolist(), size.tolist(), strict=True) for b in range(a, a + s)}
    assert plain.touched(start, address, size) == len(bytes_seen)


@settings(max_examples=100, deadline=None)
@given(LIVES, st.sampled_from([0, 1, 2, 4, 8]))
def test_classes_pad_within_their_bound_and_buffers_hold_what_lives(rows, per_doubling):
    start, end, size, group = columns(rows)
    size *= 700
    padded = plain.size_class(size, per_doubling)
    assert (padded >= size).all()
    assert (padded % plain.ALIGN == 0).all()
    if per_doubling:
        assert (padded < size * (1 + 1 / per_doubling) + plain.ALIGN).all()
    rows, _ = plain.shared_buffers(start, end, padded, group)
    assert (rows[1] * rows[2]).sum() >= plain.peak(start, end, size)[0]
