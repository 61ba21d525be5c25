"""Rings through shared memory: what a writer wrote is what readers read, count, and miss."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from moexray.core.errors import ReadError, UsageError
from moexray.live.drain import ROUTER, STEP, Drain, RingReader, rings
from moexray.runtime import recorder, ring_file
from moexray.runtime.recorder import Layout, Ring, Site

SITES = [Site("model.layers.1.mlp.gate", 1, 8, 2), Site("model.layers.2.mlp.gate", 2, 4, 2)]
FACTS = {"engine": "transformers", "version": "1", "model": "M", "rank": 3, "device": "cpu"}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "rings"
    path.mkdir(0o700)
    return path


def small(folder, slots=6, ids=0, sites=SITES, **more):
    """A ring of so many slots."""
    bare = Layout(len(sites), max((s.experts for s in sites), default=0), ids, slots)
    return Ring(sites, FACTS, folder=folder, max_bytes=bare.size, ids=ids, **more)


def test_what_was_written_is_read_once(folder):
    ring = small(folder, ids=3)
    ring.write(0, 7, 100, 200, 2, np.array([[1, 5], [1, 0]]))
    ring.write_counts(1, 7, 300, 400, 1, np.array([0, 0, 1, 1, 0, 0, 0, 0]), 9, 11)
    ring.step(7, 50, 500, 2, own_ns=6)
    [(reader, batch)] = Drain(folder).poll()
    assert batch.records.tolist() == [
        (0, 7, 100, 200, 0, 0, 1, 0, ROUTER, 2, 4),
        (1, 7, 300, 400, 9, 11, 2, 1, ROUTER, 1, 2),
        (2, 7, 50, 500, 0, 0, -1, -1, STEP, 2, 0),
    ]
    assert batch.counts.tolist() == [[1, 2, 0, 0, 0, 1, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0], [0] * 8]
    assert batch.ids[0].tolist() == [1, 5, 1]  # as many as are kept
    assert batch.dropped == reader.dropped == 0
    assert len(reader.read().records) == 0
    assert reader.totals().tolist() == [[1, 2, 0, 0, 0, 1, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0]]
    assert reader.tokens().tolist() == [2, 1]
    live = reader.live()
    assert {k: live[k] for k in ("head", "steps", "own_ns", "step_ns", "failures", "closed", "beat_ns")} == {
        "head": 3, "steps": 1, "own_ns": 6, "step_ns": 450, "failures": 0, "closed": 0, "beat_ns": 500}  # fmt: skip
    assert (reader.meta.engine, reader.meta.rank, reader.meta.pid, reader.meta.sites) == ("transformers", 3, os.getpid(), tuple(SITES))


@pytest.mark.parametrize("written", [0, 5, 6, 7, 12, 100])
@pytest.mark.parametrize("read_before", [0, 3])
def test_what_was_overwritten_is_counted_and_totals_know_it_all(folder, written, read_before):
    ring = small(folder)
    reader = RingReader(ring.path)
    for step in range(read_before):
        ring.write(0, step, 0, 1, 1, np.array([step % 8]))
    assert len(reader.read().records) == read_before
    for step in range(written):
        ring.write(0, 1000 + step, 0, 1, 1, np.array([step % 8]))
    batch = reader.read()
    kept = min(written, 6)
    assert batch.records["step"].tolist() == [1000 + s for s in range(written)][-kept or written :]
    assert batch.dropped == reader.dropped == written - kept
    assert reader.totals().sum() == reader.written == written + read_before
    assert batch.counts.sum() == kept
    assert len(reader.read_since(0).records) == min(written + read_before, 6)


def test_ids_that_name_no_expert_are_not_counted(folder):
    ring = small(folder)
    ring.write(0, 0, 0, 1, 3, np.array([[-1, 2], [8, 300], [2, -5]], np.int32))
    reader = RingReader(ring.path)
    assert reader.read().counts.tolist() == [[0, 0, 2, 0, 0, 0, 0, 0]]
    assert reader.totals()[0].sum() == 2


@pytest.mark.parametrize("slots", [6, 7, 100])
@pytest.mark.parametrize("sites", [[0, 1], [1], [1, 0], [0, 0, 1]])
@pytest.mark.parametrize("width", [np.int64, np.int32, np.int16])
def test_steps_that_are_held_leave_what_single_writes_and_a_naive_count_leave(folder, slots, sites, width):
    random = np.random.default_rng(3)
    rings = one, together, held = [small(folder, slots, ids=3) for _ in range(3)]
    totals, counts = np.zeros((2, 8), np.int64), []
    for step in range(19):
        rows = step % 4
        calls = [(site, step, step + 1, random.integers(-1, 9, (rows, 2)).astype(width)) for site in sites]
        span = ((step << 70) | 5, 9) if step % 5 == 4 else None
        if span is not None:
            one.request(step, *span)
            together.request(step, *span)
        for site, t0, t1, ids in calls:
            one.write(site, step, t0, t1, rows, ids)
            counts.append([int((ids == expert).sum()) for expert in range(8)])
            totals[site] += counts[-1]
        one.step(step, step, step + 5, rows, own_ns=2)
        together.step(step, step, step + 5, rows, own_ns=2, calls=calls)
        held.hold(step, step, step + 5, rows, own_ns=2, calls=calls, span=span)
        assert RingReader(held.path).live()["held"] == len(held._held) < held._most
    held.flush()
    for ring in rings:
        reader = RingReader(ring.path)
        batch = reader.read()
        assert (reader.totals() == totals).all()
        found = batch.counts[batch.records["kind"] == ROUTER]
        assert found.tolist() == counts[len(counts) - len(found) :]
        assert ring._memory[65536:] == one._memory[65536:]
        assert reader.live() == RingReader(one.path).live()


def test_more_calls_than_slots_keep_the_last_and_count_all(folder):
    ring = small(folder)
    ring.step(0, 0, 1, 1, calls=[(0, n, n, np.array([[n % 8]])) for n in range(20)])
    reader = RingReader(ring.path)
    batch = reader.read()
    assert batch.records["t0_ns"].tolist() == [15, 16, 17, 18, 19, 0]
    assert batch.counts.argmax(axis=1).tolist() == [7, 0, 1, 2, 3, 0]
    assert batch.counts.sum(axis=1).tolist() == [1, 1, 1, 1, 1, 0]
    assert (batch.dropped, reader.totals().sum()) == (15, 20)


def test_gauges_are_named_and_unknown_until_set(folder):
    ring = small(folder, gauges=("reserved_bytes", "retries"))
    reader = RingReader(ring.path)
    assert reader.gauges() == {}
    ring.gauge(reserved_bytes=5.0, nonsense=1.0)
    assert reader.gauges() == {"reserved_bytes": 5.0}


def test_times_of_records_become_wall_time(folder):
    reader = RingReader(small(folder).path)
    assert reader.meta.wall(np.array([reader.meta.mono_ns + 5])).tolist() == [reader.meta.wall_ns + 5]


WRITER = """
import os, signal, sys
import numpy as np
from moexray.runtime.recorder import Ring, Site
ring = Ring([Site("layers.0.gate", 0, 4, 1)], {"engine": "e"}, folder=sys.argv[1])
for step in range(int(sys.argv[2])):
    ring.write(0, step, 0, 1, 1, np.array([step % 4]))
if sys.argv[3] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
ring.close()
"""


@pytest.mark.parametrize(("end", "code"), [("kill", -signal.SIGKILL), ("close", 0)])
@pytest.mark.parametrize("remove", [True, False])
def test_a_dead_writers_ring_is_read_to_its_end_once(folder, end, code, remove):
    done = subprocess.run([sys.executable, "-c", WRITER, str(folder), "50", end], check=False, timeout=60)
    assert done.returncode == code
    drain = Drain(folder, remove=remove)
    [(reader, batch)] = drain.poll()
    assert len(batch.records) == reader.totals().sum() == 50
    assert reader.alive() is False
    assert drain.readers == {}
    assert drain.poll() == []
    assert len(rings(folder)) == (0 if remove else 1)


READER = """
import sys, time
from moexray.live.drain import Drain
drain, seen = Drain(sys.argv[1]), 0
while True:
    seen += sum(len(batch.records) for _, batch in drain.poll())
    if seen:
        print("reading", flush=True)
"""


def test_a_reader_that_is_killed_takes_nothing_with_it(folder):
    """An exporter: the engine writes on, the next reader finds all that the ring still holds."""
    ring = small(folder, slots=2000)
    ring.write(0, 0, 0, 1, 1, np.array([0]))
    with subprocess.Popen([sys.executable, "-c", READER, str(folder)], stdout=subprocess.PIPE) as reader:
        assert reader.stdout.readline() == b"reading\n"
        for step in range(1, 1000):
            ring.write(0, step, 0, 1, 1, np.array([step % 8]))
        reader.kill()
    for step in range(1000, 1500):
        ring.write(0, step, 0, 1, 1, np.array([step % 8]))
    [(again, batch)] = Drain(folder).poll()
    assert batch.records["step"].tolist() == list(range(1500))
    assert (batch.dropped, again.totals().sum()) == (0, 1500)


def test_several_processes_drain_into_one(folder):
    mine = small(folder)
    mine.write(0, 0, 0, 1, 1, np.array([0]))
    for count in ("3", "4"):
        subprocess.run([sys.executable, "-c", WRITER, str(folder), count, "close"], check=True, timeout=60)
    given = Drain(folder).poll()
    assert sorted(len(batch.records) for _, batch in given) == [1, 3, 4]
    assert len({reader.meta.pid for reader, _ in given}) == 3
    assert sorted(reader.alive() is True for reader, _ in given) == [False, False, True]


def test_a_forked_child_writes_into_a_ring_of_its_own(folder):
    ring = small(folder)
    ring.write(0, 0, 0, 1, 1, np.array([0]))
    if (child := os.fork()) == 0:
        ring.write(0, 1, 0, 1, 1, np.array([1]))
        os._exit(0)
    os.waitpid(child, 0)
    ring.write(0, 2, 0, 1, 1, np.array([2]))
    steps = {reader.meta.pid: batch.records["step"].tolist() for reader, batch in Drain(folder).poll()}
    assert steps == {os.getpid(): [0, 2], child: [1]}


def test_another_namespace_is_no_proof_of_death(folder, monkeypatch):
    reader = RingReader(small(folder).path)
    assert reader.alive() is True
    monkeypatch.setattr(ring_file, "namespace", lambda: 1)
    assert reader.alive() is None


def test_old_rings_of_dead_writers_are_swept_by_the_next_writer(folder, monkeypatch):
    for end in ("kill", "close"):
        subprocess.run([sys.executable, "-c", WRITER, str(folder), "1", end], check=False, timeout=60)
    mine = small(folder)
    assert len(rings(folder)) == 3
    monkeypatch.setattr(recorder, "STALE_S", -1)
    other = small(folder)
    assert rings(folder) == [mine.path, other.path]


def test_a_folder_that_others_can_write_to_is_refused(folder):
    folder.chmod(0o777)
    with pytest.raises(UsageError, match="not ours alone"):
        small(folder)
    with pytest.raises(UsageError, match="not ours alone"):
        rings(folder)
    link = folder.parent / "link"
    link.symlink_to(folder)
    with pytest.raises(UsageError, match="not ours alone"):
        rings(link)
    assert rings(folder.parent / "none") == []


def test_a_ring_too_small_or_without_space_is_refused_before_anything_is_mapped(folder, monkeypatch):
    with pytest.raises(UsageError, match="do not hold two steps of 2 routers x 8 experts"):
        Ring(SITES, FACTS, folder=folder, max_bytes=65_900)

    def full(fd, start, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        small(folder)
    assert list(folder.iterdir()) == []


def _cut(data):
    return data[:65_700]


def _described(**changes):
    def change(data):
        about = json.loads(data[512:65536].rstrip(b"\0"))
        about.update(changes)
        return data[:512] + json.dumps(about).encode().ljust(65024, b"\0") + data[65536:]

    return change


@pytest.mark.parametrize(
    ("damage", "why"),
    [(lambda data: b"", "0 bytes"), (_cut, "described"), (lambda data: b"x" + data[1:], "does not begin"),
     (lambda data: data[:512] + b"[" + data[513:], "description"), (_described(schema="moexray.ring/1"), "it is moexray.ring/1, this release reads moexray.ring/2"),
     (_described(slots=1 << 40), "described"), (_described(slots=-1), "sizes"), (_described(pid=None), "lacks"),
     (_described(sites=[]), "sizes"), (_described(experts=-8), "sizes")],
)  # fmt: skip
def test_a_damaged_file_is_refused_with_the_reason_and_does_not_stop_the_drain(folder, damage, why):
    ring = small(folder)
    bad = folder / "1-2-3.ring"
    bad.write_bytes(damage(ring.path.read_bytes()))
    with pytest.raises(ReadError, match=why):
        RingReader(bad)
    drain = Drain(folder)
    assert [reader.path for reader, _ in drain.poll()] == [ring.path]
    assert list(drain.refused) == [bad]


AGAIN = """
import os, sys
import numpy as np
from moexray.runtime.recorder import Ring, Site
ring = Ring([Site("gate", 0, 4, 1)], {"engine": "e"}, folder=sys.argv[2])
ring.step(0, 1, 2, 1)
print(flush=True)
sys.stdin.readline()
if sys.argv[3] == "first":
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1], *sys.argv[1:3], "second"])
"""


def test_a_process_that_executes_another_leaves_a_ring_and_the_other_is_read_too(folder):
    drain, steps = Drain(folder), 0
    with subprocess.Popen(
        [sys.executable, "-c", AGAIN, AGAIN, str(folder), "first"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as engine:  # fmt: skip
        for _ in range(2):
            engine.stdout.readline()
            steps += sum(len(batch.records) for _, batch in drain.poll())
            engine.stdin.write(b"\n")
            engine.stdin.flush()
    assert (engine.returncode, steps) == (0, 2)
