"""The writer in forked children, whose parent's ring stays the parent's; rings that nobody needs any more go."""

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from moexray.live.drain import RingReader, rings
from moexray.runtime import recorder
from moexray.runtime.recorder import Ring, Site


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "rings"
    path.mkdir(0o700)
    return path


def in_child(work):
    """Runs `work` in a forked child; its result must be true."""
    if (child := os.fork()) == 0:
        code = 1
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def made(folder):
    ring = Ring([Site("gate", 0, 4, 1)], {"engine": "e"}, folder=folder, max_bytes=1 << 20, gauges=("speed",))
    ring.write(0, 0, 1, 2, 1, np.array([3]))
    ring.gauge(speed=1.0)
    return ring


def state(ring):
    reader = RingReader(ring.path)
    return reader.written, reader.live(), reader.totals().tolist(), bytes(ring._memory[256:512])


def test_closed_rings_go_after_a_while_and_who_reads_one_goes_on(folder, monkeypatch):
    ring = made(folder)
    reader = RingReader(ring.path)
    ring.close()
    after = made(folder)
    assert len(rings(folder)) == 2  # its readers have a minute
    monkeypatch.setattr(recorder, "CLOSED_S", -1)
    last = made(folder)
    assert rings(folder) == [after.path, last.path]
    assert reader.read().records["step"].tolist() == [0]
    assert reader.totals().tolist() == [[0, 0, 0, 1]]


def test_a_closed_ring_is_not_held_by_its_writer_and_what_still_comes_goes_nowhere(folder):
    ring = made(folder)
    maps = Path("/proc/self/maps")
    assert str(ring.path) in maps.read_text("utf-8")
    ring.close()
    assert str(ring.path) not in maps.read_text("utf-8")
    ring.write(0, 1, 1, 2, 1, np.array([2]))
    ring.failed()
    ring.close()
    reader = RingReader(ring.path)
    assert reader.read().records["step"].tolist() == [0]
    assert reader.live()["failures"] == 0


def test_where_there_is_no_space_closed_rings_go_at_once(folder, monkeypatch):
    ring = made(folder)
    plain = os.posix_fallocate

    def full(fd, start, size):
        if rings(folder):
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(fd, start, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        made(folder)
    assert rings(folder) == [ring.path]
    ring.close()
    last = made(folder)
    assert rings(folder) == [last.path]


def test_a_process_that_got_the_number_of_a_dead_writer_does_not_keep_its_ring(folder, monkeypatch):
    ring = made(folder)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        taken = ring.path.with_name(f"{ring.path.name.split('-')[0]}-{other.pid}-0.ring")
        ring.path.rename(taken)  # the number is that of a process that started at another time
        monkeypatch.setattr(recorder, "STALE_S", -1)
        last = made(folder)
        assert rings(folder) == [last.path]
        other.kill()


def test_a_child_that_writes_nothing_makes_no_file(folder):
    ring = made(folder)
    before, seen = state(ring), rings(folder)
    in_child(lambda: True)
    in_child(lambda: ring.close() or True)
    assert rings(folder) == seen
    assert state(ring) == before


WRITES = {
    "write": lambda ring: ring.write(0, 7, 1, 2, 1, np.array([1])),
    "write_counts": lambda ring: ring.write_counts(0, 7, 1, 2, 1, np.array([0, 1, 0, 0])),
    "step": lambda ring: ring.step(7, 1, 2, 1),
    "hold": lambda ring: (ring.hold(7, 1, 2, 1), ring.flush()),
    "step of few": lambda ring: ring.step(7, 1, 2, 1, calls=[(0, 1, 2, np.array([[1]]))]),
    "gauge": lambda ring: ring.gauge(speed=2.0),
    "failed": lambda ring: ring.failed(),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_child_writes_into_a_ring_of_its_own(folder, name):
    ring = made(folder)
    before, parents = state(ring), ring.path

    def work():
        WRITES[name](ring)
        WRITES[name](ring)
        ring.close()
        return ring.path != parents

    in_child(work)
    assert state(ring) == before
    [own] = set(rings(folder)) - {parents}
    reader = RingReader(own)
    kinds = reader.read().records["step"].tolist()
    assert set(kinds) <= {7}
    assert len(kinds) == {"gauge": 0, "failed": 0, "step of few": 4}.get(name, 2)
    assert (reader.live()["failures"], reader.live()["closed"]) == (2 * (name == "failed"), 1)


def test_a_child_without_space_goes_on_unseen(folder, monkeypatch):
    def full(fd, start, size):
        raise OSError(28, "No space left on device")

    ring = made(folder)
    before, seen = state(ring), rings(folder)

    def work():
        monkeypatch.setattr(os, "posix_fallocate", full)
        WRITES["write"](ring)
        WRITES["step"](ring)
        return ring._n == 2

    in_child(work)
    assert rings(folder) == seen
    assert state(ring) == before


MS = 1_000_000


def held(ring, step, at_ms, sites=1):
    """Holds a step that ends then, with a call of each site."""
    calls = [(site, 1, 2, np.array([[step % 4]])) for site in range(sites)]
    ring.hold(step, 1, at_ms * MS, 1, calls=calls)
    return RingReader(ring.path)


def soon(true):
    """Whether it comes true within a while, which no correct writer needs."""
    until = time.monotonic() + 30
    while not true() and time.monotonic() < until:
        time.sleep(0.01)
    return true()


def test_the_first_step_is_recorded_at_once_and_those_after_it_together(folder, monkeypatch):
    monkeypatch.setattr("moexray.runtime.flusher.Flusher.wake", lambda _: None)
    ring = Ring([Site("gate", 0, 4, 1)], {"engine": "e"}, folder=folder)
    seen = [held(ring, step, at).written for step, at in enumerate((1000, 1010, 1249, 1250, 1251))]
    assert seen == [2, 2, 2, 8, 8]
    assert RingReader(ring.path).live()["held"] == 1
    ring.flush()
    reader = RingReader(ring.path)
    assert reader.read().records["step"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert (reader.live()["held"], reader.live()["steps"], reader.totals().tolist()) == (0, 5, [[2, 1, 1, 1]])


@pytest.mark.parametrize(("sites", "bytes_", "most"), [(1, 1 << 20, 64), (300, 1 << 20, 1), (1, 67_000, 4)])
def test_never_more_is_held_than_is_counted_quickly_and_fits(folder, monkeypatch, sites, bytes_, most):
    monkeypatch.setattr("moexray.runtime.flusher.Flusher.wake", lambda _: None)
    ring = Ring([Site(f"gate{n}", n, 4, 1) for n in range(sites)], {"engine": "e"}, folder=folder, max_bytes=bytes_)
    held(ring, 0, 1000, sites)
    waits = [held(ring, step, 1001, sites).live()["held"] for step in range(1, 300)]
    assert max(waits) == most - 1
    assert RingReader(ring.path).written >= 300 * (sites + 1) - (most - 1) * (sites + 1)
    ring.flush()
    reader = RingReader(ring.path)
    assert (reader.written, reader.totals().sum()) == (300 * (sites + 1), 300 * sites)


def test_where_no_more_steps_come_they_are_recorded_all_the_same_and_again(folder):
    ring = Ring([Site("gate", 0, 4, 1)], {"engine": "e"}, folder=folder)
    held(ring, 0, 1000)
    for turn in (1, 2):
        reader = held(ring, turn, 1000 + turn)
        assert reader.written == 2 * turn
        assert soon(lambda reader=reader, turn=turn: reader.written == 2 * turn + 2)


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_the_thread_ends_with_its_ring(folder, how):
    def threads():
        return {t for t in threading.enumerate() if t.name == "moexray-ring"} - others

    others: set[threading.Thread] = set()
    others = threads()
    ring = Ring([Site("gate", 0, 4, 1)], {"engine": "e"}, folder=folder)
    held(ring, 0, 1000)
    reader = held(ring, 1, 1001)
    assert len(threads()) == 1
    if how == "closed":
        ring.close()
        assert reader.read().records["step"].tolist() == [0, 0, 1, 1]
    del ring
    gc.collect()
    assert soon(lambda: not threads())


ENGINE = """
import os, signal, sys, time
import numpy as np
from moexray.runtime.recorder import Ring, Site
ring = Ring([Site("gate", 0, 4, 1)], {"engine": "e"}, folder=sys.argv[1])
for step in range(10):
    now = time.monotonic_ns()
    ring.hold(step, now, now, 1, calls=[(0, now, now, np.array([[1]]))])
{"exit": lambda: None, "kill": lambda: os.kill(os.getpid(), signal.SIGKILL)}[sys.argv[2]]()
"""


@pytest.mark.parametrize(("how", "code"), [("exit", 0), ("kill", -signal.SIGKILL)])
def test_a_process_that_ends_leaves_all_and_what_one_that_is_killed_held_is_counted(folder, how, code):
    done = subprocess.run([sys.executable, "-c", ENGINE, str(folder), how], check=False, timeout=60)
    assert done.returncode == code
    [path] = rings(folder)
    reader = RingReader(path)
    steps = reader.written // 2
    assert steps + reader.lost() == 10
    assert reader.totals().sum() == steps
    assert reader.lost() == (0 if how == "exit" else 9)


def test_what_cannot_be_counted_costs_no_more_than_what_was_held_with_it(folder):
    ring = Ring([Site("gate", 0, 4, 1)], {"engine": "e"}, folder=folder)
    held(ring, 0, 1000)
    held(ring, 1, 1001)
    ring.hold(2, 1, 1002 * MS, 1, calls=[(0, 1, 2, "no ids")])
    with pytest.raises(AttributeError):
        ring.flush()
    reader = held(ring, 3, 2000)
    assert reader.read().records["step"].tolist() == [0, 0, 3, 3]
    assert (reader.live()["failures"], reader.live()["held"]) == (2, 0)


def test_threads_that_hold_steps_at_once_lose_none(folder):
    ring = Ring([Site("gate", 0, 4, 1)], {"engine": "e"}, folder=folder)

    def work():
        for _ in range(2000):
            now = time.monotonic_ns()
            ring.hold(0, now, now, 1, calls=[(0, now, now, np.array([[1]]))])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ring.flush()
    reader = RingReader(ring.path)
    assert (reader.live()["steps"], reader.totals().tolist(), reader.tokens().tolist()) == (8000, [[0, 8000, 0, 0]], [8000])


def test_what_is_held_at_a_fork_is_the_parents(folder):
    ring = Ring([Site("gate", 0, 4, 1)], {"engine": "e"}, folder=folder)
    held(ring, 0, 1000)
    held(ring, 1, 1001)
    parents = ring.path

    def work():
        ring.hold(7, 1, 3000 * MS, 1)
        own = RingReader(ring.path)
        return ring.path != parents and own.read().records["step"].tolist() == [7]

    in_child(work)
    ring.flush()
    assert RingReader(parents).read().records["step"].tolist() == [0, 0, 1, 1]
