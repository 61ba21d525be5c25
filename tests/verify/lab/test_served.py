"""The vLLM engine of the lab: its pieces without vLLM, and one run against a real server (marker vllm)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from moexray.core.errors import UsageError
from moexray.verify.lab import beside, keeper, served
from moexray.verify.lab.bench import Bench
from moexray.verify.lab.cluster import LabError
from moexray.verify.lab.incident import Setup, run
from moexray.verify.lab.pressure import PressureSpec
from moexray.verify.lab.work import Plan

ROOT = Path(__file__).resolve().parents[3]
PYTHON = Path(os.environ.get("MOEXRAY_VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))
SPEC = PressureSpec(capacity=64 << 20, births=2)
LAYERS, EXPERTS, RANKS, ROW = 2, 4, 2, 1 << 10


class Ids:
    """What the desk asks of a tensor."""

    def __init__(self, ids):
        self.ids = np.array(ids)

    def reshape(self, _):
        return self

    def numpy(self):
        return self.ids.reshape(-1)


def processes_with(text: str) -> list[int]:
    """Those whose command or environment has a text; zombies have neither."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            about = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue
        if text.encode() in about and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def wait_until(true, seconds=30.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


# ---- beside the engine


def test_rows_go_to_the_ranks_of_their_experts_by_the_placement():
    desk = beside.Desk(SPEC, (LAYERS, EXPERTS), RANKS, ROW)
    slots = [[3, 1, 0, 2], [0, 1, 2, 3]]
    desk.open({"slots": slots, "layout": "shared", "fills": [0.5], "folder": None})
    asked = []
    pressure = desk._bench.state.pressures[0]
    pressure.take, before = lambda size: asked.append(size) or before(size), pressure.take
    desk.begin(None, None)
    asked.clear()  # the cache's own
    desk.routed(0, Ids([[3, 1], [3, 0], [3, 2]]))
    desk.routed(1, Ids([[2, 3], [2, 3], [2, 3]]))
    desk.end(None, None, None)
    [(begin, end, cpu, counts, rows, largest, moves)] = desk.close()
    assert counts == [[1, 1, 1, 3], [0, 0, 3, 3]]
    assert rows == [[4, 2], [0, 6]]
    assert asked == [4 * ROW]  # none for the layer in which rank 0 gets nothing
    assert begin < end
    assert 0 < cpu <= end - begin
    assert min(largest) > 0
    assert moves == [0, 0]


def test_only_the_steps_of_a_job_are_noted_and_its_fills_are_followed():
    desk = beside.Desk(SPEC, (LAYERS, EXPERTS), RANKS, ROW)
    job = {"slots": [[0, 1, 2, 3]] * LAYERS, "layout": "split", "fills": [0.3, 0.6], "folder": None}

    def steps(count):
        seen = []
        for _ in range(count):
            desk.begin(None, None)
            desk.routed(0, Ids([[0, 1]]))
            desk.end(None, None, None)
            seen.append(desk._bench.state.pressures[1].fill)
        return seen

    steps(2)
    desk.open(job)
    assert steps(3) == [0.3, 0.6, 0.6]
    assert len(desk.close()) == 3
    steps(1)
    desk.open(job)
    assert desk.close() == []
    json.dumps(desk.close())  # as the server sends it


def test_both_layouts_of_a_rank_share_its_memory():
    bench = Bench(SPEC, (LAYERS, EXPERTS), RANKS, (0, 1))
    shared = bench.state.pressures
    bench.use(bench.state.slots, "split")
    assert [p.layout for p in bench.state.pressures.values()] == ["split"] * RANKS
    assert all(bench.state.pressures[r].arena.memory is shared[r].arena.memory for r in range(RANKS))


# ---- the server and its end


def test_the_interpreter_is_the_one_named_or_told_how_to_get(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(served.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"no interpreter .*.venv-vllm/bin/python(.|\n)*make vllm-env"):
        served.python_of(None)
    with pytest.raises(UsageError, match=r"no interpreter .*nowhere"):
        served.python_of(Path("nowhere"))
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(UsageError, match="lacks vllm or moexray"):
        served.python_of(fake)
    fake.write_text("#!/bin/sh\nexit 0\n")
    assert served.python_of(Path("python")) == fake
    monkeypatch.setattr(served.importlib.util, "find_spec", lambda name: object())
    assert served.python_of(None) == Path(sys.executable)


def test_a_server_that_does_not_come_up_is_told_by_the_end_of_its_log(tmp_path):
    pytest.importorskip("tokenizers", reason="the lab's prompts need tokenizers")
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nfor i in 1 2 3; do echo line $i; done; echo no such model >&2; exit 3\n")
    fake.chmod(0o755)
    with pytest.raises(LabError, match=r"ended while it started(.|\n)*line 3\n  no such model"), \
            served.Served(Plan("skewed", "vllm", 2, SPEC), fake):  # fmt: skip
        pass


def test_the_keeper_ends_all_when_its_starter_is_killed(tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    stubborn = f"trap '' TERM; echo > {marks}/child; while :; do sleep 0.1; done"
    command = f"sh -c \"{stubborn}\" & trap 'exit 0' TERM; echo > {marks}/parent; while :; do sleep 0.1; done"
    starter = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, start_new_session=True)\n"
        "time.sleep(600)\n"
    )
    args = [sys.executable, "-c", starter, sys.executable, "-I", keeper.__file__, "sh", "-c", command]
    process = subprocess.Popen(args)
    wait_until(lambda: {p.name for p in marks.iterdir()} == {"child", "parent"})
    assert len(processes_with(str(marks))) >= 3
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not processes_with(str(marks)))


def test_the_keeper_ends_when_its_command_does():
    args = [sys.executable, "-I", keeper.__file__, "sh", "-c", "exit 3"]
    process = subprocess.Popen(args, stdin=subprocess.PIPE, start_new_session=True)
    assert process.wait(30) == -signal.SIGKILL
    process.stdin.close()


# ---- a real server


@pytest.mark.vllm
def test_an_incident_in_a_real_server_is_named_and_cured(tmp_path, monkeypatch):
    if not PYTHON.exists():
        pytest.skip("no vLLM: make vllm-env")
    out, said = tmp_path / "out", list[str]()
    with tempfile.TemporaryDirectory(prefix="lab-") as short:  # a socket's path has 107 bytes at most
        monkeypatch.setattr(tempfile, "tempdir", short)  # the server's environment names it
        document = run(Setup("both", "vllm", 1, requests=80, vllm_python=PYTHON), out, said.append)
        assert not processes_with(short)
        assert not list(Path(short).iterdir())
    assert document["named_right"], document["wrong"]
    assert document == json.loads((out / "lab.json").read_text())
    assert "not vLLM's own allocator" in document["note"]
    for side in ("before", "after"):
        assert all(value is not None for value in document[side].values())
    before, after = document["before"], document["after"]
    assert before["moves_per_step"] > after["moves_per_step"] == 0
    assert after["largest_free_bytes"] > 1.2 * before["largest_free_bytes"]
    assert after["expert_load_std"] < 0.2 * before["expert_load_std"]
    assert document["ratio"]["p99_cpu"]["value"] > 2
    assert before["p99_s"] > before["p99_step_s"] > 2 * after["p99_cpu_s"]  # a move is in the time to a token
    assert document["machine"]["noisy"] or document["ratio"]["p99"]["value"] > 1
    bundle = out / "artefacts"
    kinds = {p.parent.name for p in bundle.rglob("*") if p.is_file()}
    assert {"traces", "memory", "routing", "latency", "logs", "metrics"} <= kinds
    assert {"launch.txt", "server.log"} <= {p.name for p in (bundle / "logs").iterdir()}
    assert len(list((bundle / "metrics").iterdir())) == 3
    with np.load(bundle / "routing" / "expert_counts.npz") as counts:  # from the ring; the truth from beside
        late = counts["logical_count"][6:].sum(axis=0)
        rows = np.take_along_axis(late, counts["physical_to_logical_map"], axis=1).reshape(len(late), 2, -1).sum(axis=2)
    assert (rows.max(axis=1) / rows.mean(axis=1)).round(3).tolist() == document["truth"]["rows_max_to_mean"]
