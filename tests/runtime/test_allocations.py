"""Allocations of a recorded program: what is switched on is switched off, and what the host runs stays its own."""

import atexit
import logging
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from moexray.runtime import allocations as module  # noqa: E402
from moexray.runtime import guard as guards  # noqa: E402
from moexray.runtime.allocations import HISTORY, STEPS, WARM, Allocations  # noqa: E402


class Gpu:
    """What torch's module of a GPU's allocator does, without the GPU."""

    def __init__(self):
        self.entries, self.observers, self.dumps, self.exits = 0, [], 0, []

    def record(self, enabled="all", max_entries=1 << 62, stacks="all"):
        self.entries = max_entries if enabled else 0

    def dump(self, name):
        self.dumps += 1
        Path(name).write_bytes(pickle.dumps(self.dumps))

    def runs_out(self):
        for observer in self.observers:
            observer(0, 0, 0, 0)


@pytest.fixture
def gpu(monkeypatch):
    fake = Gpu()
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", fake.record)
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", fake.dump)
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: fake.entries > 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", fake.observers.append, raising=False)
    monkeypatch.setattr(atexit, "register", fake.exits.append)
    monkeypatch.setattr(atexit, "unregister", lambda done: done in fake.exits and fake.exits.remove(done))
    return fake


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(guards, "_said", set())


def test_a_history_of_ours_is_dumped_and_is_over_at_the_end(tmp_path, gpu):
    allocations = Allocations(tmp_path, "cuda:0", "rank0_1")
    allocations.begin()
    assert (gpu.entries, len(gpu.observers), len(gpu.exits), gpu.dumps) == (HISTORY, 1, 1, 0)
    gpu.runs_out()
    assert gpu.dumps == 1
    allocations.end()
    assert (gpu.entries, gpu.exits, gpu.dumps) == (0, [], 2)
    gpu.runs_out()  # torch keeps the observer
    allocations.end()
    allocations.begin()
    assert (gpu.entries, gpu.exits, gpu.dumps) == (0, [], 2)
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*.*")] == [
        Path("memory/snapshot_rank0_1.pickle")
    ]
    assert pickle.loads((tmp_path / "memory/snapshot_rank0_1.pickle").read_bytes()) == 2


def test_a_history_of_the_hosts_is_left_alone(tmp_path, gpu, caplog):
    gpu.record(max_entries=777)
    allocations = Allocations(tmp_path, "cuda:0", "rank0_1")
    allocations.begin()
    allocations.begin()
    allocations.end()
    assert (gpu.entries, gpu.observers, gpu.exits, gpu.dumps) == (777, [], [], 0)
    assert list(tmp_path.iterdir()) == []
    assert [r.message for r in caplog.records if "history of them itself" in r.message] != []


def test_an_observer_that_cannot_be_put_leaves_no_history(tmp_path, gpu, monkeypatch, caplog):
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", lambda _: 1 // 0)
    Allocations(tmp_path, "cuda:0", "rank0_1").begin()
    assert (gpu.entries, gpu.exits) == (0, [])
    assert "ZeroDivisionError" in caplog.text


def test_a_dump_that_fails_is_told_once_and_leaves_nothing(tmp_path, gpu, monkeypatch, caplog):
    def full(name):
        Path(name).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", full)
    allocations = Allocations(tmp_path, "cuda:0", "rank0_1")
    allocations.begin()
    gpu.runs_out()
    gpu.runs_out()
    allocations.end()
    assert [r.levelno for r in caplog.records if "No space left" in r.message] == [logging.WARNING]
    assert list(tmp_path.rglob("snapshot*")) == []
    assert gpu.entries == 0


def one_step(allocations):
    allocations.begin()
    torch.ones(1000).sum()
    allocations.step_ended()


def test_the_profiles_of_a_cpu_are_kept(tmp_path):
    allocations = Allocations(tmp_path, "cpu", "rank0_1")
    for _ in range(WARM + STEPS + 1):
        one_step(allocations)
        assert not torch.autograd.profiler._is_profiler_enabled
    names = sorted(path.name for path in (tmp_path / "traces").iterdir())
    assert names == [f"cpu_memory_rank0_1-{k}.json" for k in range(1, STEPS + 1)]


@pytest.mark.parametrize("ended_by", ["step", "detach"])
def test_the_profiler_is_off_where_the_bundle_cannot_be_written(tmp_path, caplog, ended_by):
    (tmp_path / "file").write_text("no folder")
    allocations = Allocations(tmp_path / "file", "cpu", "rank0_1")
    for _ in range(WARM):
        one_step(allocations)
    allocations.begin()
    assert torch.autograd.profiler._is_profiler_enabled
    allocations.step_ended() if ended_by == "step" else allocations.end()
    assert not torch.autograd.profiler._is_profiler_enabled
    assert "allocations are not recorded: NotADirectoryError" in caplog.text
    allocations.begin()  # not once more: each try would slow a step and write into the program's log
    assert not torch.autograd.profiler._is_profiler_enabled


def test_a_profile_that_is_too_large_is_left_out(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    allocations = Allocations(tmp_path, "cpu", "rank0_1")
    for _ in range(WARM + 1):
        one_step(allocations)
    assert list((tmp_path / "traces").iterdir()) == []
    assert "passes 10 bytes" in caplog.text


# How a program may end or go on while its steps are profiled. Each ended by a fault of PyTorch's, or hung in
# it, where the profiler ran from one step to the next.
PROGRAM = """
import os, sys, threading
import torch
from moexray.runtime.allocations import WARM, Allocations
allocations = Allocations(sys.argv[1], "cpu", "rank0_1")
def step():
    allocations.begin()
    torch.ones(1000).sum()
    allocations.step_ended()
def in_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
for _ in range(WARM + 1):
    step()
"""
ENDS = {
    "ends between two steps": "sys.exit(7)",
    "is interrupted within a step": "allocations.begin(); sys.exit(7)",
    "runs each step in a thread of its own": "[in_thread(step) for _ in range(20)]; sys.exit(7)",
    "is in a step of another thread": "allocations.begin(); in_thread(step); allocations.step_ended(); sys.exit(7)",
    "forks": """
child = os.fork()
for _ in range(20):
    step()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
sys.exit(7)
""",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_program_ends_as_it_would_without_a_profile(tmp_path, end):
    line = [sys.executable, "-c", PROGRAM + end, str(tmp_path)]
    done = subprocess.run(line, capture_output=True, timeout=120, check=False)
    assert done.returncode == 7, done.stderr.decode()
    assert list((tmp_path / "traces").glob("*-1.json"))
