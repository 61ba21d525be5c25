"""Makes recordings ready: self-check, stream with the requests that failed, capacity, fresh start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moexray.algorithms.blocks import ContradictionError, limited, segment_size
from moexray.algorithms.replay import Action, Check, replay
from moexray.algorithms.simulate import Plan, prepare
from moexray.core.errors import UsageError
from moexray.whatif.recordings import LeftOut
from moexray.whatif.search import Case
from moexray.whatif.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moexray.algorithms.blocks import Settings
    from moexray.whatif.recordings import Recording

__all__ = ["Memory", "prepare_cases", "restarted"]

MIDWAY = 0.01  # share of the peak that existed at the start and is still called a start from empty


@dataclass(frozen=True, slots=True)
class Memory:
    """What the user says of the device.

    Args:
        capacity: Bytes that PyTorch may have; None if unknown.
        fraction: set_per_process_memory_fraction, 0 to 1; None if not set.
        total: Bytes of the card, from the artefacts; None if unknown.
        logged: Bytes that PyTorch could have, from an out-of-memory message; None if unknown.
    """

    capacity: int | None = None
    fraction: float | None = None
    total: int | None = None
    logged: int | None = None

    def limits(self, settings: Settings) -> Settings:
        """The settings with the limit that a memory fraction means.

        Raises:
            UsageError: a fraction of an unknown size.
        """
        whole = self.capacity or self.total
        if self.fraction is None:
            return settings if whole is None else limited(settings, whole)
        if whole is None:
            hint = "add --capacity, or give a file that tells it (nvidia-smi, an OOM message, a GPU trace)"
            raise UsageError("a memory fraction needs the memory of the card", hint=hint)
        return limited(replace(settings, fraction=self.fraction), whole)


def prepare_cases(
    recorded: Iterable[Recording], memory: Memory | None = None
) -> tuple[list[Case], list[LeftOut]]:
    """Checks and prepares recordings.

    Args:
        recorded: From `recordings.collect`.
        memory: What the user says. Where it gives no capacity, a recorded retry or out-of-memory
            event of any of the devices shows it (one server has cards of one size).

    Returns:
        (cases, left out because the history contradicts itself).

    Raises:
        UsageError: a memory fraction of an unknown size.
    """
    memory = memory or Memory()
    made: list[tuple[Recording, Check | None, Plan]] = []
    shown: list[int] = []
    left = []
    for r in recorded:
        history = replace(r.history, settings=memory.limits(r.history.settings))
        check = replay(history) if r.kind == "snapshot" else None
        try:
            plan = prepare(history)
        except ContradictionError as why:
            left.append(LeftOut(r.source, r.device, f"its history contradicts itself: {why}", check))
            continue
        made.append((replace(r, history=history), check, plan))
        shown += _shown(plan, r)
    capacity = memory.capacity
    shown = shown or [n for n in (memory.logged,) if n is not None]
    if capacity is None and shown and made:
        capacity = max(*shown, *(plan.capacity[0] for _, _, plan in made))
    cases = []
    for r, check, plan in made:
        kept, fresh = Stream(plan), restarted(plan)
        cases.append(Case(r, check, kept, kept if fresh is plan else Stream(fresh), capacity))
    return cases, left


def _shown(plan: Plan, recording: Recording) -> list[int]:
    """Bytes that the device could give, as failed requests show: one figure, or none."""
    least, below = plan.capacity
    limits = [] if below is None else [least]
    reserved = sum(size for s in plan.start for _, size, _, _ in s.blocks)
    free = iter(recording.free_at_oom)
    for e in recording.history.events:
        if e.action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            reserved += e.size
        elif e.action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
            reserved -= e.size
        elif e.action == Action.OOM:
            most = segment_size(e.size, recording.history.settings) - 1
            limits = [reserved + min(most if (have := next(free, None)) is None else have, most)]
    return [max(least, min(limits))] if limits else []


def restarted(plan: Plan) -> Plan:
    """The plan from an empty device: the blocks that lived at the start are allocated first.

    In the order of their addresses, since the recording does not tell their age. The same plan
    where (nearly) nothing existed at the start.
    """
    if sum(b[1] for s in plan.start for b in s.blocks) <= MIDWAY * plan.capacity[0]:
        return plan
    first = [
        (0, address, requested or size, s.stream, s.pool)
        for s in plan.start
        for address, size, requested, used in s.blocks
        if used
    ]
    return replace(plan, start=(), steps=(*first, *plan.steps))
