"""Spans of steps against the records they were made from."""

import json
import threading
import urllib.request

import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, StatusCode, TraceFlags

from moexray.core.errors import UsageError
from moexray.live.drain import Drain
from moexray.live.engines import Engines
from moexray.live.enrich import Enricher, Rule
from moexray.live.folder import Names
from moexray.live.otlp import SpanOut, provider
from moexray.live.page import Page
from moexray.live.sampling import Decider, Keep
from moexray.live.serve import Reply, Server
from moexray.live.spans import StepSpans
from moexray.runtime.recorder import Ring, Site

MS = 1_000_000
SITES = [Site(f"model.layers.{y}.mlp.gate", y, 8, 2) for y in range(3)]
COUNTS = np.array([4, 1, 1, 1, 1, 0, 0, 0])  # of four tokens, two experts each
FACTS = {"engine": "vllm", "version": "1", "model": "M", "rank": 2, "device": "cpu"}
ALL = Keep(ratio=1.0, most_per_s=1e6)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "rings"
    path.mkdir(mode=0o700)
    return path


class Traced:
    """A ring, an exporter's source, and the spans that came out."""

    def __init__(self, folder, keep=ALL, max_bytes=1 << 20, **more):
        self.ring = Ring(SITES, FACTS, folder=folder, max_bytes=max_bytes)
        self.out, self.page = InMemorySpanExporter(), Page()
        made = TracerProvider(shutdown_on_exit=False)
        made.add_span_processor(SimpleSpanProcessor(self.out))
        self.steps = StepSpans(made.get_tracer("moexray"), self.page, Decider(keep), **more)
        self.source = Engines(self.page, Drain(folder), Names(), trace=self.steps)

    def step(self, number, ms=20, sites=(0, 1, 2), *, end=True, graph=0):
        t0 = self.ring_start + number * 100 * MS
        for site in sites:
            at = t0 + site * MS
            self.ring.write_counts(site, number, at, at + MS // 2, 4, COUNTS, 7, graph)
        if end:
            self.ring.step(number, t0, t0 + ms * MS, 4)

    @property
    def ring_start(self):
        return 10**9

    def spans(self):
        self.source.update()
        return self.out.get_finished_spans()

    def roots(self):
        return {s.attributes["moex.step"]: s for s in self.spans() if s.name == "moex.step"}


def test_a_kept_step_has_a_span_a_layer_with_its_times_and_ids(folder):
    traced = Traced(folder)
    traced.step(5)
    spans = traced.spans()
    [root] = [s for s in spans if s.name == "moex.step"]
    layers = [s for s in spans if s.name == "moex.layer"]
    assert [s.attributes["moex.layer"] for s in layers] == [0, 1, 2]
    assert {s.parent.span_id for s in layers} == {root.context.span_id}
    assert {s.context.trace_id for s in layers} == {root.context.trace_id}
    assert root.end_time - root.start_time == 20 * MS
    assert [s.start_time - root.start_time for s in layers] == [0, MS, 2 * MS]
    assert {s.end_time - s.start_time for s in layers} == {MS // 2}
    assert root.attributes["moex.tokens"] == 4
    assert root.attributes["moex.rank"] == 2
    assert layers[0].attributes["moex.cuda.stream_id"] == 7
    labels = {k.removeprefix("moex."): str(v) for k, v in layers[1].attributes.items()}
    [skew] = [dict(s.labels) for s in traced.page.samples() if s.name == "moex_routed_choices_total"][1:2]
    assert skew.items() <= labels.items()  # a span's attributes are the labels of its metrics
    assert layers[0].attributes["moex.expert.hot"] == 0
    assert layers[0].attributes["moex.expert.hot_share"] == 0.5
    assert "moex.cuda.graph_id" not in layers[0].attributes
    [meta] = [r.meta for r in traced.source.drain.readers.values()]
    assert root.start_time == meta.wall(np.int64(10**9 + 500 * MS))


def test_only_slow_steps_are_kept_and_their_exemplars_point_to_them(folder):
    traced = Traced(folder, Keep(slo_s=0.1, most_per_s=1e6))
    for number in range(20):
        traced.step(number, ms=400 if number == 13 else 20)
    assert set(traced.roots()) == {13}
    [mark] = [s.exemplar for s in traced.page.samples() if s.exemplar]
    assert int(mark.trace_id, 16) == traced.roots()[13].context.trace_id
    assert mark.value == pytest.approx(0.4)
    assert traced.page.value("moex_traces_total", "slo") == 1
    assert traced.page.value("moex_traces_total", "no") == 19


def test_a_step_may_come_in_pieces(folder):
    traced = Traced(folder)
    traced.step(0, sites=(0, 1), end=False)
    assert traced.spans() == ()
    traced.ring.write(2, 0, 10**9 + 2 * MS, 10**9 + 3 * MS, 1, np.array([1]))
    traced.source.update()
    traced.ring.step(0, 10**9, 10**9 + 20 * MS, 4)
    assert len(traced.spans()) == 4
    assert traced.steps.made == traced.steps.executions == 3


def test_records_of_the_next_step_wait_for_theirs(folder):
    traced = Traced(folder)
    traced.step(0, end=False)
    traced.step(1, end=False)
    for number in (0, 1):
        traced.ring.step(number, 10**9, 10**9 + MS, 4)
    assert {n: s.status.status_code for n, s in traced.roots().items()} == {0: StatusCode.UNSET, 1: StatusCode.UNSET}
    assert len(traced.spans()) == 8


def test_a_step_that_never_ended_is_an_error(folder):
    traced = Traced(folder, Keep(most_per_s=1e6))
    traced.step(0, sites=(0, 1), end=False)
    traced.step(1)
    [(number, root)] = traced.roots().items()
    assert (number, root.status.status_code) == (0, StatusCode.ERROR)
    assert "did not end" in root.status.description
    assert len([s for s in traced.spans() if s.name == "moex.layer"]) == 2


def test_records_without_an_end_do_not_pile_up(folder):
    traced = Traced(folder, Keep(most_per_s=1e6))
    for number in range(50):
        traced.step(number, sites=(0,), end=False)
        traced.source.update()
    [state] = traced.steps._open.values()
    assert len(state.records) <= 4
    assert len(traced.roots()) == 46


def test_the_rest_of_a_dead_engine_is_told(folder):
    traced = Traced(folder)
    traced.step(0, end=False)
    traced.ring.close()
    assert traced.roots()[0].status.status_code is StatusCode.ERROR
    assert traced.steps._open == {}


def test_replays_of_a_graph_are_numbered(folder):
    traced = Traced(folder)
    for number, graph in enumerate((9, 0, 9, 8, 9)):
        traced.step(number, graph=graph)
    seen = {
        (s.attributes["moex.step"], s.attributes.get("moex.cuda.graph_id"), s.attributes.get("moex.graph.replay_index"))
        for s in traced.spans() if s.name == "moex.layer"
    }  # fmt: skip
    assert seen == {(0, 9, 0), (1, None, None), (2, 9, 1), (3, 8, 0), (4, 9, 2)}


def test_completeness_says_what_was_overwritten(folder):
    traced = Traced(folder, max_bytes=66_600)
    slots = traced.ring.layout.slots
    for number in range(10):
        traced.step(number)
    assert slots == 8  # two whole steps; nothing else was read
    made = len([s for s in traced.spans() if s.name == "moex.layer"])
    assert made == traced.steps.made == 6
    assert traced.steps.made / traced.steps.executions == 1.0
    assert traced.page.value("moex_exporter_dropped_total", "records", "overwritten") == 32


def test_completeness_of_a_drain_that_keeps_up(folder):
    """The bar is 99.4 %."""
    traced = Traced(folder)
    for number in range(300):
        traced.step(number)
        if number % 20 == 0:
            traced.source.update()
    assert len(traced.roots()) == 300
    assert traced.steps.executions == 900
    assert traced.page.value("moex_trace_completeness_ratio") >= 0.994


def test_a_layer_whose_record_is_missing_lowers_completeness(folder):
    traced = Traced(folder)
    traced.step(0, sites=(0, 1))
    traced.source.update()
    assert traced.page.value("moex_trace_completeness_ratio") == pytest.approx(2 / 3)


def test_links_to_the_requests_and_attributes_of_rules(folder):
    request = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1))
    hot = Rule("hot", "moex.layer", attributes={"moex.expert.hot_share": {"above": 0.4}}, set={"moex.hot": True})
    traced = Traced(folder, links_of=lambda meta, step: [Link(request, {"step": step})], enrich=Enricher((hot,), {}))
    traced.step(3)
    [root] = traced.roots().values()
    assert [(link.context.span_id, link.attributes["step"]) for link in root.links] == [(2, 3)]
    assert {s.attributes.get("moex.hot") for s in traced.spans() if s.name == "moex.layer"} == {True}
    assert "moex.hot" not in root.attributes


def test_the_rate_bounds_what_is_made(folder):
    traced = Traced(folder, Keep(ratio=1.0, most_per_s=0.2))
    for number in range(50):
        traced.step(number)
    assert len(traced.roots()) == 2
    assert traced.page.value("moex_exporter_dropped_total", "traces", "rate") == 48


class OtlpStandIn:
    """Stand-in for a receiver of OTLP over HTTP: decodes with the published messages and keeps the spans."""

    def __init__(self, *statuses):
        self.statuses, self.spans, self.resources, self.came = list(statuses), [], [], threading.Condition()
        self.server = Server("127.0.0.1:0", self.answer)
        self.server.start()

    def answer(self, request):
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        status = self.statuses.pop(0) if self.statuses else 200
        if status == 200:
            message = ExportTraceServiceRequest.FromString(request.body)
            with self.came:
                for group in message.resource_spans:
                    self.resources.append({a.key: a.value.string_value for a in group.resource.attributes})
                    self.spans += [s for scope in group.scope_spans for s in scope.spans]
                self.came.notify_all()
        return Reply(status, kind="application/x-protobuf")


def test_otlp_stand_in_gets_the_spans_of_a_step(folder):
    to, page = OtlpStandIn(), Page()
    made = provider(to.server.url, page, "my-model")
    ring = Ring(SITES, FACTS, folder=folder)
    source = Engines(page, Drain(folder), Names(), trace=StepSpans(made.get_tracer("moexray"), page, Decider(ALL)))
    ring.step(0, 0, MS, 1)
    source.update()
    assert made.force_flush()
    made.shutdown()
    to.server.close()
    [span] = to.spans
    assert span.name == "moex.step"
    assert span.end_time_unix_nano - span.start_time_unix_nano == MS
    assert to.resources[0]["service.name"] == "my-model"


class JaegerStandIn(OtlpStandIn):
    """Stand-in for Jaeger: takes OTLP and answers its v3 query GET /api/v3/traces/ID with OTLP as JSON."""

    def answer(self, request):
        if not request.path.startswith("/api/v3/traces/"):
            return super().answer(request)
        from google.protobuf.json_format import MessageToDict
        from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, TracesData

        wanted = bytes.fromhex(request.path.rpartition("/")[2])
        spans = [s for s in self.spans if s.trace_id == wanted]
        data = TracesData(resource_spans=[ResourceSpans(scope_spans=[ScopeSpans(spans=spans)])])
        return Reply(200 if spans else 404, json.dumps({"result": MessageToDict(data)}).encode(), "application/json")


def test_an_exemplar_leads_to_its_trace_in_a_jaeger_stand_in(folder):
    to, page = JaegerStandIn(), Page()
    made = provider(to.server.url, page, "my-model")
    ring = Ring(SITES, FACTS, folder=folder)
    keep = Decider(Keep(slo_s=0.1, most_per_s=1e6))
    source = Engines(page, Drain(folder), Names(), trace=StepSpans(made.get_tracer("moexray"), page, keep))
    for step, ms in enumerate((10, 900, 10)):
        for site in range(3):
            ring.write(site, step, 0, MS, 1, np.array([1]))
        ring.step(step, 0, ms * MS, 4)
    source.update()
    assert made.force_flush()
    [mark] = [s.exemplar for s in page.samples() if s.exemplar]
    with urllib.request.urlopen(f"{to.server.url}/api/v3/traces/{mark.trace_id}", timeout=10) as answer:
        [group] = json.loads(answer.read())["result"]["resourceSpans"]
    names = [s["name"] for s in group["scopeSpans"][0]["spans"]]
    assert sorted(names) == ["moex.layer", "moex.layer", "moex.layer", "moex.step"]
    made.shutdown()
    to.server.close()


def test_otlp_that_is_refused_or_not_there_is_counted():
    page, to = Page(), OtlpStandIn(400, 400)
    made = provider(to.server.url, page)
    for _ in range(3):
        made.get_tracer("t").start_span("s").end()
    made.force_flush()
    made.shutdown()
    to.server.close()
    assert page.value("moex_exporter_dropped_total", "spans", "not_sent") + len(to.spans) == 3
    assert page.value("moex_exporter_dropped_total", "spans", "not_sent") >= 1
    with pytest.raises(UsageError, match="no address"):
        provider("127.0.0.1:4318", page)


def test_a_full_queue_is_counted():
    class Stuck:
        gate = threading.Event()

        def export(self, spans):
            assert self.gate.wait(20)
            from opentelemetry.sdk.trace.export import SpanExportResult

            return SpanExportResult.SUCCESS

        def shutdown(self):
            pass

    page, exporter = Page(), Stuck()
    out = SpanOut(exporter, page, most=10)
    for i in range(100):
        out.on_end(i)
    lost = page.value("moex_exporter_dropped_total", "spans", "queue_full")
    assert lost >= 100 - 10 - 512
    exporter.gate.set()
    out.force_flush()
    assert out.box.sent + lost == 100
    out.shutdown()
    out.on_end(1)
    assert page.value("moex_exporter_dropped_total", "spans", "queue_full") == lost + 1
