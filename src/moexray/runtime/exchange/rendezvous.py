"""How the ranks of one host find each other: abstract Unix sockets, which leave no file behind.

Rank r listens, connects to all lower ranks and greets; whoever accepts greets back. Both sides then
compare versions and settings, so a mismatch is told on both, by name. Abstract sockets have no
permissions, so both sides ask the kernel who the other one is: only processes of the same user meet.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import time
from typing import TYPE_CHECKING

from moexray.core.errors import ExchangeError, UsageError
from moexray.runtime.exchange.link import Link, aborted, ready
from moexray.runtime.exchange.mesh import Mesh
from moexray.runtime.exchange.wire import (
    MAX_PACKET_BYTES,
    VERSION,
    Kind,
    Message,
    pack,
    pack_hello,
    unpack,
    unpack_hello,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MAX_GROUP_BYTES", "MAX_WORLD", "gather"]

# 108 bytes of address (unix(7)), less our own words.
MAX_GROUP_BYTES = 60
# A socket and a process descriptor per peer; more ranks than cores of one host make no sense.
MAX_WORLD = 256
# Between two attempts to reach a rank that is not there yet, in s. Only while a group is opened.
_RETRY_S = 0.01


def gather(group: str, rank: int, world: int, timeout_s: float, settings: Mapping[str, object]) -> Mesh:
    """Connects this rank with all others of its group.

    Args:
        group: Name that all ranks of the group know, and no other group of this user on this host.
        rank: This rank, 0 <= rank < world.
        world: Number of ranks.
        timeout_s: How long to wait for the others, in s.
        settings: What must be equal on all ranks; JSON values.

    Raises:
        UsageError: the arguments cannot be.
        ExchangeError: a rank did not come, or came with other settings; names it.
    """
    _check(group, rank, world, timeout_s)
    meeting = _Meeting(group, rank, world, timeout_s, settings)
    try:
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as why:
        raise _cannot(group, rank, why) from why
    with opened as listener:
        try:
            _listen(listener, group, rank, world)
            for lower in range(rank):
                while not meeting.connect(lower):
                    time.sleep(_RETRY_S)
            while len(meeting.greeted) < world - 1:
                meeting.listen(listener)
        except BaseException as why:
            if isinstance(why, ExchangeError):
                meeting.let_in_the_rest(listener)
                meeting.mesh().abort(why)
            meeting.mesh().close()
            if isinstance(why, OSError):
                raise _cannot(group, rank, why) from why
            raise
    return meeting.mesh()


def _cannot(group: str, rank: int, why: OSError) -> ExchangeError:
    return ExchangeError(f"cannot open group {group!r}: {why}", where=f"rank {rank}", ranks=(rank,))


def _check(group: str, rank: int, world: int, timeout_s: object) -> None:
    if not 1 <= world <= MAX_WORLD or not 0 <= rank < world:
        raise UsageError(f"rank {rank} of {world}", hint=f"0 <= rank < world <= {MAX_WORLD}")
    if not 0 < len(group.encode()) <= MAX_GROUP_BYTES:
        raise UsageError(f"group name of {len(group.encode())} bytes", hint=f"use 1 to {MAX_GROUP_BYTES}")
    if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= 86400:
        raise UsageError(f"timeout of {timeout_s} s", hint="use more than 0 and at most a day")


def _address(group: str, rank: int) -> bytes:
    return b"\0moexray/%d/%d/%s" % (os.getuid(), rank, group.encode())


def _listen(listener: socket.socket, group: str, rank: int, world: int) -> None:
    try:
        listener.bind(_address(group, rank))
    except OSError as why:
        if why.errno != errno.EADDRINUSE:
            raise
        raise ExchangeError(
            f"rank {rank} of group {group!r} is being opened by another process",
            hint="give each process its own rank, and each job its own group name",
            ranks=(rank,),
        ) from why
    listener.listen(world)


class _Meeting:
    """What one rank knows while the group is opened; the arguments are those of `gather`."""

    def __init__(
        self, group: str, rank: int, world: int, timeout_s: float, settings: Mapping[str, object]
    ) -> None:
        self.rank, self.world, self.group = rank, world, group
        self.links: dict[int, Link] = {}
        self.greeted: set[int] = set()
        self._fields = {"group": group, "rank": rank, "world": world, "settings": dict(settings)}
        self._hello = pack_hello(self._fields)
        self._timeout_s, self._step_s = timeout_s, timeout_s / 4
        self._until = time.monotonic() + timeout_s
        self._spoke_s = time.monotonic()

    def connect(self, lower: int) -> bool:
        """Greets a lower rank; False: it is not there yet.

        Raises:
            ExchangeError: the time is over, another rank left, or another user has taken the name.
        """
        self._hear()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(_address(self.group, lower))
            pid, uid = _owner(connection)
            if uid != os.getuid():
                connection.close()
                raise ExchangeError(
                    f"rank {lower} of group {self.group!r} is process {pid} of user {uid}, not of this user",
                    hint="another user has taken the name: choose a group name that nobody can guess",
                    ranks=(lower,),
                )
            connection.send(self._hello)
        except OSError as why:
            connection.close()
            if why.errno not in (errno.ECONNREFUSED, errno.EAGAIN, errno.EPIPE, errno.ECONNRESET):
                raise
            if self._is_late():
                raise _missing(self.group, [lower]) from None
            return False
        self.links[lower] = Link(lower, pid, connection)
        return True

    def listen(self, listener: socket.socket) -> None:
        """Waits until somebody says something: lets a higher rank in, or hears a greeting.

        Raises:
            ExchangeError: the time is over, a rank left, or it is not what it should be.
        """
        if self._is_late():
            raise _missing(self.group, [r for r in range(self.world) if r not in {self.rank, *self.greeted}])
        quiet = [link.socket.fileno() for link in self.links.values() if link.rank not in self.greeted]
        if listener.fileno() in ready([listener.fileno(), *quiet], self._step_s):
            self._accept(listener)
        self._hear()

    def let_in_the_rest(self, listener: socket.socket) -> None:
        """Who waits at the door shall hear why this rank gives up."""
        listener.settimeout(0)
        with contextlib.suppress(OSError, ExchangeError):
            listener.shutdown(socket.SHUT_RD)  # nobody queues up from here on; who did stays queued
            while True:
                self._accept(listener)

    def mesh(self) -> Mesh:
        """The ranks met so far."""
        return Mesh(self.group, self.rank, self.links.values(), self._timeout_s)

    def _accept(self, listener: socket.socket) -> None:
        """Lets a higher rank in; a stranger is sent away."""
        connection, _ = listener.accept()
        pid, uid = _owner(connection)
        fields = None
        if uid == os.getuid():
            connection.settimeout(min(1.0, self._step_s))
            with contextlib.suppress(OSError):
                fields = unpack_hello(connection.recv(MAX_PACKET_BYTES, socket.MSG_PEEK))
                connection.send(self._hello)
        if fields is None:
            connection.close()
            return
        other = fields.get("rank")
        link = Link(other if isinstance(other, int) else -1, pid, connection)
        if self.rank < link.rank < self.world and link.rank not in self.links:
            self.links[link.rank] = link
            return
        try:
            self.compare(link, fields)
            raise ExchangeError(f"{link} is there twice, or has no place", ranks=(link.rank,))
        finally:
            link.close()

    def _hear(self) -> None:
        """Takes in what was said so far, up to the first message that is for the mesh."""
        for link in list(self.links.values()):
            while self._hear_one(link):
                pass

    def _hear_one(self, link: Link) -> bool:
        try:
            packet = link.socket.recv(MAX_PACKET_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True  # said once; its last words come next
        if (fields := unpack_hello(packet)) is None and packet:
            message = unpack(packet)
            if message.kind == Kind.ABORT:
                raise aborted(link, message.text, f"opening group {self.group!r}, rank {self.rank}")
            if message.kind != Kind.ALIVE:
                return False
        else:
            self.compare(link, fields)
            self.greeted.add(link.rank)
        with contextlib.suppress(ConnectionResetError):  # said once; this packet comes again
            link.socket.recv(MAX_PACKET_BYTES)
        return True

    def compare(self, link: Link, fields: dict[str, object] | None) -> None:
        """The peer must be what this rank takes it for.

        Raises:
            ExchangeError: it is not; names the difference.
        """
        if not fields:
            raise ExchangeError(f"{link} left or hung while the group was opened", ranks=(link.rank,))
        if fields.get("version") != VERSION:
            raise ExchangeError(
                f"{link} speaks version {fields.get('version')!r}, rank {self.rank} version {VERSION}",
                hint="run the same moexray on all ranks",
                ranks=(link.rank,),
            )
        for name in ("group", "world", "settings"):
            if fields.get(name) != self._fields[name]:
                raise ExchangeError(
                    f"{link} has {name} {str(fields.get(name))[:400]}, "
                    f"rank {self.rank} has {self._fields[name]}",
                    hint="open the group with the same arguments on all ranks",
                    ranks=(link.rank,),
                )
        if fields.get("rank") != link.rank:
            raise ExchangeError(f"{link} says it is rank {fields.get('rank')!r}", ranks=(link.rank,))

    def _is_late(self) -> bool:
        """The time is over; if not, those who are here learn that this rank still waits."""
        now = time.monotonic()
        if now - self._spoke_s >= self._step_s:
            self._spoke_s = now
            for link in self.links.values():
                with contextlib.suppress(OSError):
                    link.socket.send(pack(Message(Kind.ALIVE, 0)))
        return now > self._until


def _missing(group: str, ranks: list[int]) -> ExchangeError:
    names = ", ".join(map(str, ranks))
    return ExchangeError(
        f"rank {names} of group {group!r} did not come in time",
        hint="start all ranks on this host, as one user, with the same group name",
        ranks=tuple(ranks),
    )


def _owner(connection: socket.socket) -> tuple[int, int]:
    """(process id, user id) of the other end, as the kernel says."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    return pid, uid
