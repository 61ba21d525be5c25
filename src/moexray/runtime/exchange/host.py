"""All-to-all between the ranks of one host through rings in shared memory (rungs "shm" and "ring").

Each rank owns one segment with a ring per peer, writes its rings and reads those of the others.
Chunks are announced by message, so a peer copies one out while the next is written, and a rank with
nothing to do sleeps in `poll`. A large part is only offered: its receiver reads it in the sender's
memory, piece by piece, and the sender stays until all of it was taken.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from typing import TYPE_CHECKING

from moexray.core.errors import ExchangeError
from moexray.runtime.exchange import direct, segments
from moexray.runtime.exchange.link import ready
from moexray.runtime.exchange.ring import Ring
from moexray.runtime.exchange.wire import Kind, Message

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Sequence

    from moexray.runtime.exchange.link import Link
    from moexray.runtime.exchange.mesh import Mesh
    from moexray.runtime.exchange.options import Options

__all__ = ["HostRung"]

# A ring holds this many chunks: one is written while one is read, and two are on their way.
_CHUNKS = 4
# Of an offer that are read before its sender hears of it: some 10 ms, far below any timeout.
_PIECE_BYTES = 16 << 20
_OF_EXCHANGE = (Kind.DATA, Kind.OFFER, Kind.TAKEN, Kind.REFUSED)


class _Lane:
    """Both directions between this rank and one peer, during one exchange."""

    __slots__ = (
        "at", "crc", "expected", "got", "inward", "left", "link", "offered", "outward", "place", "readable",
        "source", "told", "total",
    )  # fmt: skip

    def __init__(self, link: Link, outward: memoryview, inward: memoryview) -> None:
        self.link = link
        self.readable = False  # the peer can read this rank's memory
        self.outward, self.inward = Ring(outward), Ring(inward)
        self.told = 0
        self.start(0, 0, None)

    def start(self, at: int, left: int, expected: int | None) -> None:
        """Args: where the peer's bytes start in the send buffer, how many, how many it should send."""
        self.at, self.left, self.expected = at, left, expected
        self.total = self.place = -1
        self.got = self.crc = 0
        self.offered = 0  # bytes that the peer is to read here
        self.source: int | None = None  # where to read the peer's

    def is_heard(self) -> bool:
        """The peer has no more to say: its next message belongs to the next exchange."""
        return not self.left and self.got + self.inward.held() == self.total

    def is_done(self) -> bool:
        return not self.left and self.got == self.total


class HostRung:
    """The rungs that need nothing but this host; see `open`."""

    def __init__(self, name: str, mesh: Mesh, options: Options, maps: list[mmap.mmap]) -> None:
        self.name = name
        self._mesh, self._maps = mesh, maps
        self._checksums = options.checksums
        size = _ring_bytes(name, options)
        self._chunk = size // _CHUNKS
        self._views = [memoryview(m) for m in maps]
        self._lanes = [
            _Lane(link, self._views[0][i * size : (i + 1) * size], inward)
            for i, (link, inward) in enumerate(zip(mesh.links, self._views[1:], strict=True))
        ]
        self._by_rank = {lane.link.rank: lane for lane in self._lanes}

    @classmethod
    def open(cls, name: str, mesh: Mesh, options: Options) -> HostRung | dict[int, str]:
        """Makes and exchanges the segments; all ranks get a rung, or all the same refusals.

        Returns:
            The rung, or rank -> why it cannot.

        Raises:
            ExchangeError: a peer is gone or silent.
        """
        size, peers = _ring_bytes(name, options), len(mesh.links)
        maps: list[mmap.mmap] = []
        fd, refusal, theirs = -1, "", dict[int, int]()
        try:
            try:
                fd = _segment(name, size, peers, options)
                maps = [segments.map_writing(fd, size * peers)] if peers else []
            except (OSError, ExchangeError) as why:
                refusal = f"{name}: {why}"
            refusals, theirs, _ = mesh.vote(refusal, fd)
            if not refusals:
                try:
                    for link in mesh.links:
                        # The owner orders its rings by distance, as all ranks do.
                        index = (mesh.rank - link.rank) % (peers + 1) - 1
                        maps.append(segments.map_reading(theirs[link.rank], index * size, size))
                except KeyError as why:
                    refusal = f"{name}: the descriptor of rank {why} did not arrive; too many open files?"
                except (OSError, ExchangeError) as why:
                    refusal = f"{name}: cannot map: {why}"
                refusals = mesh.vote(refusal).refusals
            readers = set()
            if not refusals and options.direct:
                readers = direct.meet(mesh)
        except BaseException:
            _unmap(maps)
            raise
        finally:
            for held in (fd, *theirs.values()):
                if held >= 0:
                    os.close(held)
        if refusals:
            _unmap(maps)
            return refusals
        rung = cls(name, mesh, options, maps)
        for lane in rung._lanes:
            lane.readable = lane.link.rank in readers
        return rung

    def exchange(
        self,
        send: memoryview,
        send_bytes: Sequence[int],
        recv_bytes: Sequence[int] | None,
        room: Callable[[Sequence[int]], memoryview],
    ) -> tuple[memoryview, list[int]]:
        """One all-to-all.

        Args:
            send: Bytes for rank 0, then for rank 1, ...
            send_bytes: [world], how many for each rank.
            recv_bytes: [world], how many each rank should send; None if only they know.
            room: Gives the buffer to receive into, once all sizes are known.

        Returns:
            (buffer, sizes): what came, by rank, and how much from each.

        Raises:
            ExchangeError: a peer is gone, silent, out of step, or sizes differ.
        """
        rank, at = self._mesh.rank, 0
        for peer, size in enumerate(send_bytes):
            if peer == rank:
                own = send[at : at + size]
            else:
                self._by_rank[peer].start(at, size, recv_bytes[peer] if recv_bytes else None)
            at += size
        if recv_bytes and recv_bytes[rank] != len(own):
            raise self._mesh.misfit(rank, len(own), rank, recv_bytes[rank])
        self._mesh.begin()
        for lane in self._lanes:
            self._push(lane, send, must=True)
        return self._pump(send, own, room)

    def close(self) -> None:
        """Unmaps everything; safe twice."""
        for lane in self._lanes:
            lane.outward.memory.release()
            lane.inward.memory.release()
        for view in self._views:
            view.release()
        self._lanes, self._views = [], []
        self._by_rank.clear()
        _unmap(self._maps)

    def _pump(
        self, send: memoryview, own: memoryview, room: Callable[[Sequence[int]], memoryview]
    ) -> tuple[memoryview, list[int]]:
        """Moves chunks both ways until every peer is done."""
        mesh = self._mesh
        out: memoryview | None = None
        sizes: list[int] = []
        active = list(self._lanes)
        while True:
            if out is None and all(lane.total >= 0 for lane in self._lanes):
                sizes = self._sizes(len(own))
                out = room(sizes)
                self._place(out, sizes, own)
            moved = False
            for lane in active:
                moved |= self._push(lane, send, must=False)
                if out is not None:
                    moved |= self._pull(lane, out) if lane.source is None else self._read(lane, out)
                if lane.is_heard():
                    mesh.done(lane.link)
            if out is not None:
                active = [lane for lane in active if not lane.is_done()]
                if not active:
                    return out, sizes
            for link in mesh.wait(idle=not moved):
                if (message := mesh.receive(link)) is not None:
                    self._heed(self._by_rank[link.rank], message)

    def _sizes(self, own: int) -> list[int]:
        sizes = [own] * (len(self._lanes) + 1)
        for lane in self._lanes:
            sizes[lane.link.rank] = lane.total
        return sizes

    def _place(self, out: memoryview, sizes: list[int], own: memoryview) -> None:
        at = 0
        for rank, size in enumerate(sizes):
            if rank == self._mesh.rank:
                out[at : at + size] = own
            else:
                self._by_rank[rank].place = at
            at += size

    def _push(self, lane: _Lane, send: memoryview, *, must: bool) -> bool:
        """Writes as much as fits, at most a chunk, and announces it; `must`: even if nothing fits."""
        if lane.offered:
            return False
        ring = lane.outward
        if must and lane.readable and lane.left >= ring.capacity and not send.readonly:
            return self._offer(lane, send)
        size = min(lane.left, self._chunk, ring.free())
        if not must and (not size or size < min(lane.left, self._chunk)):
            return False
        total = lane.left if must else 0
        if size:
            ring.put(send[lane.at : lane.at + size])
            lane.at += size
            lane.left -= size
        lane.told = lane.inward.consumed
        crc = ring.crc(size) if self._checksums else 0
        message = Message(Kind.DATA, self._mesh.sequence, total, ring.written, lane.told, crc)
        if not lane.left:
            ring.pad_writer()
        self._mesh.send(lane.link, message)
        return True

    def _pull(self, lane: _Lane, out: memoryview) -> bool:
        """Copies out what has come, and gives the space back while the peer has more to send."""
        ring = lane.inward
        size = min(ring.held(), lane.total - lane.got)
        if not size:
            return False
        at = lane.place + lane.got
        ring.take(out[at : at + size])
        lane.got += size
        if lane.got == lane.total:
            ring.pad_reader()
        elif ring.consumed - lane.told >= self._chunk:
            lane.told = ring.consumed
            self._mesh.tell(lane.link, Message(Kind.CREDIT, self._mesh.sequence, consumed=lane.told))
        return True

    def _offer(self, lane: _Lane, send: memoryview) -> bool:
        """Tells the peer where its part lies."""
        lane.offered, lane.told = lane.left, lane.inward.consumed
        part = send[lane.at : lane.at + lane.left]
        crc = zlib.crc32(part) if self._checksums else 0
        self._mesh.send(
            lane.link,
            Message(Kind.OFFER, self._mesh.sequence, lane.left, direct.address(part), lane.told, crc),
        )
        return True

    def _read(self, lane: _Lane, out: memoryview) -> bool:
        """Reads a piece of what the peer offered; where that is impossible asks for the rest by ring."""
        left = lane.total - lane.got
        if not left or lane.source is None:
            return False
        at, size, kind = lane.place + lane.got, min(left, _PIECE_BYTES), Kind.TAKEN
        try:
            direct.read(lane.link.pid, lane.source + lane.got, out[at : at + size])
        except OSError:
            self._settle(lane)  # it may be gone
            lane.source, kind = None, Kind.REFUSED
        else:
            lane.got += size
            self._mesh.direct_bytes += size
        if lane.got == lane.total:
            self._settle(lane)
            if self._checksums and zlib.crc32(out[lane.place : lane.place + lane.total]) != lane.crc:
                what = f"{lane.link} sent {lane.total} bytes with a wrong checksum"
                raise self._mesh.blame(lane.link, what)
        self._mesh.send(lane.link, Message(kind, self._mesh.sequence, consumed=lane.got))
        return True

    def _settle(self, lane: _Lane) -> None:
        """The peer lives and has not given up: so what was read so far is what it offered.

        Raises:
            ExchangeError: it is gone or gave up; its memory may have served something else meanwhile.
        """
        mesh, link = self._mesh, lane.link
        while ready([link.socket.fileno()], 0):
            if (message := mesh.receive(link)) is not None:
                self._heed(lane, message)
        if link.is_dead():
            raise mesh.why_gone(link)

    def _taken(self, lane: _Lane, message: Message) -> None:
        """How far the peer has read what was offered to it.

        Raises:
            ExchangeError: nothing was, or not so much.
        """
        new = message.consumed - (lane.offered - lane.left)
        if not 0 <= new <= lane.left or not lane.offered:
            raise ExchangeError(f"{message.consumed} bytes taken of {lane.offered} offered")
        lane.at += new
        lane.left -= new
        if message.kind == Kind.REFUSED:
            lane.offered, lane.readable = 0, False

    def _heed(self, lane: _Lane, message: Message) -> None:
        """Takes note of a message of this exchange.

        Raises:
            ExchangeError: it does not belong here, or its sizes or checksum are wrong; names the peer.
        """
        link, mesh = lane.link, self._mesh
        try:
            if message.kind in (Kind.DATA, Kind.CREDIT, Kind.OFFER):
                lane.outward.credit(message.consumed)
            if message.kind == Kind.CREDIT and message.sequence <= mesh.sequence:
                return
            if message.kind not in _OF_EXCHANGE or message.sequence != mesh.sequence:
                raise mesh.out_of_step(link, message)
            if message.kind in (Kind.TAKEN, Kind.REFUSED):
                self._taken(lane, message)
                return
            new = lane.inward.announce(message.written) if message.kind == Kind.DATA else 0
            if message.kind == Kind.OFFER:
                lane.source, lane.crc = message.written, message.crc
        except ExchangeError as why:
            raise why if why.ranks else mesh.blame(link, f"{link} sent a bad message: {why.what}") from None
        if lane.total < 0:
            lane.total = message.total
            if lane.expected is not None and lane.total != lane.expected:
                raise mesh.misfit(link.rank, lane.total, mesh.rank, lane.expected)
        if lane.got + lane.inward.held() > lane.total:
            raise mesh.blame(link, f"{link} sent more than the {lane.total} bytes it announced")
        if self._checksums and new and lane.inward.crc(new) != message.crc:
            raise mesh.blame(link, f"{link} sent {new} bytes with a wrong checksum")


def _ring_bytes(name: str, options: Options) -> int:
    return options.ring_bytes if name == "shm" else options.file_ring_bytes


def _segment(name: str, size: int, peers: int, options: Options) -> int:
    if not peers:
        return -1
    if name == "shm":
        return segments.make_memory(size * peers, size * peers * (peers + 1), options.spare_bytes)
    return segments.make_file(size * peers, options.folder)


def _unmap(maps: list[mmap.mmap]) -> None:
    while maps:
        with contextlib.suppress(BufferError):  # a traceback still looks at it: freed with that
            maps.pop().close()
