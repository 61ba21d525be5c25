"""Keeping traces by their end: order, lateness, bounds, forks; and the way into a program's provider."""

import os

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from moexray.live.enrich import Enricher, Rule
from moexray.live.instrumentor import MoexrayInstrumentor
from moexray.live.page import Page
from moexray.live.sampling import Decider, Keep
from moexray.live.tail import Bounds, Tail

MS = 1_000_000
NONE = Keep(slo_s=0.1, most_per_s=1e6)


class Program:
    """A program with a tracer whose spans pass the tail."""

    def __init__(self, keep=NONE, enrich=None, **bounds):
        self.out, self.page = InMemorySpanExporter(), Page()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.tail = Tail(SimpleSpanProcessor(self.out), self.page, Decider(keep), enrich, Bounds(**bounds))
        self.provider.add_span_processor(self.tail)
        self.tracer = self.provider.get_tracer("t")

    def start(self, name, parent=None, **more):
        context = trace.set_span_in_context(parent) if parent else trace.context_api.Context()
        return self.tracer.start_span(name, context, start_time=0, **more)

    @property
    def names(self):
        return [s.name for s in self.out.get_finished_spans()]

    def dropped(self, signal, reason):
        return self.page.value("moex_exporter_dropped_total", signal, reason)


def remote(trace_id=5):
    return NonRecordingSpan(SpanContext(trace_id, 9, is_remote=True, trace_flags=TraceFlags(1)))


def test_a_slow_trace_is_kept_whole_and_a_fast_one_dropped_whole():
    p = Program()
    for end in (50, 150):
        root = p.start("root")
        child = p.start("child", root)
        grandchild = p.start("grandchild", child)
        grandchild.end(10 * MS)
        child.end(20 * MS)
        assert p.names == []
        root.end(end * MS)
    assert p.names == ["grandchild", "child", "root"]
    assert p.page.value("moex_traces_total", "slo") == p.page.value("moex_traces_total", "no") == 1


def test_an_error_in_any_span_keeps_the_trace():
    p = Program()
    root = p.start("root")
    child = p.start("child", root)
    child.set_status(Status(StatusCode.ERROR))
    child.end(MS)
    root.end(2 * MS)
    assert p.names == ["child", "root"]
    assert p.page.value("moex_traces_total", "error") == 1


@pytest.mark.parametrize("error", [False, True])
def test_a_late_child_of_a_dropped_trace_is_dropped_and_counted(error):
    p = Program()
    root = p.start("root")
    late = p.start("late", root)
    root.end(MS)
    if error:
        late.set_status(Status(StatusCode.ERROR))
    late.end(900 * MS)
    assert p.names == []
    assert p.dropped("spans", "late") == 1


def test_a_late_child_of_a_kept_trace_is_kept():
    p = Program()
    root = p.start("root")
    late = p.start("late", root)
    root.end(200 * MS)
    after = p.start("after", root)
    late.end(900 * MS)
    after.end(901 * MS)
    assert p.names == ["root", "late", "after"]


def test_a_trace_that_comes_from_elsewhere_ends_with_its_last_local_root():
    p = Program()
    first, second = p.start("first", remote()), p.start("second", remote())
    first.end(MS)
    assert p.names == []
    second.end(200 * MS)
    assert p.names == ["first", "second"]
    third = p.start("third", remote())  # the decision holds for the whole trace
    third.end(MS)
    assert p.names == ["first", "second", "third"]


def test_traces_that_never_end_make_room():
    p = Program(traces=3)
    roots = [p.start(f"r{i}") for i in range(10)]
    assert len(p.tail._live) == 3
    assert p.dropped("traces", "evicted") == 7
    for root in roots:
        root.end(500 * MS)
    assert p.names == ["r7", "r8", "r9"]
    assert p.dropped("spans", "late") == 7
    assert p.tail._live == {}


def test_old_traces_are_given_up():
    p = Program(age_s=0.0)
    old = p.start("old")
    young = p.start("young")
    assert p.dropped("traces", "evicted") == 1
    old.end(500 * MS)
    young.end(500 * MS)
    assert p.names == ["young"]


def test_a_giant_trace_is_cut_and_an_error_beyond_the_cut_still_counts():
    p = Program(spans=5)
    root = p.start("root")
    for i in range(20):
        child = p.start(f"c{i}", root)
        if i == 19:
            child.set_status(Status(StatusCode.ERROR))
        child.end(MS)
    root.end(2 * MS)
    assert p.names == [f"c{i}" for i in range(5)]
    assert p.dropped("spans", "giant") == 16
    assert p.page.value("moex_traces_total", "error") == 1


def test_decisions_are_forgotten_in_their_order():
    p = Program(decided=4)
    for _ in range(20):
        p.start("r").end(MS)
    assert len(p.tail._decided) == 4


def test_shutdown_counts_what_waits():
    p = Program()
    p.start("open")
    p.provider.shutdown()
    assert p.dropped("traces", "evicted") == 1


def test_a_forked_child_begins_with_nothing_and_can_go_on():
    p = Program()
    waiting = p.start("parents")
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        code = 1
        try:
            own = p.start("own")
            own.end(200 * MS)
            waiting.end(500 * MS)  # the parent's span, which the child inherited
            os.write(write, ",".join(p.names).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    _, status = os.waitpid(child, 0)
    assert (status, os.read(read, 100)) == (0, b"own")
    os.close(read)
    waiting.end(500 * MS)
    assert p.names == ["parents"]


def slow_sql():
    rule = Rule("slow SQL", "SELECT*", "client", {"duration_s": {"above": 0.02}}, {"db.slow": True}, {"query": "${db.op}"})
    return Enricher((rule,), {"query": 5})


def test_spans_are_counted_before_sampling_and_enriched():
    p = Program(enrich=slow_sql())
    for end in (10, 30, 40):
        root = p.start("root")
        sql = p.start("SELECT 1", root, kind=SpanKind.CLIENT, attributes={"db.op": "select"})
        sql.end(end * MS)
        root.end((end * 3) * MS)
    count = {
        tuple(v for k, v in s.labels if k != "le"): s.value
        for s in p.page.samples() if s.name == "moex_span_duration_seconds_count"
    }  # fmt: skip
    assert count == {("root",): 3, ("SELECT 1",): 3, ("SELECT 1", "query", "select"): 2}
    kept = [s for s in p.out.get_finished_spans() if s.name == "SELECT 1"]
    assert [s.attributes.get("db.slow") for s in kept] == [True]  # only the slowest trace was kept
    assert kept[0].attributes["db.op"] == "select"
    assert kept[0].kind is SpanKind.CLIENT


@pytest.fixture
def instrumented(monkeypatch):
    yield MoexrayInstrumentor()
    MoexrayInstrumentor().uninstrument()


def test_auto_instrumentation_stands_before_the_programs_processors_and_leaves_no_trace(instrumented, monkeypatch):
    monkeypatch.setenv("MOEXRAY_SLO_S", "0.1")
    monkeypatch.setenv("MOEXRAY_KEEP_RATIO", "0")
    out = InMemorySpanExporter()
    program = TracerProvider(shutdown_on_exit=False)
    program.add_span_processor(SimpleSpanProcessor(out))
    tracer = program.get_tracer("made before")
    found = program._active_span_processor._span_processors
    instrumented.instrument(tracer_provider=program, skip_dep_check=True)
    instrumented.instrument(tracer_provider=program)
    assert MoexrayInstrumentor().is_instrumented_by_opentelemetry
    for end in (50, 150):
        tracer.start_span("s", start_time=0).end(end * MS)
    assert len(out.get_finished_spans()) == 1
    assert MoexrayInstrumentor().page.value("moex_traces_total", "slo") == 1
    MoexrayInstrumentor().uninstrument()
    MoexrayInstrumentor().uninstrument()
    assert program._active_span_processor._span_processors is found
    tracer.start_span("s", start_time=0).end(MS)
    assert len(out.get_finished_spans()) == 2


@pytest.mark.parametrize(
    ("setting", "value"), [("MOEXRAY_SLO_S", "fast"), ("MOEXRAY_RULES", "nowhere.yml"), ("MOEXRAY_LISTEN", "0.0.0.0:0")]
)
def test_auto_instrumentation_with_wrong_settings_leaves_the_program_alone(instrumented, monkeypatch, caplog, setting, value):
    monkeypatch.setenv(setting, value)
    program = TracerProvider(shutdown_on_exit=False)
    found = program._active_span_processor._span_processors
    instrumented.instrument(tracer_provider=program)
    assert program._active_span_processor._span_processors is found
    assert "does not instrument" in caplog.text
    assert not instrumented.is_instrumented_by_opentelemetry


def test_auto_instrumentation_without_the_sdk_changes_nothing(instrumented, caplog):
    instrumented.instrument(tracer_provider=trace.NoOpTracerProvider())
    assert "does not instrument" in caplog.text
