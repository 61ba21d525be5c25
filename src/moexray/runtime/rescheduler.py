"""Moves cold blocks out of a memory that runs full, before requests fail; never for a single spike.

Glossary: a *sample* is one look at how full the memory is; *pending* work waits for memory; a *block* is
what can be moved, with a priority (low goes first) and a time of last use; *cold* was not used for
`cold_s`. The controller is *armed* from the moment it decides to move until use is back at `low`.

It arms when use was above `high` in `samples` looks in a row and work is pending at the last of them. Armed,
it moves at each look the coldest blocks of the lowest priority, until use is at `low`, within
`bytes_per_s`. Disarmed, it needs the whole row of samples again and does nothing for `rest_s`: that, the
gap between `high` and `low`, and never moving back by itself is what keeps it from swinging.

It keeps no clock and no thread: the host calls `look` where it samples, with its own time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moexray.core.errors import UsageError
from moexray.runtime.checks import is_whole
from moexray.runtime.guard import Guard

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

__all__ = ["Figures", "Movable", "Options", "Rescheduler"]


@dataclass(frozen=True, slots=True)
class Options:
    """When it acts, and how much.

    Args:
        high: Share of the memory in use above which a sample counts (the incident's plan: 92 %).
        low: Share at which it stops; below `high`.
        samples: Samples in a row.
        cold_s: A block used since then is not cold, s.
        rest_s: Time after it stopped in which it does not start, s.
        bytes_per_s: Most bytes moved per second, on average; what is saved up counts for one second at most.
    """

    high: float = 0.92
    low: float = 0.85
    samples: int = 3
    cold_s: float = 5.0
    rest_s: float = 10.0
    bytes_per_s: float = 2e9

    def check(self) -> None:
        """Raises UsageError for what cannot be."""
        if not 0 < self.low < self.high < 1:
            raise UsageError(f"high {self.high}, low {self.low}", hint="0 < low < high < 1")
        times = all(0 <= seconds < math.inf for seconds in (self.cold_s, self.rest_s))  # no NaN passes
        if not is_whole(self.samples) or not times or not self.bytes_per_s > 0:
            raise UsageError("samples, times and bytes per second must be positive", where=str(self))


@dataclass(frozen=True, slots=True)
class Movable:
    """A block that may be moved.

    Args:
        key: What `move` is called with.
        size: Bytes that its move frees.
        used_s: When it was used last, on the clock of `look`.
        priority: Lower goes first; within one priority the coldest, then the largest.
    """

    key: Hashable
    size: int
    used_s: float
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Figures:
    """What it did.

    Args:
        looks: Samples taken.
        armings: Times it started to move.
        moves: Blocks moved.
        moved_bytes: Their bytes.
        refused: Blocks that `move` did not move.
        short: Looks at which it wanted to free more and had no cold block left.
    """

    looks: int
    armings: int
    moves: int
    moved_bytes: int
    refused: int
    short: int


class Rescheduler:
    """See the head of this file. Not for use by two threads at a time.

    Args:
        capacity: Bytes of the memory.
        move: Moves the block of that key; True when its bytes are free. Where it raises, that block counts
            as refused and as a fallback of the guard, and is not tried again while it is listed; after too
            many the rescheduler is left alone.
        options: When it acts.
        name: For the kill switch.

    Raises:
        UsageError: options that cannot be, or no capacity.
    """

    def __init__(
        self, capacity: int, move: Callable[[Hashable], bool], options: Options | None = None, *,
        name: str = "rescheduler",
    ) -> None:  # fmt: skip
        self.options = options or Options()
        self.options.check()
        if not 1 <= capacity < math.inf:
            raise UsageError(f"a memory of {capacity} bytes")
        self.capacity = capacity
        self.guard = Guard(name)
        self._move = move
        self._row = 0  # samples above high without a break
        self._armed = False
        self._bad: set[Hashable] = set()  # keys of blocks whose move raised
        self._rested_s = float("-inf")  # not to start before
        self._budget = 0.0  # bytes that may be moved now
        self._last_s: float | None = None
        self._looks = self._armings = self._moves = self._moved = self._refused = self._short = 0

    @property
    def armed(self) -> bool:
        """Whether it is moving blocks."""
        return self._armed

    def look(self, now_s: float, used: int, *, pending: bool, blocks: Iterable[Movable]) -> int:
        """Takes a sample and acts on it.

        Args:
            now_s: Time, never less than at the look before.
            used: Bytes in use.
            pending: Whether work waits for memory.
            blocks: What may be moved; only read when armed.

        Returns:
            Bytes freed.
        """
        return self.guard.run(self._look, self._unseen, now_s, used, pending, blocks)

    def figures(self) -> Figures:
        """The counters."""
        return Figures(self._looks, self._armings, self._moves, self._moved, self._refused, self._short)

    def _unseen(self, now_s: float, used: int, pending: bool, blocks: Iterable[Movable]) -> int:  # noqa: FBT001
        """A look while switched off, or one that failed: it breaks the row of samples."""
        del now_s, used, pending, blocks
        self._row, self._armed = 0, False
        return 0

    def _look(self, now_s: float, used: int, pending: bool, blocks: Iterable[Movable]) -> int:  # noqa: FBT001
        options = self.options
        self._looks += 1
        if math.isnan(now_s) or math.isnan(used):
            raise UsageError(f"{used} bytes in use at {now_s} s", hint="no number: nothing is moved")
        passed = 0.0 if self._last_s is None else max(now_s - self._last_s, 0.0)
        self._last_s = now_s
        self._budget = min(self._budget + passed * options.bytes_per_s, options.bytes_per_s)
        self._row = self._row + 1 if used > options.high * self.capacity else 0
        if not self._armed:
            if self._row < options.samples or not pending or now_s < self._rested_s:
                return 0
            self._armed = True
            self._armings += 1
        freed = self._free(now_s, used, blocks)
        if used - freed <= options.low * self.capacity:
            self._armed, self._row = False, 0
            self._rested_s = now_s + options.rest_s
        return freed

    def _free(self, now_s: float, used: int, blocks: Iterable[Movable]) -> int:
        options = self.options
        surplus = used - int(options.low * self.capacity)
        listed = list(blocks)
        self._bad &= {b.key for b in listed}
        cold = (b for b in listed if now_s - b.used_s >= options.cold_s and b.size >= 1)
        freed = 0
        for block in sorted(cold, key=lambda b: (b.priority, b.used_s, -b.size)):
            if block.key in self._bad:
                continue
            if freed >= surplus or not self.guard.on:
                return freed
            if self._budget <= 0:  # a block larger than what is left goes, and the next ones wait for it
                return freed
            if self._moves_away(block.key):
                freed += block.size
                self._budget -= block.size
                self._moves += 1
                self._moved += block.size
            else:
                self._refused += 1
        self._short += freed < surplus
        return freed

    def _moves_away(self, key: Hashable) -> bool:
        try:
            return self._move(key)
        except Exception as why:  # noqa: BLE001 - the host's code; what was freed before it still counts
            self._bad.add(key)
            self.guard.failed(why)
            return False
