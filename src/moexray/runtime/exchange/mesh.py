"""Every rank of one host connected to every other: who is there, who waits, who is gone.

A socket per pair of ranks carries the messages of wire.py and tells a death at once (end of file;
the process descriptor too, because a forked child may keep the socket open). Who stops without
dying sends nothing: past the timeout it is named. A rank that waits for somebody else says so every
quarter of the timeout, so the blame falls on the one who is really stuck. All waiting is `poll`.
"""

from __future__ import annotations

import array
import json
import os
import select
import socket
import time
from typing import TYPE_CHECKING, NamedTuple

from moexray.core.errors import ExchangeError
from moexray.runtime.exchange.link import Link, aborted, ready, state
from moexray.runtime.exchange.wire import MAX_PACKET_BYTES, Kind, Message, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Ballots", "Mesh"]

# How long a socket that ended may wait for its process to end, to tell "died" from "closed".
_DEATH_S = 1.0


class Ballots(NamedTuple):
    """What the ranks said.

    Attributes:
        refusals: Rank -> why it cannot; empty if all can.
        fds: Peer -> the descriptor it sent; now the caller's.
        totals: Peer -> the number it sent to this rank.
    """

    refusals: dict[int, str]
    fds: dict[int, int]
    totals: dict[int, int]


class Mesh:
    """All links of one rank.

    Args:
        group: Name of the group of ranks.
        rank: This rank.
        links: One per other rank.
        timeout_s: After this silence a rank that is waited for counts as stuck, in s.

    Attributes:
        sequence: Number of the exchange in progress; sent along with all that this rank says.
        waits: How often this rank had to wait.
        wait_ns: For how long in all, in ns.
        direct_bytes: Bytes that were read in memory of peers.
    """

    def __init__(self, group: str, rank: int, links: Iterable[Link], timeout_s: float) -> None:
        self.group, self.rank, self.timeout_s = group, rank, timeout_s
        self.links = sorted(links, key=lambda link: (link.rank - rank) % 65536)
        self.sequence = self.waits = self.wait_ns = self.direct_bytes = 0
        self._votes = 0
        self._inbox = bytearray(MAX_PACKET_BYTES)
        self._pending: dict[int, Link] = {}
        self._poll = select.poll()
        self._turn_s = self._spoke_s = 0.0

    # ------------------------------------------------------------------ speaking

    def send(self, link: Link, message: Message, fds: Sequence[int] = ()) -> None:
        """Sends a message that the peer needs.

        Raises:
            ExchangeError: the peer is gone, or reads nothing.
        """
        packet = pack(message)
        extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        while True:
            try:
                if extra:
                    link.socket.sendmsg([packet], extra)
                else:
                    link.socket.send(packet)
            except BlockingIOError:
                if not self._has_room(link):
                    raise self._silent([link]) from None
            except OSError:
                raise self.why_gone(link) from None
            else:
                return

    def _has_room(self, link: Link) -> bool:
        """Waits until the peer reads; the others hear meanwhile that this rank is not the stuck one."""
        for _ in range(4):
            if ready([link.socket.fileno()], self.timeout_s / 4, select.POLLOUT):
                return True
            self._speak_up(time.monotonic())
        return False

    def tell(self, link: Link, message: Message) -> None:
        """Sends a message that nobody depends on: a peer that is done may be gone."""
        try:
            link.socket.send(pack(message))
        except OSError:
            return

    def abort(self, why: ExchangeError) -> None:
        """Tells everybody that this rank gives up, and who is at fault."""
        text = json.dumps({"what": why.what[:1000], "ranks": why.ranks[:64]}).encode()
        for link in self.links:
            self.tell(link, Message(Kind.ABORT, self.sequence, text=text))

    def close(self) -> None:
        """Says goodbye and gives back all descriptors; safe twice."""
        for link in self.links:
            self.tell(link, Message(Kind.BYE, self.sequence))
            link.close()
        self.links = []
        self._pending.clear()

    # ------------------------------------------------------------------ waiting

    def begin(self) -> None:
        """Everybody is waited for from now on."""
        now = time.monotonic()
        self._turn_s = self._spoke_s = now
        for fd in self._pending:
            self._poll.unregister(fd)
        self._pending.clear()
        for link in self.links:
            link.heard_s = now
            for fd in (link.socket.fileno(), link.pidfd):
                if fd >= 0:
                    self._pending[fd] = link
                    self._poll.register(fd, select.POLLIN)

    def done(self, link: Link) -> None:
        """This peer is not waited for any more; what it says next stays unread."""
        for fd in (link.socket.fileno(), link.pidfd):
            if self._pending.pop(fd, None):
                self._poll.unregister(fd)

    def wait(self, *, idle: bool) -> list[Link]:
        """Peers that said something, or died.

        Args:
            idle: There is nothing to do but wait; otherwise only looks.

        Raises:
            ExchangeError: peers were silent for too long; names them.
        """
        now = time.monotonic()
        if now - self._turn_s > self.timeout_s / 4:
            self._forgive(now)  # this rank itself was stopped or starved: it cannot judge the others
        if not idle:
            events = self._poll.poll(0)
        else:
            self._speak_up(now)
            due_s = min(link.heard_s for link in self._pending.values()) + self.timeout_s
            wake_s = max(now, min(due_s, self._spoke_s + self.timeout_s / 4))
            events = self._poll.poll((wake_s - now) * 1000 + 1)
            began, now = now, time.monotonic()
            self.waits += 1
            self.wait_ns += int((now - began) * 1e9)
            if now - wake_s > self.timeout_s / 4:
                self._forgive(now)
        self._turn_s = now
        if not events and idle:
            overdue_s = now - self.timeout_s
            late = {link.rank: link for link in self._pending.values() if link.heard_s <= overdue_s}
            if late:
                raise self._silent(list(late.values()))
        found = {self._pending[fd].rank: self._pending[fd] for fd, _ in events}
        return list(found.values())

    def receive(self, link: Link, fds: list[int] | None = None) -> Message | None:
        """The next message of a peer; None when there is none for the caller.

        Args:
            link: The peer.
            fds: Descriptors that came along are appended; without it the kernel closes them.

        Raises:
            ExchangeError: the peer is gone or gave up; the message says who is at fault.
        """
        packet = self._packet(link, fds)
        if packet is None:
            if link.is_dead():
                raise self.why_gone(link)
            return None
        if not packet:
            raise self._ended(link)
        try:
            message = unpack(packet)
        except ExchangeError as why:
            raise self.blame(link, f"{link} sent a {why.what}", why.hint) from None
        link.heard_s = time.monotonic()
        if message.kind != Kind.VOTE:
            link.sequence = max(link.sequence, message.sequence)
        if message.kind == Kind.ABORT:
            raise aborted(link, message.text, self.where())
        if message.kind == Kind.BYE:
            raise self.blame(link, f"{link} closed the group after exchange {link.sequence}")
        return None if message.kind == Kind.ALIVE else message

    def vote(
        self,
        refusal: str,
        fd: int = -1,
        totals: Sequence[int] | None = None,
        expected: Sequence[int] | None = None,
    ) -> Ballots:
        """Asks all ranks whether they can; every rank gets the same answers, or an error.

        Args:
            refusal: Why this rank cannot; empty if it can.
            fd: A descriptor to hand to everybody; -1 for none.
            totals: [world], bytes that this rank is about to send to each; 0 if not given.
            expected: [world], bytes it expects from each; unknown if not given.

        Raises:
            ExchangeError: a peer is gone, silent, does something else, or expects another size.
        """
        self._votes += 1
        ballots = Ballots({self.rank: refusal} if refusal else {}, {}, {})
        extra: list[int] = []
        try:
            for link in self.links:
                total = totals[link.rank] if totals else 0
                awaited = expected[link.rank] + 1 if expected else 0
                ballot = Message(Kind.VOTE, self._votes, total, awaited, text=refusal.encode())
                self.send(link, ballot, (fd,) if fd >= 0 else ())
            self.begin()
            while self._pending:
                for link in self.wait(idle=True):
                    message = self.receive(link, extra)
                    if extra and link.rank not in ballots.fds:
                        ballots.fds[link.rank] = extra.pop(0)
                    _close(extra)
                    if message is not None:
                        self._count(link, message, ballots, totals[link.rank] if totals else 0)
        except BaseException:
            _close(extra)
            _close(list(ballots.fds.values()))
            raise
        return ballots

    def _count(self, link: Link, message: Message, ballots: Ballots, sent: int) -> None:
        if message.kind == Kind.CREDIT and message.sequence <= self.sequence:
            return  # of an exchange that is over
        if message.kind != Kind.VOTE or message.sequence != self._votes:
            raise self.out_of_step(link, message)
        if message.written not in (0, sent + 1):
            raise self.misfit(self.rank, sent, link.rank, message.written - 1)
        if message.text:
            ballots.refusals[link.rank] = message.text.decode("utf-8", "replace")
        ballots.totals[link.rank] = message.total
        self.done(link)

    # ------------------------------------------------------------------ naming

    def blame(self, link: Link, what: str, hint: str = "") -> ExchangeError:
        """An error that names one peer."""
        return ExchangeError(what, where=self.where(), hint=hint, ranks=(link.rank,))

    def where(self) -> str:
        """The exchange in progress, and who sees it."""
        me = f"rank {self.rank} (pid {os.getpid()})"
        return f"exchange {self.sequence} of group {self.group!r}, seen by {me}"

    def misfit(self, sender: int, sent: int, receiver: int, expected: int) -> ExchangeError:
        """Two ranks do not agree on a size."""
        return ExchangeError(
            f"rank {sender} sends {sent} bytes, rank {receiver} expects {expected}",
            where=self.where(),
            hint="received sizes must be the sent sizes, transposed",
            ranks=(sender,),
        )

    def out_of_step(self, link: Link, message: Message) -> ExchangeError:
        """The peer does another call than this rank."""
        return self.blame(
            link,
            f"{link} is out of step: sent {message.kind.name} {message.sequence}",
            "all ranks must issue the same exchanges in the same order",
        )

    def _silent(self, links: list[Link]) -> ExchangeError:
        parts = [
            f"{link} {state(link)}; last message in exchange {link.sequence}"
            for link in sorted(links, key=lambda link: link.rank)
        ]
        return ExchangeError(
            f"nothing heard for {self.timeout_s:g} s: " + "; ".join(parts),
            where=self.where(),
            hint="take its stack (py-spy dump --pid) before restarting it",
            ranks=tuple(sorted(link.rank for link in links)),
        )

    def why_gone(self, link: Link) -> ExchangeError:
        """The peer is gone: its last words, if there are any."""
        try:
            while ready([link.socket.fileno()], 0):
                self.receive(link)
        except ExchangeError as why:
            return why
        return self._ended(link)

    def _ended(self, link: Link) -> ExchangeError:
        if link.is_dead(min(_DEATH_S, self.timeout_s)):
            what = f"{link} died; last message in exchange {link.sequence}"
            return self.blame(link, what, "look for the OOM killer and crashes in dmesg and in its log")
        return self.blame(link, f"{link} left without a word; last message in exchange {link.sequence}")

    # ------------------------------------------------------------------ inside

    def _packet(self, link: Link, fds: list[int] | None) -> memoryview | None:
        """The next packet; empty at the end, None when there is none now."""
        for _ in range(2):
            try:
                if fds is None:
                    size = link.socket.recv_into(self._inbox)
                else:
                    room = socket.CMSG_SPACE(4 * 4)
                    size, extra, _, _ = link.socket.recvmsg_into([self._inbox], room, socket.MSG_CMSG_CLOEXEC)
                    fds.extend(_descriptors(extra))
            except BlockingIOError:
                return None
            except ConnectionResetError:
                continue  # said once, before the last words of a peer that closed with mail unread
            return memoryview(self._inbox)[:size]
        return memoryview(b"")

    def _forgive(self, now: float) -> None:
        for link in self._pending.values():
            link.heard_s = now

    def _speak_up(self, now: float) -> None:
        if now - self._spoke_s >= self.timeout_s / 4:
            self._spoke_s = now
            for link in self.links:
                self.tell(link, Message(Kind.ALIVE, self.sequence))


def _descriptors(extra: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, type_, data in extra:
        if (level, type_) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())
