"""NCCL Inspector dumps (profiler plug-in): a JSON object per timed operation -> the table comm_perf.

Read as a stream, an object a line, as the plug-in writes them; ranks of one job are several files.
Names of the fields: the plug-in's own documentation and writer (formats v4.0 and v5.0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["inspector_json", "read", "sniff"]

SIGNS = (b'"coll_perf"', b'"p2p_perf"')
LINE_BYTES = 4 << 20  # a longer line is no record
MOST_RECORDS = 6_000_000  # about 80 bytes each as columns
MOST = 1 << 62
TEXTS = ("comm", "op", "timing")
WHOLE = ("comm", "rank", "ranks", "op", "seq", "peer", "bytes", "timing", "start_ns", "dumped_ns")


def sniff(head: bytes) -> bool:
    """An object a line, with a header and the figures of an operation."""
    first = head.lstrip().partition(b"\n")[0]
    return first.startswith(b"{") and b'"header"' in first and any(sign in first for sign in SIGNS)


def read(source: Source, out: Reading) -> None:
    """Reads the records.

    Raises:
        ReadError: no whole record in it.
    """
    import msgspec

    from moexray.core.errors import ReadError

    decode = msgspec.json.Decoder().decode
    columns = _Columns()
    bad = 0
    for line in source.lines(LINE_BYTES):
        if not line.strip():
            continue
        try:
            record = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            bad += 1
            continue
        columns.take(record)
    if bad:
        text = f"{bad} lines are damaged or cut; they were left out"
        out.problem("input.truncated", text, lost=bad, values={"lines": bad})
    if not columns.fill(source, out):
        raise ReadError("no whole record of NCCL Inspector in it", where=source.path)


def inspector_json(document: Any, source: Source, out: Reading) -> bool:
    """A shape: the same objects written over several lines, or as a list."""
    records = document if isinstance(document, list) else [document]
    columns = _Columns()
    for record in records:
        columns.take(record)
    return columns.fill(source, out)


class _Columns:
    """Rows as they are gathered, with shared texts."""

    def __init__(self) -> None:
        from array import array

        self.whole = {name: array("q") for name in WHOLE}
        self.real = {name: array("d") for name in ("exec_s", "bus_gbs")}
        self.texts: dict[str, dict[str, int]] = {name: {} for name in TEXTS}
        self.names: dict[str, str] = {}
        self.odd = self.left_out = 0

    def take(self, record: Any) -> None:
        """Adds a record; one without communicator, rank or time is counted and left out."""
        kind = next((k for k in ("coll", "p2p") if isinstance(record, dict) and f"{k}_perf" in record), None)
        if kind is None:
            return  # a summary or another object of the plug-in
        header, perf = record.get("header"), record[f"{kind}_perf"]
        meta = record.get("metadata")
        if not isinstance(header, dict) or not isinstance(perf, dict):
            self.odd += 1
            return
        if len(self.real["exec_s"]) >= MOST_RECORDS:
            self.left_out += 1
            return
        rank, took = _whole(header.get("rank")), _real(perf.get(f"{kind}_exec_time_us"))
        if rank < 0 or not took >= 0:  # NaN, too
            self.odd += 1
            return
        comm = str(header.get("id", ""))[:80]
        if isinstance(name := header.get("comm_name"), str) and name:
            self.names[comm] = name[:80]
        row = {
            "comm": self._code("comm", comm),
            "rank": rank,
            "ranks": _whole(header.get("n_ranks")),
            "op": self._code("op", str(perf.get(kind, ""))[:40]),
            "seq": _whole(perf.get(f"{kind}_sn")),
            "peer": _whole(perf.get("p2p_peer")),
            "bytes": _whole(perf.get(f"{kind}_msg_size_bytes")),
            "timing": self._code("timing", str(perf.get(f"{kind}_timing_source", ""))[:40]),
            "start_ns": _start(perf),
            "dumped_ns": _ns(meta.get("dump_timestamp_us")) if isinstance(meta, dict) else -1,
        }
        for name, value in row.items():
            self.whole[name].append(value)
        self.real["exec_s"].append(took / 1e6)
        self.real["bus_gbs"].append(_real(perf.get(f"{kind}_busbw_gbs")))

    def _code(self, name: str, text: str) -> int:
        return self.texts[name].setdefault(text, len(self.texts[name]))

    def fill(self, source: Source, out: Reading) -> bool:
        """Adds the batch; whether there was any record."""
        import numpy as np

        rows = len(self.real["exec_s"])
        if self.odd and rows:
            text = f"{self.odd} records without rank or execution time were left out"
            out.problem("input.dirty_table", text, lost=self.odd, values={"records": self.odd})
        if self.left_out:
            text = f"only the first {MOST_RECORDS:,} records were read"
            out.problem("input.huge", text, lost=self.left_out)
        if not rows:
            return False
        columns = {name: np.array(values, np.int64) for name, values in self.whole.items()}
        columns |= {name: np.array(values, np.float64) for name, values in self.real.items()}
        comms, ops, timings = (list(self.texts[name]) for name in TEXTS)
        names = [self.names.get(comm, "") for comm in comms]
        out.reader = "nccl inspector"
        out.add_columns(
            "comm_perf", columns, source=source.path, rows=rows, comms=comms, names=names, ops=ops,
            timings=timings,
        )  # fmt: skip
        return True


def _whole(value: Any) -> int:
    """A whole number that a measure can have; -1 for all else."""
    return value if type(value) is int and 0 <= value < MOST else -1


def _real(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) >= MOST:
        return float("nan")
    return float(value)


def _ns(us: Any) -> int:
    found = _whole(us)
    return found * 1000 if 0 <= found < MOST // 1000 else -1


def _start(perf: dict[str, Any]) -> int:
    """When the first channel's kernel began, ns; -1 where the dump is not verbose."""
    times = perf.get("event_trace_ts")
    listed = times.get("kernel_events") if isinstance(times, dict) else None
    listed = listed if isinstance(listed, list) else perf.get("events")  # v5 lists every event
    found = []
    for event in listed if isinstance(listed, list) else []:
        if isinstance(event, dict):
            inner = event.get("event_trace_ts")
            holder = inner if isinstance(inner, dict) else event
            found.append(_ns(holder.get("kernel_start_ts")))
    return min((t for t in found if t > 0), default=-1)
