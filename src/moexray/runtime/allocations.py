"""Allocations of a recorded program, into files of its bundle: cheap, and bounded.

On a GPU PyTorch's own history of the allocator is switched on (a ring of HISTORY events, about 2 us each)
and dumped when memory runs out, every EVERY_S seconds and at exit: memory/snapshot_rankN_PID.pickle. On a
CPU there is no such history: the profiler's memory events of STEPS steps, after WARM others, become
traces/cpu_memory_rankN_PID.json; those steps are slower, so their latency is not the service's.

Not run on a GPU yet.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import time
from pathlib import Path
from typing import Any

from moexray.runtime.guard import say_once

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
        self._steps, self._next, self._on = 0, 0.0, True

    def begin(self) -> None:
        """Before a step."""
        if not self._on:
            return
        try:
            (self._history if self._cuda else self._profiled)()
        except Exception as why:  # noqa: BLE001 - the edge of a host engine
            self._on = False
            say_once(f"allocations are not recorded: {type(why).__name__}: {why}", log=_log)

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
            torch.cuda.memory._record_memory_history(max_entries=HISTORY, stacks="python")  # noqa: SLF001
            torch._C._cuda_attach_out_of_memory_observer(lambda *_: self._dump())  # noqa: SLF001
            atexit.register(self._dump)
        elif now > self._next:
            self._dump()
        if now > self._next:
            self._next = now + EVERY_S

    def _dump(self) -> None:
        import torch

        with contextlib.suppress(Exception):
            hidden = self._place("memory", f"snapshot_{self._name}.pickle")
            torch.cuda.memory._dump_snapshot(str(hidden))  # noqa: SLF001
            hidden.replace(hidden.with_suffix(""))

    def end(self) -> None:
        """Stops, and keeps what there is; safe twice."""
        profile, self._profile = self._profile, None
        if profile is None:
            return
        self._on = False
        hidden = self._place("traces", f"cpu_memory_{self._name}.json")
        try:
            profile.stop()
            profile.export_chrome_trace(str(hidden))
            if hidden.stat().st_size > MOST_BYTES:
                say_once(f"a profile of {STEPS} steps passes {MOST_BYTES} bytes: left out", log=_log)
            else:
                hidden.replace(hidden.with_suffix(""))
        except Exception as why:  # noqa: BLE001 - the edge of a host engine: its disk may be full
            say_once(f"allocations are not recorded: {type(why).__name__}: {why}", log=_log)
        finally:
            with contextlib.suppress(OSError):
                hidden.unlink(missing_ok=True)

    def _place(self, folder: str, name: str) -> Path:
        (self._folder / folder).mkdir(parents=True, exist_ok=True)
        return self._folder / folder / f"{name}.new"
