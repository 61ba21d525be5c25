"""The memory of the ranks in one process, and what each step did to it: the part that all engines share."""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.verify.lab.pressure import LAYOUTS, Pressure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from moexray.verify.lab.pressure import PressureSpec

__all__ = ["Bench", "State"]

COMPACT = "moexray.arena.compact"  # the annotation of a move in a trace


@dataclass(slots=True)
class State:
    """What is switched while the engine runs, and what it notes.

    Args:
        slots: int64 [layers, experts]: the expert in each slot; ranks hold equal, neighbouring parts.
        pressures: Memory of each rank that is in this process; its layout is the live mode flag.
        counts: int64 [layers, experts]: tokens that this process sent to each expert since it was reset.
        rows: int64 [layers, ranks]: rows that each rank of this process received since then.
    """

    slots: np.ndarray
    pressures: dict[int, Pressure]
    counts: np.ndarray
    rows: np.ndarray


class Bench:
    """See the head of this file.

    Args:
        memory: Of each rank.
        sizes: (layers, experts) of the model.
        ranks: EP ranks.
        mine: Those in this process.

    Attributes:
        state: Live.
        notes: A row per step: begin_ns, end_ns, cpu_ns, counts, rows, largest, moves; see work.Steps.
    """

    def __init__(
        self, memory: PressureSpec, sizes: tuple[int, int], ranks: int, mine: tuple[int, ...]
    ) -> None:
        from moexray.runtime.arena import Memory

        self.calm, self.ranks, self.notes = memory.calm, ranks, list[tuple[Any, ...]]()
        self._mark: Callable[[str], Any] = lambda _: nullcontext()
        taken = {r: Memory.take(memory.capacity) for r in mine}
        self._memory = {
            (layout, r): Pressure(replace(memory, seed=memory.seed + r), layout, taken[r],
                                  lambda: self._mark(COMPACT))
            for r in mine for layout in LAYOUTS
        }  # fmt: skip
        self.state = State(
            np.tile(np.arange(sizes[1]), (sizes[0], 1)), {},
            np.zeros(sizes, np.int64), np.zeros((sizes[0], ranks), np.int64),
        )  # fmt: skip
        self.use(self.state.slots, "shared")

    def use(self, slots: np.ndarray, layout: str) -> None:
        """Switches the placement and the layout of memory."""
        self.state.slots = slots
        self.state.pressures = {r: p for (name, r), p in self._memory.items() if name == layout}

    @contextmanager
    def recorded(self, folder: Path | None) -> Iterator[None]:
        """Writes a trace of what happens inside, then memory as it is left; None records nothing."""
        if folder is None:
            yield
            return
        from torch.profiler import ProfilerActivity, profile, record_function

        from moexray.verify.lab.bundle import write_memory

        self._mark = record_function
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            yield
        self._mark = lambda _: nullcontext()
        (folder / "traces").mkdir(parents=True, exist_ok=True)
        first = min(self.state.pressures)
        profiler.export_chrome_trace(str(folder / "traces" / f"rank{first}.pt.trace.json.gz"))
        for rank, pressure in self.state.pressures.items():
            pressure.record = False
            write_memory(folder, rank, pressure)
            pressure.events, pressure.failed = [], None

    @contextmanager
    def step(self, number: int, fill: float) -> Iterator[None]:
        """Around the forward pass of a step: the cache churns, then the model works; adds to `notes`.

        Args:
            number: Of the step.
            fill: Share of memory that keys and values take.
        """
        state, pressures = self.state, self.state.pressures
        state.counts[:], state.rows[:] = 0, 0
        moves = {r: len(p.compactions) for r, p in pressures.items()}
        begin, cpu = time.time_ns(), time.thread_time_ns()
        with self._mark(f"step {number}"):
            for pressure in pressures.values():
                pressure.fill = fill
                pressure.step()
            yield
        cpu, end = time.thread_time_ns() - cpu, time.time_ns()
        largest, moved = np.full(self.ranks, -1, np.int64), np.zeros(self.ranks, np.int64)
        for rank, pressure in pressures.items():
            largest[rank] = pressure.largest_free
            moved[rank] = len(pressure.compactions) - moves[rank]
        self.notes.append((begin, end, cpu, state.counts.copy(), state.rows.copy(), largest, moved))
