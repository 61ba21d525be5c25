"""`moexray lab stress`: the file, what other commands and torch's viewer make of it, Ctrl-C."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from moexray.faces.cli.lab_stress import MIX_NAMES, POLICIES
from moexray.faces.cli.main import main
from moexray.runtime.arena.blocks import USABLE
from moexray.verify.stress import MIXES


def run(*args):
    return CliRunner().invoke(main, args, catch_exceptions=False)


def stress(path, *args):
    done = run("lab", "stress", "-o", str(path), "--events", "1500", "--format", "json", *args)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_mixes_are_those_of_the_generator():
    assert tuple(MIXES) == MIX_NAMES
    assert POLICIES == USABLE


def test_a_real_arena_is_cut_up_and_told(tmp_path):
    out = tmp_path / "a.pickle.gz"
    document = stress(out, "--arena", "first-fit", "--live", "64MiB", "--mix", "kv")
    arena = document["arena"]
    assert arena["policy"] == "first-fit"
    assert arena["damaged_blocks"] == 0
    assert (arena["compactions"] > 0) == (arena["moved_bytes"] > 0)
    assert document["reserved_bytes"] == document["used_bytes"] + document["free_bytes"] == 96 << 20
    memory = run("memory", str(out), "--format", "json")
    assert memory.exit_code == 0, memory.output
    [device] = json.loads(memory.stdout)["devices"]
    for key in ("free_bytes", "largest_free_bytes", "reserved_bytes", "events"):
        assert device[key] == document[key]
    assert run("diagnose", str(out)).exit_code in (0, 1)
    said = run("lab", "stress", "-o", str(out), "--force", "--events", "500", "--arena", "tlsf", "--live", "64MiB")
    assert "a real arena (tlsf): " in said.stdout
    assert "no byte was lost" in said.stdout


def test_the_document(tmp_path):
    out = tmp_path / "a.pickle"
    document = stress(out, "--seed", "4", "--target-ratio", "0.4")
    assert document["schema"] == "moexray.lab.stress/1"
    assert (document["seed"], document["target_ratio"]) == (4, 0.4)
    assert document["error"] == pytest.approx(document["ratio"] - 0.4)
    assert document["host"]["verdict"] in ("healthy", "strained", "critical", "cannot tell")
    assert not document["interrupted"]


def test_nothing_is_overwritten_and_bytes_repeat(tmp_path):
    one, two = tmp_path / "a.pickle.gz", tmp_path / "b.pickle.gz"
    stress(one)
    stress(two)
    assert one.read_bytes() == two.read_bytes()
    done = run("lab", "stress", "-o", str(one), "--events", "100")
    assert done.exit_code == 2
    assert "--force overwrites it" in done.stderr
    assert one.read_bytes() == two.read_bytes()
    stress(one, "--force", "--seed", "9")
    assert one.read_bytes() != two.read_bytes()


def test_bad_requests(tmp_path):
    for args, words in (
        (("-o", str(tmp_path / "none" / "a.pickle")), "no folder"),
        (("-o", str(tmp_path / "a.pickle"), "--live", "1MiB"), "too little memory"),
        (("-o", str(tmp_path / "a.pickle"), "--target-ratio", "1"), "target-ratio"),
        (("-o", str(tmp_path / "a.pickle"), "--arena", "tlsf", "--oom"), "leave out --expandable"),
        (("-o", str(tmp_path / "a.pickle"), "--arena", "tlsf", "--live", "1TiB"), "an arena of"),
        (("-o", str(tmp_path / "a.pickle"), "--limits", str(tmp_path / "none.toml")), "cannot be read"),
    ):
        done = run("lab", "stress", *args)
        assert done.exit_code == 2
        assert words in done.stderr
    assert not list(tmp_path.iterdir())


def test_limits_of_the_host_can_be_set(tmp_path):
    limits = tmp_path / "limits.toml"
    limits.write_text("[host_memory]\nhealthy_order = 3\n")
    assert stress(tmp_path / "a.pickle", "--limits", str(limits))["host"]["zones"] is not None


@pytest.mark.parametrize("more", [(), ("--oom", "--streams", "3", "--graph-pool"), ("--expandable",)], ids=str)
def test_the_other_commands_read_it(tmp_path, more):
    out = tmp_path / "a.pickle"
    document = stress(out, *more)
    memory = run("memory", str(out), "--format", "json")
    assert memory.exit_code == 0, memory.output
    [device] = json.loads(memory.stdout)["devices"]
    assert device["events"] == document["events"]
    for key in ("free_bytes", "largest_free_bytes", "reserved_bytes"):
        assert device[key] == document[key]
    assert device["fragmentation_ratio"] == pytest.approx(document["ratio"])
    assert run("diagnose", str(out)).exit_code in (0, 1)


def test_whatif_memory_finds_it_exact(tmp_path):
    out = tmp_path / "a.pickle"
    stress(out, "--streams", "2", "--graph-pool")
    done = run("whatif", "memory", str(out), "--format", "json", "--conf", "max_split_size_mb:64")
    assert done.exit_code == 0, done.output
    check = json.loads(done.stdout)["self_check"]["placements"]
    assert check["matched"] == check["total"] > 300


@pytest.mark.parametrize("more", [(), ("--oom", "--streams", "3", "--graph-pool"), ("--expandable",)], ids=str)
def test_torch_s_own_viewer_reads_it(tmp_path, more):
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    out = tmp_path / "a.pickle"
    document = stress(out, *more)
    snapshot = pickle.loads(out.read_bytes())
    assert f"{document['events']} entries" in viewer.trace(snapshot)
    assert "total_reserved" in viewer.segsum(snapshot)
    assert "<html" in viewer.trace_plot(snapshot).lower()


def test_ctrl_c_writes_what_there_is(tmp_path):
    out, before = tmp_path / "a.pickle", signal.getsignal(signal.SIGINT)
    code = (
        "import os, signal, sys; from moexray.verify.stress import generate;"
        "from moexray.faces.cli.main import main;"
        "step = generate._Workload.step;"
        "generate._Workload.step = lambda w: (step(w), w.number == 5 and os.kill(os.getpid(), signal.SIGINT));"
        f"main(['lab', 'stress', '-o', {str(out)!r}, '--events', '900000'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "interrupted" in done.stdout
    assert "Traceback" not in done.stderr
    assert len(pickle.loads(out.read_bytes())["device_traces"][0]) > 100
    assert signal.getsignal(signal.SIGINT) is before
