"""The writer in forked children, whose parent's ring stays the parent's; rings that nobody needs any more go."""

import errno
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from moexray.live.drain import RingReader, rings
from moexray.runtime import recorder
from moexray.runtime.flusher import Flusher
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
    in_child(lambda: ring.flush() or True)
    in_child(lambda: ring.close() or True)
    assert rings(folder) == seen
    assert state(ring) == before


def test_a_child_that_ends_as_any_program_makes_no_file(folder):
    text = (
        "import os, sys; from test_recorder import made; ring = made(sys.argv[1]); child = os.fork()\n"
        "if child: os.waitpid(child, 0)"
    )
    text = f"import sys; sys.path[:] = {[str(Path(__file__).parent), *sys.path]}\n{text}"
    subprocess.run([sys.executable, "-c", text, folder], check=True, timeout=60)
    assert len(rings(folder)) == 1


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
    monkeypatch.setattr(Flusher, "wake", lambda _: True)
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
    monkeypatch.setattr(Flusher, "wake", lambda _: True)
    ring = Ring([Site(f"gate{n}", n, 4, 1) for n in range(sites)], {"engine": "e"}, folder=folder, max_bytes=bytes_)
    held(ring, 0, 1000, sites)
    waits = [held(ring, step, 1001, sites).live()["held"] for step in range(1, 300)]
    assert max(waits) == most - 1
    assert RingReader(ring.path).written >= 300 * (sites + 1) - (most - 1) * (sites + 1)
    ring.flush()
    reader = RingReader(ring.path)
    assert (reader.written, reader.totals().sum()) == (300 * (sites + 1), 300 * sites)


def test_where_no_more_steps_come_they_are_recorded_all_the_same_and_again(folder, monkeypatch):
    looks = threading.Semaphore(0)
    monkeypatch.setattr("moexray.runtime.flusher.time", SimpleNamespace(sleep=lambda _: looks.acquire()))
    ring = Ring([Site("gate", 0, 4, 1)], {"engine": "e"}, folder=folder)
    held(ring, 0, 1000)
    for turn in (1, 2):
        reader = held(ring, turn, 1000 + turn)
        assert reader.written == 2 * turn
        looks.release()
        assert soon(lambda reader=reader, turn=turn: reader.written == 2 * turn + 2)
    looks.release(9)  # its thread ends


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_the_thread_ends_with_its_ring(folder, how):
    def threads():
        return {t for t in threading.enumerate() if t.name == "moexray-ring"} - others

    others = set(threading.enumerate())
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


def test_threads_that_hold_their_first_steps_at_once_have_one_thread_for_the_rest(folder, monkeypatch):
    class Slow(threading.Thread):
        def __init__(self, **more):
            time.sleep(0.05)  # so that the others come meanwhile
            super().__init__(**more)
            made.append(self)

    made: list[Slow] = []
    ring = Ring([Site("gate", 0, 4, 1)], {"engine": "e"}, folder=folder)
    engines = [threading.Thread(target=held, args=(ring, step, 1)) for step in range(4)]
    monkeypatch.setattr(threading, "Thread", Slow)
    for engine in engines:
        engine.start()
    for engine in engines:
        engine.join()
    assert len(made) == 1


def test_a_child_may_drop_the_ring_whatever_a_thread_of_the_parent_did_at_the_fork(folder):
    rings_, stop = [made(folder)], threading.Event()

    def work(flusher):
        while not stop.is_set():
            flusher.wake()

    thread = threading.Thread(target=work, args=(rings_[0]._flusher,))
    thread.start()
    try:
        for _ in range(30):
            if (child := os.fork()) == 0:
                signal.alarm(20)
                rings_.clear()
                gc.collect()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()


def engine(folder, how):
    """Holds ten steps, the first of which is recorded at once, and ends, or drops its ring before."""
    Flusher.wake = lambda _: True
    ring = Ring([Site("gate", 0, 4, 1)], {"engine": "e"}, folder=folder)
    for step in range(10):
        held(ring, step, 1000)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        globals()["kept"] = ring


@pytest.mark.parametrize(("how", "code"), [("exit", 0), ("drop", 0), ("kill", -signal.SIGKILL)])
@pytest.mark.parametrize("start", ["program", "fork", "spawn"])
def test_a_process_that_ends_leaves_all_and_what_one_that_is_killed_held_is_counted(folder, start, how, code):
    if start == "program":
        text = f"import sys; sys.path[:] = {[str(Path(__file__).parent), *sys.path]}; from test_recorder import engine; engine(*sys.argv[1:])"
        done = subprocess.run([sys.executable, "-c", text, folder, how], check=False, timeout=60).returncode
    else:
        process = multiprocessing.get_context(start).Process(target=engine, args=(folder, how))
        process.start()
        process.join(60)
        done = process.exitcode
    assert done == code
    [path] = rings(folder)
    reader = RingReader(path)
    steps = 1 if how == "kill" else 10
    assert (reader.written, reader.totals().sum(), reader.lost()) == (2 * steps, steps, 10 - steps)


def test_what_is_held_is_told_until_it_is_recorded(folder, monkeypatch):
    monkeypatch.setattr(Flusher, "wake", lambda _: True)
    ring = Ring([Site("gate", 0, 4, 1)], {"engine": "e"}, folder=folder)
    held(ring, 0, 1000)
    reader = held(ring, 1, 1001)
    count, told = ring._count, []
    monkeypatch.setattr(ring, "_count", lambda *a: told.append(reader.live()["held"]) or count(*a))
    ring.flush()
    assert (told, reader.live()["held"]) == ([1], 0)


class NoNumbers:
    """Of a tensor that holds none, as those of an export."""

    def numpy(self):
        raise RuntimeError("none")


def test_a_call_that_cannot_be_read_costs_no_other(folder):
    ring = Ring([Site("gate", 0, 4, 1)], {"engine": "e"}, folder=folder)
    held(ring, 0, 1000)
    held(ring, 1, 1001)
    ring.hold(2, 1, 1002 * MS, 1, calls=[(0, 1, 2, NoNumbers())])
    reader = held(ring, 3, 2000)
    assert reader.read().records["step"].tolist() == [0, 0, 1, 1, 2, 3, 3]
    live = reader.live()
    assert (live["failures"], live["held"], live["steps"], reader.tokens().tolist()) == (1, 0, 4, [3])


def test_what_cannot_be_recorded_costs_no_more_than_what_was_held_with_it(folder):
    ring = Ring([Site("gate", 0, 4, 1)], {"engine": "e"}, folder=folder)
    held(ring, 0, 1000)
    held(ring, 1, 1001)
    ring.hold(2, 1, 1002 * MS, 1, calls=[(0, 1, 2, "no ids")])
    with pytest.raises(AttributeError):
        ring.flush()
    reader = held(ring, 3, 2000)
    assert reader.read().records["step"].tolist() == [0, 0, 3, 3]
    live = reader.live()
    assert (live["failures"], live["held"], live["steps"]) == (2, 0, 2)


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
