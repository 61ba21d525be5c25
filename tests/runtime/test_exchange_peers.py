"""Peers that do not fit, do not come, send nonsense or say nothing: named."""

import contextlib
import gc
import os
import random
import socket
import threading

import pytest

import exchange_pool
from exchange_pool import SMALL
from exchange_pool import in_threads as ranks
from moexray.core.errors import ExchangeError
from moexray.runtime.exchange import Exchange, Options, rendezvous, wire
from moexray.runtime.exchange.link import Link
from moexray.runtime.exchange.mesh import Mesh


def test_sizes_that_do_not_fit_are_named_on_both_sides():
    def body(rank, opened):
        with opened() as exchange:
            while True:  # who got its own part learns of the failure at its next call
                exchange.all_to_all(b"12345678", [4, 4], recv_bytes=[4, 4 - (rank == 0)])

    for why in ranks("transposed", 2, body):
        assert "rank 1 sends 4 bytes, rank 0 expects 3" in str(why)
        assert why.ranks == (1,)


def test_after_a_failure_every_further_call_says_so():
    def body(rank, opened):
        with opened() as exchange:
            whys = []
            while len(whys) < 2:
                try:
                    exchange.all_to_all(b"12", [1, 1], recv_bytes=[1, 1 + (rank == 0)])
                except ExchangeError as why:
                    whys.append(str(why))
            return whys

    for first, second in ranks("after", 2, body):
        assert second.startswith("closed since: ")
        assert first.splitlines()[0] in second


def test_more_than_a_rank_takes_fails_instead_of_allocating():
    def body(rank, opened):
        with opened() as exchange:
            while True:
                exchange.all_to_all(bytes(3000 * rank), [3000 * rank, 0])

    zero, one = ranks("huge", 2, body, Options(**SMALL, max_bytes=2999))
    assert zero.ranks == (1,)
    assert "rank 0 is to receive 3000 bytes and takes 2999: 0 from rank 0, 3000 from rank 1" in str(zero)
    assert "rank 0 is to receive 3000 bytes" in str(one)


def test_a_receive_buffer_that_is_too_small_names_who_sent_so_much():
    def body(rank, opened):
        with opened() as exchange:
            while True:
                exchange.all_to_all(bytes(200), [100, 100], out=bytearray(500 if rank else 150))

    for why in ranks("small", 2, body):
        assert "rank 0 is to receive 200 bytes and takes 150" in str(why)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"ring_bytes": 8192}, "has settings"),
        ({"rungs": ("shm",)}, "has settings"),
        ({"checksums": True}, "has settings"),
    ],
)
def test_other_settings_are_named_on_both_sides(change, text):
    def body(rank, opened):
        return opened(options=Options(**{**SMALL, "timeout_s": 3.0, **(change if rank else {})}))

    for why in ranks(f"settings {sorted(change)}", 2, body):
        assert text in str(why)


def test_another_world_size_is_named():
    def body(rank, opened):
        return opened(world=2 + rank, options=Options(**{**SMALL, "timeout_s": 2.0}))

    zero, one = ranks("worlds", 2, body)
    assert "rank 1 (pid " in str(zero)
    assert "has world 3, rank 0 has 2" in str(zero)
    assert isinstance(one, ExchangeError)


def test_another_version_is_named():
    group = exchange_pool.group("version")
    fields = {"group": group, "rank": 1, "world": 2, "settings": {}}

    def future():
        until = 200
        while until:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
                try:
                    peer.connect(rendezvous._address(group, 0))
                except ConnectionRefusedError:
                    threading.Event().wait(0.02)
                    until -= 1
                    continue
                peer.send(wire.pack_hello(fields).replace(b'"version": 2', b'"version": 9'))
                with contextlib.suppress(ConnectionResetError):
                    while peer.recv(4096):
                        pass
                return

    thread = threading.Thread(target=future)
    thread.start()
    with pytest.raises(ExchangeError, match="speaks version 9, rank 0 version 2") as error:
        Exchange.open(group, 0, 2, Options(**SMALL))
    thread.join(30)
    assert error.value.ranks == (1,)


def test_strangers_are_sent_away_and_a_missing_rank_is_named():
    group = exchange_pool.group("stranger")

    def knock():
        for _ in range(200):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
                try:
                    stranger.connect(rendezvous._address(group, 0))
                    stranger.send(b"\xff" * 100)
                except OSError:
                    threading.Event().wait(0.02)
                else:
                    return

    thread = threading.Thread(target=knock)
    thread.start()
    with pytest.raises(ExchangeError, match=r"rank 1 of group '.*' did not come in time") as error:
        Exchange.open(group, 0, 2, Options(**{**SMALL, "timeout_s": 1.0}))
    thread.join(30)
    assert error.value.ranks == (1,)


def test_another_user_who_took_the_name_is_no_rank(monkeypatch):
    """An abstract socket has no permissions; the name of rank 0 is bound by another user's process."""
    group = exchange_pool.group("taken")
    owner = rendezvous._owner
    monkeypatch.setattr(rendezvous, "_owner", lambda connection: (owner(connection)[0], os.getuid() + 1))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(rendezvous._address(group, 0))
        other.listen()
        gc.collect()
        before = exchange_pool.descriptors()
        with pytest.raises(ExchangeError, match=f"rank 0 of group .* of user {os.getuid() + 1}, not") as error:
            Exchange.open(group, 1, 2, Options(**SMALL))
        assert exchange_pool.descriptors() == before
        seen, _ = other.accept()
        with seen:
            assert seen.recv(4096) == b""  # it was told nothing
    assert error.value.ranks == (0,)


def test_one_rank_twice_is_named():
    group = exchange_pool.group("twice")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(rendezvous._address(group, 1))
        with pytest.raises(ExchangeError, match=r"rank 1 of group .* is being opened by another process"):
            Exchange.open(group, 1, 2, Options(**{**SMALL, "timeout_s": 1.0}))


def test_a_rank_that_closes_early_is_no_death():
    def body(rank, opened):
        with opened() as exchange:
            exchange.all_to_all(b"12", [1, 1])
            if rank == 0:
                return exchange.all_to_all(b"12", [1, 1])
        return None

    why, _ = ranks("early", 2, body)
    assert "closed the group after exchange 1" in str(why)
    assert why.ranks == (1,)


@pytest.mark.parametrize(
    ("packet", "text"),
    [
        (b"nonsense", "malformed message of 8 bytes"),
        (wire.pack(wire.Message(wire.Kind.DATA, 1, total=10, written=1 << 40)), "sent a bad message: write cursor"),
        (wire.pack(wire.Message(wire.Kind.DATA, 1, total=10, written=10, consumed=9999)), "read cursor"),
        (wire.pack(wire.Message(wire.Kind.DATA, 1, total=5, written=10)), "sent more than the 5 bytes"),
        (wire.pack(wire.Message(wire.Kind.DATA, 2, total=0)), "out of step: sent DATA 2"),
        (wire.pack(wire.Message(wire.Kind.VOTE, 7)), "out of step: sent VOTE 7"),
        (wire.pack(wire.Message(wire.Kind.ABORT, 1, text=b"{")), "gave up: for no reason that can be read"),
    ],
)
def test_messages_that_do_not_belong_are_named(packet, text):
    def body(rank, opened):
        with opened() as exchange:
            if rank == 1:
                exchange._mesh.links[0].socket.send(packet)
            return exchange.all_to_all(b"12", [1, 1])

    zero, _ = ranks(f"packet {random.Random(packet).random()}", 2, body)
    assert text in str(zero)
    assert zero.ranks == (1,)


def test_a_wrong_checksum_is_named():
    def body(rank, opened):
        with opened(options=Options(**SMALL, checksums=True)) as exchange:
            if rank == 1:
                lane = exchange._rung._lanes[0]
                plain = exchange._mesh.send

                def spoilt(link, message, fds=()):
                    lane.outward.memory[0] ^= 255
                    plain(link, message, fds)

                exchange._mesh.send = spoilt
            return exchange.all_to_all(b"12" * 50, [50, 50])

    zero, _ = ranks("checksum", 2, body)
    assert "sent 50 bytes with a wrong checksum" in str(zero)


def test_a_silent_rank_that_is_no_process_of_ours_is_still_named(monkeypatch):
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with right:
        link = Link(3, 0, left)
        mesh = Mesh("g", 0, [link], 0.2)
        mesh.begin()

        def wait():
            while True:
                mesh.wait(idle=True)

        with pytest.raises(ExchangeError, match=r"heard for 0\.2 s: rank 3 \(pid 0\) is silent") as error:
            wait()
        assert error.value.ranks == (3,)
        mesh.close()


def test_a_full_socket_is_waited_for_and_the_others_hear_so():
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
    mesh = Mesh("g", 0, [Link(rank + 1, 0, ours) for rank, (ours, _) in enumerate(pairs)], 0.2)
    message = wire.Message(wire.Kind.VOTE, 1)

    def fill():
        while True:
            mesh.send(mesh.links[0], message)

    with pytest.raises(ExchangeError, match=r"heard for 0\.2 s: rank 1 ") as error:
        fill()
    assert error.value.ranks == (1,)
    other = pairs[1][1]
    other.settimeout(20)
    assert wire.unpack(other.recv(4096)).kind == wire.Kind.ALIVE
    mesh.close()
    for _, theirs in pairs:
        theirs.close()


def test_a_rank_that_was_stopped_itself_blames_nobody(monkeypatch):
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with right:
        mesh = Mesh("g", 0, [Link(1, 0, left)], 1000.0)
        mesh.begin()
        mesh.links[0].heard_s -= 2000.0
        mesh._turn_s -= 2000.0  # as if this process had been stopped since
        right.send(wire.pack(wire.Message(wire.Kind.ALIVE, 1)))
        (link,) = mesh.wait(idle=True)
        assert mesh.receive(link) is None
        assert link.sequence == 1
        mesh.close()


def test_a_peer_that_dies_between_its_greeting_and_the_next_look_is_named():
    """The kernel tells the reset once, before a packet that was seen already."""
    meeting = rendezvous._Meeting("g", 0, 2, 20.0, {})
    hello = wire.pack_hello({**meeting._fields, "rank": 1})

    class Dying:
        packets, resets = [hello], 1

        def recv(self, size, flags=0):
            if not self.packets:
                return b""
            if flags:
                return self.packets[0]
            if self.resets:
                self.resets -= 1
                raise ConnectionResetError
            return self.packets.pop()

    link = Link.__new__(Link)
    link.rank, link.pid, link.socket = 1, 7, Dying()
    meeting.links[1] = link
    with pytest.raises(ExchangeError, match=r"rank 1 \(pid 7\) left or hung while") as error:
        meeting._hear()
    assert error.value.ranks == (1,)
    assert meeting.greeted == {1}
