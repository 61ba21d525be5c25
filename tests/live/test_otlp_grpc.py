"""OTLP over gRPC against a stand-in: a server made from the services of opentelemetry-proto.

test_otlp_peers.py has receivers that others wrote.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

grpc = pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'moexray[grpc]'")
pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="the exporter is not installed: moexray[grpc]")

from click.testing import CliRunner  # noqa: E402
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc  # noqa: E402
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc  # noqa: E402

import live_servers as servers  # noqa: E402
from moexray.core.errors import UsageError  # noqa: E402
from moexray.faces.cli.logs import command  # noqa: E402
from moexray.live.logs import Logs, otlp_sender  # noqa: E402
from moexray.live.otlp import provider  # noqa: E402
from moexray.live.page import Page  # noqa: E402

NS = 1_000_000_000


class StandIn(trace_service_pb2_grpc.TraceServiceServicer, logs_service_pb2_grpc.LogsServiceServicer):
    """Keeps what it is sent; answers the first calls with these codes."""

    def __init__(self, *codes):
        self.codes, self.calls, self.got, self.told = list(codes), 0, [], []
        self.server = grpc.server(ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self.server)
        logs_service_pb2_grpc.add_LogsServiceServicer_to_server(self, self.server)
        self.url = f"grpc://127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def Export(self, request, context):  # noqa: N802 - both services call it so
        self.calls += 1
        if self.codes:
            context.abort(self.codes.pop(0), "as the test asked")
        self.got.append(request)
        self.told.append(dict(context.invocation_metadata()))
        of_logs = isinstance(request, logs_service_pb2.ExportLogsServiceRequest)
        return (logs_service_pb2.ExportLogsServiceResponse if of_logs else trace_service_pb2.ExportTraceServiceResponse)()


@pytest.fixture
def stand_in():
    made = []

    def make(*codes):
        made.append(StandIn(*codes))
        return made[-1]

    yield make
    for one in made:
        one.server.stop(None).wait()


@pytest.mark.parametrize("codes", [(), (grpc.StatusCode.UNAVAILABLE,)])
def test_stand_in_gets_spans_with_their_times_and_parents(stand_in, codes):
    to, page = stand_in(*codes), Page()
    made = provider(to.url, page, "my-model")
    tracer = made.get_tracer("moexray")
    from opentelemetry.trace import set_span_in_context

    root = tracer.start_span("moex.step", start_time=5 * NS)
    tracer.start_span("moex.layer", set_span_in_context(root), start_time=6 * NS).end(7 * NS)
    root.end(8 * NS)
    made.force_flush()
    made.shutdown()
    groups = [g for request in to.got for g in request.resource_spans]
    spans = {s.name: s for g in groups for scope in g.scope_spans for s in scope.spans}
    assert {(a.key, a.value.string_value) for g in groups for a in g.resource.attributes} >= {("service.name", "my-model")}
    assert set(spans) == {"moex.step", "moex.layer"}
    assert spans["moex.layer"].parent_span_id == spans["moex.step"].span_id
    assert [(s.start_time_unix_nano, s.end_time_unix_nano) for s in (spans["moex.step"], spans["moex.layer"])] == [
        (5 * NS, 8 * NS), (6 * NS, 7 * NS)]  # fmt: skip
    assert page.value("moex_exporter_dropped_total", "spans", "not_sent") == 0


def test_spans_that_the_stand_in_refuses_are_counted_and_not_sent_again(stand_in):
    to, page = stand_in(*[grpc.StatusCode.INVALID_ARGUMENT] * 9), Page()
    made = provider(to.url, page)
    made.get_tracer("moexray").start_span("moex.step").end()
    made.force_flush()
    made.shutdown()
    assert to.calls == 1
    assert page.value("moex_exporter_dropped_total", "spans", "not_sent") == 1


BUSY, WRONG = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("codes", "taken", "asked"), [((), True, 1), ((BUSY, BUSY), True, 3), ((WRONG,), False, 1), ((BUSY,) * 9, False, 4)]
)
def test_stand_in_gets_lines_of_a_log_and_only_what_may_pass_is_tried_again(stand_in, codes, taken, asked):
    to = stand_in(*codes)
    assert otlp_sender(to.url, "my-model", "secret")([Logs({})("ERROR step 7 took 4 s")]) is taken
    assert to.calls == asked
    if taken:
        [group] = to.got[0].resource_logs
        [record] = group.scope_logs[0].log_records
        assert group.resource.attributes[0].value.string_value == "my-model"
        assert (record.body.string_value, record.severity_number) == ("ERROR step 7 took 4 s", 17)
        assert to.told[0]["authorization"] == "Bearer secret"


def test_nobody_at_home_is_told(stand_in):
    assert not otlp_sender(f"grpc://127.0.0.1:{servers.free_port()}", "s")([Logs({})("hello")])


def test_the_command_sends_over_grpc(stand_in):
    to = stand_in()
    result = CliRunner().invoke(command, ["-", "--otlp", to.url], input="one\ntwo\n")
    assert result.exit_code == 0, result.output
    assert sum(len(s.log_records) for r in to.got for g in r.resource_logs for s in g.scope_logs) == 2


@pytest.mark.parametrize("missing", ["grpc", "opentelemetry.exporter.otlp.proto.grpc.trace_exporter"])
def test_without_grpcio_it_is_said_what_to_install(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    made = {"grpc": lambda url: otlp_sender(url, "s")}.get(missing, lambda url: provider(url, Page()))
    with pytest.raises(UsageError) as told:
        made("grpc://127.0.0.1:4317")
    assert "moexray[live,grpc]" in told.value.hint
