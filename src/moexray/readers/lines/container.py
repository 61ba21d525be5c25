"""What containers and system loggers put around a line: Docker, Kubernetes, journald, syslog, JSON.

Each wrapper names the text inside, its time and whether the line goes on in the next record.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from moexray.core.pattern import lazy
from moexray.readers.lines.stamp import CLOCK, ISO, MONTHS, epoch, iso_seconds

__all__ = ["MESSAGE_KEYS", "Wrapped", "is_json_log", "log_records", "message_of", "unwrap"]

MESSAGE_KEYS = ("log", "message", "msg", "MESSAGE", "event", "textPayload", "line", "body")
TIME_KEYS = ("time", "timestamp", "ts", "@timestamp", "asctime", "t", "date", "created")
LEVEL_KEYS = ("level", "levelname", "severity", "lvl", "log.level", "PRIORITY")
# Where structured loggers put the exception that belongs to the message; an object holds it in these keys.
ERROR_KEYS = (
    "exc_info", "exception", "traceback", "stack_trace", "stacktrace", "stack", "error.stack_trace", "error",
    "err", "exc", "error.message",
)  # fmt: skip
ERROR_PARTS = ("stack_trace", "stacktrace", "traceback", "stack", "message", "value")
# What stands beside the message in a record of a log, as opposed to an API message or a chat.
COMPANIONS = frozenset(
    (*TIME_KEYS, *LEVEL_KEYS, "stream", "logger", "name", "kubernetes", "container_name", "_PID",
     "__REALTIME_TIMESTAMP", "SYSLOG_IDENTIFIER", "host", "hostname", "pid", "service", "rank", "worker")
)

# An event of one such word beside a size is data (shapes/memory_log.py), no message.
ALLOCATION = lazy(r"(?:\w+[._-])?(?:alloc|free|malloc|dealloc|release|creat|delet)\w*", re.IGNORECASE)

CRI = lazy(ISO + r" (stdout|stderr) ([FP]) ?(.*)", re.DOTALL)
ISO_THEN = lazy(ISO + r"\s+(?=\S)")
SYSLOG = lazy(
    r"(?:<\d{1,3}>)?([A-Z][a-z]{2}) +(\d{1,2}) " + CLOCK + r" (\S+) ([\w./@:-]+?)(\[\d+\])?: ?"
)
JOURNAL_ISO = lazy(ISO + r" (?=\S+ [\w./@-]+\[\d+\]: )\S+ ([\w./@-]+)\[\d+\]: ?")
RFC5424 = lazy(r"<\d{1,3}>1 " + ISO + r" \S+ (\S+) \S+ \S+ (?:-|\[.*?\]) ?")
COMPOSE = lazy(r"[\w./-]{1,60}[-_]\d+ +\| (?=\S)")
KUBECTL = lazy(r"\[(?:pod|deployment|job)/[\w./-]+\] ")


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A line taken out of its container.

    Args:
        text: What the program wrote.
        t_s: The container's time, if it gave one.
        dated: The time has a year, so it is better than a stamp inside without one.
        partial: The line goes on in the next record of the same stream.
        level: The level that the record names.
        rank: The rank that the record names.
        known: A container or logger wrote it.
    """

    text: str
    t_s: float | None = None
    dated: bool = False
    partial: bool = False
    level: str | None = None
    rank: int | None = None
    known: bool = True


def unwrap(text: str, year: int) -> Wrapped | None:
    """Takes off one wrapper, or returns None if there is none."""
    first = text[:1]
    if first == "{":
        return _json(text)
    if first.isdigit():
        return _dated(text)
    if first.isupper() or first == "<":
        return _syslog(text, year)
    if first == "[" and (m := KUBECTL.match(text)):
        return Wrapped(text[m.end() :])
    if first.isalpha() and (m := COMPOSE.match(text)):
        return Wrapped(text[m.end() :])
    return None


def message_of(record: dict[str, Any]) -> str | None:
    """The text of a record of a JSON log, or None if it is no such record."""
    inner = record.get("jsonPayload")  # Cloud Logging puts the program's own record into this
    if isinstance(inner, dict) and (message := message_of({**inner, "severity": ""})) is not None:
        return message
    if isinstance(record.get("record"), dict) and isinstance(record.get("text"), str):
        return str(record["text"])  # loguru's serialised form: the line as it would be printed
    for key in MESSAGE_KEYS:
        value = record.get(key)
        if key == "event" and _is_allocation(value, record):
            return None
        if isinstance(value, str) and (key == "log" or COMPANIONS.intersection(record) or len(record) == 1):
            return _with_error(value, record)
    return None


def _is_allocation(event: Any, record: dict[str, Any]) -> bool:
    sized = any("size" in key or "bytes" in key for key in record)
    return sized and isinstance(event, str) and ALLOCATION.fullmatch(event) is not None


def _with_error(message: str, record: dict[str, Any]) -> str:
    """The message, and below it the exception that the record carries in a field of its own."""
    for key in ERROR_KEYS:
        value = record.get(key)
        if isinstance(value, dict):
            value = next((value[k] for k in ERROR_PARTS if isinstance(value.get(k), str)), None)
        if isinstance(value, str) and value and value.strip() not in message:
            return f"{message.rstrip()}\n{value.rstrip()}\n"
    return message


def log_records(document: Any) -> list[str]:
    """The records of a log that was exported as one JSON array, a line of JSON each; [] if it is none.

    The array may be the only one of an object ({"logs": [...]}, {"total": 2, "hits": [...]}).
    """
    if isinstance(document, dict):
        arrays = [v for v in document.values() if isinstance(v, list)]
        document = arrays[0] if len(arrays) == 1 else None
    if not isinstance(document, list):
        return []
    records = [r.get("_source", r) if isinstance(r, dict) else r for r in document]
    held = [json.dumps(r) for r in records if isinstance(r, dict) and message_of(r) is not None]
    return held if len(held) >= 0.5 * len(records) else []


def is_json_log(head: bytes) -> bool:
    """Whether the first lines are JSON objects that carry log lines (not traces, not counts)."""
    found = 0
    lines = head.lstrip(b"\xef\xbb\xbf").split(b"\n")
    whole = lines[:-1] if len(lines) > 1 else lines
    for line in [x.strip() for x in whole[:8] if x.strip()]:
        if not (line.startswith(b"{") and line.endswith(b"}")) or len(line) > 1 << 20:
            return False
        try:
            record = json.loads(line.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            continue
        if message_of(record) is None:
            return False
        found += 1
    return found > 0


def _json(text: str) -> Wrapped | None:
    if not text.rstrip().endswith("}"):
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    message = message_of(record) if isinstance(record, dict) else None
    if message is None:
        return None
    t_s = next((t for t in (_time(record.get(k)) for k in TIME_KEYS) if t is not None), None)
    if t_s is None and str(record.get("__REALTIME_TIMESTAMP", "")).isdigit():
        t_s = int(record["__REALTIME_TIMESTAMP"]) / 1e6
    level = next((str(record[k]).lower() for k in LEVEL_KEYS if isinstance(record.get(k), str)), None)
    rank = record.get("rank")
    return Wrapped(
        message.removesuffix("\n"),
        t_s,
        dated=t_s is not None,
        partial="stream" in record and "log" in record and not message.endswith("\n"),
        level=level,
        rank=rank if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 else None,
    )


def _time(value: object) -> float | None:
    """Epoch seconds of a time field: ISO text, or a number in s, ms, us or ns by its size."""
    if isinstance(value, str):
        if (t_s := iso_seconds(value)) is not None:
            return t_s
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e20:
        return None
    for limit, scale in ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6)):
        if value < limit:
            return value / scale
    return value / 1e9


def _dated(text: str) -> Wrapped | None:
    m = CRI.match(text)
    if m:
        g = m.groups()
        return Wrapped(g[10], iso_seconds(text), dated=True, partial=g[9] == "P")
    if m := JOURNAL_ISO.match(text):
        return Wrapped(text[m.end() :], iso_seconds(text), dated=True)
    m = ISO_THEN.match(text)
    if m and m[8]:  # kubectl --timestamps, CI services: a zone, then the program's own line
        return Wrapped(text[m.end() :], iso_seconds(text), dated=True)
    return None


def _syslog(text: str, year: int) -> Wrapped | None:
    if m := RFC5424.match(text):
        return Wrapped(text[m.end() :], iso_seconds(text[text.index(" ") + 1 :]), dated=True)
    m = SYSLOG.match(text)
    if not m or m[1].lower() not in MONTHS:
        return None
    t_s = epoch((year, MONTHS.index(m[1].lower()) + 1, int(m[2])), m.groups()[2:6])
    return Wrapped(text[m.end() :], t_s)
