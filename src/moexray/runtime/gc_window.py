"""The garbage collector while serving: start-up's objects are left out, the rest goes between batches.

Glossary: a *window* is the time between attach and detach; a *pause* is a collection. Python's collector
stops the thread that happens to pass a count of new objects; a full collection walks all objects of a
model. In a window the objects of start-up are frozen (never walked), and collections are asked for by
`between`, which the host calls between two batches or at idle. The collector is not switched off: should
`between` never be called, it still runs after `valve` new objects.

    window = GcWindow()
    with window:                  # after warm-up
        while serving:
            run_batch()
            window.between()

Detaching puts back the thresholds, unless the host has set others meanwhile; the switch is never touched.
Objects that the host froze itself stay frozen: then nothing of ours is frozen, or unfrozen. One window at a
time in a process; a second one does nothing and says so, and may be attached once the first is closed.
"""

from __future__ import annotations

import gc
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from moexray.core.errors import UsageError
from moexray.runtime.checks import is_whole
from moexray.runtime.guard import Guard, say_once
from moexray.runtime.handle import Handle

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["GcFigures", "GcWindow"]

FULL_EVERY = 64  # collections (our choice)
VALVE = 1_000_000  # new objects, some 100 MB of small ones (our choice)
MOST = 2**31 - 1  # that the collector takes: an int of C

_log = logging.getLogger(__name__)
_windows: list[GcWindow] = []  # the one in force


@dataclass(frozen=True, slots=True)
class GcFigures:
    """What happened in the window.

    Args:
        frozen: Objects that are left out.
        asked: Collections by `between`.
        unasked: Collections by the collector itself, or by the host.
        collected: Objects that they freed.
        longest_ns: Longest of them, wall time.
        longest_unasked_ns: Longest one not by `between`.
    """

    frozen: int
    asked: int
    unasked: int
    collected: int
    longest_ns: int
    longest_unasked_ns: int


class GcWindow:
    """See the head of this file.

    Args:
        valve: New objects after which the collector runs without being asked.
        least: New objects below which `between` does nothing.
        name: For the kill switch; switched off, a window does nothing.

    Raises:
        UsageError: numbers that cannot be.
    """

    def __init__(self, *, valve: int = VALVE, least: int = 700, name: str = "gc-window") -> None:
        if not is_whole(valve, least, least=0) or valve > MOST:
            raise UsageError(f"valve {valve}, least {least}", hint="counts of objects, whole numbers")
        self.valve, self.least = valve, least
        self.guard = Guard(name)
        self._handle = Handle(name, self._install)
        self._frozen = self._asked = self._unasked = self._collected = 0
        self._longest = self._longest_unasked = self._started = 0
        self._asking = False

    def attach(self) -> Self:
        """Opens the window: one full collection, then the freeze. `attached` tells whether it is open."""
        if self.guard.on:
            try:
                self._handle.attach()
            except UsageError as why:
                say_once(str(why), log=_log)
        return self

    @property
    def attached(self) -> bool:
        """Whether this window is the one in force."""
        return self._handle.attached

    def detach(self) -> None:
        """Closes it and puts everything back; safe twice."""
        self._handle.detach()

    def between(self, *, idle: bool = False) -> int:
        """Collects what the batches left, if there is enough; the objects freed.

        Args:
            idle: There is time to walk what survived earlier collections, too; without, only each
                FULL_EVERYth call does.
        """
        return self.guard.run(self._between, _nothing, idle)

    def _between(self, idle: bool) -> int:  # noqa: FBT001
        if self not in _windows or (gc.get_count()[0] < self.least and not idle):
            return 0
        self._asking = True
        try:
            return gc.collect(2 if idle or self._asked % FULL_EVERY == FULL_EVERY - 1 else 1)
        finally:
            self._asking = False

    def figures(self) -> GcFigures:
        """The counters."""
        return GcFigures(
            self._frozen, self._asked, self._unasked, self._collected, self._longest, self._longest_unasked
        )

    def _install(self, handle: Handle) -> None:
        if _windows:
            raise UsageError("a garbage-collector window is open already; a second one does nothing")
        gc.collect()
        frozen_before = gc.get_freeze_count()
        _windows.append(self)
        handle.on_detach(_windows.clear)
        if not frozen_before:
            gc.freeze()
            self._frozen = gc.get_freeze_count()
            handle.on_detach(self._thaw)
        gc.callbacks.append(self._watch)
        handle.on_detach(lambda: gc.callbacks.remove(self._watch))
        before = gc.get_threshold()
        if before[0]:  # 0: the host wants no collection that is not asked for
            gc.set_threshold(max(self.valve, 1), *before[1:])
            ours = gc.get_threshold()
            handle.on_detach(lambda: gc.set_threshold(*before) if gc.get_threshold() == ours else None)

    def _thaw(self) -> None:
        if gc.get_freeze_count() > self._frozen:
            say_once("the host froze objects in the window: they and ours stay frozen", log=_log)
        else:
            gc.unfreeze()

    def _watch(self, phase: str, info: dict[str, Any]) -> None:
        now = time.perf_counter_ns()
        if phase == "start":
            self._started = now
            return
        took = now - self._started
        self._collected += int(info["collected"])
        self._longest = max(self._longest, took)
        if self._asking:
            self._asked += 1
        else:
            self._unasked += 1
            self._longest_unasked = max(self._longest_unasked, took)

    def __enter__(self) -> Self:
        return self.attach()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()


def _nothing(idle: bool) -> int:  # noqa: FBT001
    """The original path: nobody asks for a collection."""
    del idle
    return 0
