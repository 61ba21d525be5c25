"""Scope arena: a bump pointer for what dies within a step, a first-fit space for the rest.

Glossary: a *scope* is a token, a layer or a step, between two calls of `end_scope`; a *chunk* is the
piece of the space that the pointer moves through. Freeing the topmost blocks moves the pointer back,
so nested lifetimes leave no hole. What is still alive when its scope ends was not nested: its size
falls back to the space from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from moexray.algorithms.policies.fits import FirstFit
from moexray.algorithms.policies.policy import GRANULE, Policy, round_up

__all__ = ["Scope"]

CHUNK = 64 << 20  # bytes; holds the temporaries of a small MoE layer


@dataclass(slots=True)
class _Chunk:
    """A piece of the space; `stack` has (offset, size) of the blocks below the pointer."""

    base: int
    size: int
    stack: list[tuple[int, int]] = field(default_factory=list)
    dead: set[int] = field(default_factory=set)

    @property
    def top(self) -> int:
        """The pointer."""
        return self.stack[-1][0] + self.stack[-1][1] if self.stack else self.base


class Scope(Policy):
    """Bump allocation in scopes.

    Args:
        capacity, granule: See Policy.
        chunk: Bytes that the pointer moves through; a larger request gets a chunk of its size.
    """

    name: ClassVar[str] = "scope"

    def __init__(self, capacity: int | None = None, granule: int = GRANULE, chunk: int = CHUNK) -> None:
        super().__init__(capacity, granule)
        self.chunk = chunk
        self.fallbacks = 0  # requests served by the space
        self._space = FirstFit(capacity, granule)
        self._chunks: dict[int, _Chunk] = {}
        self._owner: dict[int, _Chunk] = {}  # offset in use -> its chunk
        self._now: _Chunk | None = None
        self._outlived: set[int] = set()  # sizes that did not die in their scope

    @property
    def high_water(self) -> int:
        """See Policy; chunks count as a whole."""
        return self._space.high_water

    def free_blocks(self) -> list[tuple[int, int]]:
        """See Policy; holes below a pointer count, although only the end of a scope frees them."""
        blocks = self._space.free_blocks()
        for chunk in self._chunks.values():
            at = chunk.base
            for offset, size in [b for b in chunk.stack if b[0] not in chunk.dead]:
                if offset > at:
                    blocks.append((at, offset - at))
                at = offset + size
            if at < chunk.base + chunk.size:
                blocks.append((at, chunk.base + chunk.size - at))
        return sorted(blocks)

    def largest_free(self) -> int:
        """See Policy."""
        now = self._now
        room = now.base + now.size - now.top if now is not None else 0
        return max(room, self._space.largest_free())

    def end_scope(self) -> None:
        """Ends the scope: what is alive keeps its place, its size will not be bumped again."""
        for chunk in self._chunks.values():
            self._outlived.update(size for at, size in chunk.stack if at not in chunk.dead)

    def _serve(self, size: int, alignment: int) -> tuple[int, int] | None:
        if size not in self._outlived:
            place = self._bump(size, alignment)
            if place is None:
                place = self._open(size, alignment)
            if place is not None:
                return place, size
        self.fallbacks += 1
        offset = self._space.allocate(size, alignment)
        return None if offset is None else (offset, size)

    def _bump(self, size: int, alignment: int) -> int | None:
        chunk = self._now
        if chunk is None:
            return None
        at = round_up(chunk.top, alignment)
        if at + size > chunk.base + chunk.size:
            return None
        chunk.stack.append((at, size))
        self._owner[at] = chunk
        return at

    def _open(self, size: int, alignment: int) -> int | None:
        """Goes on in a new chunk; an empty one is given back first."""
        if self._now is not None and not self._now.stack:
            self._close(self._now)
        want = max(self.chunk, size)
        base = self._space.allocate(want, alignment)
        if base is None:
            return None
        self._now = self._chunks[base] = _Chunk(base, want)
        return self._bump(size, alignment)

    def _close(self, chunk: _Chunk) -> None:
        del self._chunks[chunk.base]
        self._space.free(chunk.base)
        if chunk is self._now:
            self._now = None

    def _release(self, offset: int, given: int) -> None:
        del given
        chunk = self._owner.pop(offset, None)
        if chunk is None:
            self._space.free(offset)
            return
        chunk.dead.add(offset)
        while chunk.stack and chunk.stack[-1][0] in chunk.dead:
            chunk.dead.remove(chunk.stack.pop()[0])
        if not chunk.stack and chunk is not self._now:
            self._close(chunk)
