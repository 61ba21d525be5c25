"""The rungs of torch and the wrapped `all_to_all_single`, on two processes with gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
WORKER = Path(__file__).parents[1] / "exchange_torch_worker.py"


# One start of two processes for all of them: torch takes seconds to import. The last one breaks its group.
SCENARIOS = "equal,off,raises,device_rung,sizes,overlapping,all_rungs,gloo_rung"


def _play(scenarios, world, store):
    """What each rank saw, None for one that died."""
    env = {**os.environ, "MOEXRAY_OFF": "", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(WORKER), scenarios, str(rank), str(world), str(store)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
        )
        for rank in range(world)
    ]
    seen = []
    for process in ranks:
        out, err = process.communicate(timeout=180)
        assert out or process.returncode == -9, err.decode()
        seen.append(json.loads(out) if out else None)
    return seen


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What two ranks saw, by scenario."""
    by_rank = _play(SCENARIOS, 2, tmp_path_factory.mktemp("torch") / "store")
    return {name: [seen[name] for seen in by_rank] for name in SCENARIOS.split(",")}


def test_attached_equals_torch_and_detached_is_the_very_function(two):
    for seen in two["equal"]:
        assert seen == {
            "rung": "shm", "wrapped": True, "same": True, "refused": "Tensors must be contiguous",
            "passed": 2, "exchanges": 21, "restored": True, "fallbacks": 0,
        }


def test_gloo_falls_to_shared_memory_on_all_ranks_when_one_call_fails_on_one(two):
    for rank, seen in enumerate(two["gloo_rung"]):
        assert seen["rung"] == "gloo"
        assert seen["last"] == "shm"
        assert seen["same"]
        assert seen["outs"] == [[100 * turn + rank, 100 * turn + rank + 10] for turn in range(3)]
        device, gloo = seen["fallbacks"]
        assert device[:3] == ["device", "gloo", 0]
        assert device[3]["0"] == "device: the process group is one of gloo, not of a device"
        assert gloo[:3] == ["gloo", "shm", 8]
        assert "ZeroDivisionError" in gloo[3]["1"]


def test_a_failed_device_call_is_repeated_over_gloo(two):
    for rank, seen in enumerate(two["device_rung"]):
        assert (seen["rung"], seen["last"], seen["calls"]) == ("device", "gloo", 3)
        assert seen["outs"] == [[100 * turn + rank, 100 * turn + rank + 10] for turn in range(4)]
        reason = "device: RuntimeError('NCCL error: unhandled system error')"
        assert seen["fallbacks"] == [["device", "gloo", 3, {"0": reason}]]
        assert seen["restored"]
        assert seen["exchanges"] == 4


def test_buffers_that_overlap_are_not_mixed_up(two):
    assert two["overlapping"] == [[True] * 4] * 2


def test_down_the_whole_ladder_within_one_call(two):
    for rank, seen in enumerate(two["all_rungs"]):
        assert (seen["rung"], seen["last"], seen["exchanges"]) == ("device", "ring", 2)
        assert seen["outs"] == [[100 * turn + rank, 100 * turn + rank + 10] for turn in range(2)]
        assert [step[:3] for step in seen["fallbacks"]] == [
            ["device", "gloo", 1], ["gloo", "shm", 1], ["shm", "ring", 1],
        ]  # fmt: skip
        device, gloo, shm = (step[3] for step in seen["fallbacks"])
        assert device == {"0": "device: RuntimeError('CUDA error')"}
        assert "ZeroDivisionError" in gloo["1"]
        assert shm["1"].startswith("shm: memory is short: ")


def test_switched_off_on_one_rank_is_off_on_all(two):
    for seen in two["off"]:
        assert seen["plain"]
        assert seen["same"]
        assert seen["reason"].startswith("switched off on rank 1 ")


def test_an_exception_of_the_host_restores_the_very_function(two):
    assert two["raises"] == [{"restored": True}] * 2


def test_a_killed_rank_is_named_to_the_callers_of_torch(tmp_path):
    *survivors, dead = _play("killed", 3, tmp_path / "store")
    assert dead is None
    for seen in (seen["killed"] for seen in survivors):
        assert seen["same"]
        assert seen["ranks"] == [2]
        assert "rank 2 (pid " in seen["error"]
        assert "last message in exchange 2" in seen["error"]
        assert seen["restored"]


def test_a_rank_that_dies_within_gloo_is_named(tmp_path):
    survivor, dead = _play("killed_gloo", 2, tmp_path / "store")
    assert dead is None
    seen = survivor["killed_gloo"]
    assert seen["same"]
    assert seen["ranks"] == [1]
    assert " died; last message in exchange " in seen["error"]


def test_gloo_learns_sizes_and_refuses_those_that_do_not_fit(two):
    for seen in two["sizes"]:
        assert seen["right"]
        assert "rank 1 sends 4 bytes, rank 0 expects 5" in seen["error"]
