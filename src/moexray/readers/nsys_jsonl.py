"""Nsight Systems exports as JSON lines (`nsys export --type jsonlines`, older: json); see nsys_export.py.

One event a line: CudaEvent (kernel, memcpy, memset), TraceProcessEvent (an API call), NvtxEvent. Numbers
stand in quotes, names are places in a table of strings that is a line of its own, before or after
the events (`data`), or one line a string. Layout: NVIDIA's page on the JSON export; names of the
fields: public programs that read such files, no file of the tool itself was at hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["read", "sniff"]

EVENTS = (b'"CudaEvent"', b'"TraceProcessEvent"', b'"NvtxEvent"')
STRINGS = (b'{"data":["', b'{"type":"String"')
LINE_BYTES = 64 << 20  # a longer line is no event, nor a table of strings that we hold
AT_ONCE = 50_000  # events
API_CALL = 48  # Type of a TraceProcessEvent of CUDA; 47 are calls of the operating system's libraries
KERNEL, MEMCPY, MEMSET, CALL, RANGE = range(5)


def sniff(head: bytes) -> bool:
    """Lines with one of the events, or a table of strings with the placeholders that all begin with."""
    start = head.lstrip()
    if not start.startswith(b"{"):
        return False
    if any(b'{"Type":' in head[:4096] and word in head for word in EVENTS):
        return True
    return start.startswith(STRINGS) and b"[Unknown]" in start[:400]


def read(source: Source, out: Reading) -> None:
    """Reads kernels, copies, API calls and NVTX ranges.

    Raises:
        ReadError: no event in it.
    """
    from moexray.readers import nsys_export

    decode = _decoder()
    strings = _strings(source, decode)
    kinds = [nsys_export.kind_of(name) for name in (
        "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET",
        "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")]  # fmt: skip
    held: list[list[dict[str, Any]]] = [[] for _ in kinds]
    got = nsys_export.Collected()
    bad = 0

    def flush(which: int) -> None:
        rows, kind = held[which], kinds[which]
        if rows:
            names = (*nsys_export.NUMBERS, *kind.texts)
            got.add(kind, {name: [row.get(name) for row in rows] for name in names}, strings)
            rows.clear()

    for line in source.lines(LINE_BYTES):
        if not any(word in line for word in EVENTS):
            continue
        record = decode(line)
        if record is None:
            bad += 1
            continue
        which, row = _event(record)
        if which is not None:
            held[which].append(row)
            if len(held[which]) >= AT_ONCE:
                flush(which)
    for which in range(len(kinds)):
        flush(which)
    if bad:
        out.problem(
            "input.truncated", f"{bad} lines are damaged or cut; they were left out", lost=bad,
            values={"lines": bad},
        )  # fmt: skip
    nsys_export.finish(got, None, source.path, out)


def _decoder() -> Any:
    import msgspec

    decoder = msgspec.json.Decoder()

    def decode(line: bytes) -> dict[str, Any] | None:
        try:
            value = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return value if isinstance(value, dict) else None

    return decode


def _strings(source: Source, decode: Any) -> dict[int, str]:
    """The table of strings, wherever it stands."""
    found: dict[int, str] = {}
    for line in source.lines(LINE_BYTES):
        start = line[:20].replace(b" ", b"")
        if not start.startswith(STRINGS):
            continue
        record = decode(line) or {}
        if isinstance(listed := record.get("data"), list):
            found |= {i: text for i, text in enumerate(listed) if isinstance(text, str)}
        elif (id := _whole(record.get("id"))) is not None:
            found[id] = str(record.get("value", ""))
    return found


def _whole(value: Any) -> int | None:
    """A number, in quotes or not; None for all else."""
    if type(value) is int:
        return value
    return int(value) if isinstance(value, str) and len(value) < 20 and value.isdigit() else None


def _event(record: dict[str, Any]) -> tuple[int | None, dict[str, Any]]:
    """(kind or None, row in the columns of nsys_export)."""
    for key in ("CudaEvent", "TraceProcessEvent", "NvtxEvent"):
        event = record.get(key)
        if isinstance(event, dict):
            break
    else:
        return None, {}
    if key == "NvtxEvent":
        text = event.get("Text")
        return RANGE, {
            "start": _whole(event.get("Timestamp")),
            "end": _whole(event.get("EndTimestamp")),
            "eventType": _whole(event.get("Type", record.get("Type"))),
            "globalTid": _whole(event.get("GlobalTid")),
            "text": text if isinstance(text, str) else None,
            "textId": _whole(event.get("TextId")),
        }
    row: dict[str, Any] = {
        "start": _whole(event.get("startNs")),
        "end": _whole(event.get("endNs")),
        "correlationId": _whole(event.get("correlationId")),
        "globalPid": _whole(event.get("globalPid")),
        "globalTid": _whole(event.get("globalTid")),
    }
    if key == "TraceProcessEvent":
        row["nameId"] = _whole(event.get("name"))
        return (CALL if record.get("Type", API_CALL) == API_CALL else None), row
    row |= {"deviceId": _whole(event.get("deviceId")), "streamId": _whole(event.get("streamId"))}
    for which, name in ((KERNEL, "kernel"), (MEMCPY, "memcpy"), (MEMSET, "memset")):
        more = event.get(name)
        if isinstance(more, dict):
            named = ("demangledName", "shortName", "mangledName", "copyKind")
            row |= {column: _whole(more.get(column)) for column in named}
            row["bytes"] = _whole(more.get("sizebytes"))
            return which, row
    return None, row
