"""Bytes handed to another process without a copy: the pages change hands, not their content.

Glossary: a *parcel* is a page-aligned piece of shared memory without a name (memfd); its *owner* is the one
process that may touch it. A *port* is one end of a pair of sockets. `send` maps the parcel out of this
process and passes its descriptor; `receive` maps it in. An *event* (eventfd) that travels with it tells the
sender that the receiver is done with the content: the sender waits for that, or polls it, and never copies.

    parent, child = Port.pair()                      # one end goes to the other process
    parcel = Parcel.make(64 << 20)
    parcel.view[:] = data                            # numpy uint8; torch.from_numpy shares it, too
    ticket = parent.send(parcel)                     # from here on parcel.view is gone
    ...                                              # other process: got = child.receive(); got.done()
    ticket.wait(5.0)

Nothing has a name, so nothing is left behind, whoever dies, and whenever: the kernel frees the pages with
the last descriptor and mapping. A ticket whose receiver died raises. Both ends must be of one user and
trust each other: a mapping that the sender kept in a view of its own would still show the bytes.
Where `send` fails, or is switched off, the parcel is still the sender's, who copies as before.

With a CUDA device `Parcel.register` pins the pages for the device (untested on a GPU); without, it says no.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import select
import socket
import struct
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from moexray.core.errors import ExchangeError, UsageError
from moexray.runtime.checks import is_whole
from moexray.runtime.guard import VARIABLE, Guard, say_once
from moexray.runtime.host_memory import shortage

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Parcel", "Port", "Ticket"]

_HEAD = struct.Struct("<8sQ")  # magic with version, bytes
_MAGIC = b"moexzc01"
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL  # so that reading cannot be a SIGBUS

_log = logging.getLogger(__name__)


class Parcel:
    """Memory that one process owns; made by `make` or `Port.receive`.

    Attributes:
        size: Bytes.
        view: uint8 [size], None once it was sent or closed.
    """

    def __init__(self, fd: int, size: int, event: int) -> None:
        self.size, self._fd, self._event = size, fd, event
        self._registered = False
        self._map = mmap.mmap(fd, size, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ | mmap.PROT_WRITE)
        self.view: Any = np.frombuffer(self._map, np.uint8)
        self._fds = _closed_with(self, fd, event)

    @classmethod
    def make(cls, size: int) -> Parcel:
        """Takes memory, touched and page-aligned.

        Args:
            size: Bytes, at least 1.

        Raises:
            UsageError: no whole number from 1.
            ExchangeError: memory is short.
            OSError: the kernel has none, or no memfd.
        """
        if not is_whole(size):
            raise UsageError(f"a parcel of {size} bytes", hint="a whole number from 1")
        if why := shortage(size):
            raise ExchangeError(f"a parcel of {size} bytes: {why}")
        with contextlib.ExitStack() as undo:
            fd = os.memfd_create("moexray-parcel", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            undo.callback(os.close, fd)
            os.posix_fallocate(fd, 0, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            undo.callback(os.close, event)
            parcel = cls(fd, size, event)
            undo.pop_all()
        return parcel

    @property
    def is_open(self) -> bool:
        """Whether this process owns it."""
        return self._fd >= 0

    def register(self) -> bool:
        """Pins the pages for a CUDA device, so that copies to it run by themselves; False where none is.

        Untested on a GPU.
        """
        if self._registered or self.view is None:
            return self._registered
        try:
            import torch

            if torch.cuda.is_available():
                code = torch.cuda.cudart().cudaHostRegister(self.view.ctypes.data, self.size, 0)
                self._registered = int(code) == 0
        except (ImportError, RuntimeError, AttributeError) as why:
            say_once(f"pages could not be pinned: {type(why).__name__}: {why}", log=_log)
        return self._registered

    def done(self) -> None:
        """Tells the sender that the content was used, and keeps the memory."""
        self._check()
        os.eventfd_write(self._event, 1)

    def close(self) -> None:
        """Gives the memory up; safe twice.

        Raises:
            UsageError: something still refers to the view.
        """
        if self.is_open:
            self._unmap()
            self._fds()
            self._fd = self._event = -1

    def _check(self) -> None:
        if not self.is_open:
            raise UsageError("the parcel was sent or closed", hint="only its owner may use it")

    def _unmap(self) -> None:
        self._check()
        if self._map.closed:
            return
        if self._registered:
            import torch

            torch.cuda.cudart().cudaHostUnregister(self.view.ctypes.data)
            self._registered = False
        self.view = None
        try:
            self._map.close()
        except BufferError as why:
            self.view = np.frombuffer(self._map, np.uint8)
            raise UsageError(
                "something still refers to the parcel's view",
                hint="delete arrays and tensors that share its memory first",
            ) from why

    def _remap(self) -> None:
        """Owns it again, after a send that failed."""
        access = mmap.PROT_READ | mmap.PROT_WRITE
        self._map = mmap.mmap(self._fd, self.size, mmap.MAP_SHARED | mmap.MAP_POPULATE, access)
        self.view = np.frombuffer(self._map, np.uint8)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Ticket:
    """What the sender keeps: the event, and the socket that tells of the receiver's end."""

    def __init__(self, event: int, peer: socket.socket) -> None:
        self._event, self._peer = event, peer
        self._done = False
        self._fds = _closed_with(self, event)

    def ready(self) -> bool:
        """Whether the receiver is done; does not wait.

        Raises:
            ExchangeError: the receiver is gone and did not say so before.
        """
        return self.wait(0.0)

    def wait(self, timeout_s: float) -> bool:
        """Sleeps until the receiver is done, at most so long; False where time is over.

        Raises:
            ExchangeError: the receiver is gone and did not say so before, or the port was closed.
            UsageError: the ticket was closed before the receiver was done.
        """
        until = time.monotonic() + timeout_s
        while not self._done:
            if not self._fds.alive:
                raise UsageError("the ticket was closed", hint="wait first, then close it")
            watch = select.poll()
            watch.register(self._event, select.POLLIN)
            is_blind = self._peer.fileno() < 0
            if not is_blind:
                watch.register(self._peer, 0)  # POLLHUP comes unasked
            ready = dict(watch.poll(0 if is_blind else max(until - time.monotonic(), 0) * 1000))
            if self._event in ready:
                os.eventfd_read(self._event)
                self._fds()
                self._done = True
            elif is_blind:
                raise ExchangeError(
                    "the port of a parcel was closed: nothing would tell that its receiver is gone",
                    hint="keep the port until the ticket is done",
                )
            elif ready:
                raise ExchangeError("the receiver of a parcel is gone", hint="its pages are free again")
            elif time.monotonic() >= until:
                return False
        return True

    def close(self) -> None:
        """Forgets it; safe twice. Whether the receiver is done cannot be told any more."""
        self._fds()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Port:
    """One end of a way between two processes. Not for use by two threads at a time.

    Args:
        connection: A connected Unix socket of type SOCK_SEQPACKET.
        name: For the kill switch.

    Attributes:
        guard: Kill switch; counts the parcels that could not be handed over.

    Raises:
        UsageError: another kind of socket.
    """

    def __init__(self, connection: socket.socket, *, name: str = "zero-copy") -> None:
        if connection.family != socket.AF_UNIX or connection.type != socket.SOCK_SEQPACKET:
            raise UsageError("parcels need a Unix socket of type SOCK_SEQPACKET", where=str(connection))
        self.socket = connection
        self.guard = Guard(name)

    @classmethod
    def pair(cls) -> tuple[Port, Port]:
        """Both ends; one is passed on with fork, or as a descriptor (`port.socket`) to a child.

        Each process then closes the end that is not its own: while it holds both, the death of the other
        process is not seen.
        """
        one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(two)

    def send(self, parcel: Parcel) -> Ticket:
        """Hands a parcel over; it is no longer ours. Where that fails it still is.

        Raises:
            UsageError: it was sent before, or something still refers to its view.
            ExchangeError: the other process is gone, or does not take it in time (socket's own timeout);
                or this is switched off.
        """
        if not self.guard.on:
            self.guard.passed()
            raise ExchangeError("parcels are switched off", hint=f"copy; see {VARIABLE} and guard.switch")
        parcel._unmap()  # noqa: SLF001
        fd, event = parcel._fd, parcel._event  # noqa: SLF001
        try:
            socket.send_fds(self.socket, [_HEAD.pack(_MAGIC, parcel.size)], [fd, event])
        except OSError as why:
            parcel._remap()  # noqa: SLF001
            self.guard.failed(why)
            raise ExchangeError(f"a parcel could not be handed over: {why}", hint="it is still ours") from why
        parcel._fds.detach()  # noqa: SLF001
        os.close(fd)
        parcel._fd = parcel._event = -1  # noqa: SLF001
        self.guard.applied()
        return Ticket(event, self.socket)

    def receive(self, timeout_s: float = 5.0) -> Parcel:
        """Takes the next parcel, with the same pages.

        Raises:
            UsageError: a timeout below 0.
            ExchangeError: none came in time, the other process is gone, or what came is no parcel.
        """
        if not 0 <= timeout_s < threading.TIMEOUT_MAX:
            raise UsageError(f"a timeout of {timeout_s} s", hint="a number from 0")
        before = self.socket.gettimeout()
        try:
            self.socket.settimeout(timeout_s)
            head, fds, _, _ = socket.recv_fds(self.socket, _HEAD.size, 2, socket.MSG_CMSG_CLOEXEC)
        except TimeoutError as why:
            raise ExchangeError(f"no parcel within {timeout_s} s") from why
        except OSError as why:
            raise ExchangeError(f"no parcel: {why}") from why
        finally:
            if self.socket.fileno() >= 0:
                self.socket.settimeout(before)  # that of `send`
        try:
            return _opened(head, fds)
        except BaseException as why:
            for fd in fds:
                os.close(fd)
            if isinstance(why, OSError):
                raise ExchangeError(f"a parcel could not be mapped: {why}") from why
            raise

    def close(self) -> None:
        """Closes this end; parcels on their way are freed with the other one."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _closed_with(owner: object, *fds: int) -> weakref.finalize[..., Any]:
    """Called: closes the descriptors, once; so does the end of an owner that was dropped."""

    def close() -> None:
        for fd in fds:
            os.close(fd)

    end = weakref.finalize(owner, close)
    end.atexit = False
    return end


def _opened(head: bytes, fds: list[int]) -> Parcel:
    """The parcel that a message brings.

    Raises:
        ExchangeError: it brings none, or one whose memory could be taken away while it is read.
        OSError: it cannot be mapped.
    """
    if not head:
        raise ExchangeError("the sender is gone")
    if len(head) != _HEAD.size or len(fds) != 2:
        raise ExchangeError(f"{len(head)} bytes and {len(fds)} descriptors are no parcel")
    magic, size = _HEAD.unpack(head)
    if magic != _MAGIC or os.fstat(fds[0]).st_size != size or not size:
        raise ExchangeError("what came is no parcel", hint="are both ends of one version?")
    if fcntl.fcntl(fds[0], fcntl.F_GET_SEALS) & _SEALS != _SEALS:
        raise ExchangeError("the memory of a parcel could still be resized", hint="it is refused")
    return Parcel(fds[0], size, fds[1])
