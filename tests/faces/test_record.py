"""`moexray record` with real processes: what is in the folder, and who does not notice when somebody dies."""

import contextlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from moexray.readers.read_any import read_any

TESTS = Path(__file__).resolve().parents[1]
PAGE = b"""# HELP vllm:num_requests_running Requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m {x}"} 3.0
# TYPE up gauge
up 1
"""
# An engine as far as rings go: a step every 5 ms, each with a number that the records must hold.
ENGINE = """
import os, sys, time
import numpy as np
from moexray.runtime.recorder import Ring, Site
ring = Ring([Site("layers.0.gate", 0, 4, 1)], {"engine": "made", "model": "M", "role": "model"})
end, step = time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < end:
    began = time.monotonic_ns()
    time.sleep(0.005)
    ring.hold(step, began, time.monotonic_ns(), 1, calls=[(0, began, began + 9, np.array([[step % 4]]))])
    step += 1
open(sys.argv[2], "w").write(str(step))
ring.close()
"""


@pytest.fixture(autouse=True)
def _own_rings(tmp_path, monkeypatch):
    (tmp_path / "rings").mkdir(0o700)
    monkeypatch.setenv("MOEXRAY_RINGS", str(tmp_path / "rings"))


def start(*args, **more):
    return subprocess.Popen([sys.executable, "-m", "moexray", "record", *map(str, args)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", **more)  # fmt: skip


def record(*args, **more):
    process = start(*args, **more)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text("utf-8"))


def steps(folder):
    """Rows of step times in a bundle."""
    return sum(p.read_text("utf-8").count("\n") - 1 for p in folder.glob("latency/*.csv"))


def counted(folder):
    """Token-expert pairs in a bundle."""
    lines = [x for p in folder.glob("routing/*.jsonl") for x in p.read_text("utf-8").splitlines()]
    return sum(sum(json.loads(line)["expert_counts"]) for line in lines)


def until(what, seconds=60):
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            pytest.fail("it did not happen in time")
        time.sleep(0.02)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A program that knows nothing of us, with a model of transformers."""
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("recorded")
    program = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
import torch
from tiny_models import tiny, tokens
model = tiny("deepseek_v3", num_hidden_layers=3)
with torch.inference_mode():
    for _ in range(30):
        model(tokens())
print("served", "sitecustomize" in sys.modules, [p for p in sys.path if "injected" in p])
sys.exit(7)
"""
    (folder / "serve.py").write_text(program, "utf-8")
    code, out, err = record("-o", folder / "b", "--", sys.executable, "-W", "ignore", folder / "serve.py")
    return folder / "b", code, out, err


def test_a_program_that_knows_nothing_of_us_is_recorded(recorded):
    folder, code, out, err = recorded
    assert (code, out) == (7, "served True []\n")
    assert "30 steps of DeepseekV3ForCausalLM (transformers 5.24.0)" in err
    assert f"next: moexray diagnose {folder}" in err
    about = manifest(folder)
    assert (about["schema"], about["ended"], about["steps"]) == ("moexray.bundle/1", "exit 7", 30)
    assert about["missed"] == {"records": 0, "steps": 0, "scrapes": 0, "failures": 0, "looks": 0}
    assert about["engines"][0]["model"] == "DeepseekV3ForCausalLM"
    assert steps(folder) == 30
    assert counted(folder) == 30 * 2 * 24 * 4  # steps, MoE layers, tokens, experts per token


def test_the_recording_opens_in_diagnose_with_all_its_parts(recorded):
    folder = recorded[0]
    run = read_any([str(folder)])
    assert run.problems == ()
    assert {"counts", "latency", "trace", "trace_memory", "meminfo"} <= run.present
    assert {int(b.columns["layer"][0]) for b in run.batches("counts")} <= {1, 2}
    assert len(run.batches("latency")[0].columns["value_s"]) == 30
    done = subprocess.run([sys.executable, "-m", "moexray", "diagnose", str(folder), "--format", "json"],
                          capture_output=True, encoding="utf-8", check=False, timeout=120)  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    assert "routing/" in done.stdout


def test_a_program_without_python_or_torch_runs_as_ever(tmp_path):
    code, out, err = record("-o", tmp_path / "sh", "--", "sh", "-c", "echo hello; exit 3")
    assert (code, out) == (3, "hello\n")
    assert "no MoE model" in err
    assert manifest(tmp_path / "sh")["ended"] == "exit 3"
    code, out, err = record("-o", tmp_path / "py", "--", sys.executable, "-c", "import sys; print(sorted(m for m in sys.modules if m in ('numpy', 'torch')))")
    assert (code, out) == (0, "[]\n")
    code, out, err = record("-o", tmp_path / "kill", "--", "sh", "-c", "kill -TERM $$")
    assert (code, manifest(tmp_path / "kill")["ended"]) == (128 + signal.SIGTERM, "killed by SIGTERM")


def test_the_sites_own_sitecustomize_still_runs(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import builtins\nbuiltins.of_the_site = 42\n", "utf-8")
    env = {**os.environ, "PYTHONPATH": str(site)}
    code, out, _ = record("-o", tmp_path / "b", "--", sys.executable, "-c", "print(of_the_site)", env=env)
    assert (code, out) == (0, "42\n")


def test_what_makes_no_sense_is_refused_before_anything_runs(tmp_path):
    for args, why in (
        ([], "there is nothing to record"),
        (["--seconds", "3", "--", "true"], "go without CMD"),
        (["--url", "ftp://x"], "is no http"),
        (["--", "no-such-program-here"], "there is no program"),
    ):
        code, out, err = record("-o", tmp_path / "b", *args)
        assert (code, out) == (2, "")
        assert why in err
    (tmp_path / "b").mkdir(exist_ok=True)
    (tmp_path / "b" / "mine").write_text("", "utf-8")
    code, out, err = record("-o", tmp_path / "b", "--", "sh", "-c", "echo ran")
    assert (code, out) == (2, "")
    assert "is not empty" in err


@pytest.fixture
def server():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{web.server_address[1]}"
        web.shutdown()


def test_metrics_of_a_server_are_read_with_their_time(tmp_path, server):
    code, _, err = record("-o", tmp_path / "b", "--url", server, "--seconds", "1")
    assert code == 0, err
    assert "2 scrapes" in err
    run = read_any([str(tmp_path / "b")])
    batches = run.batches("metrics")
    assert run.problems == ()
    assert len(batches) == 2
    assert [list(b.columns["value"]) for b in batches] == [[3.0, 1.0]] * 2
    assert all(abs(b.attrs["t_s"] - time.time()) < 120 for b in batches)


def test_a_server_that_does_not_answer_is_counted_and_told(tmp_path):
    code, _, _ = record("-o", tmp_path / "b", "--url", "http://127.0.0.1:9", "--seconds", "1")
    assert code == 2
    assert manifest(tmp_path / "b")["missed"]["scrapes"] == 2


def engine(tmp_path, seconds):
    return ["--", sys.executable, "-c", ENGINE, str(seconds), str(tmp_path / "done")]


def test_a_killed_recorder_leaves_the_engine_alone_and_the_folder_whole(tmp_path):
    folder = tmp_path / "b"
    process = start("-o", folder, *engine(tmp_path, 5))
    until(lambda: folder.is_dir() and steps(folder) > 100)
    before = steps(folder)
    process.kill()
    killed = time.time()
    process.communicate(timeout=60)
    until((tmp_path / "done").exists)  # the engine served to its end
    run = read_any([str(folder)])
    assert run.problems == ()
    [latency] = run.batches("latency")
    assert len(latency.columns["t_s"]) >= before
    assert killed - latency.columns["t_s"][-1] < 1.0
    assert counted(folder) > 0
    assert manifest(folder)["ended"] == ""


def test_a_killed_engine_loses_no_more_than_what_it_held_and_that_is_told(tmp_path):
    folder = tmp_path / "b"
    code = ENGINE.replace("    step += 1", "    step += 1\n    if step == 300: os.kill(os.getpid(), 9)")
    code, _, err = record("-o", folder, "--", sys.executable, "-c", code, "60", tmp_path / "done")
    assert code == 128 + signal.SIGKILL
    about = manifest(folder)
    lost = about["missed"]["steps"]
    assert steps(folder) == counted(folder) == 300 - lost
    assert lost <= 64  # of 5 ms, two records each
    assert f"{300 - lost} steps" in err
    assert about["ended"] == "killed by SIGKILL"


def test_signals_to_the_recorder_reach_the_program_and_the_rest_is_written(tmp_path):
    folder = tmp_path / "b"
    process = start("-o", folder, *engine(tmp_path, 60))
    until(lambda: folder.is_dir() and steps(folder) > 0)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert manifest(folder)["ended"] == "killed by SIGTERM"
    assert steps(folder) == counted(folder) > 0


def test_a_full_disk_is_counted_and_the_engine_serves_on(tmp_path):
    """A real one: a file system of 1.5 MiB, filled while the engine runs."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1536k", "none", str(disk)], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("this user may not mount a file system")
    try:
        folder = disk / "b"
        process = start("-o", folder, *engine(tmp_path, 4))
        until(lambda: folder.is_dir() and steps(folder) > 20)
        with (disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        held = steps(folder)
        until((tmp_path / "done").exists)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0
        served = int((tmp_path / "done").read_text("utf-8"))
        assert held <= steps(folder) < served
        assert "the disk did not take everything: No space left on device" in err
        assert "bytes of latency/steps" in err
        assert read_any([str(folder)]).problems == ()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_engines_that_record_already_are_read_from_outside(tmp_path):
    env = {**os.environ}
    one = subprocess.Popen([sys.executable, "-c", ENGINE, "4", str(tmp_path / "done")], env=env)
    code, _, err = record("-o", tmp_path / "b", "--attach", "--seconds", "3")
    one.wait(60)
    assert code == 0, err
    assert steps(tmp_path / "b") > 0
    assert manifest(tmp_path / "b")["ended"] == "time is up"


def test_what_killed_recorders_left_in_memory_goes_with_the_next_one(tmp_path):
    """Their rings lie in shared memory: nobody else would ever read or remove them."""
    process = start("-o", tmp_path / "killed", "--", sys.executable, "-c", ENGINE, "8", tmp_path / "steps")
    until(lambda: list((tmp_path / "rings").glob("record-*/*.ring")))
    process.kill()
    process.wait(60)
    [left] = (tmp_path / "rings").iterdir()
    record("-o", tmp_path / "second", "--", "true")
    assert left.exists()  # the engine still writes there
    process.communicate(timeout=60)
    until(lambda: record("-o", tmp_path / f"n{time.time_ns()}", "--", "true") and not left.exists())
    assert list((tmp_path / "rings").iterdir()) == []


def _service():
    os.close(0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it


def test_a_signal_without_a_standard_input(tmp_path):
    """As under a service manager: there is no terminal to ask."""
    process = start("-o", tmp_path / "run", "--", "sleep", "60", preexec_fn=_service)
    until((tmp_path / "run" / "manifest.json").exists)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in told) == (130, False), told
