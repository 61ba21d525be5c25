"""The plug-in in a real vLLM on a CPU, with the lab's model. `make test-vllm` makes its environment.

One server serves all tests here. A second plug-in, made below, counts for itself: it wraps the routers'
method instead of taking their slot, and keeps every id that passes.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from moexray.live.drain import ROUTER, STEP, Drain

pytestmark = pytest.mark.vllm
ROOT = Path(__file__).resolve().parents[3]
PYTHON = Path(os.environ.get("MOEXRAY_VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))
MODEL = ROOT / "src/moexray/verify/lab/models/skewed"
LAYERS, K, PROMPTS, LENGTH, TOKENS = 4, 2, 12, 40, 16

COUNTER = """
import json, os, sys, threading, time
OUT = os.environ["COUNTER_OUT"]

def tell():
    while True:
        ours = sys.modules.get("moexray.runtime.engines.vllm")
        text = json.dumps({"argv": sys.argv[-1], "loaded": bool(ours and ours._loading)})
        with open(os.path.join(OUT, f"process-{os.getpid()}.json"), "w") as file:
            file.write(text)
        if "true" in text:
            return
        time.sleep(0.2)

def register():
    threading.Thread(target=tell, daemon=True).start()
    from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter
    original, layers = BaseRouter._select_experts, {}
    file = open(os.path.join(OUT, f"ids-{os.getpid()}.jsonl"), "a", buffering=1)

    def select(self, *args, **kwargs):
        weights, ids = original(self, *args, **kwargs)
        layer = layers.setdefault(id(self), len(layers))  # routers are first called in the order of the layers
        print(json.dumps([layer, ids.tolist()]), file=file)
        return weights, ids

    BaseRouter._select_experts = select
"""


def counter(folder):
    """The second plug-in, as an installed distribution; and the folder that it writes to."""
    site, out = folder / "site", folder / "out"
    about = site / "counter-1.0.dist-info"
    about.mkdir(parents=True)
    out.mkdir()
    (site / "counter.py").write_text(COUNTER, "utf-8")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: counter\nVersion: 1.0\n", "utf-8")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\ncounter = counter:register\n", "utf-8")
    return {
        **os.environ, "PYTHONPATH": str(site), "COUNTER_OUT": str(out), "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1",
    }, out  # fmt: skip


def server_command(port):
    return [str(word) for word in (
        PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", MODEL, "--served-model-name", "lab", "--host",
        "127.0.0.1", "--port", port, "--max-model-len", 1024, "--max-num-seqs", 16, "--enforce-eager", "--dtype", "bfloat16",
    )]  # fmt: skip


def serve(url, process, log):
    """Waits for the server, then asks it all prompts."""
    end = time.monotonic() + 400
    while not _answers(f"{url}/health"):
        if process.poll() is not None or time.monotonic() > end:
            pytest.fail("the server does not come up:\n" + log.read_text("utf-8", "replace")[-4000:])
        time.sleep(0.5)
    for number in range(PROMPTS):
        prompt = [3 + (7 * number + 11 * at) % 1000 for at in range(LENGTH)]
        body = {"model": "lab", "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0}
        asked = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=120) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == TOKENS
    time.sleep(1)  # the last step's statistics reach the front end after the answer


def independent(out):
    """[layers, experts] and calls by layer, of the second plug-in."""
    own = np.zeros((LAYERS, 16), np.int64)
    calls = Counter()
    for path in out.glob("ids-*.jsonl"):
        for line in path.read_text("utf-8").splitlines():
            layer, ids = json.loads(line)
            np.add.at(own[layer], np.array(ids).flatten(), 1)
            calls[layer] += 1
    assert own.sum() == PROMPTS * (LENGTH + TOKENS - 1) * K * LAYERS
    return own, calls


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server after some requests, and what was recorded of it."""
    if not PYTHON.exists():
        pytest.skip("no vLLM: make vllm-env")
    folder = tmp_path_factory.mktemp("vllm")
    rings, log, port = folder / "rings", folder / "server.log", free_port()
    rings.mkdir(0o700)
    env, out = counter(folder)
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as file:
        server = subprocess.Popen(server_command(port), env={**env, "MOEXRAY_RINGS": str(rings), "MOEXRAY_ATTACH": "1"},
                                  stdout=file, stderr=subprocess.STDOUT, cwd=folder)  # fmt: skip
    try:
        serve(url, server, log)
        yield {"drained": Drain(rings).poll(), "out": out, "url": url, "server": server, "log": log, "rings": rings}
    finally:
        server.terminate()
        server.wait(60)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _answers(url):
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def of_role(served, role):
    return [(ring, batch) for ring, batch in served["drained"] if ring.meta.role == role]


def test_the_plugin_is_loaded_in_all_processes(served):
    told = [json.loads(p.read_text("utf-8")) for p in served["out"].glob("process-*.json")]
    assert len(told) >= 2  # the front end and the engine core, in which the worker of one rank lives
    assert all(one["loaded"] for one in told), told


def test_counts_are_those_of_an_independent_count(served):
    [(ring, batch)] = of_role(served, "model")
    assert (ring.meta.engine, ring.meta.version) == ("vllm", "0.32.0")
    assert [(s.layer, s.experts, s.k) for s in ring.meta.sites] == [(layer, 16, K) for layer in range(LAYERS)]
    own, calls = independent(served["out"])
    assert (ring.totals() == own).all()
    live = ring.live()
    assert (live["failures"], batch.dropped, live["steps"]) == (0, 0, calls[0])
    router = batch.records[batch.records["kind"] == ROUTER]
    assert (np.bincount(router["layer"]) == [calls[layer] for layer in range(LAYERS)]).all()
    assert (router["t1_ns"] > router["t0_ns"]).all()


def test_the_schedulers_clock_tells_every_token(served):
    [(ring, batch)] = of_role(served, "engine")
    assert ring.meta.gauges == ("running", "waiting", "kv_usage", "preemptions")
    steps = batch.records[batch.records["kind"] == STEP]
    assert steps["rows"].sum() == PROMPTS * (LENGTH + TOKENS)
    assert {"running", "waiting", "kv_usage"} <= set(ring.gauges())


def test_our_page_stands_beside_vllms_on_one_prometheus(served, tmp_path):
    if shutil.which("prometheus") is None:
        pytest.skip("no prometheus: apt-get install prometheus")
    ports = [free_port(), free_port()]
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [
        {"job_name": "ours", "static_configs": [{"targets": [f"127.0.0.1:{ports[0]}"]}]},
        {"job_name": "vllm", "static_configs": [{"targets": [served["url"].removeprefix("http://")]}]},
    ]}  # fmt: skip
    (tmp_path / "prometheus.yml").write_text(json.dumps(config), "utf-8")
    exporter = [sys.executable, "-m", "moexray", "exporter", "--attach", "--rings", served["rings"], "--listen", f"127.0.0.1:{ports[0]}"]
    prometheus = [
        "prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/tsdb",
        f"--web.listen-address=127.0.0.1:{ports[1]}",
    ]  # fmt: skip
    started = [subprocess.Popen(list(map(str, c)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for c in (exporter, prometheus)]
    try:
        for query in ('count(moex_expert_tokens_total{job="ours"})', 'count({__name__=~"vllm:.*",job="vllm"})'):
            url = f"http://127.0.0.1:{ports[1]}/api/v1/query?query={urllib.parse.quote(query)}"
            end, found = time.monotonic() + 60, []
            while not found:
                assert time.monotonic() < end, query
                time.sleep(0.5)
                with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2) as answer:
                    found = json.load(answer)["data"]["result"]
            assert float(found[0]["value"][1]) > 4
    finally:
        for one in started:
            one.terminate()
            one.wait(30)


def test_record_from_outside_takes_the_rings_and_the_page(served, tmp_path):
    env = {**os.environ, "MOEXRAY_RINGS": str(served["rings"])}
    done = subprocess.run(
        [sys.executable, "-m", "moexray", "record", "-o", str(tmp_path / "b"), "--attach", "--url", served["url"], "--seconds", "2"],
        env=env, capture_output=True, encoding="utf-8", check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    from moexray.readers.read_any import read_any

    run = read_any([str(tmp_path / "b")])
    assert run.problems == ()
    assert {"counts", "latency", "metrics"} <= run.present


def test_record_runs_a_server_and_its_bundle_counts_as_an_independent_count_does(tmp_path):
    if not PYTHON.exists():
        pytest.skip("no vLLM: make vllm-env")
    env, out = counter(tmp_path)
    bundle, log, port = tmp_path / "b", tmp_path / "server.log", free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moexray", "record", "-o", str(bundle), "--url", url, "--", *server_command(port)]
    with log.open("wb") as file:
        recorder = subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.STDOUT, cwd=tmp_path)
    try:
        serve(url, recorder, log)
        end = time.monotonic() + 60
        while not any(bundle.glob("metrics/*.prom")) and time.monotonic() < end:
            time.sleep(0.2)  # the page is asked for every 5 s; the prompts may take less
    finally:
        recorder.terminate()  # it hands the signal on, and writes the rest
        recorder.wait(120)
    from moexray.readers.read_any import read_any

    own, calls = independent(out)
    found = np.zeros_like(own)
    for path in (bundle / "routing").glob("*.jsonl"):
        for line in path.read_text("utf-8").splitlines():
            row = json.loads(line)
            found[row["layer"]] += row["expert_counts"]
    assert (found == own).all()
    manifest = json.loads((bundle / "manifest.json").read_text("utf-8"))
    assert manifest["missed"]["records"] == manifest["missed"]["failures"] == 0
    assert sum(e["steps"] for e in manifest["engines"] if e["role"] == "model") == calls[0]
    run = read_any([str(bundle)])
    assert run.problems == ()
    assert {"counts", "latency", "metrics"} <= run.present
    done = subprocess.run([sys.executable, "-m", "moexray", "diagnose", str(bundle)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode in (0, 1), done.stderr
