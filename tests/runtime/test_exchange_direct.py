"""Parts that are read in the sender's memory: whole, or the ring carries them, or the exchange fails."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from exchange_pool import SMALL
from exchange_pool import in_threads as ranks
from moexray.core.errors import ExchangeError
from moexray.runtime.exchange import Options, direct, host, wire

SIZE = 10_000  # more than a ring of 4,096 holds


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(host, "_PIECE_BYTES", 3000)


def _sent(rank, turn=0):
    return bytearray((17 * rank + turn + i) % 251 for i in range(2 * SIZE))


def _swap(exchange, rank, turns=2, make=bytearray):
    """Exchanges that many times; whether all came as it was sent."""
    right = True
    for turn in range(turns):
        got = exchange.all_to_all(make(_sent(rank, turn)), [SIZE, SIZE], recv_bytes=[SIZE, SIZE])
        expected = [_sent(peer, turn)[rank * SIZE :][:SIZE] for peer in range(2)]
        right &= [bytes(part) for part in got] == [bytes(part) for part in expected]
    return right


def _body(rank, opened, **how):
    with opened(**how) as exchange:
        return _swap(exchange, rank), exchange.counters().direct_bytes


def test_large_parts_take_one_copy_and_small_or_read_only_ones_do_not():
    def body(rank, opened):
        with opened() as exchange:
            seen = []
            for size, make in ((4096, bytearray), (4095, bytearray), (4096, bytes)):
                before = exchange.counters().direct_bytes
                got = exchange.all_to_all(make(b"x" * 2 * size), [size, size])
                assert [len(part) for part in got] == [size, size]
                seen.append(exchange.counters().direct_bytes - before)
            return seen

    assert ranks("direct sizes", 2, body) == [[4096, 0, 0]] * 2


def test_without_it_the_rings_carry_all():
    options = Options(**SMALL, direct=False)
    assert ranks("not direct", 2, lambda r, o: _body(r, o, options=options)) == [(True, 0)] * 2


def test_who_may_not_be_read_is_not_asked(monkeypatch):
    def refused(pid, source, into):
        raise OSError(errno.EPERM, "not permitted")

    monkeypatch.setattr(direct, "read", refused)
    assert ranks("direct eperm", 2, _body) == [(True, 0)] * 2


@pytest.mark.parametrize("good", [0, 1, 3])
def test_a_read_that_fails_half_way_leaves_the_rest_to_the_ring(monkeypatch, good):
    plain, calls = direct.read, {"a": 0}

    def fragile(pid, source, into):
        if len(into) > 100:  # not the mark of `meet`
            calls["a"] += 1
            if calls["a"] > good:
                raise OSError(errno.EFAULT, "bad address")
        plain(pid, source, into)

    monkeypatch.setattr(direct, "read", fragile)
    zero, one = ranks(f"direct half {good}", 2, _body)
    assert (zero[0], one[0]) == (True, True)
    assert zero[1] + one[1] == 3000 * good
    assert calls["a"] == good + 2  # each pair fails once, and does not try again


def test_a_peer_that_gives_up_while_it_is_read_delivers_nothing(monkeypatch):
    """Its buffer is its own again from then on: what was read may be anything."""
    opened_ones, plain = {}, direct.read

    def late(pid, source, into):
        plain(pid, source, into)
        if opened_ones.get("reader") == 0 and len(into) == SIZE % 3000:  # the last piece
            opened_ones["one"]._mesh.abort(ExchangeError("enough", ranks=(1,)))

    def body(rank, opened):
        with opened() as exchange:
            opened_ones["one" if rank else "reader"] = exchange if rank else 0
            exchange.all_to_all(b"", [0, 0])
            part = SIZE if rank else 0  # only rank 0 reads
            return exchange.all_to_all(bytearray(part), [part, 0])

    monkeypatch.setattr(direct, "read", late)
    zero, _ = ranks("direct abort", 2, body)
    assert "gave up: enough" in str(zero)
    assert zero.ranks == (1,)


def test_a_wrong_checksum_of_an_offer_is_named(monkeypatch):
    plain = direct.read

    def spoilt(pid, source, into):
        plain(pid, source, into)
        if len(into) > 100:
            into[0] ^= 1

    monkeypatch.setattr(direct, "read", spoilt)
    options = Options(**SMALL, checksums=True)
    for why in ranks("direct crc", 2, lambda r, o: _body(r, o, options=options)):
        assert "bytes with a wrong checksum" in str(why)


@pytest.mark.parametrize("kind", [wire.Kind.TAKEN, wire.Kind.REFUSED])
def test_a_peer_that_took_what_nobody_offered_is_named(kind):
    def body(rank, opened):
        with opened() as exchange:
            if rank == 1:
                exchange._mesh.links[0].socket.send(wire.pack(wire.Message(kind, 1, consumed=5)))
            return exchange.all_to_all(b"12", [1, 1])

    zero, _ = ranks(f"taken {kind}", 2, body)
    assert "5 bytes taken of 0 offered" in str(zero)
    assert zero.ranks == (1,)


def test_an_address_that_is_not_there_is_an_error():
    with pytest.raises(OSError, match=r"Bad address|ermitted|no process"):
        direct.read(os.getpid(), 8, memoryview(bytearray(16)))
    with pytest.raises(OSError, match=r"No such process|no process"):
        direct.read(2**22 + 1, 8, memoryview(bytearray(16)))


def test_a_process_that_may_not_be_traced_is_served_by_the_ring():
    """Not dumpable: the kernel then refuses its memory to others of the same user (root may still read it)."""
    code = """
import ctypes, os, sys
from moexray.runtime.exchange import Exchange, Options
rank = 1 if os.fork() else 0
if rank:
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
name = f"dump {os.getppid() if not rank else os.getpid()}"
with Exchange.open(name, rank, 2, Options(ring_bytes=4096, timeout_s=20)) as exchange:
    got = exchange.all_to_all(bytearray([rank]) * 20000, [10000, 10000])
    assert [bytes(part) for part in got] == [bytes([peer]) * 10000 for peer in range(2)]
    exchange.all_to_all(b"", [0, 0])
if not rank:
    os._exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert (done.stdout, done.stderr) == ("0\n", "")
