"""Slots for expert weights: fixed, aligned, filled on demand; the one not used for longest is refilled.

Glossary: an expert is *resident* while a slot holds its weights; *leased* inside `with`; *kept* experts
are never evicted. A *miss* fills a slot.

    slots = ExpertSlots(Arena(1 << 30), slots=24, slot_bytes=weights_of_one_expert)
    with slots.lease((layer, expert), load_into) as weights:   # uint8 [slot_bytes]
        ...

Nothing is allocated after construction, so nothing can fragment. Where no slot may be taken, `fill` gets
plain memory, counted. Threads may share the slots: who wants an expert that another thread fills waits for
that fill, and nobody else does.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moexray.core.errors import UsageError
from moexray.runtime.checks import is_whole
from moexray.runtime.guard import Guard, renew_in_children

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from types import TracebackType

    from moexray.runtime.arena.blocks import Arena, Block

__all__ = ["ExpertFigures", "ExpertSlots"]


@dataclass(frozen=True, slots=True)
class ExpertFigures:
    """What the slots did.

    Args:
        hits: Leases of resident experts.
        misses: Leases that filled a slot.
        evictions: Experts that gave their slot to another.
        plain: Leases that got plain memory.
        resident: Experts that are resident now.
    """

    hits: int
    misses: int
    evictions: int
    plain: int
    resident: int


class _Slot:
    """One slot; a context that gives its bytes and counts its leases."""

    __slots__ = ("filler", "is_plain", "leases", "owner", "view")

    def __init__(self, view: Any, owner: ExpertSlots, *, is_plain: bool = False) -> None:
        self.view, self.owner, self.leases = view, owner, 0
        self.is_plain = is_plain
        self.filler: int | None = None  # thread that fills it now

    def __enter__(self) -> Any:
        return self.view

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.owner.turn:
            self.leases = max(self.leases - 1, 0)


class ExpertSlots:
    """See the head of this file.

    Args:
        arena: Where the slots lie; they are pinned there.
        slots: How many.
        slot_bytes: Bytes of the largest expert.
        name: For the kill switch.

    Raises:
        UsageError: the slots do not fit into the arena; the message names both sizes.
    """

    def __init__(self, arena: Arena, *, slots: int, slot_bytes: int, name: str = "experts") -> None:
        if not is_whole(slots, slot_bytes):
            raise UsageError(f"{slots} slots of {slot_bytes} bytes", hint="whole numbers from 1")
        step = -(-slot_bytes // arena.alignment) * arena.alignment
        block = arena.allocate(slots * step, spill=not arena.guard.on)
        if block is None:
            raise UsageError(f"{slots} slots of {slot_bytes} bytes do not fit into the arena",
                             hint=arena.fault or f"{arena.figures().free_bytes} bytes are left")  # fmt: skip
        self.slot_bytes = slot_bytes
        self.guard = Guard(name)
        self._arena = arena
        self._block: Block | None = block
        self.turn = threading.Condition()  # held for the tables only, never while a fill runs
        view = block.__enter__()
        starts = range(0, slots * step, step)
        self._free = [_Slot(view[at : at + slot_bytes], self) for at in reversed(starts)]
        self._resident: OrderedDict[Hashable, _Slot] = OrderedDict()  # longest unused first; fills included
        self._kept: set[Hashable] = set()
        self._hits = self._misses = self._evictions = self._plain = 0
        renew_in_children(self)

    def renew(self) -> None:
        """Makes the lock anew, in a forked child; there fills of other threads never end."""
        self.turn = threading.Condition()
        for key, slot in list(self._resident.items()):
            if slot.filler not in {None, threading.get_ident()}:
                del self._resident[key]
                slot.filler, slot.leases = None, 0
                self._free.append(slot)

    def lease(self, key: Hashable, fill: Callable[[Any], object]) -> _Slot:
        """A context that gives uint8 [slot_bytes] with the expert's weights.

        Args:
            key: Of the expert, e.g. (layer, expert).
            fill: Called with the bytes where the expert is not resident. What it raises comes out here,
                and the slot stays free.
        """
        with self.turn:
            slot = self._awaited(key) or self.guard.run(self._place, self._own, key)
            slot.leases += 1
            if slot.filler is None and not slot.is_plain:  # resident
                return slot
        try:
            fill(slot.view)  # the host's own code: what it raises is no fault of ours
        except BaseException:
            self._filled(key, slot, well=False)
            raise
        self._filled(key, slot, well=True)
        return slot

    def _awaited(self, key: Hashable) -> _Slot | None:
        """Waits while another thread fills this expert.

        A thread that leases while it fills gets plain memory: two could wait for each other.
        """
        while self.guard.on:
            try:
                slot = self._resident.get(key)
            except TypeError:  # no key: `_place` says so
                break
            if slot is None or slot.filler is None:
                break
            if any(one.filler == threading.get_ident() for one in self._resident.values()):
                return self._own(key)
            self.turn.wait()
        return None

    def _filled(self, key: Hashable, slot: _Slot, *, well: bool) -> None:
        with self.turn:
            slot.filler = None
            if not well:
                slot.leases = 0
            if slot.is_plain:
                self._plain += well
                return
            if well:
                self._misses += 1
            else:
                del self._resident[key]
                self._free.append(slot)
            self.turn.notify_all()

    def keep(self, *keys: Hashable) -> None:
        """Experts that are never evicted once they are resident."""
        with self.turn:
            self._kept.update(keys)

    def unkeep(self, *keys: Hashable) -> None:
        """Undoes `keep`."""
        with self.turn:
            self._kept.difference_update(keys)

    def evict(self, key: Hashable) -> bool:
        """Frees an expert's slot, kept or not; False where it is not resident or leased."""
        with self.turn:
            slot = self._resident.get(key)
            if slot is None or slot.leases:
                return False
            del self._resident[key]
            self._free.append(slot)
            return True

    def resident(self) -> tuple[Hashable, ...]:
        """Experts that are resident, the one not used for longest first."""
        with self.turn:
            return tuple(key for key, slot in self._resident.items() if slot.filler is None)

    def figures(self) -> ExpertFigures:
        """The counters, taken together."""
        with self.turn:
            resident = sum(slot.filler is None for slot in self._resident.values())
            return ExpertFigures(self._hits, self._misses, self._evictions, self._plain, resident)

    def close(self) -> None:
        """Gives the slots back to the arena; leases get plain memory from then on. Safe twice.

        Raises:
            UsageError: an expert is leased.
        """
        with self.turn:
            if any(slot.leases for slot in self._resident.values()):
                raise UsageError("an expert is still leased", hint="close after its `with`")
            self._resident.clear()
            self._free.clear()
            block, self._block = self._block, None
            if block is not None:
                block.__exit__(None, None, None)
                self._arena.free(block)

    def _place(self, key: Hashable) -> _Slot:
        """The expert's slot, or one to fill for it."""
        slot = self._resident.get(key)
        if slot is not None:
            self._resident.move_to_end(key)
            self._hits += 1
            return slot
        slot = self._slot()
        if slot is None:
            return self._own(key)
        slot.filler = threading.get_ident()
        self._resident[key] = slot
        return slot

    def _slot(self) -> _Slot | None:
        if self._free:
            return self._free.pop()
        for key, slot in self._resident.items():
            if not slot.leases and key not in self._kept:
                del self._resident[key]
                self._evictions += 1
                return slot
        return None

    def _own(self, key: Hashable) -> _Slot:
        """Plain memory for one lease."""
        del key
        memory = self._arena.memory.alike(self.slot_bytes, self._arena.alignment)
        return _Slot(memory.raw, self, is_plain=True)
