"""What the stress generator drives: an allocator seen as rows of blocks that can be asked and freed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from moexray.algorithms.blocks import Pool
    from moexray.algorithms.policies import Policy
    from moexray.verify.stress.mixes import Request

__all__ = ["MAIN", "Heap", "Home", "PolicyHeap", "Row", "ratio_of"]

Home = tuple[int, "Pool"]  # stream, pool
MAIN: Home = (0, (0, 0))


class Row(NamedTuple):
    """A piece of memory within which blocks merge.

    Args:
        home: Stream and pool whose requests it serves.
        smallest, largest: Requests (bytes) that it serves.
        spans: (size, handle) of its blocks by address; the handle is None for a free one, and -1 for
            one in use that cannot be freed now.
    """

    home: Home
    smallest: int
    largest: int
    spans: list[tuple[int, int | None]]


class Heap(Protocol):
    """An allocator under stress."""

    def allocate(self, request: Request, home: Home) -> int | None:
        """A handle, or None where the request failed."""

    def free(self, handle: int, wait: int = 0) -> None:
        """Takes a block back; with `wait`, another stream holds it for so many more requests."""

    def rows(self, *, released: bool = False) -> list[Row]:
        """All its memory; with `released`, as it would be once what is cached has been given back."""

    def release(self) -> None:
        """Gives back what is cached, where the allocator caches."""

    def capture(self, *, on: bool) -> None:
        """A CUDA graph is being captured, or no longer."""

    def step(self, number: int) -> None:
        """A step of the program begins."""

    def entries(self) -> int:
        """How many events have been recorded."""


class PolicyHeap:
    """A placement policy (or an arena with its face); `steps` records (handle, size), size 0 frees."""

    def __init__(self, policy: Policy, alignment: int = 256) -> None:
        self.policy, self.alignment = policy, alignment
        self.steps: list[tuple[int, int]] = []
        self.failures = 0
        self._offset: dict[int, int] = {}
        self._handle: dict[int, int] = {}
        self._next = 0

    def allocate(self, request: Request, home: Home = MAIN) -> int | None:
        """See Heap."""
        del home
        offset = self.policy.allocate(request.size, self.alignment)
        if offset is None:
            self.failures += 1
            return None
        handle, self._next = self._next, self._next + 1
        self._offset[handle], self._handle[offset] = offset, handle
        self.steps.append((handle, request.size))
        return handle

    def free(self, handle: int, wait: int = 0) -> None:
        """See Heap."""
        del wait
        offset = self._offset.pop(handle)
        del self._handle[offset]
        self.policy.free(offset)
        self.steps.append((handle, 0))

    def rows(self, *, released: bool = False) -> list[Row]:
        """See Heap; nothing is cached."""
        del released
        blocks = sorted([*self.policy.used.items(), *self.policy.free_blocks()])
        spans = [(size, self._handle.get(offset)) for offset, size in blocks]
        return [Row(MAIN, 1, self.policy.high_water, spans)]

    def release(self) -> None:
        """Nothing is cached."""

    def capture(self, *, on: bool) -> None:
        """There are no graphs."""

    def step(self, number: int) -> None:
        """Ends the scope of policies that have one."""
        end = getattr(self.policy, "end_scope", None)
        if end is not None and number:
            end()

    def entries(self) -> int:
        """See Heap."""
        return len(self.steps)


def ratio_of(rows: list[Row]) -> float:
    """1 - largest free / total free (S8), 0 where nothing is free."""
    sizes = [size for row in rows for size, handle in row.spans if handle is None]
    return 1 - max(sizes) / sum(sizes) if sizes else 0.0
