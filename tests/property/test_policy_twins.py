"""Each placement policy against a twin that draws a map of units, and the laws of each policy.

The twins keep one owner per unit of memory and look for free runs by walking over all of it: no
lists, no merging, no bitmaps.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moexray.algorithms.policies import POLICIES

OPTIONS = {"segregated": {"slab": 32}, "scope": {"chunk": 32}}
SIZES = st.one_of(st.integers(1, 12), st.integers(1, 90), st.sampled_from([16, 32, 64]))
# ("a", size, alignment), ("f", which one of the live blocks), ("s", end of a scope)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("a"), SIZES, st.sampled_from([1, 1, 1, 4, 16])),
        st.tuples(st.just("f"), st.integers(0, 1 << 16), st.just(0)),
        st.tuples(st.just("s"), st.just(0), st.just(0)),
    ),
    min_size=1,
    max_size=120,
)
CAPACITIES = st.sampled_from([None, None, 100, 333, 512])


class Map:
    """owner[i] is the id of the block that holds unit i, None where it is free."""

    def __init__(self, capacity):
        self.capacity, self.owner, self.count = capacity, [], 0

    def runs(self):
        """(start, size) of each maximal free run."""
        out, at = [], 0
        while at < len(self.owner):
            stop = at
            while stop < len(self.owner) and self.owner[stop] is None:
                stop += 1
            if stop > at:
                out.append((at, stop - at))
            at = max(stop, at + 1)
        return out

    def fill(self, start, size):
        self.owner += [None] * (start + size - len(self.owner))
        assert all(o is None for o in self.owner[start : start + size])
        self.count += 1
        self.owner[start : start + size] = [self.count] * size

    def clear(self, start, size):
        self.owner[start : start + size] = [None] * size

    def grow(self, size, alignment):
        start = len(self.owner)
        while start and self.owner[start - 1] is None:
            start -= 1
        start = -(-start // alignment) * alignment
        return None if self.capacity is not None and start + size > self.capacity else start


class Fit:
    """All fits that split: `choose` picks among the runs that are large enough."""

    def __init__(self, capacity, choose):
        self.map, self.choose, self.rover = Map(capacity), choose, 0
        self.sizes = {}

    def allocate(self, size, alignment=1):
        fitting = []
        for start, length in self.map.runs():
            at = -(-start // alignment) * alignment
            if at + size <= start + length:
                fitting.append((start, length))
        start = self.choose(self, fitting, size, alignment)
        at = self.map.grow(size, alignment) if start is None else -(-start // alignment) * alignment
        if at is not None:
            self.map.fill(at, size)
            self.sizes[at] = size
            self.rover = at + size
        return at

    def free(self, offset):
        self.map.clear(offset, self.sizes.pop(offset))


def first(twin, fitting, size, alignment):
    return min((s for s, _ in fitting), default=None)


def following(twin, fitting, size, alignment):
    behind = [s for s, n in fitting if s + n > twin.rover]
    return min(behind or [s for s, _ in fitting], default=None)


def best(twin, fitting, size, alignment):
    return min(((n, s) for s, n in fitting), default=(0, None))[1]


def worst(twin, fitting, size, alignment):
    return min(((-n, s) for s, n in fitting), default=(0, None))[1]


class TlsfTwin(Fit):
    """Among the runs of the smallest sufficient class, the one that came up last."""

    L = 5

    def __init__(self, capacity):
        super().__init__(capacity, TlsfTwin.pick)
        self.born, self.clock = {}, 0

    @staticmethod
    def floor_class(size):
        if size < 32:
            return (0, size)
        power = 32
        while power * 2 <= size:
            power *= 2
        return (power, (size - power) * 32 // power)

    def pick(self, fitting, size, alignment):
        want = size + alignment - 1
        if want >= 32:
            power = 32
            while power * 2 <= want:
                power *= 2
            step = power // 32
            want = -(-want // step) * step
        rows = [(self.floor_class(n), -self.born[s, n], s) for s, n in self.map.runs() if self.floor_class(n) >= self.floor_class(want)]
        return min(rows, default=(0, 0, None))[2]

    def stamp(self):
        now = set(self.map.runs())
        self.born = {run: self.born[run] for run in self.born if run in now}
        for run in sorted(now - set(self.born)):
            self.clock += 1
            self.born[run] = self.clock

    def allocate(self, size, alignment=1):
        at = super().allocate(size, alignment)
        self.stamp()
        return at

    def free(self, offset):
        super().free(offset)
        self.stamp()


class NaiveTwin:
    """Blocks as (offset, size, used) in a list, never changed."""

    def __init__(self, capacity):
        self.capacity, self.blocks = capacity, []

    def allocate(self, size, alignment=1):
        for block in self.blocks:
            if not block[2] and block[1] >= size and block[0] % alignment == 0:
                block[2] = True
                return block[0]
        end = sum(b[1] for b in self.blocks)
        at = -(-end // alignment) * alignment
        if self.capacity is not None and at + size > self.capacity:
            return None
        if at > end:
            self.blocks.append([end, at - end, False])
        self.blocks.append([at, size, True])
        return at

    def free(self, offset):
        next(b for b in self.blocks if b[0] == offset)[2] = False


class BuddyTwin:
    """Free buddies are the largest aligned power-of-two ranges without a used unit."""

    def __init__(self, capacity):
        self.capacity = 1 << 14 if capacity is None else capacity
        self.map, self.sizes = Map(None), {}
        self.map.owner = [None] * self.capacity

    def blocks(self):
        out, at = [], 0
        while at < self.capacity:
            size = 1
            while at % (2 * size) == 0 and at + 2 * size <= self.capacity and self.clear(at, 2 * size):
                size *= 2
            if self.clear(at, size):
                out.append((size, at))
                at += size
            else:
                at += 1
        return out

    def clear(self, at, size):
        return all(o is None for o in self.map.owner[at : at + size])

    def allocate(self, size, alignment=1):
        need = 1
        while need < max(size, alignment):
            need *= 2
        _, at = min((b for b in self.blocks() if b[0] >= need), default=(0, None))
        if at is not None:
            self.map.fill(at, need)
            self.sizes[at] = need
        return at

    def free(self, offset):
        self.map.clear(offset, self.sizes.pop(offset))


class SegregatedTwin:
    """Slabs as lists of cells over a first-fit map."""

    def __init__(self, capacity):
        self.space, self.slabs = Fit(capacity, first), []

    @staticmethod
    def cell(size, alignment):
        for power in (1 << k for k in range(20)):
            for quarter in (4, 5, 6, 7):
                have = power * quarter / 4
                if have >= size and have == int(have) and have % alignment == 0:
                    return int(have)
        raise AssertionError

    def allocate(self, size, alignment=1):
        cell = self.cell(size, alignment)
        usable = [s for s in self.slabs if s[1] == cell and s[2] and s[0] % alignment == 0]
        if not usable:
            for cells in (max(32 // cell, 1), 1):
                base = self.space.allocate(cell * cells, alignment)
                if base is not None:
                    self.slabs.append([base, cell, [base + cell * i for i in range(cells)], cells])
                    usable = [self.slabs[-1]]
                    break
            else:
                return None
        return min(usable)[2].pop(0)

    def free(self, offset):
        slab = next(s for s in self.slabs if s[0] <= offset < s[0] + s[1] * s[3])
        slab[2].insert(0, offset)
        if len(slab[2]) == slab[3]:
            self.slabs.remove(slab)
            self.space.free(slab[0])


class ScopeTwin:
    """Chunks as lists of [offset, size, alive]; the pointer is behind the last block that is alive."""

    def __init__(self, capacity):
        self.space, self.chunks, self.outlived = Fit(capacity, first), [], set()
        self.current = None

    def bump(self, size, alignment):
        if self.current is None:
            return None
        base, room, blocks = self.current
        top = blocks[-1][0] + blocks[-1][1] if blocks else base
        at = -(-top // alignment) * alignment
        if at + size > base + room:
            return None
        blocks.append([at, size, True])
        return at

    def allocate(self, size, alignment=1):
        if size not in self.outlived:
            at = self.bump(size, alignment)
            if at is not None:
                return at
            if self.current and not self.current[2]:
                self.chunks.remove(self.current)
                self.space.free(self.current[0])
                self.current = None
            base = self.space.allocate(max(32, size), alignment)
            if base is not None:
                self.current = [base, max(32, size), []]
                self.chunks.append(self.current)
                return self.bump(size, alignment)
        return self.space.allocate(size, alignment)

    def free(self, offset):
        for chunk in self.chunks:
            for block in chunk[2]:
                if block[0] == offset and block[2]:
                    block[2] = False
                    while chunk[2] and not chunk[2][-1][2]:
                        chunk[2].pop()
                    if not chunk[2] and chunk is not self.current:
                        self.chunks.remove(chunk)
                        self.space.free(chunk[0])
                    return
        self.space.free(offset)

    def end_scope(self):
        self.outlived |= {b[1] for c in self.chunks for b in c[2] if b[2]}


TWINS = {
    "first-fit": lambda c: Fit(c, first),
    "next-fit": lambda c: Fit(c, following),
    "best-fit": lambda c: Fit(c, best),
    "worst-fit": lambda c: Fit(c, worst),
    "first-fit-naive": NaiveTwin,
    "buddy": BuddyTwin,
    "tlsf": TlsfTwin,
    "segregated": SegregatedTwin,
    "scope": ScopeTwin,
}


def drive(policy, steps, after=None, twin=None):
    live = []
    for kind, value, alignment in steps:
        if kind == "a":
            largest = policy.largest_free()
            size = largest if value % 7 == 0 and 0 < largest < 512 else value
            at = policy.allocate(size, alignment)
            if twin is not None:
                assert at == twin.allocate(size, alignment)
            if alignment == 1 and at is None:  # exactly the largest free block is served
                assert size != largest or policy.name in ("tlsf", "scope")
            if at is not None:
                assert at % alignment == 0
                live.append((at, size))
        elif kind == "f" and live:
            at, _ = live.pop(value % len(live))
            policy.free(at)
            if twin is not None:
                twin.free(at)
        elif kind == "s":
            for one in (policy, twin):
                if hasattr(one, "end_scope"):
                    one.end_scope()
        if after:
            after(policy, live)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=60, deadline=None)
@given(steps=STEPS, capacity=CAPACITIES)
def test_every_placement_is_the_twin_s(name, steps, capacity):
    if name == "buddy" and capacity is None:
        capacity = 1 << 14
    drive(POLICIES[name](capacity, 1, **OPTIONS.get(name, {})), steps, twin=TWINS[name](capacity))


def tiles(policy, live):
    """Blocks in use and free blocks do not overlap, stay below the high water and miss nothing."""
    rows = sorted([*policy.used.items(), *policy.free_blocks()])
    assert all(size > 0 for _, size in rows)
    assert all(a + n <= b for (a, n), (b, _) in pairwise(rows))
    assert sum(size for _, size in rows) == policy.high_water
    assert {at for at, _ in live} == set(policy.used)
    assert all(policy.used[at] >= size for at, size in live)
    assert policy.given == sum(policy.used.values())


def merged(policy, live):
    free = policy.free_blocks()
    assert all(a + n < b for (a, n), (b, _) in pairwise(free))


def buddies(policy, live):
    for at, size in policy.used.items():
        assert size & (size - 1) == 0
        assert at % size == 0
    for order, row in policy._free.items():
        assert row == sorted(row)
        assert not {at ^ (1 << order) for at in row} & set(row)  # two free buddies are one block
        assert all(at % (1 << order) == 0 for at in row)
        assert bool(row) == bool(policy._orders >> order & 1)
    assert all(policy.used[at] < 2 * size for at, size in live)  # alignment 1 only


def bitmaps(policy, live):
    for (level, at), blocks in policy._lists.items():
        assert bool(blocks) == bool(policy._second.get(level, 0) >> at & 1)
    for level in range(40):
        assert bool(policy._second.get(level, 0)) == bool(policy._first >> level & 1)
    listed = sorted(start for row in policy._lists.values() for start in row)
    assert listed == [start for start, _ in policy.free_blocks()]


def slabs(policy, live):
    for slab in policy._slabs.values():
        assert len(slab.free) < slab.cells  # an empty slab has been given back
    assert all(policy.used[at] * 4 <= size * 5 + 3 for at, size in live)  # 4 classes per power of two


LAWS = {
    "first-fit": (merged,), "next-fit": (merged,), "best-fit": (merged,), "worst-fit": (merged,),
    "first-fit-naive": (), "buddy": (buddies,), "tlsf": (merged, bitmaps), "segregated": (slabs,), "scope": (),
}  # fmt: skip


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=40, deadline=None)
@given(steps=STEPS, capacity=CAPACITIES)
def test_laws(name, steps, capacity):
    steps = [(kind, value, min(alignment, 1)) for kind, value, alignment in steps]

    def after(policy, live):
        for law in (tiles, *LAWS[name]):
            law(policy, live)

    drive(POLICIES[name](capacity, 1, **OPTIONS.get(name, {})), steps, after)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, log_classes=st.integers(1, 5))
def test_tlsf_passes_over_no_block_that_is_a_class_larger(steps, log_classes):
    policy = POLICIES["tlsf"](512, 1, log_classes=log_classes)
    live = []
    for kind, value, _ in steps:
        if kind == "a":
            sizes = [n for _, n in policy.free_blocks()]
            at = policy.allocate(value)
            if at is None:
                assert all(n < value * (1 + 2**-log_classes) for n in sizes)
            else:
                live.append(at)
        elif kind == "f" and live:
            policy.free(live.pop(value % len(live)))


@settings(max_examples=60, deadline=None)
@given(scopes=st.lists(st.lists(SIZES, min_size=1, max_size=8), min_size=1, max_size=12))
def test_nested_scopes_never_fall_back_and_leave_nothing(scopes):
    policy = POLICIES["scope"](None, 1, chunk=1024)
    for sizes in scopes:
        blocks = [policy.allocate(n) for n in sizes]
        assert blocks == [sum(sizes[:i]) for i in range(len(sizes))]
        for at in blocks:  # any order: the scope is over when all are dead
            policy.free(at)
        policy.end_scope()
    assert policy.fallbacks == 0
    assert policy.high_water == 1024
