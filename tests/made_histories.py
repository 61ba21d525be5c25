"""Histories for the tests of what-ifs: the plain allocator writes them down in the real format."""

from moexray.algorithms.allocator import CachingAllocator, OutOfMemoryError
from moexray.algorithms.blocks import Settings
from moexray.algorithms.device import Device
from snapshot_samples import BASE, MIB, document, event

STATES = {True: "active_allocated", False: "inactive"}


class Recorder(Device):
    """A device that notes what it gives and takes."""

    def __init__(self, capacity=None):
        super().__init__(capacity)
        self.events, self._next = [], BASE  # where real devices put their segments

    def allocate(self, size):
        address = super().allocate(size)
        if address is not None:
            self.events.append(event("segment_alloc", address, size))
        return address

    def release(self, address, size):
        super().release(address, size)
        self.events.append(event("segment_free", address, size))


class Heap:
    """PyTorch's allocator under a recorder. Sizes in MiB."""

    def __init__(self, capacity=None, settings=None, conf=""):
        self.device = Recorder(None if capacity is None else capacity * MIB)
        self.allocator = CachingAllocator(settings or Settings(), self.device)
        self.conf, self.live = conf, {}

    def take(self, mib):
        """A block, or None after an "oom" event."""
        try:
            block = self.allocator.malloc(int(mib * MIB))
        except OutOfMemoryError as why:
            free = self.device.capacity - self.device.used
            oom = event("oom", 0, why.size, device_free=free)
            del oom["addr"]
            self.device.events.append(oom)
            return None
        self.device.events.append(event("alloc", block.address, block.requested))
        self.live[block.address] = block
        return block

    def give(self, block):
        self.device.events += [
            event(a, block.address, block.requested) for a in ("free_requested", "free_completed")
        ]
        del self.live[block.address]
        self.allocator.free(block)

    def document(self, **more):
        """The snapshot."""
        segments = []
        for s in sorted(self.allocator.segments.values(), key=lambda s: s.address):
            free = self.allocator.free_list(s.pool, small=s.small)
            blocks = self._blocks(s, free)
            live = sum(b["size"] for b in blocks if b["state"] != "inactive")
            segments.append(
                {"device": 0, "address": s.address, "total_size": s.size, "allocated_size": live, "active_size": live,
                 "requested_size": live, "stream": s.stream, "segment_type": "small" if s.small else "large",
                 "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks}
            )  # fmt: skip
        settings = {"expandable_segments": False, "PYTORCH_CUDA_ALLOC_CONF": self.conf}
        return document(segments, self.device.events, settings=settings, overflowed=None, **more)

    def _blocks(self, segment, free):
        parts = [b for b in (*self.live.values(), *free.blocks.values()) if b.segment is segment]
        return [
            {
                "address": b.address,
                "size": b.size,
                "requested_size": b.requested or b.size,
                "state": STATES[b.used],
                "frames": [],
            }
            for b in sorted(parts, key=lambda b: b.address)
        ]


def pinned(capacity=900):
    """A 512 MiB segment is held by a block of 12 MiB; 600 MiB then fail, although 888 MiB are free."""
    heap = Heap(capacity)
    temporary = heap.take(512)
    heap.give(temporary)
    heap.take(12)
    heap.take(600)
    return heap.document()


def full(capacity=900):
    """500 MiB live, 600 MiB asked for: more than there is."""
    heap = Heap(capacity)
    heap.take(500)
    heap.take(600)
    return heap.document()


def growing(steps=6, capacity=None):
    """A buffer that grows by 2 MiB a step and finds no hole: each step leaves a segment behind."""
    heap = Heap(capacity)
    for i in range(steps):
        heap.give(heap.take(100 + 2 * i))
    return heap.document()
