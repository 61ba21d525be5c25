"""OTLP against receivers that others wrote: oteltap, which the extra dev brings, and rotel.

Rotel is an alpha and no dependency: where it is not installed (`pip install rotel`) its tests skip.
"""

import gzip
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import live_servers as servers
from moexray.live.drain import Drain
from moexray.live.engines import Engines
from moexray.live.folder import Names
from moexray.live.logs import Logs, otlp_sender
from moexray.live.otlp import provider
from moexray.live.page import Page
from moexray.live.sampling import Decider, Keep
from moexray.live.serve import Reply, Server
from moexray.live.spans import StepSpans
from moexray.runtime.recorder import Ring, Site

MS = 1_000_000


def found(program):
    """Beside this Python, on PATH, or, as rotel's wheel has it, in the folder of its package; else None."""
    package = importlib.util.find_spec(program.split("-")[0])
    places = [str(Path(sys.executable).parent), os.environ.get("PATH", ""), *(package.submodule_search_locations if package else ())]
    return shutil.which(program, path=os.pathsep.join(places))


def needs(program):
    return pytest.mark.skipif(not found(program), reason=f"{program} is not installed (pip install {program.split('-')[0]})")


def send_a_step(url, tmp_path):
    """One step of two layers by way of a ring; how many spans were taken, and how many lost."""
    rings = tmp_path / "rings"
    rings.mkdir(mode=0o700)
    ring = Ring([Site(f"m.{y}.gate", y, 4, 1) for y in (0, 1)], {"engine": "e", "model": "M"}, folder=rings)
    page = Page()
    made = provider(url, page, "peer-test")
    spans = StepSpans(made.get_tracer("moexray"), page, Decider(Keep(ratio=1.0)))
    for site in (0, 1):
        ring.write(site, 0, 0, MS, 1, np.array([site]))
    ring.step(0, 0, 20 * MS, 1)
    Engines(page, Drain(rings), Names(), trace=spans).update()
    made.force_flush()
    made.shutdown()
    return page.value("moex_exporter_dropped_total", "spans", "not_sent")


@pytest.fixture
def started():
    running = []

    def start(*line):
        running.append(subprocess.Popen([found(line[0]), *line[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()


def open_port(port):
    import socket

    def is_open():
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", port)) == 0

    servers.until(is_open)


@needs("oteltap")
def test_oteltap_sees_the_span_of_a_step(started, tmp_path):
    port = servers.free_port()
    tap = started("oteltap", "--port", str(port), "--await-span", "moex.step")
    open_port(port)
    assert send_a_step(f"http://127.0.0.1:{port}", tmp_path) == 0
    assert tap.wait(20) == 0
    assert "moex.layer" in tap.stdout.read()


@needs("oteltap")
def test_oteltap_sees_a_line_of_a_log(started):
    port = servers.free_port()
    tap = started("oteltap", "--port", str(port), "--await-log", "step 7 took 4 s")
    open_port(port)
    line = Logs({})("ERROR step 7 took 4 s")
    assert otlp_sender(f"http://127.0.0.1:{port}", "peer-test")([line])
    assert tap.wait(20) == 0


@needs("rotel-agent")
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_rotel_takes_a_step_and_hands_it_on(started, tmp_path, protocol):
    """Its own exporter sends to a stand-in here, which reads what rotel made of it."""
    if protocol == "grpc":
        pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="not installed: moexray[grpc]")
    got = []

    def take(request):
        packed = request.headers.get("Content-Encoding") == "gzip"
        got.append(ExportTraceServiceRequest.FromString(gzip.decompress(request.body) if packed else request.body))
        return Reply(200, kind="application/x-protobuf")

    behind = Server("127.0.0.1:0", take)
    behind.start()
    grpc, http = servers.free_port(), servers.free_port()
    rotel = started("rotel-agent", "start", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}", "--otlp-http-endpoint",
                    f"127.0.0.1:{http}", "--exporter", "otlp", "--otlp-exporter-endpoint", behind.url,
                    "--otlp-exporter-protocol", "http")  # fmt: skip
    ports = {"http": http, "grpc": grpc}
    open_port(ports[protocol])
    assert send_a_step(f"{protocol}://127.0.0.1:{ports[protocol]}", tmp_path) == 0
    servers.until(lambda: got)
    assert rotel.poll() is None
    spans = [s for g in got for r in g.resource_spans for scope in r.scope_spans for s in scope.spans]
    assert sorted(s.name for s in spans) == ["moex.layer", "moex.layer", "moex.step"]
    [root] = [s for s in spans if s.name == "moex.step"]
    assert root.end_time_unix_nano - root.start_time_unix_nano == 20 * MS
    assert {s.parent_span_id for s in spans if s.name == "moex.layer"} == {root.span_id}
    behind.close()
    assert json.dumps([a.key for a in root.attributes]).count("moex.step") == 1
