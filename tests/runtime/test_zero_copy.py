"""Parcels: the same pages arrive, ownership is one process's, and nothing is left when a peer dies."""

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from moexray.core.errors import ExchangeError, UsageError
from moexray.runtime.zero_copy import Parcel, Port

MIB = 1 << 20
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd and eventfd are Linux's")

HEAD = """
import os, socket, sys, signal
import numpy as np
from moexray.runtime.zero_copy import Parcel, Port
port = Port(socket.socket(fileno=int(sys.argv[1])))
def anonymous():
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Rss"): return int(line.split()[1]) * 1024
"""


def descriptors():
    """What is open, and where: a number that another's file gave back may be ours now."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            found.add((path.name, str(path.readlink())))
    return found


def parcels_mapped():
    return Path("/proc/self/maps").read_text().count("moexray-parcel")


@pytest.fixture(autouse=True)
def _nothing_is_left():
    gc.collect()  # what other tests dropped
    before = descriptors()
    yield
    assert descriptors() <= before
    assert parcels_mapped() == 0


def peer(body):
    """A process with the other end of a port."""
    ours, theirs = Port.pair()
    number = theirs.socket.fileno()
    child = subprocess.Popen(
        [sys.executable, "-c", HEAD + textwrap.dedent(body), str(number)],
        pass_fds=[number], stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    theirs.close()
    return ours, child


def test_another_process_gets_the_same_pages_and_sends_them_back():
    ours, child = peer("""
        parcel = port.receive(30)
        assert parcel.view.ctypes.data % 4096 == 0
        print(os.fstat(parcel._fd).st_ino, int(parcel.view.sum(dtype=np.uint64)), flush=True)
        parcel.view[::2] = 9
        parcel.done()
        port.send(parcel).close()
        """)
    with ours, child:
        parcel = Parcel.make(MIB)
        data = np.random.default_rng(0).integers(0, 255, MIB, np.uint8)
        parcel.view[:] = data
        inode = os.fstat(parcel._fd).st_ino
        ticket = ours.send(parcel)
        assert parcel.view is None
        assert not parcel.is_open
        assert ticket.wait(30)
        assert ticket.ready()
        with ours.receive(30) as back:
            assert os.fstat(back._fd).st_ino == inode
            assert (back.view[::2] == 9).all()
            assert (back.view[1::2] == data[1::2]).all()
        out, _ = child.communicate(timeout=30)
        assert out.split() == [str(inode), str(int(data.sum(dtype=np.uint64)))]


def test_the_receivers_memory_does_not_grow_by_a_copy_and_ours_shrinks():
    ours, child = peer("""
        before = anonymous()
        parcel = port.receive(30)
        total = int(parcel.view.sum(dtype=np.uint64))
        print(anonymous() - before, flush=True)
        parcel.done()
        """)
    with ours, child:
        size = 32 * MIB
        parcel = Parcel.make(size)
        parcel.view[:] = 1
        rss = resident()
        ticket = ours.send(parcel)
        assert rss - resident() > 0.9 * size  # no longer ours
        assert ticket.wait(30)
        grown = int(child.communicate(timeout=30)[0])
        assert grown < 1.2 * size  # the pages once; a copy would be twice


def resident():
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss"):
            return int(line.split()[1]) * 1024
    return 0


@pytest.mark.parametrize("moment", ["before", "holding", "unreceived"])
def test_a_peer_that_is_killed_leaves_nothing_and_is_told(moment):
    ours, child = peer({
        "before": "print('ready', flush=True); signal.pause()",
        "holding": "parcel = port.receive(30); print('ready', flush=True); signal.pause()",
        "unreceived": "print('ready', flush=True); signal.pause()",
    }[moment])  # fmt: skip
    with ours, child:
        if moment == "before":
            child.stdout.readline()
            os.kill(child.pid, signal.SIGKILL)
            child.wait(30)
            parcel = Parcel.make(MIB)
            parcel.view[:] = 3
            with pytest.raises(ExchangeError, match="could not be handed over"):
                ours.send(parcel)
            assert (parcel.view == 3).all()  # still ours
            parcel.close()
            return
        ticket = ours.send(Parcel.make(MIB))
        child.stdout.readline()
        assert not ticket.wait(0.01)
        os.kill(child.pid, signal.SIGKILL)
        child.wait(30)
        with pytest.raises(ExchangeError, match="receiver of a parcel is gone"):
            ticket.wait(30)
        ticket.close()
        with pytest.raises(ExchangeError, match=r"no parcel|sender is gone"):
            ours.receive(1)


def test_a_receiver_that_was_done_before_it_died_was_done():
    ours, child = peer("port.receive(30).done()")
    with ours, child:
        ticket = ours.send(Parcel.make(MIB))
        child.wait(30)
        assert ticket.wait(0)


def test_only_the_owner_may_use_it():
    ours, theirs = Port.pair()
    with ours, theirs:
        parcel = Parcel.make(4097)
        part = parcel.view[10:]
        with pytest.raises(UsageError, match="still refers"):
            ours.send(parcel)
        part[:] = 5
        assert (parcel.view[10:] == 5).all()
        del part
        ticket = ours.send(parcel)
        with pytest.raises(UsageError, match="sent or closed"):
            ours.send(parcel)
        with pytest.raises(UsageError, match="sent or closed"):
            parcel.done()
        parcel.close()
        got = theirs.receive()
        assert len(got.view) == 4097
        assert not ticket.ready()
        got.done()
        assert ticket.ready()
        got.close()
        got.close()


def test_tensors_share_the_pages():
    torch = pytest.importorskip("torch")
    ours, theirs = Port.pair()
    with ours, theirs:
        parcel = Parcel.make(MIB)
        tensor = torch.from_numpy(parcel.view).view(torch.float32)
        tensor.fill_(2.5)
        with pytest.raises(UsageError, match="still refers"):
            ours.send(parcel)
        del tensor
        ours.send(parcel).close()
        with theirs.receive() as got:
            assert (torch.from_numpy(got.view).view(torch.float32) == 2.5).all()
        with Parcel.make(MIB) as parcel:
            assert parcel.register() == torch.cuda.is_available()


def test_what_is_no_parcel_is_refused():
    ours, theirs = Port.pair()
    with ours, theirs:
        with pytest.raises(ExchangeError, match=r"within 0\.01 s"):
            theirs.receive(0.01)
        ours.socket.send(b"hello")
        with pytest.raises(ExchangeError, match="5 bytes and 0 descriptors"):
            theirs.receive()
        fd = os.memfd_create("soft")
        os.ftruncate(fd, 4096)
        event = os.eventfd(0)
        for magic, size, why in ((b"moexzc01", 4096, "resized"), (b"moexzc01", 9, "no parcel"), (b"x" * 8, 4096, "no parcel")):
            socket.send_fds(ours.socket, [magic + size.to_bytes(8, "little")], [fd, event])
            with pytest.raises(ExchangeError, match=why):
                theirs.receive()
        os.close(fd)
        os.close(event)
        ours.close()
        with pytest.raises(ExchangeError, match="sender is gone"):
            theirs.receive()
    with pytest.raises(UsageError, match="SEQPACKET"), socket.socket(socket.AF_UNIX) as plain:
        Port(plain)
    with pytest.raises(UsageError, match="parcel of 0 bytes"):
        Parcel.make(0)


def test_sizes_and_timeouts_that_cannot_be():
    for size in (float("nan"), 1.5, "3", None, 0, -1):
        with pytest.raises(UsageError, match="a parcel of"):
            Parcel.make(size)
    one, two = Port.pair()
    with one, two:
        for timeout_s in (float("nan"), -1.0, float("inf")):
            with pytest.raises(UsageError, match="a timeout of"):
                one.receive(timeout_s=timeout_s)


def test_switched_off_a_parcel_stays_with_its_owner(monkeypatch):
    monkeypatch.setenv("MOEXRAY_OFF", "zero-copy")
    one, two = Port.pair()
    with one, two, Parcel.make(4096) as parcel:
        parcel.view[:] = 3
        with pytest.raises(ExchangeError, match="switched off"):
            one.send(parcel)
        assert parcel.view.tolist() == [3] * 4096


def test_the_timeout_of_receive_is_not_that_of_send():
    one, two = Port.pair()
    with one, two:
        for before in (None, 7.0):
            one.socket.settimeout(before)
            with pytest.raises(ExchangeError, match="no parcel"):
                one.receive(0.0)
            assert one.socket.gettimeout() == before
        one.close()
        with pytest.raises(ExchangeError, match="no parcel"):
            one.receive(0.0)


def test_a_ticket_of_a_closed_port_is_done_or_raises():
    one, two = Port.pair()
    with two, one.send(Parcel.make(4096)) as ticket:
        one.close()
        with pytest.raises(ExchangeError, match="port of a parcel was closed"):
            ticket.wait(30)
        with two.receive() as got:
            got.done()
        assert ticket.wait(30)


def test_what_is_dropped_gives_its_descriptors_back():
    one, two = Port.pair()
    with one, two:
        gc.collect()
        before = descriptors()
        parcel = Parcel.make(4096)
        ticket = one.send(Parcel.make(4096))
        got = two.receive()
        assert len(descriptors() - before) >= 5
        del parcel, ticket, got
        gc.collect()
        assert descriptors() <= before


def test_a_ticket_that_was_closed_says_nothing_on_the_receiver():
    one, two = Port.pair()
    with one, two:
        ticket = one.send(Parcel.make(4096))
        ticket.close()
        ticket.close()
        for ask in (ticket.ready, lambda: ticket.wait(0.0), lambda: ticket.wait(30)):
            with pytest.raises(UsageError, match="ticket was closed"):
                ask()
        done = one.send(Parcel.make(4096))
        two.receive().close()
        got = two.receive()
        got.done()
        got.close()
        assert done.wait(30)
        done.close()
        assert done.ready()
