"""The writer in forked children, whose parent's ring stays the parent's; rings that nobody needs any more go."""

import errno
import os
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
    other = os.getppid()
    taken = ring.path.with_name(f"{ring.path.name.split('-')[0]}-{other}-0.ring")
    ring.path.rename(taken)  # the number is that of a process that started at another time
    monkeypatch.setattr(recorder, "STALE_S", -1)
    last = made(folder)
    assert rings(folder) == [last.path]


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
    "step of few": lambda ring: ring.step(7, 1, 2, 1, calls=[(0, 1, 2, [[1]])]),
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
