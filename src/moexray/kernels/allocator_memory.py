"""The matter of the compiled allocator: blocks and an ordered index of them, all in one int64 array.

Plain twin: algorithms/blocks.py. The array `m` is an arena: first named cells, then rows that are
handed out from `m[TOP]` on. A *block* is a row of BLOCK cells, a *bucket* a row of BUCKET cells; both
are named by the offset of their row, so that `m[block + SIZE]` is a block's size. The functions take a
bare pointer to it: numba counts the references to each array that a function takes, which cost half
of the time.

The *index* holds blocks ordered by (key, address), `key = list << KEY_BITS | size`, in buckets of
WIDTH entries, padded with LAST. The *table* lists the buckets in order, each with a separator: a pair
not above its first entry and above all entries before it. To seek is to halve the table and to count
within one bucket, so that the cost hardly grows with the number of blocks. Free blocks stand in the list of
their pool and stream; what else needs an order (see kernels/allocator_blocks.py) in lists of its own, with
size 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

__all__ = [
    "ADDRESS", "ADDRESSES", "BASE", "BORN", "CELLS", "ENTRIES", "HANDLES", "HOME", "KEYS", "KEY_BITS", "LIST",
    "MAPPED", "NEXT", "NONE", "PAGE", "PREV", "SIZE", "STATE", "TOP", "USED", "add", "before", "first_at",
    "following", "listed", "moved", "new_row", "open_index", "pointer", "recycle", "remove", "room_needed",
]  # fmt: skip

NONE = -1
KEY_BITS = 43  # a block is smaller than 8 TiB
LAST = np.iinfo(np.int64).max
LEAST = np.iinfo(np.int64).min  # a simulation's own addresses may pass zero

# Cells of a block. HOME is its bucket while it stands in the index, else NONE; BASE the address of its
# segment and PAGE its page, 0 if it is not expandable; BORN the count of searches when it became free.
ADDRESS, SIZE, PREV, NEXT, LIST, STATE, BORN, HOME, BASE, PAGE = range(10)
BLOCK = 10
USED, MAPPED = 1, 2  # bits of STATE

# Cells of a bucket.
COUNT, BEFORE, AFTER, KEYS = range(4)
WIDTH = 32
ADDRESSES, HANDLES, BUCKET = KEYS + WIDTH, KEYS + 2 * WIDTH, KEYS + 3 * WIDTH

# Named cells at the start of the arena.
TOP, FREE_BLOCKS, FREE_BUCKETS, TABLE, TABLE_COUNT, TABLE_CAPACITY, ENTRIES = range(7)
CELLS = 7


def _pointer(_: Any, array: Any) -> Any:
    """The first cell of an int64 array, indexed like it; it costs no counting, and keeps nothing alive."""
    kind: Any = types.CPointer(types.int64)  # type: ignore[no-untyped-call]

    def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return target.make_array(signature.args[0])(target, builder, arguments[0]).data

    return kind(array), build


pointer: Any = intrinsic(_pointer)


@njit
def room_needed(m: Any) -> Any:
    """Cells that one more event may hand out at most.

    An event adds a few blocks; one that gives back all that is free adds two a block at most.
    """
    return 4096 + 64 * m[ENTRIES] + 8 * m[TABLE_CAPACITY]


@njit
def moved(m: Any, used: Any, more: Any) -> Any:
    """A copy of the arena of twice the size and `more` cells."""
    out = np.empty(2 * m.size + more, dtype=np.int64)
    out[:used] = m[:used]
    return out


@njit
def open_index(m: Any) -> Any:
    """An empty index behind the cells that are in use."""
    top = m[TOP]
    m[FREE_BLOCKS] = m[FREE_BUCKETS] = NONE
    m[TABLE_CAPACITY], m[TABLE_COUNT], m[ENTRIES] = 16, 1, 0
    m[TABLE] = top
    m[TOP] = top + 3 * 16
    bucket = _new_bucket(m)
    m[top] = bucket
    m[top + 16] = m[top + 32] = LEAST


@njit
def new_row(m: Any) -> Any:
    """An unused row for a block."""
    row = m[FREE_BLOCKS]
    if row != NONE:
        m[FREE_BLOCKS] = m[row]
        return row
    row = m[TOP]
    m[TOP] = row + BLOCK
    return row


@njit
def recycle(m: Any, block: Any) -> Any:
    """Gives a block's row back."""
    m[block] = m[FREE_BLOCKS]
    m[FREE_BLOCKS] = block


@njit
def _new_bucket(m: Any) -> Any:
    row = m[FREE_BUCKETS]
    if row != NONE:
        m[FREE_BUCKETS] = m[row]
    else:
        row = m[TOP]
        m[TOP] = row + BUCKET
    m[row + COUNT] = 0
    m[row + BEFORE] = m[row + AFTER] = NONE
    for i in range(WIDTH):
        m[row + KEYS + i] = LAST
    return row


@njit
def _seek(m: Any, key: Any, address: Any) -> Any:
    """Place in the table of the last bucket whose separator is not above (key, address)."""
    keys = m[TABLE] + m[TABLE_CAPACITY]
    addresses = keys + m[TABLE_CAPACITY]
    low, count = 0, m[TABLE_COUNT]
    while count > 1:
        half = count >> 1
        at = keys + low + half
        if m[at] < key or (m[at] == key and m[addresses + low + half] <= address):
            low += half
        count -= half
    return low


@njit
def first_at(m: Any, key: Any) -> Any:
    """(bucket, place) of the first entry not below `key`; the bucket is NONE behind the last."""
    bucket = m[m[TABLE] + _seek(m, key, LEAST)]
    place = 0
    for i in range(WIDTH):
        place += m[bucket + KEYS + i] < key
    if place == m[bucket + COUNT]:
        return m[bucket + AFTER], 0
    return bucket, place


@njit
def following(m: Any, bucket: Any, place: Any) -> Any:
    """(bucket, place) of the next entry; the bucket is NONE behind the last."""
    if place + 1 < m[bucket + COUNT]:
        return bucket, place + 1
    return m[bucket + AFTER], 0


@njit
def before(m: Any, key: Any, address: Any) -> Any:
    """The last block below (key, address) that has this key, or NONE."""
    bucket = m[m[TABLE] + _seek(m, key, address)]
    place = _count_below(m, bucket, key, address)
    if place == 0:
        bucket = m[bucket + BEFORE]
        if bucket == NONE:
            return NONE
        place = m[bucket + COUNT]
    return m[bucket + HANDLES + place - 1] if m[bucket + KEYS + place - 1] == key else NONE


@njit
def listed(m: Any, first: Any, behind: Any) -> Any:
    """The blocks of the lists from `first` to before `behind`, in order."""
    out = np.empty(m[ENTRIES], dtype=np.int64)
    count = 0
    bucket, place = first_at(m, first << KEY_BITS)
    while bucket != NONE and m[bucket + KEYS + place] >> KEY_BITS < behind:
        out[count] = m[bucket + HANDLES + place]
        count += 1
        bucket, place = following(m, bucket, place)
    return out[:count]


@njit
def _count_below(m: Any, bucket: Any, key: Any, address: Any) -> Any:
    """Entries of a bucket below (key, address)."""
    place = 0
    for i in range(WIDTH):
        other = m[bucket + KEYS + i]
        place += (other < key) | ((other == key) & (m[bucket + ADDRESSES + i] < address))
    return place


@njit
def add(m: Any, block: Any, key: Any) -> Any:
    """Puts a block into the index under (key, its address)."""
    address = m[block + ADDRESS]
    at = _seek(m, key, address)
    bucket = m[m[TABLE] + at]
    if m[bucket + COUNT] == WIDTH:
        bucket = _split(m, at, key, address)
    place = _count_below(m, bucket, key, address)
    for i in range(bucket + m[bucket + COUNT], bucket + place, -1):
        m[KEYS + i] = m[KEYS + i - 1]
        m[ADDRESSES + i] = m[ADDRESSES + i - 1]
        m[HANDLES + i] = m[HANDLES + i - 1]
    m[bucket + KEYS + place] = key
    m[bucket + ADDRESSES + place] = address
    m[bucket + HANDLES + place] = block
    m[bucket + COUNT] += 1
    m[block + HOME] = bucket
    m[ENTRIES] += 1


@njit
def remove(m: Any, block: Any) -> Any:
    """Takes a block out of the index."""
    bucket = m[block + HOME]
    m[block + HOME] = NONE
    place = 0
    while m[bucket + HANDLES + place] != block:
        place += 1
    key, address = m[bucket + KEYS + place], m[bucket + ADDRESSES + place]
    last = m[bucket + COUNT] - 1
    for i in range(bucket + place, bucket + last):
        m[KEYS + i] = m[KEYS + i + 1]
        m[ADDRESSES + i] = m[ADDRESSES + i + 1]
        m[HANDLES + i] = m[HANDLES + i + 1]
    m[bucket + KEYS + last] = LAST
    m[bucket + COUNT] = last
    m[ENTRIES] -= 1
    if last == 0 and m[TABLE_COUNT] > 1:
        _close(m, _seek(m, key, address))


@njit
def _close(m: Any, at: Any) -> Any:
    """Removes an empty bucket; the first one of the table takes the lowest separator."""
    table, capacity = m[TABLE], m[TABLE_CAPACITY]
    bucket = m[table + at]
    left, after = m[bucket + BEFORE], m[bucket + AFTER]
    if left != NONE:
        m[left + AFTER] = after
    if after != NONE:
        m[after + BEFORE] = left
    m[TABLE_COUNT] -= 1
    for part in range(3):
        for i in range(table + part * capacity + at, table + part * capacity + m[TABLE_COUNT]):
            m[i] = m[i + 1]
    m[table + capacity] = m[table + 2 * capacity] = LEAST
    m[bucket] = m[FREE_BUCKETS]
    m[FREE_BUCKETS] = bucket


@njit
def _split(m: Any, at: Any, key: Any, address: Any) -> Any:
    """Moves the upper half of a full bucket into a new one; the half to which (key, address) belongs."""
    if m[TABLE_COUNT] == m[TABLE_CAPACITY]:
        _widen(m)
    table, capacity = m[TABLE], m[TABLE_CAPACITY]
    bucket = m[table + at]
    right = _new_bucket(m)
    half = WIDTH // 2
    for i in range(half):
        m[right + KEYS + i] = m[bucket + KEYS + half + i]
        m[right + ADDRESSES + i] = m[bucket + ADDRESSES + half + i]
        m[right + HANDLES + i] = m[bucket + HANDLES + half + i]
        m[m[right + HANDLES + i] + HOME] = right
        m[bucket + KEYS + half + i] = LAST
    m[bucket + COUNT] = m[right + COUNT] = half
    after = m[bucket + AFTER]
    m[right + BEFORE], m[right + AFTER] = bucket, after
    m[bucket + AFTER] = right
    if after != NONE:
        m[after + BEFORE] = right
    for part in range(3):
        for i in range(table + part * capacity + m[TABLE_COUNT], table + part * capacity + at + 1, -1):
            m[i] = m[i - 1]
    low, at_low = m[right + KEYS], m[right + ADDRESSES]
    m[table + at + 1] = right
    m[table + capacity + at + 1] = low
    m[table + 2 * capacity + at + 1] = at_low
    m[TABLE_COUNT] += 1
    return right if low < key or (low == key and at_low <= address) else bucket


@njit
def _widen(m: Any) -> Any:
    """Moves the table to the end of the arena, with twice the room."""
    table, capacity = m[TABLE], m[TABLE_CAPACITY]
    new = m[TOP]
    m[TOP] = new + 6 * capacity
    for part in range(3):
        for i in range(m[TABLE_COUNT]):
            m[new + 2 * part * capacity + i] = m[table + part * capacity + i]
    m[TABLE], m[TABLE_CAPACITY] = new, 2 * capacity
