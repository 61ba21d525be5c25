"""The allocator against a naive twin, and replay against recordings that the allocator makes itself."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from moexray.algorithms.allocator import CachingAllocator, OutOfMemoryError
from moexray.algorithms.blocks import Settings, is_small, round_size, segment_size
from moexray.algorithms.replay import Action, Device, Event, History, SegmentState, replay
from moexray.algorithms.simulate import prepare, simulate

MIB = 1 << 20
SIZES = (100, 4000, 300_000, 900_000, 2 * MIB, 5 * MIB, 9 * MIB, 14 * MIB, 33 * MIB, 70 * MIB, 150 * MIB)
SETTINGS = (
    Settings(),
    Settings(max_split=40 * MIB),
    Settings(max_split=100 * MIB, roundup=(4,) * 16),
    Settings(roundup=(2,) * 16, large_segment=32 * MIB),
)


class Naive:
    """The same rules as lists and linear searches, written to be obvious, not fast."""

    def __init__(self, settings, device):
        self.settings, self.device = settings, device
        self.segments = []  # [address, small, stream, blocks]; a block is [address, size, used]

    def whole(self, small, stream=None):
        rows = [g for g in self.segments if g[1] == small and len(g[3]) == 1 and not g[3][0][2]]
        rows = [g for g in rows if stream in (None, g[2])]
        return sorted(rows, key=lambda g: (g[2], g[3][0][1], g[0]))

    def drop(self, segment):
        self.segments.remove(segment)
        self.device.release(segment[0], segment[3][0][1])

    def find(self, size, small, stream):
        fits = [
            (b[1], b[0], g, i)
            for g in self.segments
            if g[1] == small and g[2] == stream
            for i, b in enumerate(g[3])
            if not b[2] and b[1] >= size
        ]
        if not fits:
            return None
        found, _, segment, i = min(fits, key=lambda x: x[:2])
        split = self.settings.max_split
        if split is not None and size < split <= found:
            return None
        if split is not None and size >= split and found >= size + self.settings.max_non_split_rounding:
            return None
        return segment, i

    def new(self, size, small, stream):
        wanted = segment_size(size, self.settings)
        address = self.device.allocate(wanted)
        if address is None:
            return None
        self.segments.append([address, small, stream, [[address, wanted, False]]])
        return self.segments[-1], 0

    def release_oversize(self, size, small, stream):
        split = self.settings.max_split
        if split is None:
            return False
        want, total = max(size, split), 0
        rows = self.whole(small, stream)
        for segment in rows:
            if segment[3][0][1] >= want:
                self.drop(segment)
                return True
        for segment in reversed(rows):
            if total >= want or segment[3][0][1] < split:
                break
            total += segment[3][0][1]
            self.drop(segment)
        return total >= want

    def malloc(self, request, stream):
        size = round_size(request, self.settings)
        small = is_small(size)
        place = self.find(size, small, stream) or self.new(size, small, stream)
        if place is None and self.release_oversize(size, small, stream):
            place = self.new(size, small, stream)
        if place is None:
            for kind in (False, True):
                for segment in self.whole(kind):
                    self.drop(segment)
            place = self.new(size, small, stream)
        if place is None:
            return None
        segment, i = place
        block = segment[3][i]
        rest = block[1] - size
        split = self.settings.max_split
        if rest >= 512 if small else rest > MIB and (split is None or size < split):
            segment[3].insert(i + 1, [block[0] + size, rest, False])
            block[1] = size
        block[2] = True
        return block[0]

    def free(self, address):
        for segment in self.segments:
            for block in segment[3]:
                if block[0] == address and block[2]:
                    block[2] = False
            merged = []
            for block in segment[3]:
                if merged and not merged[-1][2] and not block[2]:
                    merged[-1][1] += block[1]
                else:
                    merged.append(block)
            segment[3] = merged


def program(dice, length, streams):
    """A random order of requests and frees: ("malloc", id, size, stream) or ("free", id)."""
    live, out = [], []
    for i in range(length):
        if live and dice.random() < 0.48:
            out.append(("free", live.pop(dice.randrange(len(live)))))
        else:
            size = int(dice.choice(SIZES) * dice.uniform(0.6, 1.4))
            out.append(("malloc", i, max(size, 1), dice.choice(streams)))
            live.append(i)
    return out


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("capacity", [None, 900 * MIB, 400 * MIB])
def test_the_allocator_equals_its_naive_twin(settings, capacity):
    for seed in range(6):
        fast = CachingAllocator(settings, Device(capacity))
        slow = Naive(settings, Device(capacity))
        blocks = {}
        for what, i, *more in program(random.Random(seed), 300, (0, 0, 0, 7)):
            if what == "free":
                if i in blocks:
                    slow.free(blocks[i].address)
                    fast.free(blocks.pop(i))
                continue
            try:
                blocks[i] = fast.malloc(*more)
            except OutOfMemoryError:
                assert slow.malloc(*more) is None
                continue
            assert slow.malloc(*more) == blocks[i].address
        have = sorted((b[0], b[1], b[2]) for g in slow.segments for b in g[3])
        used = [(b.address, b.size, True) for b in blocks.values()]
        assert have == sorted(used + [(b.address, b.size, False) for b in fast.all_free()])


def record(settings, dice, length, capacity):
    """Runs a random program and records it as PyTorch would: events, and segments at the end."""
    events = []

    class Recorder(Device):
        def allocate(self, size):
            address = super().allocate(size)
            if address is not None:
                events.append(Event(Action.SEGMENT_ALLOC, address, size, self.stream))
            return address

        def release(self, address, size):
            super().release(address, size)
            events.append(Event(Action.SEGMENT_FREE, address, size, 0))

    device = Recorder(capacity)
    allocator = CachingAllocator(settings, device)
    blocks, sizes = {}, {}
    for what, i, *more in program(dice, length, (0,)):
        if what == "free":
            if i in blocks:
                block = blocks.pop(i)
                events.append(Event(Action.FREE_REQUESTED, block.address, sizes[i]))
                events.append(Event(Action.FREE_COMPLETED, block.address, sizes[i]))
                allocator.free(block)
            continue
        device.stream = more[1]
        try:
            blocks[i] = allocator.malloc(*more)
        except OutOfMemoryError:
            continue
        sizes[i] = more[0]
        events.append(Event(Action.ALLOC, blocks[i].address, more[0], more[1]))
        if dice.random() < 0.01:
            allocator.release_cached()
    requested = {b.address: sizes[i] for i, b in blocks.items()}
    parts = {}
    for b in [*blocks.values(), *allocator.all_free()]:
        row = (b.address, b.size, requested.get(b.address, b.size), b.used)
        parts.setdefault(b.segment.address, []).append(row)
    segments = tuple(
        SegmentState(s.address, s.size, s.stream, s.small, s.pool, tuple(sorted(parts[a])))
        for a, s in allocator.segments.items()
    )
    return History(tuple(events), segments, settings), allocator


@pytest.mark.parametrize("settings", [Settings(), Settings(roundup=(4,) * 16), Settings(max_split=64 * MIB)])
@pytest.mark.parametrize("capacity", [None, 700 * MIB])
def test_what_was_recorded_replays_exactly(settings, capacity):
    for seed in range(4):
        history, allocator = record(settings, random.Random(seed), 500, capacity)
        check = replay(history)
        assert check.exact, check
        plan = prepare(history)
        if plan.capacity[1] is None:  # else an empty_cache() at the peak looks like a failed allocation
            outcome = simulate(plan, settings)
            assert outcome.reserved == plan.recorded_reserved
            assert outcome.end_reserved == allocator.counters.reserved
            assert outcome.stuck == allocator.stuck()


@pytest.mark.parametrize("cut", [0.25, 0.5, 0.9])
def test_a_history_without_its_front_replays_all_that_can_be_known(cut):
    for seed in range(4):
        history, _ = record(Settings(), random.Random(seed), 600, None)
        short = replace(history, events=history.events[int(cut * len(history.events)) :])
        check = replay(short)
        hits, total = check.placements
        assert total - hits <= check.ambiguous_blocks
        assert check.final_blocks[1] - check.final_blocks[0] <= 2 * check.ambiguous_blocks
