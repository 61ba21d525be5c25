"""PyTorch's caching allocator under a recorder that writes what _dump_snapshot would write.

The layout is that of torch 2.9-2.13: segments, device_traces, allocator_settings and
external_annotations, see docs/capture.md. Times are a clock of its own: one event every 2 us, one
step every millisecond.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

from moexray.algorithms import conf
from moexray.algorithms.allocator import CachingAllocator, OutOfMemoryError
from moexray.algorithms.blocks import DEFAULT_POOL, SMALL_SIZE
from moexray.algorithms.expandable import whole_pages
from moexray.verify.stress.heaps import Row

if TYPE_CHECKING:
    from moexray.algorithms.blocks import Block, Settings
    from moexray.verify.stress.heaps import Home
    from moexray.verify.stress.mixes import Request

__all__ = ["TorchHeap"]

START_US = 1_793_000_000_000_000  # 2026-10-26 UTC; any fixed time will do
EVENT_US, STEP_US = 2, 1000
CUDA, VIRTUAL = 0x7F00_0000_0000, 0x6000_0000_0000  # where segments and expandable segments begin
PAGE = 2 << 20  # cudaMalloc hands out whole pages of this size (measured on current drivers)
DEVICE_BYTES = 80 << 30  # decides the address space of an expandable segment, 9/8 of it
LARGEST = 1 << 40
STATES = ("inactive", "active_allocated", "active_pending_free")


class Asker(NamedTuple):
    """Who asks: call stack, note, stream and pool."""

    frames: list[dict[str, Any]]
    note: str
    home: Home


class _Driver:
    """Gives fresh addresses and notes what it gives; see algorithms.device.Driver.

    What is given back is noted for whom it was taken, not for whose request it goes.
    """

    def __init__(self, tape: TorchHeap, capacity: int | None) -> None:
        self.tape, self.capacity, self.used = tape, capacity, 0
        self._next, self._space = CUDA, VIRTUAL
        self._owner: dict[int, Asker] = {}  # start of a segment or address space -> who asked for it
        self._spaces: list[int] = []  # starts of the address spaces, ascending

    def free(self) -> int:
        """Bytes that the device still has."""
        return (DEVICE_BYTES if self.capacity is None else self.capacity) - self.used

    def allocate(self, size: int) -> int | None:
        if not self._take(size):
            return None
        address, self._next = self._next, self._next + -(-size // PAGE) * PAGE
        self._owner[address] = self.tape.asker
        self.tape.note("segment_alloc", address, size, self.tape.asker)
        return address

    def release(self, address: int, size: int) -> None:
        self.used -= size
        self.tape.note("segment_free", address, size, self._owner.pop(address))

    def reserve(self, size: int) -> int:
        address, self._space = self._space, self._space + 2 * size
        self._owner[address] = self.tape.asker
        self._spaces.append(address)
        return address

    def map(self, address: int, size: int) -> bool:
        if not self._take(size):
            return False
        self.tape.note("segment_map", address, size, self.tape.asker)
        return True

    def unmap(self, address: int, size: int) -> None:
        self.used -= size
        owner = self._owner[self._spaces[bisect_right(self._spaces, address) - 1]]
        self.tape.note("segment_unmap", address, size, owner)

    def _take(self, size: int) -> bool:
        fits = self.capacity is None or self.used + size <= self.capacity
        self.used += size if fits else 0
        return fits


class _Allocator(CachingAllocator):
    """Notes when a deferred free completes, be it in time or because memory is short."""

    tape: TorchHeap

    def complete(self, ticket: int) -> None:
        block = self.pending.get(ticket)
        if block is not None:
            self.tape.note_completed(block)
        super().complete(ticket)


def _row(first: Block, spans: list[tuple[int, int | None]]) -> Row:
    segment = first.segment
    sizes = (1, SMALL_SIZE) if segment.small else (SMALL_SIZE + 1, LARGEST)
    return Row((segment.stream, segment.pool), *sizes, spans)


class TorchHeap:
    """The caching allocator as a heap under stress, with its history.

    Args:
        settings: Allocator settings.
        capacity: Bytes that the device can give; None is endless.
    """

    def __init__(self, settings: Settings, capacity: int | None = None) -> None:
        self.settings = settings
        self.driver = _Driver(self, capacity)
        self.allocator = _Allocator(settings, self.driver, va_bytes=DEVICE_BYTES * 9 // 8)
        self.allocator.tape = self
        self.events: list[dict[str, Any]] = []
        self.marks: list[dict[str, Any]] = []
        self._blocks: dict[int, Block] = {}
        self._made: dict[Block, tuple[list[dict[str, Any]], str]] = {}  # frames and note of live blocks
        self._due: list[tuple[int, int]] = []  # (requests to come, ticket) of deferred frees
        self._frames: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
        self._next = 0
        self.asker = Asker([], "", (0, DEFAULT_POOL))  # whose request is served
        self._clock = START_US

    # ---- Heap

    def allocate(self, request: Request, home: Home) -> int | None:
        """See Heap; an "oom" entry is written where nothing fits."""
        self._process_events()
        stream, pool = home
        self.asker = Asker(self._stack(request.site), request.note, home)
        try:
            block = self.allocator.malloc(request.size, stream, pool)
        except OutOfMemoryError as why:
            entry = {"action": "oom", "device_free": self.driver.free(), "size": why.size, "stream": stream}
            self.events.append(
                {**entry, "time_us": self._tick(), "frames": self.asker.frames, "pool_id": pool}
            )
            return None
        self._made[block] = (self.asker.frames, self.asker.note)
        self.note_block("alloc", block, request.size)
        handle, self._next = self._next, self._next + 1
        self._blocks[handle] = block
        return handle

    def free(self, handle: int, wait: int = 0) -> None:
        """See Heap."""
        block = self._blocks.pop(handle)
        self.note_block("free_requested", block, block.requested)
        if wait:
            self._due.append((wait, self.allocator.defer(block)))
        else:
            self.note_completed(block)
            self.allocator.free(block)

    def rows(self, *, released: bool = False) -> list[Row]:
        """See Heap: one row a segment, or a mapped run of an expandable one."""
        handles = {block: handle for handle, block in self._blocks.items()}
        out = []
        for run in self._runs():
            if released and run[0].segment.pool == DEFAULT_POOL:
                out += self._released(run, handles)
                continue
            out.append(_row(run[0], [(b.size, handles.get(b, -1) if b.used else None) for b in run]))
        return out

    @staticmethod
    def _released(run: list[Block], handles: dict[Block, int]) -> list[Row]:
        """What is left of a run: no segment that is free as a whole, no page inside a free block."""
        parts: list[list[tuple[int, int | None]]] = [[]]
        for block in run:
            if block.used:
                parts[-1].append((block.size, handles.get(block, -1)))
            elif not block.segment.expandable:
                parts[-1] += [(block.size, None)] if block.split else []
            else:
                start, end = whole_pages(block)
                ends = (start - block.address, block.address + block.size - end)
                if end <= start:
                    parts[-1].append((block.size, None))
                    continue
                parts[-1] += [(ends[0], None)] if ends[0] else []
                parts.append([(ends[1], None)] if ends[1] else [])
        return [_row(run[0], spans) for spans in parts if spans]

    def release(self) -> None:
        """empty_cache()."""
        self.allocator.release_cached()

    def capture(self, *, on: bool) -> None:
        """See Heap."""
        self.allocator.capturing = on

    def entries(self) -> int:
        """See Heap."""
        return len(self.events)

    def run_dry(self, margin: int) -> None:
        """Leaves the device `margin` bytes beside what is not cached, as if others had taken the rest."""
        left = sum(size for row in self.rows(released=True) for size, _ in row.spans)
        self.driver.capacity = left + margin

    # ---- history

    def step(self, number: int) -> None:
        """Marks the beginning of a step, as torch.profiler.record_function would, and the last one's end."""
        at = max(START_US + number * STEP_US, self._clock + EVENT_US)
        self.end_step()
        self._clock = at
        name = f"engine step {number}"
        self.marks.append({"device": 0, "name": name, "stage": "START", "time_us": at})

    def end_step(self) -> None:
        """Ends the step that is under way, if any."""
        if self.marks and self.marks[-1]["stage"] == "START":
            self.marks.append({**self.marks[-1], "stage": "END", "time_us": self._tick()})

    def note(self, action: str, address: int, size: int, who: Asker) -> None:
        """Writes an entry about a segment."""
        self._write(action, address, size, who.home, who.frames, "")

    def note_block(self, action: str, block: Block, size: int) -> None:
        """Writes an entry about a block."""
        frames, note = self._made.get(block, ([], ""))
        home = (block.segment.stream, block.segment.pool)
        self._write(action, block.address, size, home, frames, note)

    def note_completed(self, block: Block) -> None:
        """Writes that a block becomes free, and forgets who asked for it."""
        self.note_block("free_completed", block, block.requested)
        self._made.pop(block, None)

    def _write(
        self, action: str, address: int, size: int, home: Home, frames: list[dict[str, Any]], note: str
    ) -> None:
        entry = {"action": action, "addr": address, "size": size, "stream": home[0], "time_us": self._tick()}
        self.events.append({**entry, "frames": frames, "pool_id": home[1], "user_metadata": note})

    def _tick(self) -> int:
        self._clock += EVENT_US
        return self._clock

    def _stack(self, site: tuple[str, str, int]) -> list[dict[str, Any]]:
        """Frames, innermost first; one object a site, as torch shares them."""
        if site not in self._frames:
            name, file, line = site
            inner = {"name": name, "filename": f"/srv/app/{file}", "line": line}
            outer = {"name": "run_step", "filename": "/srv/app/engine/loop.py", "line": 210}
            self._frames[site] = [inner, outer]
        return self._frames[site]

    def _process_events(self) -> None:
        """Completes the deferred frees that are due; none while a graph is captured."""
        if self.allocator.capturing:
            return
        later = []
        for wait, ticket in self._due:
            if ticket not in self.allocator.pending:
                continue
            if wait > 1:
                later.append((wait - 1, ticket))
            else:
                self.allocator.complete(ticket)
        self._due = later

    # ---- snapshot

    def _runs(self) -> list[list[Block]]:
        """Blocks by address, one list a segment or mapped run."""
        blocks = [*self._blocks.values(), *self.allocator.pending.values(), *self.allocator.all_free()]
        runs: list[list[Block]] = []
        for block in sorted(blocks, key=lambda b: b.address):
            last = runs[-1][-1] if runs else None
            if (
                last is not None
                and last.segment is block.segment
                and last.address + last.size == block.address
            ):
                runs[-1].append(block)
            else:
                runs.append([block])
        return runs

    def snapshot(self) -> dict[str, Any]:
        """The dictionary that torch.cuda.memory._snapshot() would give now."""
        self.end_step()
        text = conf.text(self.settings)
        divisions = {str(1 << i): d for i, d in enumerate(self.settings.roundup)}
        settings = {
            "PYTORCH_CUDA_ALLOC_CONF": text,
            "max_split_size": -1 if self.settings.max_split is None else self.settings.max_split,
            "garbage_collection_threshold": self.settings.gc_threshold,
            "expandable_segments": self.settings.expandable,
            "pinned_num_register_threads": 1,
            "release_lock_on_cudamalloc": False,
            "pinned_use_cuda_host_register": False,
            "roundup_power2_divisions": divisions,
            "graph_capture_record_stream_reuse": False,
        }
        return {
            "segments": [self._segment(run) for run in self._runs()],
            "device_traces": [self.events],
            "allocator_settings": settings,
            "external_annotations": self.marks,
        }

    def _segment(self, run: list[Block]) -> dict[str, Any]:
        segment = run[0].segment
        pending = set(self.allocator.pending.values())
        blocks = [
            {
                "address": b.address,
                "size": b.size,
                "requested_size": b.requested if b.used else 0,
                "state": STATES[0] if not b.used else STATES[2] if b in pending else STATES[1],
                "frames": self._made[b][0] if b in self._made else [],
            }
            for b in run
        ]
        return {
            "device": 0,
            "address": run[0].address,
            "total_size": sum(b.size for b in run),
            "allocated_size": sum(b.size for b in run if b.used and b not in pending),
            "active_size": sum(b.size for b in run if b.used),
            "requested_size": sum(b.requested for b in run if b.used),
            "stream": segment.stream,
            "segment_type": "small" if segment.small else "large",
            "segment_pool_id": segment.pool,
            "is_expandable": segment.expandable,
            "frames": [],
            "blocks": blocks,
        }
