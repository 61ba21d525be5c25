"""Makes recordings ready: self-check, stream with the requests that failed, capacity, fresh start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moexray.algorithms.blocks import ContradictionError, limited, round_size, segment_size
from moexray.algorithms.replay import Action, Check, replay
from moexray.algorithms.simulate import Plan, prepare
from moexray.core.errors import UsageError
from moexray.whatif.recordings import LeftOut
from moexray.whatif.search import Case
from moexray.whatif.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
            event shows it, on any of the devices (one server has cards of one size).

    Returns:
        (cases, left out because the history contradicts itself).

    Raises:
        UsageError: a memory fraction of an unknown size.
    """
    memory = memory or Memory()
    made: list[tuple[Recording, Check | None, Plan]] = []
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
    capacities = _capacities([(r, plan) for r, _, plan in made], memory)
    cases = []
    for (r, check, plan), capacity in zip(made, capacities, strict=True):
        kept, fresh = Stream.of(plan), restarted(plan)
        cases.append(Case(r, check, kept, kept if fresh is plan else Stream.of(fresh), capacity))
    return cases, left


def _capacities(made: Sequence[tuple[Recording, Plan]], memory: Memory) -> list[int | None]:
    """What each device can give: as stated, as its own failed request shows, else as any other does."""
    if memory.capacity is not None:
        return [memory.capacity] * len(made)
    own = [_failed(plan, r) for r, plan in made]
    seen = [n for n in own if n is not None]
    seen += [plan.capacity[0] for _, plan in made if plan.capacity[1] is not None]
    seen += [memory.logged] if memory.logged is not None and not seen else []
    common = max(*seen, *(plan.capacity[0] for _, plan in made)) if seen and made else None
    return [common if n is None else n for n in own]


def _failed(plan: Plan, recording: Recording) -> int | None:
    """What the device could give when a request failed, bytes; None where none did.

    At least what was live at any time: other processes may have taken memory since.
    """
    reserved = sum(size for s in plan.start for _, size, _, _ in s.blocks)
    live = most = sum(size for s in plan.start for _, size, _, used in s.blocks if used)
    free, limits = iter(recording.free_at_oom), []
    for e in recording.history.events:
        if e.action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
            reserved += e.size
        elif e.action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
            reserved -= e.size
        elif e.action == Action.ALLOC:
            live += round_size(e.size)
            most = max(most, live)
        elif e.action == Action.FREE_COMPLETED:
            live -= round_size(e.size)
        elif e.action == Action.OOM:
            below = segment_size(e.size, recording.history.settings) - 1
            have = next(free, None)
            limits.append(reserved + (below if have is None else min(have, below)))
    return max(most, min(limits)) if limits else None


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
