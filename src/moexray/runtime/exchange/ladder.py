"""All-to-all that falls back: one small interface over four ways to move bytes between ranks.

Terms:
- rung: one way to move the bytes. From the top: "device" (the collective of the group's own
  backend, e.g. NCCL), "gloo", "shm" (memory shared by the ranks of one host), "ring" (the same
  through an unnamed file, when memory is short).
- fallback: all ranks go down to the same lower rung before one of them returns from that exchange,
  or it fails and names who is at fault. Never silent, never in mid-message.

A failure ends the group: ranks that had their part complete learn of it at their next call.
"""

from __future__ import annotations

import logging
import operator
import os
import threading
from typing import TYPE_CHECKING, Protocol, TypeVar

from moexray.core.errors import ExchangeError, UsageError
from moexray.runtime.exchange.options import NAME, Counters, Fallback, Options
from moexray.runtime.exchange.torch_rungs import RungDownError, TorchRung
from moexray.runtime.guard import VARIABLE, Guard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    from moexray.runtime.exchange.host import HostRung
    from moexray.runtime.exchange.mesh import Mesh

__all__ = ["Exchange"]

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Rung(Protocol):
    """One way to move the bytes; HostRung.exchange tells what the arguments are."""

    name: str

    def exchange(
        self,
        send: memoryview,
        send_bytes: Sequence[int],
        recv_bytes: Sequence[int] | None,
        room: Callable[[Sequence[int]], memoryview],
    ) -> tuple[memoryview, list[int]]: ...

    def close(self) -> None: ...


class Exchange:
    """One rank's end of a group; made by `open`, a context manager.

    Not for several threads at a time, and not across a fork: both are refused.
    """

    def __init__(
        self, mesh: Mesh, rung: Rung, options: Options, fallbacks: list[Fallback], process_group: object
    ) -> None:
        self._mesh, self._rung, self._options = mesh, rung, options
        self._guard, self._fallbacks = Guard(NAME), list[Fallback]()
        self._went_down(fallbacks)
        self._process_group = process_group
        self.rank, self.world = mesh.rank, len(mesh.links) + 1
        self._pid, self._busy = os.getpid(), threading.Lock()
        self._failure: ExchangeError | None = None
        self._is_closed = self._is_repeating = False
        self._exchanges = self._sent = self._received = 0
        self._store = bytearray()

    @classmethod
    def open(
        cls,
        group: str,
        rank: int,
        world: int,
        options: Options | None = None,
        process_group: object = None,
    ) -> Exchange:
        """Meets the other ranks and agrees with them on the first rung that all of them can.

        Args:
            group: Name of the group; equal on its ranks, used by no other group of this user and host.
            rank: This rank, 0 <= rank < world.
            world: Number of ranks, all on this host.
            options: Equal on all ranks.
            process_group: One of torch with the same ranks, for the rungs "device" and "gloo".

        Raises:
            UsageError: the arguments cannot be.
            ExchangeError: switched off; a rank is missing, differs or died; or no rung is possible.
        """
        try:  # here, because they take most of the time to import this package
            from moexray.runtime.exchange import host, rendezvous
        except OSError as why:
            raise ExchangeError(f"cannot read the code of an exchange: {why}", ranks=(rank,)) from why
        del host  # for `_descend`: later there may be no descriptor to read it with
        options = options or Options()
        if not Guard(NAME).on:
            raise ExchangeError("the exchange is switched off", hint=f"see {VARIABLE} and guard.switch")
        names = ("timeout_s", "ring_bytes", "file_ring_bytes", "checksums", "direct")
        settings = {"rungs": list(options.rungs), **{name: getattr(options, name) for name in names}}
        mesh = rendezvous.gather(group, rank, world, options.timeout_s, settings)
        try:
            rung, fallbacks = _descend(mesh, options, process_group)
        except BaseException as why:
            if isinstance(why, ExchangeError):
                mesh.abort(why)
            mesh.close()
            raise
        return cls(mesh, rung, options, fallbacks, process_group)

    @property
    def is_closed(self) -> bool:
        """By `close`, or by a failure."""
        return self._is_closed

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
            out: Where to receive; large enough, not of the same object as `send`. Without it a buffer of
                this object is used, which the next call overwrites.

        Returns:
            [world], the bytes received from each rank, as views.

        Raises:
            UsageError: the arguments do not fit; nothing was sent, and the group goes on.
            ExchangeError: somebody is at fault; names rank, process and last exchange. What `out` holds
                is undefined, and the group is closed: on ranks that had their part, at their next call.
        """
        data = _flat(send)
        send_bytes = _counts("send_bytes", send_bytes, self.world)
        if sum(send_bytes) != len(data):
            raise UsageError(f"send holds {len(data)} bytes, send_bytes sum up to {sum(send_bytes)}")
        if recv_bytes is not None:
            recv_bytes = _counts("recv_bytes", recv_bytes, self.world)
        target = None if out is None else _flat(out)
        if target is not None and (target.readonly or sum(recv_bytes or ()) > len(target)):
            raise UsageError(f"out is read-only, or its {len(target)} bytes are too few")
        if target is not None and target.obj is data.obj and len(data):
            raise UsageError("out and send are of one object", hint="receive into another buffer")
        received, sizes = self._guarded(lambda: self._on_some_rung(data, send_bytes, recv_bytes, target))
        views, at = [], 0
        for size in sizes:
            views.append(received[at : at + size])
            at += size
        return views

    def attempt(
        self, call: Callable[[], object], send_bytes: Sequence[int], recv_bytes: Sequence[int]
    ) -> bool:
        """On rung "device": makes the engine's own collective call, on all ranks or on none.

        Args:
            call: Makes it.
            send_bytes: [world], bytes for each rank.
            recv_bytes: [world], bytes expected from each rank.

        Returns:
            False: all ranks are on a lower rung now and repeat this exchange by `all_to_all`.

        Raises:
            UsageError: another rung is in use.
            ExchangeError: as `all_to_all`.
        """
        rung = self._rung
        if not isinstance(rung, TorchRung) or rung.name != "device":
            raise UsageError(f"rung {rung.name} is in use, not a device")

        def step() -> bool:
            self._mesh.sequence += 1
            try:
                rung.attempt(call, send_bytes, recv_bytes)
            except RungDownError as why:
                self._step_down(why)
                self._is_repeating = True
                return False
            self._count(sum(send_bytes), sum(recv_bytes))
            return True

        return self._guarded(step)

    def counters(self) -> Counters:
        """What happened so far."""
        mesh = self._mesh
        return Counters(
            self._exchanges, self._sent, self._received, mesh.waits, mesh.wait_ns, mesh.direct_bytes,
            tuple(self._fallbacks),
        )  # fmt: skip

    def close(self) -> None:
        """Gives everything back; the other ranks learn that this one left. Safe twice.

        A call that another thread is in goes on to its end, and gives everything back there.
        """
        self._is_closed = True
        if os.getpid() == self._pid:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, why: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _guarded(self, step: Callable[[], T]) -> T:
        """One exchange; any failure closes the group, on all ranks."""
        if os.getpid() != self._pid:
            raise UsageError("the exchange was opened by another process")
        if not self._busy.acquire(blocking=False):
            raise UsageError("the exchange is in use by another thread", hint="open one per thread")
        try:
            if (old := self._failure) is not None:
                what = f"closed since: {old.what}"
                raise ExchangeError(what, where=old.where, hint=old.hint, ranks=old.ranks)
            if self._is_closed:
                raise UsageError("the exchange is closed")
            try:
                return step()
            except BaseException as why:
                self._give_up(why)
                raise
        finally:
            self._busy.release()
            if self._is_closed:
                self._release()

    def _release(self) -> None:
        """Gives everything back, unless a call is running: its end comes here again."""
        if self._busy.acquire(blocking=False):
            try:
                self._rung.close()
                self._mesh.close()
            finally:
                self._busy.release()

    def _on_some_rung(
        self,
        send: memoryview,
        send_bytes: Sequence[int],
        recv_bytes: Sequence[int] | None,
        target: memoryview | None,
    ) -> tuple[memoryview, list[int]]:
        """One exchange on the rung in use, or on the next one that all ranks agree on."""
        if not self._is_repeating:
            self._mesh.sequence += 1
        self._is_repeating = False
        while True:
            try:
                received, sizes = self._rung.exchange(
                    send, send_bytes, recv_bytes, lambda sizes: self._room(sizes, target)
                )
            except RungDownError as why:
                self._step_down(why)
            else:
                self._count(sum(send_bytes), sum(sizes))
                return received, sizes

    def _step_down(self, why: RungDownError) -> None:
        self._rung.close()
        self._rung, steps = _descend(
            self._mesh, self._options, self._process_group, (self._rung.name, why.refusals)
        )
        self._went_down(steps)

    def _went_down(self, steps: list[Fallback]) -> None:
        self._fallbacks += steps
        for _ in steps:
            self._guard.went_down()

    def _count(self, sent: int, received: int) -> None:
        self._exchanges += 1
        self._guard.applied()
        self._sent += sent
        self._received += received

    def _give_up(self, why: BaseException) -> None:
        if not isinstance(why, ExchangeError):
            what = f"rank {self.rank} (pid {self._pid}): {why!r}"
            why = ExchangeError(what, where=self._mesh.where(), ranks=(self.rank,))
        self._failure = ExchangeError(why.what, where=why.where, hint=why.hint, ranks=why.ranks)
        self._mesh.abort(why)
        self._is_closed = True

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


def _descend(
    mesh: Mesh, options: Options, process_group: object, down: tuple[str, dict[int, str]] | None = None
) -> tuple[Rung, list[Fallback]]:
    """The first rung, below the one that went down, that all ranks can."""
    from moexray.runtime.exchange.host import HostRung

    failed = [down] if down else []
    for name in options.rungs[options.rungs.index(down[0]) + 1 if down else 0 :]:
        opened: TorchRung | HostRung | dict[int, str]
        if name in ("device", "gloo"):
            opened = TorchRung.open(name, mesh, options, process_group)
        else:
            opened = HostRung.open(name, mesh, options)
        if not isinstance(opened, dict):
            below = [*(name for name, _ in failed[1:]), name]
            steps = [Fallback(a, b, mesh.sequence, why) for (a, why), b in zip(failed, below, strict=False)]
            for step in steps:
                _log.warning("exchange falls from %s to %s: %s", step.from_rung, step.to_rung, step.reasons)
            return opened, steps
        failed.append((name, opened))
    parts = [f"rank {rank}: {why}" for _, by_rank in failed for rank, why in sorted(by_rank.items())]
    raise ExchangeError(
        f"no way to exchange is left: {'; '.join(parts)}",
        where=mesh.where(),
        hint="free memory, or name a folder on a local disk (Options.folder)",
        ranks=tuple(sorted({rank for _, by_rank in failed for rank in by_rank})),
    )


def _flat(buffer: bytes | bytearray | memoryview) -> memoryview:
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise UsageError("the buffer is not contiguous", hint="pass a contiguous copy")
    # An empty view of several dimensions cannot be cast.
    return view.cast("B") if view.nbytes else memoryview(b"" if view.readonly else bytearray())


def _counts(name: str, sizes: Sequence[int], world: int) -> list[int]:
    try:
        counts = [operator.index(size) for size in sizes]
    except TypeError:
        counts = []
    if len(counts) != world or min(counts) < 0:
        raise UsageError(f"{name} must be {world} counts of bytes, none negative: {sizes!r:.500}")
    return counts
