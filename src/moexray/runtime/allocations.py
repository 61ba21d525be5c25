"""Allocations of a recorded program, into files of its bundle: cheap, and bounded.

On a GPU PyTorch's own history of the allocator is switched on (a ring of HISTORY events, about 2 us each)
and dumped when memory runs out, every EVERY_S seconds and at exit: memory/snapshot_rankN_PID.pickle. On a
CPU there is no such history: the profiler's memory events of STEPS steps, after WARM others, become
traces/cpu_memory_rankN_PID.json; those steps are slower, so their latency is not the service's.

A history that the host keeps, or a profiler that it runs, is left alone; so nothing is recorded then. The end
dumps once more and stops the history. PyTorch cannot take an observer of lost memory off: ours stays, idle.

Not run on a GPU yet.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moexray.runtime.guard import say_once

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Allocations"]

WARM, STEPS = 3, 4  # steps of the CPU profile (our choice)
MOST_BYTES = 32 << 20  # of its file; a larger one is deleted (our choice)
HISTORY = 50_000  # events; a dump of so many takes some 20 MB with Python stacks (our choice)
EVERY_S = 30.0  # seconds between two dumps (our choice)

_log = logging.getLogger(__name__)


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
        self._recording = False  # our history is on
        self._steps, self._next, self._on = 0, 0.0, True

    def begin(self) -> None:
        """Before a step."""
        if not self._on:
            return
        try:
            (self._history if self._cuda else self._profiled)()
        except Exception as why:  # noqa: BLE001 - the edge of a host engine
            _say(why)
            self.end()

    def _profiled(self) -> None:
        import torch

        if self._steps == WARM and not torch.autograd.profiler._is_profiler_enabled:  # noqa: SLF001 - theirs first
            activities = [torch.profiler.ProfilerActivity.CPU]
            self._profile = torch.profiler.profile(activities=activities, profile_memory=True)
            self._profile.start()
        elif self._steps == WARM + STEPS:
            self.end()
        self._steps += 1

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
        profile, self._profile = self._profile, None
        try:
            if self._recording:
                self._end_history()
            if profile is not None:
                profile.stop()  # first: else it would stay on for the life of the process
                self._keep("traces", f"cpu_memory_{self._name}.json", profile.export_chrome_trace, MOST_BYTES)
        except Exception as why:  # noqa: BLE001 - the edge of a host engine
            _say(why)

    def _end_history(self) -> None:
        import torch

        self._dump()
        self._recording = False  # before what may raise; the observer asks this
        atexit.unregister(self._dump)
        torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001

    def _keep(self, folder: str, name: str, write: Callable[[str], object], most: float = math.inf) -> None:
        """Has a file written under another name, then gives it its own; told where that fails."""
        hidden = self._folder / folder / f"{name}.new"
        try:
            hidden.parent.mkdir(parents=True, exist_ok=True)
            write(str(hidden))
            if hidden.stat().st_size > most:
                say_once(f"{name}: a profile of {STEPS} steps passes {most} bytes: left out", log=_log)
            else:
                hidden.replace(hidden.with_suffix(""))
        except Exception as why:  # noqa: BLE001 - the edge of a host engine: its disk may be full
            _say(why)
        finally:
            with contextlib.suppress(OSError):
                hidden.unlink(missing_ok=True)


def _say(why: Exception) -> None:
    say_once(f"allocations are not recorded: {type(why).__name__}: {why}", log=_log)
