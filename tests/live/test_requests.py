"""Steps are linked to the spans of the requests that they were done for, from the host's OpenTelemetry to a receiver."""

import subprocess
import sys
import threading
import types

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

import live_servers as servers
from live_engine import Engine
from moexray.live import spans as module
from moexray.live.drain import RingReader
from moexray.live.page import Page
from moexray.live.sampling import Decider, Keep
from moexray.live.serve import Reply, Server
from moexray.live.spans import StepSpans
from moexray.runtime.attach import attach
from moexray.runtime.recorder import Ring, Site
from moexray.runtime.tracing import current_span
from recorded import run
from tiny_models import tiny

FACTS = {"engine": "e", "version": "1", "model": "M", "rank": 0, "device": "cpu"}
SITES = [Site("layers.0.gate", 0, 4, 1)]
BIG = (1 << 127) + 5, (1 << 63) + 7  # ids take all their bits


@pytest.fixture
def folder(tmp_path, monkeypatch):
    path = tmp_path / "rings"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("MOEXRAY_RINGS", str(path))
    return path


def tracer(**more):
    return TracerProvider(shutdown_on_exit=False, **more).get_tracer("requests")


class Made:
    """The spans that are made of a ring."""

    def __init__(self, ring):
        self.reader, self.out = RingReader(ring.path), InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.out))
        self.steps = StepSpans(provider.get_tracer("moexray"), Page(), Decider(Keep(ratio=1.0, most_per_s=1e6)))

    def links(self):
        """{step: ids of the spans that it is linked to} of all steps so far."""
        self.steps(self.reader, self.reader.read())
        return {s.attributes["moex.step"]: ids(s.links) for s in self.out.get_finished_spans() if s.name == "moex.step"}


def ids(links):
    return [(link.context.trace_id, link.context.span_id) for link in links]


def test_kept_steps_of_an_engine_are_linked_to_its_spans_at_the_receiver(folder, tmp_path):
    got = []
    to = Server("127.0.0.1:0", lambda request: got.append(request.body) or Reply(200))
    to.start()
    engine, port = Engine(folder), servers.free_port()
    assert not engine.tell("modules")  # recording imports no OpenTelemetry
    line = [sys.executable, "-m", "moexray", "exporter", "--rings", str(folder), "--listen", f"127.0.0.1:{port}",
            "--otlp", to.url, "--keep-ratio", "1"]  # fmt: skip
    exporter = servers.Program(tmp_path, "exporter", line, port, "/metrics")

    def roots():
        groups = [g for body in list(got) for g in ExportTraceServiceRequest.FromString(body).resource_spans]
        spans = [s for g in groups for scope in g.scope_spans for s in scope.spans if s.name == "moex.step"]
        return sorted(spans, key=lambda s: s.start_time_unix_nano)

    try:
        spans = engine.tell("spans", 3)
        engine.tell("step", 1)
        servers.until(lambda: len(roots()) >= 5)
        links = [[(k.trace_id.hex(), k.span_id.hex()) for k in s.links] for s in roots()]
        assert links == [[], *([tuple(one)] for one in spans), []]
    finally:
        engine.end()
        exporter.end()
        to.close()


@pytest.mark.parametrize("by_kernels", [False, True])
def test_each_thread_has_its_own_request(folder, by_kernels):
    model, made = tiny("mixtral"), tracer()
    with attach(model, by_kernels=by_kernels) as recording:
        seen = Made(recording.ring)
        run(model)
        with made.start_as_current_span("one") as one:
            run(model)
            thread = threading.Thread(target=run, args=(model,))  # is in no span
            thread.start()
            thread.join()
        with made.start_as_current_span("two") as two:
            run(model)
        recording.flush()
        own = [[(c.trace_id, c.span_id)] for c in (one.get_span_context(), two.get_span_context())]
        assert seen.links() == {0: [], 1: own[0], 2: [], 3: own[1]}
        assert (seen.steps.made, seen.reader.dropped) == (8, 0)


def test_a_forward_that_raised_is_linked(folder):
    def fail(_module, _args):
        raise RuntimeError("no")

    model = tiny("mixtral")
    with attach(model) as recording:
        seen = Made(recording.ring)
        broken = model.model.layers[1].register_forward_pre_hook(fail)
        with tracer().start_as_current_span("one") as one, pytest.raises(RuntimeError):
            run(model)
        broken.remove()
        run(model)
        context = one.get_span_context()
        assert seen.links() == {0: [(context.trace_id, context.span_id)], 1: []}
    first = seen.out.get_finished_spans()[1]
    assert (first.name, first.status.status_code) == ("moex.step", StatusCode.ERROR)


def test_a_request_may_come_long_before_its_step(folder):
    ring = Ring(SITES, FACTS, folder=folder)
    seen = Made(ring)
    for step in range(3):
        ring.request(step, *BIG)
    ring.request(1, 3, 4)  # a step may serve several
    assert seen.links() == {}
    for step in range(4):
        ring.step(step, step, step + 1)
    assert seen.links() == {0: [BIG], 1: [BIG, (3, 4)], 2: [BIG], 3: []}
    for step in range(9, 9 + 2 * module.WAITING):  # none of them ends
        ring.request(step, *BIG)
        seen.links()
    [state] = seen.steps._open.values()
    assert len(state.requests) == module.WAITING


def test_what_counts_records_does_not_see_requests(folder):
    ring = Ring([], FACTS, folder=folder, max_bytes=66_000)
    reader = RingReader(ring.path)
    for step in range(3):
        ring.request(step, *BIG)
        ring.step(step, 0, 1)
    batch = reader.read()
    assert batch.records["step"].tolist() == batch.requests["step"].tolist() == [0, 1, 2]
    assert len(batch.counts) == len(batch.ids) == 3
    assert batch.dropped == 0
    for step in range(3, 3 + ring.layout.slots):
        ring.request(step, *BIG)
        ring.step(step, 0, 1)
    batch = reader.read()
    assert len(batch.records) + len(batch.requests) == batch.dropped == ring.layout.slots


def test_only_a_sampled_span_of_this_thread_is_a_request():
    assert current_span() is None
    with tracer().start_as_current_span("one") as span:
        context = span.get_span_context()
        assert current_span() == (context.trace_id, context.span_id)
    with tracer(sampler=ALWAYS_OFF).start_as_current_span("two"):
        assert current_span() is None
    with trace.use_span(trace.INVALID_SPAN):
        assert current_span() is None


def test_a_half_imported_or_strange_api_is_no_request(monkeypatch):
    for strange in (types.ModuleType("opentelemetry.trace"), types.SimpleNamespace(get_current_span=lambda: 3)):
        monkeypatch.setitem(sys.modules, "opentelemetry.trace", strange)
        assert current_span() is None


def test_asking_imports_nothing():
    code = "import sys; from moexray.runtime.tracing import current_span; print(current_span(), 'opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["None", "False"]
