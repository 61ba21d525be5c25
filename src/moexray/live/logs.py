"""Lines of a log in OpenTelemetry's log model, sent by OTLP or pushed to Loki.

What users typed or were told (prompts, messages, completions) is replaced by its length unless asked for;
secrets always. A JSON line keeps its shape as the body; fields picked by JSONPath become attributes.

Source: opentelemetry-proto logs v1; Loki's push API in its JSON form.
"""

from __future__ import annotations

import json
import logging
import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from moexray.core.errors import UsageError
from moexray.core.redact import redact
from moexray.live.json_path import json_path
from moexray.live.otlp import grpc_place
from moexray.live.post import Answer, post

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Encode = Callable[[Sequence["Record"]], tuple[bytes, str]]  # body and content type

__all__ = ["Logs", "Record", "loki_sender", "otlp_sender", "sender"]

MAX_LINE = 1 << 16  # characters of a line that are read; the rest is cut
VALUE = 1_024  # characters of an attribute
DEPTH = 20
LAST_S = 9e9  # the year 2255: a time in nanoseconds must fit into 63 bits, or its whole batch is lost
PRIVATE = frozenset(
    ("prompt", "prompts", "messages", "message_content", "input", "inputs", "input_text", "completion",
     "completions", "output", "outputs", "output_text", "generated_text", "content", "query", "response_text")
)  # fmt: skip
# `prompt: '...'` of engines that log whole requests; up to the closing quote, or to the end of the line
_QUOTED = re.compile(
    r"(?i)\b((?:prompt|messages|content|completion|generated_text)\w*['\"]?\s*[:=]\s*)(['\"])(.*?)(?:(?<!\\)\2|$)"
)
SEVERITY = {
    "trace": 1, "debug": 5, "info": 9, "warn": 13, "warning": 13, "error": 17, "err": 17, "critical": 21,
    "fatal": 21,
}  # fmt: skip
_LEVEL = re.compile(r"\b(TRACE|DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_TRACE, _SPAN = re.compile(r"[0-9a-f]{32}"), re.compile(r"[0-9a-f]{16}")
TRIES, FIRST_PAUSE_S = 4, 0.2

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Record:
    """One line.

    Args:
        time_ns: Epoch, as the line says; 0 where it does not.
        observed_ns: When it was read.
        severity: OpenTelemetry's number, 0 unknown.
        body: Text, or the JSON object.
        attributes: What was picked.
        trace_id: 32 hex digits, or empty.
        span_id: 16 hex digits, or empty.
    """

    time_ns: int
    observed_ns: int
    severity: int
    body: Any
    attributes: Mapping[str, str | bool | int | float] = field(default_factory=dict)
    trace_id: str = ""
    span_id: str = ""


class Logs:
    """Makes records of lines.

    Args:
        picks: Attribute -> JSONPath.
        prompts: Keep what users typed and were told.

    Raises:
        UsageError: a path cannot be picked.
    """

    def __init__(self, picks: Mapping[str, str], *, prompts: bool = False) -> None:
        self._picks = {name: json_path(path) for name, path in picks.items()}
        self._prompts = prompts

    def __call__(self, line: str) -> Record:
        """The record of a line. Never raises: where a pipe breaks, the program that writes into it stops."""
        line, now = line.rstrip("\r\n")[:MAX_LINE], time.time_ns()
        try:
            return self._record(line, now)
        except Exception:  # noqa: BLE001 - behind the pipe is a host engine
            _log.exception("a line could not be read; please report this")
            return Record(0, now, 0, f"<{len(line)} characters>")

    def _record(self, line: str, now: int) -> Record:
        document: Any = None
        if line.lstrip().startswith("{"):
            try:
                document = json.loads(line)
            except (ValueError, RecursionError):
                document = None
        if not isinstance(document, dict):
            found = _LEVEL.search(line)
            traced = _TRACEPARENT.search(line)
            text = line if self._prompts else _QUOTED.sub(_length, line)
            severity = SEVERITY[found[1].lower()] if found else 0
            return Record(0, now, severity, redact(text), {}, *(traced.groups() if traced else ("", "")))
        body = _clean(document, DEPTH, prompts=self._prompts)
        seen = {name: _plain(pick(body)) for name, pick in self._picks.items()}
        picked = {name: value for name, value in seen.items() if value is not None}
        level = str(_first(document, "level", "severity", "levelname", "severity_text") or "").lower()
        trace_id, span_id = _ids(document)
        when = _epoch_ns(_first(document, "time", "timestamp", "ts", "@timestamp", "asctime"))
        return Record(when, now, SEVERITY.get(level, 0), body, picked, trace_id, span_id)


def _length(found: re.Match[str]) -> str:
    return f"{found[1]}<{len(found[3])} characters>"


def _clean(value: Any, depth: int, *, prompts: bool) -> Any:
    """The document without prompts and secrets; what lies deeper than `depth` is left out."""
    if depth == 0:
        return "..."
    if isinstance(value, dict):
        out = {}
        for key, inner in value.items():
            private = not prompts and str(key).lower() in PRIVATE and isinstance(inner, str | list | dict)
            size = len(inner) if isinstance(inner, str) else len(json.dumps(inner)) if private else 0
            out[str(key)] = f"<{size} characters>" if private else _keyed(key, inner, depth, prompts=prompts)
        return out
    if isinstance(value, list):
        return [_clean(inner, depth - 1, prompts=prompts) for inner in value]
    return redact(value) if isinstance(value, str) else value


def _keyed(key: Any, value: Any, depth: int, *, prompts: bool) -> Any:
    """A secret may be told by its key alone."""
    if isinstance(value, str):
        told = redact(f"{key}={value}").partition("=")[2]
        return redact(value) if told == value else told
    return _clean(value, depth - 1, prompts=prompts)


def _plain(value: Any) -> str | bool | int | float | None:
    if value is None or isinstance(value, bool | int | float):
        return value
    return (value if isinstance(value, str) else json.dumps(value))[:VALUE]


def _first(document: Mapping[str, Any], *keys: str) -> Any:
    return next((document[k] for k in keys if document.get(k) is not None), None)


def _ids(document: Mapping[str, Any]) -> tuple[str, str]:
    if traced := _TRACEPARENT.fullmatch(str(document.get("traceparent", ""))):
        return traced[1], traced[2]
    trace = str(_first(document, "trace_id", "traceId") or "").lower()
    span = str(_first(document, "span_id", "spanId") or "").lower()
    return trace if _TRACE.fullmatch(trace) else "", span if _SPAN.fullmatch(span) else ""


def _epoch_ns(value: Any) -> int:
    """Epoch nanoseconds of a number (s, ms, us, ns by its size) or an ISO text; 0 if it is neither."""
    if isinstance(value, bool) or value is None:
        return 0
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        try:
            when = datetime.fromisoformat(str(value).replace(",", "."))
            seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return 0
        return int(seconds * 1e9) if 0 < seconds < LAST_S else 0
    for scale in (1e9, 1e6, 1e3, 1.0):
        if 1e8 <= number * scale / 1e9 < LAST_S:
            return int(number * scale)
    return 0


def sender(url: str, encode: Encode, token: str = "") -> Callable[[list[Any]], bool]:
    """A function that sends a batch and says whether it was taken; 429, 5xx and silence are tried again."""
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url} is no address to send to", hint="http://, https:// or, for OTLP, grpc://HOST:PORT")

    def send(records: list[Any]) -> bool:
        body, kind = encode(records)
        answer = Answer(0)
        for attempt in range(TRIES):
            if attempt:
                time.sleep(FIRST_PAUSE_S * 2**attempt)
            answer = post(url, body, {"Content-Type": kind}, token=token, timeout_s=10)
            if not answer.may_pass_later:
                break
        return answer.is_taken

    return send


def otlp_sender(url: str, service: str, token: str = "") -> Callable[[list[Any]], bool]:
    """Sends by OTLP.

    Args:
        url: Of the receiver: http:// or https:// without /v1/logs; grpc://HOST:PORT, grpcs:// with TLS.
        service: service.name of the records.
        token: Sent as bearer token; empty for none.

    Raises:
        UsageError: the messages of OTLP, or gRPC, are missing, or the address is none.
    """
    try:
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    except ImportError as why:
        raise UsageError("OTLP needs opentelemetry-proto", hint="pip install 'moexray[live]'") from why

    def message(records: Sequence[Record]) -> Any:
        request = ExportLogsServiceRequest()
        group = request.resource_logs.add()
        group.resource.attributes.add(key="service.name").value.string_value = service
        scope = group.scope_logs.add()
        scope.scope.name = "moexray"
        for record in records:
            out = scope.log_records.add(
                time_unix_nano=record.time_ns, observed_time_unix_nano=record.observed_ns,
                severity_number=record.severity, trace_id=bytes.fromhex(record.trace_id),
                span_id=bytes.fromhex(record.span_id),
            )  # fmt: skip
            _any_value(out.body, record.body)
            for key, value in record.attributes.items():
                _any_value(out.attributes.add(key=_whole(key)).value, value)
        return request

    if place := grpc_place(url):
        return _grpc_sender(place, message, token)

    def encode(records: Sequence[Record]) -> tuple[bytes, str]:
        return message(records).SerializeToString(), "application/x-protobuf"

    return sender(f"{url.rstrip('/')}/v1/logs", encode, token)


def _grpc_sender(
    at: tuple[str, bool], message: Callable[[Sequence[Record]], Any], token: str
) -> Callable[[list[Any]], bool]:
    """As `sender`, to a `grpc_place`; gRPC itself tries again."""
    try:
        import grpc
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2_grpc import LogsServiceStub
    except ImportError as why:
        raise UsageError("OTLP over gRPC needs grpcio", hint="pip install 'moexray[live,grpc]'") from why
    retry = {
        "maxAttempts": TRIES,
        "initialBackoff": f"{FIRST_PAUSE_S}s", "maxBackoff": "10s", "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED"],
    }  # fmt: skip
    options = [("grpc.service_config", json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": retry}]}))]
    place, plain = at
    if plain:
        channel = grpc.insecure_channel(place, options)
    else:
        channel = grpc.secure_channel(place, grpc.ssl_channel_credentials(), options)
    stub = LogsServiceStub(channel)  # type: ignore[no-untyped-call, unused-ignore]
    told = [("authorization", f"Bearer {token}")] if token else None

    def send(records: list[Any]) -> bool:
        try:
            stub.Export(message(records), timeout=30, metadata=told)
        except grpc.RpcError:
            return False
        return True

    return send


def _any_value(out: Any, value: Any) -> None:
    """Fills an AnyValue."""
    if isinstance(value, bool):
        out.bool_value = value
    elif isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        out.int_value = value
    elif isinstance(value, float):
        out.double_value = value
    elif isinstance(value, dict):
        out.kvlist_value.SetInParent()
        for key, inner in value.items():
            _any_value(out.kvlist_value.values.add(key=_whole(key)).value, inner)
    elif isinstance(value, list):
        out.array_value.SetInParent()
        for inner in value:
            _any_value(out.array_value.values.add(), inner)
    elif value is not None:
        out.string_value = _whole(str(value))


def _whole(text: str) -> str:
    """Without halves of characters, which JSON may hold and a message may not."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def loki_sender(url: str, service: str, token: str = "") -> Callable[[list[Any]], bool]:
    """Pushes to Loki in its JSON form; the trace id is structured metadata, no label.

    Args:
        url: Of Loki, without /loki/api/v1/push.
        service: Label service_name.
        token: Sent as bearer token; empty for none.

    Raises:
        UsageError: the address is none.
    """
    names = {number: name for name, number in SEVERITY.items() if name not in ("warning", "err", "fatal")}

    def encode(records: Sequence[Record]) -> tuple[bytes, str]:
        streams: dict[str, list[list[Any]]] = {}
        for record in records:
            line = record.body if isinstance(record.body, str) else json.dumps(record.body)
            ids = {"trace_id": record.trace_id, "span_id": record.span_id}
            facts = {k: str(v) for k, v in {**record.attributes, **ids}.items() if v != ""}
            when = str(record.time_ns or record.observed_ns)
            streams.setdefault(names.get(record.severity, "unknown"), []).append([when, line, facts])
        body = [
            {
                "stream": {"service_name": service, "level": level},
                "values": sorted(values, key=lambda v: int(v[0])),
            }
            for level, values in streams.items()
        ]
        return json.dumps({"streams": body}).encode(), "application/json"

    return sender(f"{url.rstrip('/')}/loki/api/v1/push", encode, token)
