"""Kineto and other Chrome traces -> the tables trace, trace_comm, trace_memory.

Sound traces are decoded typed, in chunks of whole events; a damaged chunk goes through the
tolerant parser. Times are microseconds, newer files count from baseTimeNanoseconds.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from moexray.core.errors import ReadError
from moexray.core.pattern import lazy
from moexray.core.rank_name import rank_in_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from moexray.core.run import Reading
    from moexray.core.source import Source
    from moexray.readers.kineto_columns import Columns
    from moexray.readers.kineto_events import Document

__all__ = ["from_document", "looks_like_trace", "read"]

HUGE_BYTES = 500 << 20  # above this, raw, Chrome's and Perfetto's viewers give up; read as a stream
STREAM_BYTES = 256 << 20  # above this the content is not held in memory at once
PIECE = 8 << 20
SHOWN = 8
SIGNS = (b'"traceEvents"', b'"deviceProperties"')
BORDER = lazy(rb"\}\s*\{")  # between two documents of one file
ARRAY = lazy(rb'\s*\[\s*\{[^{}]{0,2000}?"ph"\s*:\s*"[A-Za-z]"')


def looks_like_trace(head: bytes) -> bool:
    """A head with the keys of a trace, or an array of events."""
    return any(sign in head for sign in SIGNS) or ARRAY.match(head) is not None


def read(source: Source, out: Reading) -> bool:
    """Reads a trace as a stream of chunks.

    Returns:
        Whether it was a trace; nothing is added if not.
    """
    from moexray.readers.kineto_columns import Columns
    from moexray.readers.kineto_events import split

    raw = source.size_hint
    reader = _Reader(Columns(huge=raw > HUGE_BYTES))
    size = 0

    def pieces() -> Iterator[bytes]:
        nonlocal size
        for piece in _pieces(source, raw):
            size += len(piece)
            yield piece

    for part in split(pieces()):
        reader.take(part.kind, part.data)
    if not reader.is_trace:
        return False
    reader.finish(source, out, size)
    return True


def _pieces(source: Source, raw: int) -> Iterator[bytes]:
    """The whole content if it may be held at once, else pieces of some MiB."""
    if raw <= STREAM_BYTES:
        yield source.data()
        return
    held: list[bytes] = []
    for piece in source.chunks():
        held.append(piece)
        if sum(map(len, held)) >= PIECE:
            yield b"".join(held)
            held = []
    yield b"".join(held)


def from_document(document: Any, source: Source, out: Reading) -> bool:
    """A shape: a parsed trace, or events as JSON lines (damage was told by the parser already)."""
    from moexray.readers.kineto_columns import Columns
    from moexray.readers.kineto_events import Document, convert

    if isinstance(document, dict) and isinstance(document.get("traceEvents"), list):
        records, head = document["traceEvents"], {k: v for k, v in document.items() if k != "traceEvents"}
    elif isinstance(document, list) and document and _is_event(document[0]):
        records, head = document, {}
    else:
        return False
    import msgspec

    reader = _Reader(Columns())
    events, _ = convert(records)
    reader.note_head(msgspec.convert(head, Document))
    reader.columns.add(events)
    reader.finish(source, out, 0)
    return True


def _is_event(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("ph"), str) and "ts" in value


class _Reader:
    """Takes the parts of one trace in order."""

    def __init__(self, columns: Columns) -> None:
        from moexray.readers.json_mend import Repairs

        self.columns = columns
        self.repairs = Repairs()
        self.facts: dict[str, Any] = {}
        self.other_ranks: list[int] = []  # whose documents stand behind the first one
        self.array = self.is_trace = self.closed = False
        self.encoding = "utf-8"
        self.bom = False

    def take(self, kind: str, data: memoryview) -> None:
        """Takes the head, a chunk of events, or the last chunk with the tail."""
        if self.closed:  # the rest is another rank's
            return
        if kind == "head":
            self._head(bytes(data))
        elif kind == "events":
            self._events(data)
        else:
            self._last(bytes(data))

    def note_head(self, document: Document | None) -> None:
        """Keeps the facts of the top level."""
        if document is None:
            return
        for key in ("distributedInfo", "deviceProperties", "baseTimeNanoseconds", "traceName",
                    "with_stack", "profile_memory"):
            value = getattr(document, key)
            if value is not None:
                self.facts[key] = value

    def _head(self, data: bytes) -> None:
        from moexray.readers.kineto_events import decode_document

        if data == b"[":
            self.array = True
            return
        if data.startswith(b"\xef\xbb\xbf"):
            self.bom = True
        document = decode_document(data.removeprefix(b"\xef\xbb\xbf") + b"]}")
        if document is None:
            document = self._mended(data + b"]}", list_expected=False)
        self.note_head(document)

    def _events(self, data: memoryview) -> None:
        from moexray.readers.kineto_events import convert, decode_events

        events = decode_events(data)
        if events is None and (end := self._end_of_own(data)) is not None:
            self.closed = True
            self._last(bytes(data[:end]))
            return
        if events is None:
            records = self._parse(b"".join((b"[", data, b"]")))
            events, odd = convert(records if isinstance(records, list) else [])
            self.repairs.dropped += odd
        self.is_trace = True
        self.columns.add(events)

    def _end_of_own(self, data: memoryview) -> int | None:
        """Where the document of another rank begins in a chunk; None if none does."""
        from moexray.readers.kineto_events import OPENING, decode_document

        opening = OPENING.search(data)
        borders = list(BORDER.finditer(data, 0, opening.start())) if opening else []
        if opening is None or not borders:
            return None
        begin = borders[-1].end() - 1
        head = decode_document(bytes(data[begin : opening.end()]) + b"]}")
        rank = _noted_rank({"distributedInfo": head.distributedInfo}) if head else None
        if rank is None or rank == _noted_rank(self.facts):
            return None
        self.other_ranks.append(rank)
        return begin

    def _last(self, data: bytes) -> None:
        from moexray.readers.kineto_events import decode_document

        opening = b"[" if self.array else b'{"traceEvents":['
        document = decode_document(opening + data)
        if document is None:
            document = self._mended(opening + data, list_expected=True)
        if document is None:
            return
        events = document.traceEvents
        self.is_trace = self.is_trace or not self.array or any(e.ph and e.ts is not None for e in events)
        self.note_head(document)
        self.columns.add(events)

    def _mended(self, data: bytes, *, list_expected: bool) -> Document | None:
        """The document of damaged bytes; the damage is counted."""
        import msgspec

        from moexray.readers.kineto_events import Document, convert

        parsed = self._parse(data)
        if isinstance(parsed, list) and not self.array:
            parsed = self._joined([d for d in parsed if isinstance(d, dict)])
        if isinstance(parsed, list):
            parsed = {"traceEvents": parsed}
        if not isinstance(parsed, dict):
            return None
        records = parsed.pop("traceEvents", [])
        events, odd = convert(records if isinstance(records, list) else [])
        document = msgspec.convert(parsed, Document)
        if list_expected:
            self.repairs.dropped += odd
            document.traceEvents = events
        return document

    def _joined(self, documents: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Several documents in one file as one; those of another rank are left out."""
        if not documents:
            return None
        own = _noted_rank({**documents[0], **self.facts})
        ranks = [_noted_rank(d) for d in documents[1:]]
        self.other_ranks += [r for r in ranks if r is not None and r != own]
        same = [d for d, r in zip(documents[1:], ranks, strict=True) if r is None or r == own]
        lists = [d.get("traceEvents") for d in (documents[0], *same)]
        events = [e for found in lists if isinstance(found, list) for e in found]
        return {**documents[0], "traceEvents": events}

    def _parse(self, data: bytes) -> Any:
        from moexray.readers.tolerant_json import parse, to_text

        text, repairs, self.encoding = to_text(data)
        value, more = parse(text)
        repairs.add(more)
        offset = self.columns.events
        repairs.named = [_shifted(n, offset) for n in repairs.named]
        self.repairs.add(repairs)
        return value

    def finish(self, source: Source, out: Reading, size: int) -> None:
        """Writes the tables and names what was wrong."""
        from moexray.readers.kineto_finish import fill, input_problems
        from moexray.readers.tolerant_json import report

        columns = self.columns
        columns.finish()
        if not columns.events:
            raise ReadError("a trace without any event", where=source.path, hint="check the recording")
        out.reader = "kineto"
        self.repairs.records = columns.events
        if self.bom:
            out.problem("input.encoding", "the text is utf-8-sig, not plain UTF-8; it was read as such",
                        values={"encoding": "utf-8-sig"})  # fmt: skip
        report(self.repairs, out, end_mark_optional=self.array)
        if self.other_ranks:
            others = ", ".join(map(str, self.other_ranks[:SHOWN]))
            text = f"traces of other ranks ({others}) stand behind the first in this file and were left out"
            out.problem("input.rank_set", text, lost=None, values={"left_out": len(self.other_ranks)})
        rank = _rank(self.facts, source)
        dropped = fill(columns, self.facts, rank, source, out)
        input_problems(columns, dropped, out, array=self.array, size=size, huge_bytes=HUGE_BYTES)


def _shifted(name: str, offset: int) -> str:
    """"record 3 (x)" of a chunk -> "event 1003 (x)" of the file."""
    match = re.match(r"record ([0-9]+)(.*)", name, re.DOTALL)
    return f"event {int(match.group(1)) + offset}{match.group(2)}" if match else name


def _rank(facts: dict[str, Any], source: Source) -> int | None:
    """Rank from the content first, then from the file's name, the trace's own name, the nearest folder."""
    if (rank := _noted_rank(facts)) is not None:
        return rank
    own = str(facts.get("traceName", "")).rsplit("/", 1)[-1]
    return next((r for n in (source.name, own, source.path) if (r := rank_in_name(n)) is not None), None)


def _noted_rank(facts: Mapping[str, Any]) -> int | None:
    """The rank that a document notes at its top."""
    info = facts.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    return rank if isinstance(rank, int) else None
