"""An arena: blocks of any size in memory that is taken once, placed by a policy, moved as a last resort.

Glossary: a *block* is a handle; its place may change. It is *pinned* inside `with block as view:` and does
not move then; a view that is kept beyond the `with` may show other bytes after the next request. *Given*
bytes are asked bytes plus rounding. *Compaction* slides blocks to lower addresses: the cheapest run of
neighbours that opens a hole large enough, else all that are not pinned. It is done only where the request
fits afterwards.

A request that does not fit gets plain memory of its own (`spill`), counted; so does every request while
the arena is switched off. A move that raises costs nothing but the request's place. Only where it tore the
bytes of a block (on a device, half way through a move onto itself) that block is lost and the arena is out
of use: `fault` says why, nothing is placed or moved any more, its other blocks stay.

Threads may share an arena; its lock is held while blocks move. A device's views must be used on one stream
(untested on a GPU).
"""

from __future__ import annotations

import logging
import operator
import threading
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from moexray.algorithms.policies import POLICIES, Buddy, Segregated
from moexray.core.errors import UsageError
from moexray.runtime.arena.memory import Memory
from moexray.runtime.buffers import ALIGNMENT
from moexray.runtime.guard import Guard, renew_in_children, say_once

if TYPE_CHECKING:
    from types import TracebackType

    from moexray.algorithms.policies import Policy

__all__ = ["Arena", "ArenaFigures", "Block"]

_log = logging.getLogger(__name__)

USABLE = ("tlsf", "first-fit", "next-fit", "best-fit", "worst-fit", "buddy", "segregated")


@dataclass(frozen=True, slots=True)
class ArenaFigures:
    """What an arena did.

    Args:
        requests: Blocks asked for.
        plain: Of them, those with memory of their own.
        compactions: Times that blocks were moved.
        moved_bytes: Bytes moved by them.
        used_bytes: Given now.
        peak_bytes: Most ever given.
        high_water_bytes: End of the highest block ever given.
        free_bytes: Not given.
        largest_free_bytes: Largest request that fits without a move.
    """

    requests: int
    plain: int
    compactions: int
    moved_bytes: int
    used_bytes: int
    peak_bytes: int
    high_water_bytes: int
    free_bytes: int
    largest_free_bytes: int


class Block:
    """A piece of an arena, or plain memory (`offset` None); `with block as view:` pins it.

    Attributes:
        size: Bytes asked for.
        given: Bytes that the policy gave; 0 for plain memory.
        offset: Where it lies now, bytes from the start of the arena.
        pins: How many `with` are open.
    """

    __slots__ = ("_memory", "_view", "arena", "given", "offset", "pins", "size")

    def __init__(
        self, arena: Arena, size: int, offset: int | None, memory: Memory, *, given: int = 0
    ) -> None:  # fmt: skip
        self.arena, self.size, self.offset, self.given = arena, size, offset, given
        self._memory: Memory | None = memory
        self.pins = 0
        self._view: Any = None

    def __enter__(self) -> Any:
        with self.arena.lock:
            if self.size == 0:
                raise UsageError("the block has been freed")
            if self._memory is None:
                raise UsageError(self.arena.fault, hint="free this block; what it held must be made again")
            self.pins += 1
            if self._view is None:
                self._view = self._memory.view(self.offset or 0, self.size)
            return self._view

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.arena.lock:
            self.pins = max(self.pins - 1, 0)

    def moved(self, offset: int) -> None:
        """Notes its new place."""
        self.offset, self._view = offset, None

    def lost(self) -> None:
        """Notes that its bytes are gone."""
        self._memory = self._view = None

    def end(self) -> None:
        """Notes that it is freed."""
        self.offset, self.size, self._view = None, 0, None


class Arena:
    """See the head of this file.

    Args:
        memory: Bytes to take, or the memory itself.
        policy: Where blocks are placed: tlsf, first-fit, next-fit, best-fit, worst-fit, buddy, segregated.
        alignment: Of each block, bytes, a power of two; also the step in which bytes are given.
        compacting: Whether blocks may be moved.
        spill: What does not fit gets plain memory; else `allocate` gives None.
        name: For the kill switch.

    Attributes:
        fault: Why the arena is out of use; empty while it is not.

    Raises:
        UsageError: unknown policy, an alignment that is no power of two or that the memory does not have.
    """

    def __init__(
        self, memory: int | Memory, *, policy: str = "tlsf", alignment: int = ALIGNMENT,
        compacting: bool = True, spill: bool = True, name: str = "arena",
    ) -> None:  # fmt: skip
        if policy not in USABLE:
            raise UsageError(f"an arena cannot use {policy!r}", hint=f"one of {', '.join(USABLE)}")
        self.memory = memory if isinstance(memory, Memory) else Memory.take(memory, alignment=alignment)
        if self.memory.address % alignment:
            raise UsageError(f"the memory does not lie at a multiple of {alignment} bytes")
        self.memory.ready()
        self.alignment, self.compacting, self.spill = alignment, compacting, spill
        self.capacity = self.memory.size // alignment * alignment
        self.guard = Guard(name)
        self.lock = threading.RLock()
        self._policy: Policy = POLICIES[policy](self.capacity, alignment)
        self._blocks: dict[int, Block] = {}  # offset -> block
        self.fault = ""
        self._requests = self._plain = self._compactions = self._moved = self._peak = self._high = 0
        renew_in_children(self)

    def renew(self) -> None:
        """Makes the lock anew, in a forked child; one that another thread held may have left half a move."""
        if not self.lock.acquire(blocking=False):
            self.fault = f"arena {self.guard.name} is out of use: this process was forked while it changed"
        self.lock = threading.RLock()

    # ---- what a caller needs

    def allocate(self, size: int, *, spill: bool | None = None) -> Block | None:
        """A block; plain memory where it does not fit, or None without `spill`.

        Args:
            size: Bytes.
            spill: False: None where it does not fit, whatever the arena's own setting. By default that one
                holds, and plain memory comes from an arena that is switched off or out of use.

        Raises:
            UsageError: no whole number from 1, or plain memory is short.
        """
        try:
            size = operator.index(size)
        except TypeError:
            raise UsageError(f"a request of {size!r} bytes", hint="a whole number from 1") from None
        if size < 1:
            raise UsageError(f"a request of {size} bytes", hint="ask for at least 1 byte")
        with self.lock:
            self._requests += 1
            block = self.guard.run(self._place, self._nothing, size)
            if spill is None:
                spill = self.spill or bool(self.fault) or not self.guard.on
            if block is None and spill:
                block = Block(self, size, None, self.memory.alike(size, self.alignment))
                self._plain += 1
            return block

    def free(self, block: Block) -> None:
        """Takes a block back.

        Raises:
            UsageError: it is pinned, was freed before, or is of another arena.
        """
        with self.lock:
            if getattr(block, "arena", None) is not self or block.size == 0:
                raise UsageError("the block is not one of this arena", hint="was it freed twice?")
            if block.pins:
                raise UsageError("the block is pinned", hint="free it after its `with`")
            if block.offset is not None:
                del self._blocks[block.offset]
                self._policy.free(block.offset)
            block.end()

    def compact(self) -> int:
        """Slides all blocks that are not pinned to the lowest addresses; the bytes that were moved.

        Switched off, or where a move raises, 0.
        """
        with self.lock:
            return self.guard.run(self._compact, lambda: 0)

    def figures(self) -> ArenaFigures:
        """The counters, taken together."""
        with self.lock:
            given = self._policy.given
            return ArenaFigures(
                self._requests, self._plain, self._compactions, self._moved, given, self._peak,
                max(self._high, self._policy.high_water), self.capacity - given, self._policy.largest_free(),
            )  # fmt: skip

    # ---- placing

    @staticmethod
    def _nothing(size: int) -> Block | None:
        del size
        return None

    def _place(self, size: int) -> Block | None:
        if self.fault:
            return None
        try:
            offset = self._policy.allocate(size)
            if offset is None and self.compacting and size <= self.capacity - self._policy.given:
                offset = self._make_room(size)
            if offset is None:
                return None
            block = Block(self, size, offset, self.memory, given=self._policy.used[offset])
            self._peak = max(self._peak, self._policy.given)
            self._blocks[offset] = block
        except BaseException:
            self._policy = self._rebuilt({})
            raise
        return block

    # ---- moving

    def _compact(self) -> int:
        if self.fault:
            return 0
        before = self._moved
        rows = self._rows()
        plan, _ = self._slid(rows, 0, len(rows))
        try:
            self._policy = self._with(plan)
            self._move(plan)
        except BaseException:
            self._policy = self._rebuilt({})
            raise
        return self._moved - before

    def _make_room(self, size: int) -> int | None:
        """Moves the cheapest run of blocks that lets the request fit, else all; where it then lies."""
        rows = self._rows()
        for first, stop in (self._cheapest(rows, size), (0, len(rows))):
            plan, hole = self._slid(rows, first, stop)
            policy = self._with(plan)
            offset = self._fitted(policy, size, hole)
            if offset is not None:
                self._policy = policy
                self._move(plan)
                return offset
            if policy is self._policy:
                _shift(policy, [(to, _at(block)) for block, to in plan])
        return None

    def _fitted(self, policy: Policy, size: int, hole: int) -> int | None:
        """Places a request; in the hole where the policy passes it over."""
        offset = policy.allocate(size)
        if offset is not None or isinstance(policy, Buddy | Segregated):
            return offset
        try:
            policy.claim(hole, -(-size // self.alignment) * self.alignment)
        except UsageError:
            return None
        return hole

    def _rows(self) -> list[Block]:
        return sorted(self._blocks.values(), key=attrgetter("offset"))

    def _cheapest(self, rows: list[Block], size: int) -> tuple[int, int]:
        """The run of rows with the fewest bytes whose gaps, the one behind it included, make `size`."""
        best, found = self.capacity + 1, (0, 0)
        first, gaps, cost, end = 0, 0, 0, 0  # of the run first .. i - 1, with the gap before each of them
        for i in range(len(rows) + 1):
            at = _at(rows[i]) if i < len(rows) else self.capacity
            gaps += at - end  # the gap before i closes the run
            while gaps >= size and first <= i:
                if cost < best:
                    best, found = cost, (first, i)
                if first == i:
                    break
                before = _at(rows[first - 1]) + rows[first - 1].given if first else 0
                gaps -= _at(rows[first]) - before
                cost -= rows[first].given
                first += 1
            if i == len(rows):
                break
            end = at + rows[i].given
            if rows[i].pins:  # nothing slides across it
                first, gaps, cost = i + 1, 0, 0
            else:
                cost += rows[i].given
        return found

    def _slid(self, rows: list[Block], first: int, stop: int) -> tuple[list[tuple[Block, int]], int]:
        """(block, new offset) of the rows first .. stop - 1 that move, all downwards; where the last ends."""
        plan = []
        end = _at(rows[first - 1]) + rows[first - 1].given if first else 0
        for block in rows[first:stop]:
            given, at = block.given, _at(block)
            if not block.pins:
                step = given if isinstance(self._policy, Buddy) else self.alignment
                to = -(-end // step) * step
                if to < at:
                    plan.append((block, to))
                    at = to
            end = at + given
        return plan, end

    def _with(self, plan: list[tuple[Block, int]]) -> Policy:
        """The policy with the blocks where the plan puts them: changed, or a new one where cells must go."""
        moves = [(_at(block), to) for block, to in plan]
        if isinstance(self._policy, Segregated):
            return self._rebuilt(dict(moves))
        _shift(self._policy, moves)
        return self._policy

    def _rebuilt(self, goes: dict[int, int]) -> Policy:
        """A new policy with the blocks where they lie, or go (old offset -> new)."""
        self._high = max(self._high, self._policy.high_water)
        policy = type(self._policy)(self.capacity, self.alignment)
        # a fault may have left a block in two places of the table: only its own offset counts
        self._blocks = {_at(block): block for block in self._blocks.values()}
        for offset, given in sorted((goes.get(at, at), block.given) for at, block in self._blocks.items()):
            policy.claim(offset, given)
        return policy

    def _move(self, plan: list[tuple[Block, int]]) -> None:
        """Carries a plan out, lowest block first: each lands on bytes that are free by then.

        Each move is noted at once, so that a fault at any point leaves every block at whole bytes.
        """
        for block, to in plan:
            at = _at(block)
            try:
                self.memory.move(at, to, block.size)
                self._blocks[to] = block
                block.moved(to)
            except BaseException as why:
                if self.memory.torn:
                    block.lost()
                    self.fault = (
                        f"a move failed half way ({type(why).__name__}: {why}): the bytes of a block of "
                        f"{block.size} are lost, and arena {self.guard.name} is out of use"
                    )
                    say_once(self.fault, log=_log)
                raise
            self.memory.torn = False
            del self._blocks[at]
            self._moved += block.size
            self._compactions += block is plan[0][0]


def _shift(policy: Policy, moves: list[tuple[int, int]]) -> None:
    """Lets a policy know of blocks that go from one offset to another, all at once."""
    given = [policy.used[at] for at, _ in moves]
    for at, _ in moves:
        policy.free(at)
    for (_, to), size in zip(moves, given, strict=True):
        policy.claim(to, size)


def _at(block: Block) -> int:
    """Where a block of the arena lies."""
    if block.offset is None:
        raise UsageError("a block with plain memory has no place in the arena")
    return block.offset
