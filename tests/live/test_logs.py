"""Lines as records: what is picked, what is hidden, what is sent. Receivers are stand-ins."""

import json
import re
import threading

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from moexray.core.errors import UsageError
from moexray.faces.cli.logs import command
from moexray.live import logs as module
from moexray.live.json_path import json_path
from moexray.live.logs import Logs, loki_sender, otlp_sender
from moexray.live.serve import Reply, Server

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
DOCUMENT = {"a": {"b c": [10, {"d": 1}]}, "list": [{"id": "x"}, {"id": "y"}], "it's": 1, "n": None, "e": ""}


@pytest.mark.parametrize(
    ("path", "value"),
    [("$.a['b c'][0]", 10), ("$['a'][\"b c\"][1].d", 1), ("$.list[*].id", "x"), ("$.list[-1].id", "y"), ("$.list.*.id", "x"),
     (r"$['it\'s']", 1), ("$.n", None), ("$.none.at.all", None), ("$.list[7]", None), ("$.a[0]", None), ("$.list.id", None),
     ("$", DOCUMENT), ("$.e", "")],
)  # fmt: skip
def test_json_path_picks_one_value(path, value):
    assert json_path(path)(DOCUMENT) == value


@pytest.mark.parametrize("path", ["", "a", "$a", "$.", "$..a", "$[?(@.a)]", "$[0:2]", "$[0,1]", "$['a", "$.a b", "$[x]", "@.a"])
def test_json_path_that_is_not_supported_is_told(path):
    with pytest.raises(UsageError, match="no path that can be picked"):
        json_path(path)


def test_json_path_looks_at_no_more_than_so_many_values():
    wide = {"a": [[[{}] * 100] * 100] * 100}
    assert json_path("$.a[*][*][*].x")(wide) is None


def test_a_json_line_becomes_a_record():
    line = {"level": "WARNING", "ts": 1_700_000_000.5, "msg": "slow", "request": {"id": "r1", "tokens": 5},
            "trace_id": TRACE, "span_id": SPAN}  # fmt: skip
    record = Logs({"request": "$.request.id", "tokens": "$.request.tokens", "none": "$.x"})(json.dumps(line) + "\n")
    assert record.body == line
    assert record.attributes == {"request": "r1", "tokens": 5}
    assert (record.severity, record.time_ns) == (13, 1_700_000_000_500_000_000)
    assert (record.trace_id, record.span_id) == (TRACE, SPAN)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(1_700_000_000, 1.7e9), (1_700_000_000_123, 1.7e9), (1_700_000_000_123_456, 1.7e9), ("1700000000123456789", 1.7e9),
     ("2023-11-14T22:13:20Z", 1.7e9), ("2023-11-14 22:13:20,5", 1.7e9), ("2023-11-14T23:13:20+01:00", 1.7e9),
     ("noon", 0), (True, 0), (12, 0), (None, 0), ([1], 0), (10**400, 0), (float("inf"), 0), (float("nan"), 0), (9e10, 0),
     ("1960-01-01T00:00:00Z", 0), ("9999-12-31T23:59:59Z", 0), ("0001-01-01T00:00:00+23:59", 0), (-5, 0)],
)  # fmt: skip
def test_times(value, seconds):
    assert module._epoch_ns(value) / 1e9 == pytest.approx(seconds, abs=1)


@pytest.mark.parametrize("key", ["prompt", "messages", "input", "completion", "Content"])
def test_what_users_typed_is_not_sent_unless_asked_for(key):
    secret = "my very private words"
    value = [{"role": "user", "content": secret}] if key == "messages" else secret
    line = json.dumps({"msg": "m", "request": {key: value}, "usage": {"prompt_tokens": 7}})
    hidden = Logs({"picked": f"$.request.{key}"})(line)
    assert secret not in json.dumps(hidden.body) + json.dumps(dict(hidden.attributes))
    assert re.fullmatch(r"<\d+ characters>", hidden.body["request"][key])
    assert hidden.body["usage"] == {"prompt_tokens": 7}
    assert secret in json.dumps(Logs({}, prompts=True)(line).body)


def test_prompts_and_secrets_in_plain_lines():
    record = Logs({})("INFO Received request r1: prompt: 'say \\'hi\\' to me', params: n=1, api_key=sk-abcdefgh12345678")
    assert record.body == "INFO Received request r1: prompt: <16 characters>, params: n=1, api_key=<redacted>"
    assert record.severity == 9
    cut = Logs({})("ERROR {'prompt': 'never closed and on")
    assert "closed" not in cut.body


def test_secrets_in_json():
    body = Logs({})(json.dumps({"api_key": "abcdefgh12345678", "h": {"Authorization": "Bearer abcdefgh12345678"}})).body
    assert "abcdefgh12345678" not in json.dumps(body)


def test_a_trace_parent_in_a_plain_line():
    record = Logs({})(f"INFO traceparent=00-{TRACE}-{SPAN}-01 done")
    assert (record.trace_id, record.span_id) == (TRACE, SPAN)


@given(st.text(max_size=300) | st.text("{}[]\",:'\\prompt=", max_size=300))
def test_any_line_is_a_record(line):
    record = Logs({"a": "$.a"})(line)
    assert len(json.dumps(record.body)) >= 2


@pytest.mark.parametrize("line", ["{" * 100_000, '{"a":' * 5_000 + "1" + "}" * 5_000, "x" * 1_000_000, "prompt: '" * 20_000])
def test_hostile_lines_are_bounded(line):
    record = Logs({"a": "$.a.a.a"})(line)
    assert len(json.dumps(record.body)) <= 2 * module.MAX_LINE


class StandIn:
    """Keeps what is posted to it; answers with the given statuses first."""

    def __init__(self, *statuses):
        self.statuses, self.requests, self.lock = list(statuses), [], threading.Lock()
        self.server = Server("127.0.0.1:0", self.answer)
        self.server.start()
        self.url = self.server.url

    def answer(self, request):
        with self.lock:
            self.requests.append(request)
            return Reply(self.statuses.pop(0) if self.statuses else 200)


@pytest.fixture
def stand_in():
    made = []

    def make(*statuses):
        made.append(StandIn(*statuses))
        return made[-1]

    yield make
    for one in made:
        one.server.close()


LINES = [json.dumps({"level": "error", "ts": 1_700_000_000 + i, "id": f"r{i}", "trace_id": TRACE, "n": [1, 2.5, None, True]})
         for i in (3, 1, 2)]  # fmt: skip


def test_otlp_stand_in_reads_the_records(stand_in):
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

    to = stand_in()
    assert otlp_sender(to.url, "my-model", "t")([Logs({"id": "$.id"})(line) for line in LINES])
    [request] = to.requests
    assert (request.path, request.headers["Authorization"]) == ("/v1/logs", "Bearer t")
    [group] = ExportLogsServiceRequest.FromString(request.body).resource_logs
    assert group.resource.attributes[0].value.string_value == "my-model"
    records = group.scope_logs[0].log_records
    assert [r.attributes[0].value.string_value for r in records] == ["r3", "r1", "r2"]
    assert records[0].trace_id.hex() == TRACE
    assert records[0].severity_number == 17
    body = {v.key: v.value for v in records[0].body.kvlist_value.values}
    assert [v.WhichOneof("value") for v in body["n"].array_value.values] == ["int_value", "double_value", None, "bool_value"]


def test_loki_stand_in_gets_streams_in_order_of_time_with_few_labels(stand_in):
    to = stand_in()
    assert loki_sender(to.url, "my-model")([Logs({"id": "$.id"})(line) for line in [*LINES, "INFO hello"]])
    [request] = to.requests
    assert (request.path, request.headers["Content-Type"]) == ("/loki/api/v1/push", "application/json")
    streams = json.loads(request.body)["streams"]
    assert [s["stream"] for s in streams] == [{"service_name": "my-model", "level": x} for x in ("error", "info")]
    assert [v[2] for v in streams[0]["values"]] == [{"id": f"r{i}", "trace_id": TRACE} for i in (1, 2, 3)]
    assert streams[1]["values"][0][1] == "INFO hello"


@pytest.mark.parametrize(
    ("statuses", "taken", "asked"), [((503, 429), True, 3), ((400,), False, 1), ((500,) * 9, False, module.TRIES)]
)
def test_stand_in_that_is_busy_is_asked_again_and_one_that_refuses_is_not(stand_in, monkeypatch, statuses, taken, asked):
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.001)
    to = stand_in(*statuses)
    assert loki_sender(to.url, "s")([Logs({})("x")]) is taken
    assert len(to.requests) == asked


HOSTILE = [
    {"ts": 10**400}, {"time": "1960-01-01T00:00:00Z"}, {"time": "9999-12-31T23:59:59Z"}, {"ts": 9e10}, {"a": 10**400},
    {"a": "\ud800"}, {"\udfff": "x"}, {"a": [float("nan"), float("inf"), -(1 << 63), 1 << 63]}, {"\ud800": {"\ud800": ["\ud800"]}},
    {"level": ["error"], "trace_id": 5, "traceparent": []},
]  # fmt: skip


@pytest.mark.parametrize("to", [otlp_sender, loki_sender])
@pytest.mark.parametrize("document", HOSTILE)
def test_no_line_costs_the_batch_it_is_in(stand_in, to, document):
    receiver = stand_in()
    make = Logs({"a": "$.a", "\ud800": "$.a"})
    assert to(receiver.url, "s")([make("INFO before"), make(json.dumps(document)), make("INFO \ud800 after")])
    assert len(receiver.requests) == 1


def test_a_line_that_breaks_us_is_told_and_not_sent(monkeypatch, caplog):
    monkeypatch.setattr(module, "redact", lambda _: 1 // 0)
    assert Logs({})("INFO secret").body == "<11 characters>"
    assert "please report this" in caplog.text


def test_the_command_sends_a_file_and_a_pipe(stand_in, tmp_path):
    file, to = tmp_path / "x.log", stand_in()
    file.write_text("".join(f"INFO line {i}\n" for i in range(1200)))
    result = CliRunner().invoke(command, [str(file), "--loki", to.url])
    assert result.exit_code == 0, result.output
    assert "sent 1,200 lines of 1,200" in result.stderr
    assert sum(len(s["values"]) for r in to.requests for s in json.loads(r.body)["streams"]) == 1200
    result = CliRunner().invoke(command, ["-", "--otlp", to.url, "--tee"], input="one\ntwo\n")
    assert (result.exit_code, result.stdout) == (0, "one\ntwo\n")


def test_the_command_says_what_was_not_taken(stand_in):
    to = stand_in(400)
    result = CliRunner().invoke(command, ["-", "--loki", to.url], input="one\n")
    assert result.exit_code == 1
    assert "sent 0 lines of 1" in result.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [(["-"], "one place"), (["-", "--otlp", "x", "--loki", "y"], "one place"), (["-", "--otlp", "x"], "no address"),
     (["nowhere", "--otlp", "http://x"], "nowhere does not exist"), (["-", "--loki", "http://x", "--pick", "a"], "NAME=PATH"),
     (["-", "--loki", "http://x", "--pick", "a=$..b"], "no path")],
)  # fmt: skip
def test_the_command_refuses(words, says):
    result = CliRunner().invoke(command, words)
    assert (result.exit_code, says in result.stderr) == (2, True), result.output
