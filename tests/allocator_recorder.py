"""Random programs for the caching allocator, and what PyTorch would have recorded of them."""

from moexray.algorithms.allocator import CachingAllocator, OutOfMemoryError
from moexray.algorithms.blocks import PoolRules, round_size
from moexray.algorithms.device import Device
from moexray.algorithms.history import Action, Event, History, SegmentState

MIB = 1 << 20
SIZES = (100, 4000, 300_000, 900_000, 2 * MIB, 5 * MIB, 9 * MIB, 14 * MIB, 33 * MIB, 70 * MIB, 150 * MIB)
DEFAULT, PRIVATE = (0, 0), (0, 1)


def program(dice, length, *, streams=(0,), pools=(DEFAULT,), late=0.0, empty=0.01):
    """A random order of steps: ("malloc", id, size, stream, pool), ("free" or "late", id), ("done", id), ("empty",)."""
    live, waiting, out = [], [], []
    for i in range(length):
        if dice.random() < empty:
            out.append(("empty",))
        if waiting and dice.random() < 0.3:
            out.append(("done", waiting.pop(0)))
        if live and dice.random() < 0.48:
            block = live.pop(dice.randrange(len(live)))
            if dice.random() < late:
                waiting.append(block)
                out.append(("late", block))
            else:
                out.append(("free", block))
        else:
            size = max(int(dice.choice(SIZES) * dice.uniform(0.6, 1.4)), 1)
            out.append(("malloc", i, size, dice.choice(streams), dice.choice(pools)))
            live.append(i)
    return out


class _Log(Device):
    """A device that writes down what it is asked for."""

    def __init__(self, events, *args, **more):
        super().__init__(*args, **more)
        self.events, self.owners, self.who = events, [], (0, DEFAULT)

    def note(self, action, address, size):
        stream, pool = next((o for a, b, o in reversed(self.owners) if a <= address < b), self.who)
        self.events.append(Event(action, address, size, stream, pool))

    def allocate(self, size):
        address = super().allocate(size)
        if address is not None:
            self.owners.append((address, address + size, self.who))
            self.note(Action.SEGMENT_ALLOC, address, size)
        return address

    def release(self, address, size):
        super().release(address, size)
        self.note(Action.SEGMENT_FREE, address, size)

    def reserve(self, size):
        address = super().reserve(size)
        self.owners.append((address, address + size, self.who))
        return address

    def map(self, address, size):
        fits = super().map(address, size)
        if fits:
            self.note(Action.SEGMENT_MAP, address, size)
        return fits

    def unmap(self, address, size):
        super().unmap(address, size)
        self.note(Action.SEGMENT_UNMAP, address, size)


class _Recorded(CachingAllocator):
    events = None

    def complete(self, ticket):
        block = self.pending.get(ticket)
        if block is not None:
            self.events.append(_freed(Action.FREE_COMPLETED, block))
        super().complete(ticket)


def _freed(action, block):
    return Event(action, block.address, block.requested, block.stream, block.segment.pool)


def record(settings, steps, *, capacity=None, va_bytes=2048 * MIB, freeable=(), order="ascending"):
    """Runs a program; (its history, the allocator at the end)."""
    events = []
    device = _Log(events, capacity, order=order)
    allocator = _Recorded(settings, device, va_bytes=va_bytes)
    allocator.events = events
    allocator.rules = {pool: PoolRules(freeable=True) for pool in freeable}
    blocks, tickets = {}, {}
    for what, *rest in steps:
        if what == "malloc":
            i, size, stream, pool = rest
            device.who = (stream, pool)
            try:
                blocks[i] = allocator.malloc(size, stream, pool)
            except OutOfMemoryError:
                events.append(Event(Action.OOM, 0, round_size(size, settings), stream, pool))
                continue
            events.append(Event(Action.ALLOC, blocks[i].address, size, stream, pool))
        elif what == "empty":
            allocator.release_cached()
        elif rest[0] in blocks and what != "done":
            block = blocks.pop(rest[0])
            events.append(_freed(Action.FREE_REQUESTED, block))
            if what == "late":
                tickets[rest[0]] = allocator.defer(block)
            else:
                events.append(_freed(Action.FREE_COMPLETED, block))
                allocator.free(block)
        elif rest[0] in tickets:
            allocator.complete(tickets.pop(rest[0]))
    held = [*blocks.values(), *allocator.pending.values()]
    return History(tuple(events), _segments(allocator, held), settings, va_bytes), allocator


def _segments(allocator, held):
    """The snapshot: of an expandable segment each mapped run is one."""
    rows = {}
    for b in sorted([*held, *allocator.all_free()], key=lambda b: b.address):
        rows.setdefault(b.segment.address, []).append((b.address, b.size, b.requested, b.used))
    out = []
    for s in allocator.segments.values():
        runs = []
        for row in rows.get(s.address, ()):
            if runs and runs[-1][-1][0] + runs[-1][-1][1] == row[0]:
                runs[-1].append(row)
            else:
                runs.append([row])
        for run in runs:
            size = run[-1][0] + run[-1][1] - run[0][0]
            out.append(SegmentState(run[0][0], size, s.stream, s.small, s.pool, tuple(run), s.expandable))
    return tuple(sorted(out, key=lambda s: s.address))
