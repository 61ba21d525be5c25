"""All-to-all that falls back: one small interface over four ways to move bytes between ranks.

Terms:
- rung: one way to move the bytes. From the top: "device" (the collective of the group's own
  backend, e.g. NCCL), "gloo", "shm" (memory shared by the ranks of one host), "ring" (the same
  through an unnamed file, when memory is short).
- fallback: all ranks go down to the same lower rung before a byte of that exchange is delivered,
  or the call fails on all ranks and names who is at fault. Never silent, never in mid-message.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from moexray.core.errors import ExchangeError, UsageError
from moexray.runtime.exchange.host import HostRung
from moexray.runtime.exchange.rendezvous import gather

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    from moexray.runtime.exchange.mesh import Mesh

__all__ = ["RUNGS", "SWITCH", "Counters", "Exchange", "Fallback", "Options"]

RUNGS = ("device", "gloo", "shm", "ring")
# The kill switch: set it to "off".
SWITCH = "MOEXRAY_EXCHANGE"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """Must be equal on all ranks, except `folder` and `spare_bytes`.

    Attributes:
        rungs: What to try, in this order; the ranks agree on the first that all of them can.
        timeout_s: A rank that is waited for and silent for so long counts as stuck, in s.
        ring_bytes: Size of the ring of each ordered pair of ranks on rung "shm".
        file_ring_bytes: The same on rung "ring": smaller, as memory is short then.
        spare_bytes: Rung "shm" is refused if less memory would stay available.
        folder: Where rung "ring" makes its unnamed file; None: the temporary folder.
        checksums: Also checks a CRC-32 of every chunk (costs about as much as the copies).
        max_bytes: A rank that is about to receive more fails instead of allocating it.
    """

    rungs: tuple[str, ...] = RUNGS
    timeout_s: float = 60.0
    ring_bytes: int = 1 << 20
    file_ring_bytes: int = 1 << 18
    spare_bytes: int = 256 << 20
    folder: str | None = None
    checksums: bool = False
    max_bytes: int = 8 << 30

    def __post_init__(self) -> None:
        """Raises UsageError for what cannot be."""
        if not self.rungs or not set(self.rungs) <= set(RUNGS):
            raise UsageError(f"rungs {self.rungs!r}", hint=f"choose from {', '.join(RUNGS)}")
        for name in ("ring_bytes", "file_ring_bytes"):
            size = getattr(self, name)
            if size < mmap.PAGESIZE or size % mmap.PAGESIZE:
                raise UsageError(f"{name} {size}", hint=f"use a multiple of the page size {mmap.PAGESIZE}")


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
        fallbacks: Steps down the ladder, oldest first.
    """

    exchanges: int
    sent_bytes: int
    received_bytes: int
    waits: int
    wait_ns: int
    fallbacks: tuple[Fallback, ...]


class Rung(Protocol):
    """One way to move the bytes; HostRung.exchange tells what the arguments are."""

    name: str

    def exchange(  # noqa: D102 - see the class
        self,
        send: Any,
        send_bytes: Sequence[int],
        recv_bytes: Sequence[int] | None,
        room: Callable[[Sequence[int]], Any],
    ) -> tuple[Any, list[int]]: ...

    def close(self) -> None: ...  # noqa: D102


class Exchange:
    """One rank's end of a group; made by `open`, a context manager.

    Not for several threads at a time, and not across a fork: both are refused.
    """

    def __init__(self, mesh: Mesh, rung: Rung, options: Options, fallbacks: list[Fallback]) -> None:
        self._mesh, self._rung, self._options, self._fallbacks = mesh, rung, options, fallbacks
        self.rank, self.world = mesh.rank, len(mesh.links) + 1
        self._pid, self._busy = os.getpid(), threading.Lock()
        self._failure: ExchangeError | None = None
        self._is_closed = False
        self._exchanges = self._sent = self._received = 0
        self._store = bytearray()

    @classmethod
    def open(cls, group: str, rank: int, world: int, options: Options | None = None) -> Exchange:
        """Meets the other ranks and agrees with them on the first rung that all of them can.

        Args:
            group: Name of the group; equal on its ranks, used by no other group of this user and host.
            rank: This rank, 0 <= rank < world.
            world: Number of ranks, all on this host.
            options: Equal on all ranks.

        Raises:
            UsageError: the arguments cannot be.
            ExchangeError: switched off; a rank is missing, differs or died; or no rung is possible.
        """
        options = options or Options()
        if is_off():
            raise ExchangeError("the exchange is switched off", where=f"{SWITCH}=off", hint="unset it")
        settings = {
            name: getattr(options, name)
            for name in ("timeout_s", "ring_bytes", "file_ring_bytes", "checksums")
        }
        mesh = gather(group, rank, world, options.timeout_s, {**settings, "rungs": list(options.rungs)})
        try:
            rung, fallbacks = _descend(mesh, options, 0)
        except BaseException as why:
            if isinstance(why, ExchangeError):
                mesh.abort(why)
            mesh.close()
            raise
        return cls(mesh, rung, options, fallbacks)

    @property
    def rung(self) -> str:
        """The rung in use."""
        return self._rung.name

    def all_to_all(
        self,
        send: bytes | bytearray | memoryview,
        send_bytes: Sequence[int],
        *,
        recv_bytes: Sequence[int] | None = None,
        out: bytearray | memoryview | None = None,
    ) -> list[memoryview]:
        """Sends each rank its part, and receives this rank's part from each.

        Args:
            send: Anything with a contiguous buffer: bytes for rank 0, then for rank 1, ...
            send_bytes: [world], bytes for each rank; their sum is the size of `send`.
            recv_bytes: [world], bytes expected from each rank; checked if given.
            out: Where to receive; large enough. Without it a buffer of this object is used, which
                the next call overwrites.

        Returns:
            [world], the bytes received from each rank, as views.

        Raises:
            UsageError: the arguments do not fit; nothing was sent, and the group goes on.
            ExchangeError: somebody is at fault; names rank, process and last exchange. Nothing was
                received, and the group is closed on all ranks.
        """
        data = _flat(send)
        _check_sizes("send_bytes", send_bytes, self.world)
        if sum(send_bytes) != len(data):
            raise UsageError(f"send holds {len(data)} bytes, send_bytes sum up to {sum(send_bytes)}")
        if recv_bytes is not None:
            _check_sizes("recv_bytes", recv_bytes, self.world)
        target = None if out is None else _flat(out)
        if target is not None and (target.readonly or sum(recv_bytes or ()) > len(target)):
            raise UsageError(f"out is read-only, or its {len(target)} bytes are too few")
        received, sizes = self._guarded(data, send_bytes, recv_bytes, lambda s: self._room(s, target))
        views, at = [], 0
        for size in sizes:
            views.append(received[at : at + size])
            at += size
        return views

    def counters(self) -> Counters:
        """What happened so far."""
        mesh = self._mesh
        return Counters(
            self._exchanges, self._sent, self._received, mesh.waits, mesh.wait_ns, tuple(self._fallbacks)
        )

    def close(self) -> None:
        """Gives everything back; the other ranks learn that this one left. Safe twice."""
        self._is_closed = True
        if os.getpid() == self._pid:
            self._rung.close()
            self._mesh.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, why: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _guarded(
        self,
        send: Any,
        send_bytes: Sequence[int],
        recv_bytes: Sequence[int] | None,
        room: Callable[[Sequence[int]], Any],
    ) -> tuple[Any, list[int]]:
        """One exchange on the rung in use; any failure closes the group, on all ranks."""
        if (why := self._failure) is not None:
            raise ExchangeError(f"closed since: {why.what}", where=why.where, hint=why.hint, ranks=why.ranks)
        if self._is_closed or os.getpid() != self._pid:
            raise UsageError("the exchange is closed, or was opened by another process")
        if not self._busy.acquire(blocking=False):
            raise UsageError("the exchange is in use by another thread", hint="open one per thread")
        try:
            self._mesh.sequence += 1
            received, sizes = self._rung.exchange(send, send_bytes, recv_bytes, room)
        except BaseException as why:
            self._give_up(why)
            raise
        finally:
            self._busy.release()
        self._exchanges += 1
        self._sent += sum(send_bytes)
        self._received += sum(sizes)
        return received, sizes

    def _give_up(self, why: BaseException) -> None:
        if not isinstance(why, ExchangeError):
            what = f"rank {self.rank} (pid {self._pid}): {why!r}"
            why = ExchangeError(what, where=self._mesh.where(), ranks=(self.rank,))
        self._failure = ExchangeError(why.what, where=why.where, hint=why.hint, ranks=why.ranks)
        self._mesh.abort(why)
        self.close()

    def _room(self, sizes: Sequence[int], target: memoryview | None) -> memoryview:
        """Where to receive so much: the caller's buffer, or ours, which only ever grows."""
        total = sum(sizes)
        limit = self._options.max_bytes if target is None else len(target)
        if total > limit:
            parts = ", ".join(f"{size} from rank {rank}" for rank, size in enumerate(sizes))
            raise ExchangeError(
                f"rank {self.rank} is to receive {total} bytes and takes {limit}: {parts}",
                where=self._mesh.where(),
                ranks=(max(range(self.world), key=sizes.__getitem__),),
            )
        if target is not None:
            return target
        if total > len(self._store):
            self._store = bytearray(total)
        return memoryview(self._store)


def is_off() -> bool:
    """The kill switch is thrown."""
    return os.environ.get(SWITCH, "").strip().lower() == "off"


def _descend(mesh: Mesh, options: Options, sequence: int) -> tuple[Rung, list[Fallback]]:
    """The first rung that all ranks can."""
    failed: list[tuple[str, dict[int, str]]] = []
    for name in options.rungs:
        opened = HostRung.open(name, mesh, options)
        if isinstance(opened, HostRung):
            names = [*(name for name, _ in failed), name]
            steps = [
                Fallback(a, b, sequence, why)
                for (a, why), b in zip(failed, names[1:], strict=True)
            ]
            for step in steps:
                _log.warning("exchange falls from %s to %s: %s", step.from_rung, step.to_rung, step.reasons)
            return opened, steps
        failed.append((name, opened))
    reasons = "; ".join(f"rank {rank}: {why}" for _, by_rank in failed for rank, why in sorted(by_rank.items()))
    ranks = tuple(sorted({rank for _, by_rank in failed for rank in by_rank}))
    raise ExchangeError(
        f"no way to exchange is left: {reasons}",
        where=mesh.where(),
        hint="free memory, or name a folder on a local disk (Options.folder)",
        ranks=ranks,
    )


def _flat(buffer: bytes | bytearray | memoryview) -> memoryview:
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise UsageError("the buffer is not contiguous", hint="pass a contiguous copy")
    # An empty view of several dimensions cannot be cast.
    return view.cast("B") if view.nbytes else memoryview(b"" if view.readonly else bytearray())


def _check_sizes(name: str, sizes: Sequence[int], world: int) -> None:
    if len(sizes) != world or any(not isinstance(size, int) or size < 0 for size in sizes):
        raise UsageError(f"{name} must be {world} counts of bytes, none negative: {list(sizes)[:64]}")
