"""The settings of an exchange, and what it counts."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

from moexray.core.errors import UsageError
from moexray.runtime.checks import is_whole
from moexray.runtime.host_memory import SPARE_BYTES

__all__ = ["NAME", "RUNGS", "Counters", "Fallback", "Options"]

RUNGS = ("device", "gloo", "shm", "ring")
# Its name for the kill switch (guard.py).
NAME = "exchange"


@dataclass(frozen=True, slots=True)
class Options:
    """Must be equal on all ranks, except `folder` and `spare_bytes`.

    Attributes:
        rungs: What to try, in this order; the ranks agree on the first that all of them can.
        timeout_s: A rank that is waited for and silent for so long counts as stuck, in s.
        ring_bytes: Size of the ring of each ordered pair of ranks on rung "shm"; all ranks together
            take world * (world - 1) of them. Smaller ones wait more often.
        file_ring_bytes: The same on rung "ring": smaller, as memory is short then.
        spare_bytes: Rung "shm" is refused if less memory would stay available.
        folder: Where rung "ring" makes its unnamed file; None: the temporary folder.
        checksums: Also checks a CRC-32 of every chunk (costs about as much as the copies).
        direct: A part that would fill its ring is read by its receiver in the sender's memory, one copy in
            place of two, where the kernel allows it (direct.py).
        max_bytes: A rank that is about to receive more fails instead of allocating it.
    """

    rungs: tuple[str, ...] = ("shm", "ring")
    timeout_s: float = 60.0
    ring_bytes: int = 1 << 22
    file_ring_bytes: int = 1 << 18
    spare_bytes: int = SPARE_BYTES
    folder: str | None = None
    checksums: bool = False
    direct: bool = True
    max_bytes: int = 8 << 30

    def __post_init__(self) -> None:
        """Raises UsageError for what cannot be."""
        if not self.rungs or not set(self.rungs) <= set(RUNGS):
            raise UsageError(f"rungs {self.rungs!r}", hint=f"choose from {', '.join(RUNGS)}")
        for name in ("ring_bytes", "file_ring_bytes"):
            size = getattr(self, name)
            if not is_whole(size, least=mmap.PAGESIZE) or size % mmap.PAGESIZE:
                raise UsageError(f"{name} {size}", hint=f"use a multiple of the page size {mmap.PAGESIZE}")
        for name in ("spare_bytes", "max_bytes"):
            if not is_whole(getattr(self, name), least=0):
                raise UsageError(f"{name} {getattr(self, name)}", hint="a number of bytes, not negative")


@dataclass(frozen=True, slots=True)
class Fallback:
    """One step down the ladder.

    Attributes:
        from_rung: The rung that failed.
        to_rung: The rung all ranks agreed on.
        sequence: The exchange that was repeated there; 0: while the group was opened.
        reasons: Rank -> why it could not.
    """

    from_rung: str
    to_rung: str
    sequence: int
    reasons: dict[int, str]


@dataclass(frozen=True, slots=True)
class Counters:
    """What happened so far.

    Attributes:
        exchanges: Exchanges that were completed.
        sent_bytes: Bytes sent, those to itself included.
        received_bytes: Bytes received, likewise.
        waits: How often this rank slept until a peer said something.
        wait_ns: How long in all, in ns.
        direct_bytes: Of those received, bytes that were read in the sender's memory.
        fallbacks: Steps down the ladder, oldest first.
    """

    exchanges: int
    sent_bytes: int
    received_bytes: int
    waits: int
    wait_ns: int
    direct_bytes: int
    fallbacks: tuple[Fallback, ...]
