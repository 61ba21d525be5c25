"""Chrome-trace events as typed structs, and the cutting of a trace into chunks of whole events.

Imported only once a trace is met: msgspec loads with it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from moexray.core.pattern import lazy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Args", "Document", "Event", "Part", "convert", "decode_document", "decode_events", "split"]

CHUNK_BYTES = 4 << 20  # events are decoded in pieces of this size: bounded memory, warm caches
MAX_EVENT_BYTES = 64 << 20  # without an event boundary in this many bytes it is no event list
OPENING = lazy(rb'"traceEvents"\s*:\s*\[')
FIRST_KEY = lazy(rb'\s*\{\s*"([^"\\]{1,64})"\s*:')


class Args(msgspec.Struct, frozen=True, gc=False):
    """The arguments that we use; all others are skipped while parsing."""

    device: Any = None
    stream: Any = None
    correlation: Any = None
    bytes: Any = None
    collective: Any = msgspec.field(default=None, name="Collective name")
    in_elements: Any = msgspec.field(default=None, name="In msg nelems")
    out_elements: Any = msgspec.field(default=None, name="Out msg nelems")
    group_size: Any = msgspec.field(default=None, name="Group size")
    dtype: Any = None
    in_splits: Any = msgspec.field(default=None, name="In split size")
    out_splits: Any = msgspec.field(default=None, name="Out split size")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    seq: Any = msgspec.field(default=None, name="Seq")
    address: Any = msgspec.field(default=None, name="Addr")
    size: Any = msgspec.field(default=None, name="Bytes")
    device_type: Any = msgspec.field(default=None, name="Device Type")
    device_id: Any = msgspec.field(default=None, name="Device Id")
    allocated: Any = msgspec.field(default=None, name="Total Allocated")
    reserved: Any = msgspec.field(default=None, name="Total Reserved")
    name: Any = None


NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """One event of a Chrome trace; times in microseconds."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Args | None = NO_ARGS


class Document(msgspec.Struct, gc=False):
    """The top level of a Kineto trace."""

    traceEvents: list[Event] = []  # noqa: N815  # the key of the format
    distributedInfo: Any = None  # noqa: N815
    deviceProperties: Any = None  # noqa: N815
    baseTimeNanoseconds: Any = None  # noqa: N815
    traceName: Any = None  # noqa: N815
    with_stack: Any = None
    profile_memory: Any = None


_LIST = msgspec.json.Decoder(list[Event])
_DOCUMENT = msgspec.json.Decoder(Document)


class Part(msgspec.Struct, frozen=True):
    """A piece of a trace file.

    Args:
        kind: "head" (all before the first event), "events", or "last" (events and what follows).
        data: The bytes, not copied; events without the brackets of their array.
    """

    kind: str
    data: memoryview


def split(pieces: Iterable[bytes]) -> Iterator[Part]:
    """Cuts a trace into its head, chunks of whole events, and the last chunk with the tail.

    Args:
        pieces: The content, decompressed; one piece or many.

    Yields:
        Parts; a head with the data b"[" for an array at the top level. Nothing if no list of
        events is found.
    """
    buffer, at = b"", 0
    boundary: re.Pattern[bytes] | None = None
    opened = False
    for piece in pieces:
        buffer, at = (buffer[at:] + piece if at < len(buffer) else piece), 0
        if not opened:
            at = _start(buffer)
            if at < 0:
                if len(buffer) > MAX_EVENT_BYTES:
                    return
                at = 0
                continue
            head = b"[" if buffer[:at].strip() == b"[" else buffer[:at]
            yield Part("head", memoryview(head))
            opened = True
        while len(buffer) - at >= CHUNK_BYTES:
            boundary = boundary or _boundary(buffer, at)
            cut = _last_cut(buffer, at, boundary)
            if cut is None:
                break
            yield Part("events", memoryview(buffer)[at : cut[0]])
            at = cut[1]
    if opened:
        yield Part("last", memoryview(buffer)[at:])


def _start(buffer: bytes) -> int:
    opening = OPENING.search(buffer)
    if opening:
        return opening.end()
    text = buffer.lstrip()
    return len(buffer) - len(text) + 1 if text.startswith(b"[") else -1


def _boundary(buffer: bytes, at: int) -> re.Pattern[bytes]:
    first = FIRST_KEY.match(buffer, at)
    key = re.escape(first.group(1)) if first else b"ph"
    return re.compile(rb"\}\s*,\s*(?=\{\s*\"" + key + rb"\"\s*:)")


def _last_cut(buffer: bytes, at: int, boundary: re.Pattern[bytes]) -> tuple[int, int] | None:
    """(end of the last whole event of a chunk, start of the next event)."""
    start = at + CHUNK_BYTES - (CHUNK_BYTES >> 7)
    last = None
    for match in boundary.finditer(buffer, start, at + CHUNK_BYTES + 4096):
        last = match
    last = last or boundary.search(buffer, start)
    return (last.start() + 1, last.end()) if last else None


def decode_events(data: memoryview) -> list[Event] | None:
    """Typed events of a chunk; None if the chunk is damaged."""
    try:
        return _LIST.decode(b"".join((b"[", data, b"]")))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def decode_document(data: bytes) -> Document | None:
    """A typed document (or a bare array of events); None if it is damaged."""
    try:
        if data.startswith(b"["):
            return Document(_LIST.decode(data))
        return _DOCUMENT.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def convert(records: list[Any]) -> tuple[list[Event], int]:
    """Events of parsed objects (after repairs).

    Returns:
        (events, odd): odd counts records that are no events.
    """
    events: list[Event] = []
    odd = 0
    for record in records:
        if not isinstance(record, dict):
            odd += 1
            continue
        try:
            events.append(msgspec.convert(record, Event))
        except msgspec.ValidationError:
            args = record.get("args")
            plain: dict[str, Any] = {k: str(record.get(k, "")) for k in ("ph", "cat", "name")}
            plain |= {k: record.get(k) for k in ("pid", "tid", "ts", "dur")}
            plain["args"] = msgspec.convert(args, Args) if isinstance(args, dict) else NO_ARGS
            events.append(Event(**plain))
    return events, odd
