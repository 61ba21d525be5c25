"""Allocations of a recorded program, into files of its bundle: cheap, and bounded.

On a GPU PyTorch's own history of the allocator is switched on (a ring of HISTORY events, about 2 us each)
and dumped when memory runs out, every EVERY_S seconds and at exit: memory/snapshot_rankN_PID.pickle. On a
CPU there is no such history: the profiler's memory events of STEPS steps, after WARM others, become
traces/cpu_memory_rankN_PID-K.json; those steps are slower, so their latency is not the service's.

PyTorch's profiler belongs to a thread, and ends the process with a fault where another thread stops it or the
interpreter ends while it runs; a forked child hangs in it. So it runs inside one forward at a time, in the
thread of that forward, and never in a child; children leave without its library's destructors.

A history that the host keeps, or a profiler that it runs, is left alone; so nothing is recorded then. The end
dumps once more and stops the history. PyTorch cannot take an observer of lost memory off: ours stays, idle.

Not run on a GPU yet.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import math
import os
import threading
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moexray.runtime.guard import say_once

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Allocations"]

WARM, STEPS = 3, 4  # steps of the CPU profile (our choice)
MOST_BYTES = 8 << 20  # of the file of a step; a larger one is deleted (our choice)
HISTORY = 50_000  # events; a dump of so many takes some 20 MB with Python stacks (our choice)
EVERY_S = 30.0  # seconds between two dumps (our choice)

_log = logging.getLogger(__name__)
_one = threading.Lock()


class Allocations:
    """Told of each step of one model by its recording.

    Args:
        folder: The bundle.
        device: Of the model.
        name: Of the process in file names: rank0_123.
    """

    def __init__(self, folder: str | Path, device: str, name: str) -> None:
        self._folder, self._cuda, self._name = Path(folder), device.startswith("cuda"), name
        self._profile: Any = None
        self._thread, self._pid = 0, os.getpid()  # of the profile; of who attached
        self._recording = False  # our history is on
        self._steps, self._next, self._on = 0, 0.0, True

    @property
    def by_profiles(self) -> bool:
        """Whether the end of each step is to be told, too."""
        return not self._cuda

    def begin(self) -> None:
        """Before a step."""
        if not self._on:
            return
        try:
            (self._history if self._cuda else self._profiled)()
        except Exception as why:  # noqa: BLE001 - the edge of a host engine
            _say(why)
            self.end()

    def step_ended(self) -> None:
        """After a step, also one that raised, in its thread."""
        if self._profile is not None and self._thread == threading.get_ident():
            self._end_profile()

    def _profiled(self) -> None:
        import torch

        if os.getpid() != self._pid or self._steps >= WARM + STEPS:
            self._on = False
            return
        with _one:  # of two threads at once the first has it
            if self._profile is not None:
                return
            self._steps += 1
            if self._steps <= WARM or torch.autograd.profiler._is_profiler_enabled:  # noqa: SLF001 - theirs first
                return
            _mind_children()
            activities = [torch.profiler.ProfilerActivity.CPU]
            profile = torch.profiler.profile(activities=activities, profile_memory=True)
            self._profile, self._thread = profile, threading.get_ident()
            atexit.register(self.step_ended)  # an interrupt leaves a forward without its end
            profile.start()

    def _end_profile(self) -> None:
        profile, self._profile = self._profile, None
        atexit.unregister(self.step_ended)
        try:
            profile.stop()  # first: else it would stay on for the life of the process
            name = f"cpu_memory_{self._name}-{self._steps - WARM}.json"
            self._on = self._keep("traces", name, profile.export_chrome_trace, MOST_BYTES) and self._on
        except Exception as why:  # noqa: BLE001 - the edge of a host engine
            _say(why)

    def _history(self) -> None:
        import torch

        now = time.monotonic()
        if not self._next:
            if torch._C._cuda_isHistoryEnabled():  # noqa: SLF001 - no other way to ask
                self._on = False
                say_once("allocations are not recorded: the host keeps a history of them itself", log=_log)
                return
            torch.cuda.memory._record_memory_history(max_entries=HISTORY, stacks="python")  # noqa: SLF001
            self._recording = True
            torch._C._cuda_attach_out_of_memory_observer(lambda *_: self._dump())  # noqa: SLF001
            atexit.register(self._dump)
        elif now > self._next:
            self._dump()
        if now > self._next:
            self._next = now + EVERY_S

    def _dump(self) -> None:
        import torch

        if self._recording:
            self._keep("memory", f"snapshot_{self._name}.pickle", torch.cuda.memory._dump_snapshot)  # noqa: SLF001

    def end(self) -> None:
        """Stops, and keeps what there is; safe twice. Never raises."""
        self._on = False
        self.step_ended()
        try:
            if self._recording:
                self._end_history()
        except Exception as why:  # noqa: BLE001 - the edge of a host engine
            _say(why)

    def _end_history(self) -> None:
        import torch

        self._dump()
        self._recording = False  # before what may raise; the observer asks this
        atexit.unregister(self._dump)
        torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001

    def _keep(self, folder: str, name: str, write: Callable[[str], object], most: float = math.inf) -> bool:
        """Has a file written under another name, then gives it its own; False, and told, where that fails."""
        hidden = self._folder / folder / f"{name}.new"
        try:
            hidden.parent.mkdir(parents=True, exist_ok=True)
            write(str(hidden))
            if hidden.stat().st_size > most:
                say_once(f"{name}: the profile of a step passes {most} bytes: left out", log=_log)
            else:
                hidden.replace(hidden.with_suffix(""))
                return True
        except Exception as why:  # noqa: BLE001 - the edge of a host engine: its disk may be full
            _say(why)
        finally:
            with contextlib.suppress(OSError):
                hidden.unlink(missing_ok=True)
        return False


@cache
def _mind_children() -> None:
    """The profiler's library, once used, waits at a forked child's end for a thread that only the parent has.

    So children end as those of multiprocessing do: by _exit, once Python has run its own handlers.
    """

    def in_child() -> None:
        with contextlib.suppress(AttributeError, OSError):  # not glibc
            libc = ctypes.CDLL(None)
            libc.on_exit(libc["_exit"], None)  # runs before the destructors, which were registered earlier

    os.register_at_fork(after_in_child=in_child)


def _say(why: Exception) -> None:
    say_once(f"allocations are not recorded: {type(why).__name__}: {why}", log=_log)
