"""A real arena under stress: its memory is taken, blocks are moved, and the bytes of each are checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.verify.lab.bundle import snapshot
from moexray.verify.stress.heaps import MAIN, Row
from moexray.verify.stress.tape import EVENT_US, START_US

if TYPE_CHECKING:
    from moexray.runtime.arena import Arena, Block
    from moexray.verify.stress.heaps import Home
    from moexray.verify.stress.mixes import Request

__all__ = ["ArenaHeap"]

MARK = 8  # bytes at both ends of a block that tell whose it is


class ArenaHeap:
    """See heaps.Heap. It has one pool and caches nothing; streams and captures mean nothing to it.

    Args:
        arena: Nobody else uses it; made with spill=False.
        policy: Its name, for the snapshot.

    Attributes:
        damaged: Blocks whose bytes were not those written when they were asked for.
    """

    def __init__(self, arena: Arena, policy: str) -> None:
        self.arena, self.policy, self.damaged = arena, policy, 0
        self._events: list[tuple[int, str, int, int]] = []  # as bundle.snapshot wants them
        self._blocks: dict[int, tuple[Block, int]] = {}  # handle -> block, where it was last seen
        self._sites: dict[int, tuple[str, str, int]] = {}  # handle -> who asked for it
        self._next, self._moves, self._entries = 1, 0, 1  # the first entry is the arena itself

    def allocate(self, request: Request, home: Home = MAIN) -> int | None:
        """See heaps.Heap; what was moved to make room is noted."""
        del home
        block = self.arena.allocate(request.size)
        self._note_moves()
        if block is None or block.offset is None:
            self._note("oom", 0, request.size)
            return None
        self._note("alloc", block.offset, block.given)
        handle, self._next = self._next, self._next + 1
        self._blocks[handle], self._sites[handle] = (block, block.offset), request.site
        with block as view:
            mark = _mark(handle, len(view))
            view[: len(mark)] = view[-len(mark) :] = mark
        return handle

    def free(self, handle: int, wait: int = 0) -> None:
        """See heaps.Heap; the bytes are checked."""
        del wait
        block, at = self._blocks.pop(handle)
        del self._sites[handle]
        with block as view:
            mark = _mark(handle, len(view))
            self.damaged += not ((view[: len(mark)] == mark).all() and (view[-len(mark) :] == mark).all())
        self._note("free", at, block.given)
        self.arena.free(block)

    def rows(self, *, released: bool = False) -> list[Row]:
        """See heaps.Heap."""
        del released
        spans: list[tuple[int, int | None]] = []
        end = 0
        for at, size, handle in [*sorted((at, b.given, h) for h, (b, at) in self._blocks.items()),
                                 (self.arena.capacity, 0, 0)]:  # fmt: skip
            if at > end:
                spans.append((at - end, None))
            if size:
                spans.append((size, handle))
            end = at + size
        return [Row(MAIN, 1, self.arena.capacity, spans)]

    def release(self) -> None:
        """Nothing is cached."""

    def capture(self, *, on: bool) -> None:
        """There are no graphs."""

    def step(self, number: int) -> None:
        """Nothing ends with a step."""

    def entries(self) -> int:
        """See heaps.Heap."""
        return self._entries

    def snapshot(self) -> dict[str, Any]:
        """The arena and its history in PyTorch's format."""
        blocks = []
        for handle, (block, at) in sorted(self._blocks.items(), key=lambda item: item[1][1]):
            name, file, line = self._sites[handle]
            blocks.append((at, block.given, [{"name": name, "filename": f"/srv/app/{file}", "line": line}]))
        return snapshot(self.arena.capacity, self.policy, blocks, self._events, START_US * 1000)

    def _note(self, action: str, offset: int, size: int) -> None:
        when = START_US + EVENT_US * (1 + len(self._events))
        self._events.append((when * 1000, action, offset, size))
        self._entries += 2 if action == "free" else 1  # asked for and completed

    def _note_moves(self) -> None:
        """As a recorder would see it: blocks end at their old places and begin at the new ones."""
        if self.arena.figures().compactions == self._moves:
            return
        self._moves = self.arena.figures().compactions
        moved = [(h, b, at, b.offset) for h, (b, at) in self._blocks.items() if b.offset not in (at, None)]
        for _, block, at, _ in moved:
            self._note("free", at, block.given)
        for handle, block, _, to in moved:
            self._note("alloc", to, block.given)
            self._blocks[handle] = block, to


def _mark(handle: int, size: int) -> Any:
    """uint8, at most MARK bytes and half of the block, so that both ends hold it."""
    return np.frombuffer(handle.to_bytes(MARK, "little"), np.uint8)[: max(1, min(MARK, size // 2))]
