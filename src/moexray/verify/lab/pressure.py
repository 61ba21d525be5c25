"""Memory under pressure: a real arena in which the cache of a server churns and work buffers are asked for.

Two layouts do the same work on memory of the same size. `shared`: blocks of keys and values and the work
buffers lie in one first-fit arena; a buffer that no hole serves has everything moved (memmove) until one
does. `split`: keys and values lie in fixed pages (`runtime.arena.Pages`), the buffers in the rest, which
nothing else cuts up. The blocks of keys and values are injected beside the engine; the buffers are those
that its experts compute in.
"""

from __future__ import annotations

import heapq
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.core.errors import UsageError
from moexray.runtime.arena import Arena, Pages

if TYPE_CHECKING:
    from collections.abc import Callable

    from moexray.runtime.arena import Block, Memory

__all__ = ["LAYOUTS", "Compaction", "Pressure", "PressureSpec"]

LAYOUTS = ("shared", "split")
KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class PressureSpec:
    """How hard memory is pressed.

    Args:
        capacity: Bytes of the arena.
        fill: Share of it that keys and values take at most; the pages of the split layout hold that.
        calm: Share that they take at first.
        births: Blocks of keys and values that end and are asked for again, per step.
        least, most: Size of such a block, bytes; it is a multiple of the page.
        page_bytes: Of the pages in the split layout.
        seed: Of sizes and lifetimes.
    """

    capacity: int = 1536 * MIB
    fill: float = 0.96
    calm: float = 0.7
    births: int = 16
    least: int = 160 * KIB
    most: int = 1440 * KIB
    page_bytes: int = 32 * KIB
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Compaction:
    """A request that found no hole.

    Args:
        time_ns: Unix time at which it was asked for.
        took_ns: Wall time of the move.
        request_bytes: Asked for.
        free_bytes, largest_free_bytes: Before the move.
        moved_bytes: By it.
    """

    time_ns: int
    took_ns: int
    request_bytes: int
    free_bytes: int
    largest_free_bytes: int
    moved_bytes: int


@dataclass(slots=True)
class _Sequences:
    """Keys and values that live: the same births and deaths in both layouts."""

    rng: np.random.Generator
    alive: list[tuple[int, int, int, Any]] = field(default_factory=list)  # (death, number, bytes, handle)
    held: int = 0
    born: int = 0


class Pressure:
    """See the head of this file.

    Args:
        spec: How hard.
        layout: "shared" or "split".
        memory: Of `spec.capacity` bytes; the layouts may share it where they do not run at the same time.
        on_move: Gives a context in which everything is moved, e.g. to annotate a trace.

    Attributes:
        fill: Share of the arena that keys and values take; may be set while it runs.
        compactions: What was moved, and when.
        events: (time_ns, action, offset, bytes) of the arena while `record` is set; actions "alloc", "free",
            "oom" (a request that no hole serves). The shared layout records from the start.
        began_ns: When it was made, Unix time.
        failed: Blocks as they were at the last such request, and the events until then.
    """

    def __init__(
        self, spec: PressureSpec, layout: str, memory: Memory, on_move: Callable[[], Any] = nullcontext
    ) -> None:
        if layout not in LAYOUTS:
            raise UsageError(f"no memory layout {layout!r}", hint=f"one of {', '.join(LAYOUTS)}")
        self.spec, self.layout, self.fill = spec, layout, spec.calm
        self.arena = Arena(memory, policy="first-fit", compacting=False, spill=False, name="lab")
        self.compactions: list[Compaction] = []
        self.events: list[tuple[int, str, int, int]] = []
        self.record = layout == "shared"
        self.began_ns = time.time_ns()
        self.failed: tuple[list[tuple[int, int]], int] | None = None
        self._on_move = on_move
        self._kv = _Sequences(np.random.default_rng(spec.seed))
        self._pages: Pages | None = None
        if layout == "split":
            pages = int(spec.capacity * spec.fill) // spec.page_bytes
            most = int(2.5 * spec.capacity * spec.fill / (spec.least + spec.most))
            self._pages = Pages(self.arena, pages=pages, page_bytes=spec.page_bytes, sequences=most)
        self._fill_up()

    # ---- what an engine calls

    def step(self) -> None:
        """Ends some sequences and begins others."""
        for _ in range(min(self.spec.births, len(self._kv.alive))):
            self._end()
        self._fill_up(4 * self.spec.births)

    def take(self, size: int) -> Block:
        """A work buffer; moves everything where no hole serves it.

        Raises:
            UsageError: it does not fit even then.
        """
        block = self.arena.allocate(size)
        if block is None:
            block = self._moved(size)
        self._note("alloc", block)
        return block

    def give(self, block: Block) -> None:
        """Takes a work buffer back."""
        self._note("free", block)
        self.arena.free(block)

    @property
    def largest_free(self) -> int:
        """Largest buffer that is served without a move, bytes."""
        return self.arena.figures().largest_free_bytes

    def blocks(self) -> list[tuple[int, int]]:
        """(offset, bytes) of everything that is given, by offset."""
        return sorted(self.arena._policy.used.items())  # noqa: SLF001  the arena lists no blocks in public

    # ---- keys and values

    def _fill_up(self, most: int = 1 << 30) -> None:
        kv, spec = self._kv, self.spec
        until = kv.born + most
        while kv.held < self.fill * spec.capacity - spec.most and kv.born < until:
            size = int(kv.rng.integers(spec.least, spec.most)) // spec.page_bytes * spec.page_bytes
            life = int(kv.rng.integers(1, 1 << 16))
            kv.born += 1
            heapq.heappush(kv.alive, (kv.born + life % 997, kv.born, size, self._begin(size)))
            kv.held += size

    def _begin(self, size: int) -> Any:
        if self._pages is None:
            block = self.take(size)
            with block as view:
                view[:: 4 * KIB] = 1  # the first bytes of each page: the block is used
            return block
        row = self._pages.open()
        if row is None or not self._pages.extend(row, size):
            raise UsageError("the pages are full", hint="fewer or smaller sequences")
        mine = self._pages.table[row, : size // self.spec.page_bytes]
        self._pages.view[mine, :: 4 * KIB] = 1  # as above: both layouts use what they ask for
        return row

    def _end(self) -> None:
        kv = self._kv
        _, _, size, handle = heapq.heappop(kv.alive)
        kv.held -= size
        if self._pages is None:
            self.give(handle)
        else:
            self._pages.close(handle)

    # ---- the move

    def _moved(self, size: int) -> Block:
        figures = self.arena.figures()
        if size > figures.free_bytes:
            hint = f"{figures.free_bytes} of {self.spec.capacity} bytes are free"
            raise UsageError(f"a work buffer of {size} bytes does not fit into the arena", hint=hint)
        when = time.time_ns()
        if self.record:
            self.events.append((when, "oom", 0, size))
            self.failed = self.blocks(), len(self.events)
        begin = time.perf_counter_ns()
        with self._on_move():
            moved = self.arena.compact()
        if self.record:  # as a recorder would see it: blocks end at their old places, begin at the new ones
            self.events += self._shifted()
        block = self.arena.allocate(size)
        took = time.perf_counter_ns() - begin
        self.compactions.append(
            Compaction(when, took, size, figures.free_bytes, figures.largest_free_bytes, moved)
        )
        if block is None:
            raise UsageError(f"a work buffer of {size} bytes does not fit after everything was moved")
        return block

    def _shifted(self) -> list[tuple[int, str, int, int]]:
        """Frees and allocations that stand for the moves after the last failure."""
        before, after = dict(self.failed[0] if self.failed else ()), dict(self.blocks())
        now = time.time_ns()
        gone = [(now, "free", at, size) for at, size in before.items() if after.get(at) != size]
        come = [(now, "alloc", at, size) for at, size in after.items() if before.get(at) != size]
        return [*gone, *come]

    def _note(self, action: str, block: Block) -> None:
        if self.record and block.offset is not None:
            self.events.append((time.time_ns(), action, block.offset, block.size))
