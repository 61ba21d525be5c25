"""The exporter, the rules and the hook with a real Prometheus and a real Alertmanager.

Each is started by the test on a free port. Argo and Grafana are stand-ins, in test_hook.py.
"""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import live_servers as servers
from moexray.live.alerts import AlertState
from moexray.live.configs import TARGETS, Places
from moexray.live.dashboard import PANELS, VARIABLES, dashboard
from moexray.live.exporter import Exporter
from moexray.live.hook import Hook
from moexray.live.jobs import Jobs
from moexray.live.metrics import METRICS
from moexray.live.page import Page
from moexray.live.remote_write import RemoteWrite, Settings, encode
from moexray.live.rules import rules
from moexray.live.runs import Local
from moexray.live.serve import Reply, Server
from moexray.runtime.recorder import Ring, Site

INCIDENT = Path(__file__).resolve().parents[2] / "examples" / "incident"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
JOB = (("job", "moexray"), ("instance", "test"))


def needs(*programs):
    missing = [p for p in programs if not shutil.which(p)]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)} (.ci/run installs them)")


@pytest.fixture
def started():
    """Registers what is to be ended; the last one first."""
    ends = []
    yield lambda thing, end: ends.append(lambda: end(thing)) or thing
    for end in reversed(ends):
        end()


def prometheus(started, folder, **config):
    config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s", "scrape_timeout": "1s"}, **config}
    return started(servers.Prometheus(folder, config), servers.Program.end)


def exporter(started, page):
    made = Exporter(page, [], listen="127.0.0.1:0")
    made.start()
    return started(made, Exporter.close)


def scraping(made):
    return [{"job_name": "moexray", "static_configs": [{"targets": [made.server.url.removeprefix("http://")]}]}]


def pool(page, stuck):
    scope = page.scope(model="M", engine="vllm", rank=0)
    for name, value in (("reserved", 1000), ("allocated", 500), ("largest_free_block", 10), ("stuck", stuck)):
        scope.set(f"moex_memory_{name}_bytes", value, 0, "default")
    scope.set("moex_fragmentation_ratio", 0.98, 0, "default")


@needs("prometheus", "promtool")
def test_prometheus_scrapes_values_and_exemplars_and_lints_the_page(started, tmp_path):
    page = Page()
    pool(page, 20)
    page.scope(model="M").observe("moex_decode_step_duration_seconds", 0.3, trace_id=TRACE)
    page.fresh()
    made = exporter(started, page)
    server = prometheus(started, tmp_path, scrape_configs=scraping(made))
    servers.until(lambda: server.value("moex_fragmentation_ratio") == 0.98)
    assert server.value('up{job="moexray"}') == 1
    assert server.value('moex_decode_step_duration_seconds_bucket{le="0.5",model="M"}') == 1
    now = time.time()
    found = servers.until(
        lambda: server.api("query_exemplars", query="moex_decode_step_duration_seconds_bucket",
                           start=now - 60, end=now + 60)
    )  # fmt: skip
    assert found[0]["exemplars"][0]["labels"] == {"trace_id": TRACE}
    text = servers.fetch(f"{made.server.url}/metrics")
    lint = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=30, check=False)
    assert (lint.returncode, lint.stdout, lint.stderr) == (0, "", "")


def fill(page, round_):
    """One more round of every metric; counters grow."""
    scope = page.scope(model="M", engine="vllm", rank=0)
    for m in METRICS:
        labels = ["fallback" if n == "outcome" else "dispatch" if n == "direction" else f"{n}-1" for n in m.labels]
        if m.kind == "gauge":
            scope.set(m.name, 0.3 + round_ / 100, *labels)
        elif m.kind == "counter":
            scope.add(m.name, 3 + round_, *labels)
        else:
            for value in (0.0003, 0.004, 0.2):
                scope.observe(m.name, value, *labels, trace_id=TRACE)


@needs("prometheus")
def test_every_query_of_the_dashboard_and_every_rule_has_data(started, tmp_path):
    (tmp_path / "rules.yml").write_text(json.dumps(rules("x")))
    server = prometheus(started, tmp_path, rule_files=["rules.yml"])
    page, now = Page(), time.time()
    remote = RemoteWrite(page, Settings(server.write, interval_s=3600))
    remote.start()
    for round_ in range(21):
        fill(page, round_)
        body = encode(page.samples(), int((now - 300 + 15 * round_) * 1000), extra=JOB)
        remote._put(body, len(page.samples()))
    servers.until(lambda: not remote._queue and remote.sent >= 20 * page.series)
    remote.close()
    assert page.value("moex_exporter_dropped_total", "samples", "refused") in (None, 0)
    empty = []
    for panel in PANELS:
        for query, _ in panel.queries:
            bare = query.replace("$__rate_interval", "1m")
            for name in VARIABLES:
                bare = bare.replace(f"${name}", ".*")
            series = server.api("query_range", query=bare, start=now - 200, end=now, step=15)["result"]
            if not any(math.isfinite(float(v)) for s in series for _, v in s["values"]):
                empty.append(f"{panel.title}: {bare}")
    assert empty == []
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            name, of = variable["name"], re.search(r"\((\w+)", variable["query"]["query"])[1]
            assert server.api(f"label/{name}/values", **{"match[]": of})
    states = servers.until(lambda: [r for g in server.api("rules")["groups"] for r in g["rules"] if r["health"] != "unknown"])
    assert {r["health"] for r in states} == {"ok"}, states


@needs("prometheus")
@pytest.mark.parametrize(("samples", "pause_s"), [(3, 0.01), pytest.param(55, 1.1, marks=pytest.mark.soak, id="a minute")])
def test_remote_write_is_taken_refused_once_or_kept_while_prometheus_is_away(started, tmp_path, samples, pause_s):
    server = prometheus(started, tmp_path)
    page = Page()
    pool(page, 20)
    settings = Settings(server.write, interval_s=3600, first_pause_s=0.05, longest_pause_s=0.1, labels=JOB)
    remote = started(RemoteWrite(page, settings), RemoteWrite.close)
    remote.start()
    remote.sample()
    servers.until(lambda: server.value('moex_memory_stuck_bytes{job="moexray"}') == 20)
    one = len(page.samples())
    servers.until(lambda: remote.sent == one)

    old = int((time.time() - 10 * 86_400) * 1000)
    remote._put(encode(page.samples(), old), one)  # out of bounds: Prometheus answers 400
    servers.until(lambda: page.value("moex_exporter_dropped_total", "samples", "refused") == one)
    codes = re.findall(r'requests_total\{code="(\d+)",handler="/api/v1/write"\} (\d+)', servers.fetch(server.url + "/metrics"))
    assert dict(codes) == {"204": "1", "400": "1"}  # neither was sent again

    server.end()
    for stuck in range(30, 30 + samples):
        pool(page, stuck)
        remote.sample()
        time.sleep(pause_s)  # a time stamp of its own
    assert remote.sent == one
    server.start()
    servers.until(lambda: remote.sent == (1 + samples) * one)
    servers.until(lambda: server.value('moex_memory_stuck_bytes{job="moexray"}') == 29 + samples)
    assert page.value("moex_exporter_dropped_total", "samples", "queue_full") == 0


@needs("prometheus", "prometheus-alertmanager")
def test_an_alert_fires_its_report_comes_back_and_it_resolves(started, tmp_path):
    page = Page()
    pool(page, 20)
    made = exporter(started, page)
    hook = Hook(Jobs(tmp_path / "state"), Local(INCIDENT), Page(), listen="127.0.0.1:0", token="secret")
    hook.start()
    started(hook, Hook.close)
    [files] = [t.files for t in TARGETS if t.name == "alertmanager"]
    route = yaml.safe_load(files(Places(hook=hook.server.url))["alertmanager.yml"])
    route["route"].update(group_wait="0s", group_interval="1s")
    route["receivers"][0]["webhook_configs"][0]["http_config"] = {"authorization": {"credentials": "secret"}}
    alerts = started(servers.Alertmanager(tmp_path, route), servers.Program.end)
    quick = rules("x")
    for rule in (r for g in quick["groups"] for r in g["rules"] if "for" in r):
        rule["for"] = "1s"
    for group in quick["groups"]:
        group["interval"] = "1s"
    (tmp_path / "rules.yml").write_text(json.dumps(quick))
    to = {"alertmanagers": [{"static_configs": [{"targets": [alerts.url.removeprefix("http://")]}]}]}
    server = prometheus(started, tmp_path, rule_files=["rules.yml"], scrape_configs=scraping(made), alerting=to)
    servers.until(lambda: server.value("moex_memory_stuck_bytes") == 20)
    assert hook.jobs.listed() == []
    pool(page, 300)
    servers.until(lambda: [j for j in hook.jobs.listed() if j.state == "done"])
    [job] = hook.jobs.listed()
    assert job.labels["alertname"] == "MoexFragmentationHigh"
    assert job.labels["model"] == "M"
    assert (job.verdict, job.resolved_at) == ("mem.fragmentation", "")
    report = servers.fetch(f"{hook.server.url}/reports/{job.key}.html", Authorization="Bearer secret")
    assert "mem.fragmentation" in report
    [told] = json.loads(servers.fetch(f"{alerts.url}/api/v2/alerts"))
    assert told["annotations"]["summary"] == "Device 0 of rank 0: 300B are stuck"
    state = AlertState(alerts.url)
    state.update()
    assert state.answered(20)
    assert state()  # while it fires, every step's trace is kept
    pool(page, 20)
    servers.until(lambda: hook.jobs.listed()[0].resolved_at)
    assert len(hook.jobs.listed()) == 1
    servers.until(lambda: state.update() or (state.answered(20) and not state()))
    alerts.end()
    state.active = True
    state.update()
    assert state.answered(20)
    assert not state()


def command(tmp_path, *words):
    port = servers.free_port()
    line = [sys.executable, "-m", "moexray", *words, "--listen", f"127.0.0.1:{port}"]
    return servers.Program(tmp_path, words[0], line, port, "/metrics")


def test_an_exporter_that_is_killed_loses_no_choice_and_tells_what_it_lost(started, tmp_path):
    """The engine goes on meanwhile; the next exporter has all choices, and says how many records it missed."""
    rings = tmp_path / "rings"
    rings.mkdir(mode=0o700)
    ring = Ring([Site("m.0.gate", 0, 8, 2)], {"engine": "e", "model": "M", "rank": 0}, folder=rings, max_bytes=80_000)
    slots = ring.layout.slots

    def write(steps):
        for step in range(steps):
            ring.write(0, step, 0, 1, 4, np.arange(8) % (1 + step % 8))
            ring.step(step, 0, 1_000_000, 4)

    write(10)
    served = started(command(tmp_path, "exporter", "--rings", str(rings)), servers.Program.end)

    def choices():
        found = re.search(r"^moex_routed_choices_total\{.*\} (\d+)$", servers.fetch(served.url + "/metrics"), re.MULTILINE)
        return int(found[1]) if found else 0

    servers.until(lambda: choices() == 80)
    os.kill(served.process.pid, signal.SIGKILL)
    served.process.wait()
    write(slots)  # twice what the ring holds
    served.start()
    servers.until(lambda: choices() == 80 + 8 * slots)
    page = servers.fetch(served.url + "/metrics")
    told = re.search(r'signal="records",reason="overwritten"\} (\d+)', page)
    assert int(told[1]) == 2 * (10 + slots) - slots
    ring.close()


def test_the_exporter_sends_the_spans_of_kept_steps_to_a_stand_in(started, tmp_path):
    got = []
    to = Server("127.0.0.1:0", lambda request: got.append(request.body) or Reply(200))
    to.start()
    started(to, Server.close)
    (tmp_path / "rules.yml").write_text("rules: [{match: {name: moex.layer}, set: {checked: true}}]")
    rings = tmp_path / "rings"
    rings.mkdir(mode=0o700)
    ring = Ring([Site("m.0.gate", 0, 8, 2)], {"engine": "e", "model": "M", "rank": 0}, folder=rings)
    for step, ms in enumerate((10, 300)):
        ring.write(0, step, 0, 1000, 1, np.array([0, 1]))
        ring.step(step, 0, ms * 1_000_000, 4)
    words = ("exporter", "--rings", str(rings), "--otlp", to.url, "--slo", "0.2", "--rules", str(tmp_path / "rules.yml"))
    served = started(command(tmp_path, *words, "--service", "my-model"), servers.Program.end)

    def arrived():
        groups = [g for body in list(got) for g in ExportTraceServiceRequest.FromString(body).resource_spans]
        found = {s.name: s for g in groups for scope in g.scope_spans for s in scope.spans}
        return found if len(found) == 2 else None

    both = servers.until(arrived)
    spans = {name: {a.key: a.value for a in s.attributes} for name, s in both.items()}
    assert spans["moex.step"]["moex.kept"].string_value == "slo"
    assert spans["moex.layer"]["checked"].bool_value
    page = servers.fetch(served.url + "/metrics", Accept="application/openmetrics-text")
    [trace] = re.findall(r'trace_id="(\w+)"', page)
    assert {s.trace_id.hex() for s in both.values()} == {trace}
    assert 'moex_traces_total{decision="no"} 1' in page
    served.end()
    assert served.process.returncode == 0


def test_the_commands_serve_a_recording_and_end_on_a_signal(started, tmp_path):
    served = started(command(tmp_path, "exporter", str(INCIDENT)), servers.Program.end)
    page = servers.fetch(served.url + "/metrics")
    assert 'moex_spike_total{cause="mem.alloc_stall"} 8' in page
    served.end()
    assert served.process.returncode == 0
    hook = started(command(tmp_path, "hook", str(INCIDENT), "--state", str(tmp_path / "s")), servers.Program.end)
    assert "moex_build_info" in servers.fetch(hook.url + "/metrics")
