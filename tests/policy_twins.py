"""Twins of the placement policies that draw a map of units.

They keep one owner per unit of memory and look for free runs by walking over all of it: no lists, no
merging, no bitmaps.
"""

from __future__ import annotations

__all__ = ["TWINS"]


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
