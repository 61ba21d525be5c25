"""NCCL_DEBUG lines: communicators, transports of channels, warnings about links, counts per peer.

`host:pid:tid [device] NCCL LEVEL text`; launchers put prefixes before it, so we search.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.readers.lines.comm_common import raw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.run import Reading
    from moexray.readers.lines.line import Line

__all__ = ["parse"]

LINE = lazy(
    r"(?P<process>[\w.-]+:\d+):\d+ \[(?P<device>\d+|-1)\] (?:[\d.]+ )?NCCL (?P<level>INFO|WARN) (?P<text>.*)"
)
INIT = lazy(
    r"comm (0x[0-9a-f]+) rank (\d+) nranks (\d+).*?(?:commId (0x[0-9a-f]+))?"
    r"(?: - (?P<what>Init START|Init COMPLETE|Destroy|Abort).*)?$"
)
CHANNEL = lazy(
    r"Channel \d+(?:/\d+)? ?: (\d+)\[\w+\] -> (\d+)\[\w+\](?: \[(?:send|receive)\])? via (\S+)", re.IGNORECASE
)
VIA = lazy(r"NET/[A-Za-z]+|P2P|SHM|NVLS|COLLNET|MNNVL")
COUNT = lazy(
    r"(?P<what>Send|Recv): opCount (?P<number>[0-9a-f]+) .*?count (?P<count>\d+) datatype (?P<type>\d+) "
    r".*?root (?P<peer>\d+) comm (?P<comm>0x[0-9a-f]+) \[nranks=(?P<ranks>\d+)\]"
)
FAULT = lazy(
    r"status=\d+|async event|failed|failure|mismatch|timed? ?out|error|closed by|retry|unreachable"
    r"|fall(?:ing|s)? ?back",
    re.IGNORECASE,
)
FALLBACK = lazy(
    r"No device found|Using network Socket|falling back to socket|Failed to open libibverbs", re.IGNORECASE
)
MAX_MATRICES = 64  # all-to-all calls kept of one log: the last ones before the trouble count
LINKS_KEPT = 4096


def parse(lines: Sequence[Line], out: Reading) -> None:
    """Adds comm_link rows, and a matrix per operation whose Send/Recv lines stand in the log."""
    rows: list[dict[str, Any]] = []
    ranks: dict[tuple[str, str], tuple[int, str]] = {}  # (process, address) -> (rank, communicator)
    latest: dict[str, tuple[str, int, int]] = {}  # process -> (communicator, rank, ranks)
    counts: list[tuple[Line, str, int, re.Match[str]]] = []
    for line in lines:
        text = raw(line)
        if "NCCL " not in text or (m := LINE.search(text)) is None:
            continue
        process, message = m["process"], m["text"]
        if (c := COUNT.search(message)) is not None:
            counts.append((line, process, int(m["device"]), c))
        elif (i := INIT.search(message)) is not None:
            _init(rows, line, process, i, ranks, latest)
        elif (c := CHANNEL.search(message)) is not None:
            _channel(rows, line, process, c, latest)
        elif (m["level"] == "WARN" and FAULT.search(message)) or FALLBACK.search(message):
            comm, rank, size = latest.get(process, (None, None, None))
            rows.append(
                {
                    "where": f"line {line.number}",
                    "kind": "warn",
                    "process": process,
                    "comm": comm,
                    "rank": rank,
                    "ranks": size,
                    "text": text[:1000],
                }
            )
    for row in rows[:LINKS_KEPT]:
        out.add("comm_link", **row)
    if counts:
        _matrices(counts, ranks, out)


def _init(
    rows: list[dict[str, Any]],
    line: Line,
    process: str,
    m: re.Match[str],
    ranks: dict[tuple[str, str], tuple[int, str]],
    latest: dict[str, tuple[str, int, int]],
) -> None:
    address, rank, size = m[1], int(m[2]), int(m[3])
    comm = m[4] or ranks.get((process, address), (0, address))[1]
    if (m["what"] or "").startswith(("Destroy", "Abort")):
        for row in rows:
            if row["comm"] == comm:
                row["destroyed"] = True
        latest.pop(process, None)
        return
    known = ranks.get((process, address)) == (rank, comm)
    ranks[process, address] = (rank, comm)
    latest[process] = (comm, rank, size)
    if not known:
        rows.append(
            {
                "where": f"line {line.number}",
                "kind": "init",
                "process": process,
                "comm": comm,
                "rank": rank,
                "ranks": size,
                "text": raw(line)[:1000],
            }
        )


def _channel(
    rows: list[dict[str, Any]],
    line: Line,
    process: str,
    m: re.Match[str],
    latest: dict[str, tuple[str, int, int]],
) -> None:
    """A channel belongs to the communicator that its process initialised last."""
    comm, rank, size = latest.get(process, (None, None, None))
    via = VIA.match(m[3].upper().replace("SOCKET", "Socket"))
    rows.append(
        {
            "where": f"line {line.number}",
            "kind": "channel",
            "process": process,
            "comm": comm,
            "rank": rank,
            "ranks": size,
            "src": int(m[1]),
            "dst": int(m[2]),
            "via": via[0] if via else m[3],
            "text": raw(line)[:1000],
        }
    )


def _matrices(
    counts: list[tuple[Line, str, int, re.Match[str]]],
    ranks: dict[tuple[str, str], tuple[int, str]],
    out: Reading,
) -> None:
    """Send and Recv lines of one operation are the rows of its two matrices.

    A rank is known from its communicator's init line; without one, from the device where all
    processes of the communicator run on one host (devices are then counted as ranks are).
    """
    devices = {(process, c["comm"]): device for _, process, device, c in counts}
    one_host = len({process.partition(":")[0] for process, _ in devices}) == 1
    cells: dict[tuple[str, str, str], dict[tuple[int, int], int]] = {}
    sizes: dict[tuple[str, str, str], int] = {}
    for _, process, device, c in counts:
        known = ranks.get((process, c["comm"]))
        size = int(c["ranks"])
        if known is None and not (one_host and device < size):
            continue
        rank, comm = known or (device, "")
        for what in ("Send", "Recv"):
            sizes.setdefault((comm, c["number"], what), size)
        key = (comm, c["number"], c["what"])
        table = cells.setdefault(key, {})
        cell = (rank, int(c["peer"]))
        table[cell] = table.get(cell, 0) + int(c["count"])
    whole = [(k, t) for k, t in cells.items() if len(t) == sizes[k] ** 2]
    for (comm, number, what), table in whole[-2 * MAX_MATRICES :]:
        size = sizes[comm, number, what]
        out.add_columns(
            "a2a_matrix",
            {
                "row": [r for r, _ in table],
                "col": [c for _, c in table],
                "value": [float(v) for v in table.values()],
            },
            source="",
            rows=size,
            name=f"{what} lines",
            rows_are="sender" if what == "Send" else "receiver",
            quantity="sent" if what == "Send" else "received",
            quantity_from="content",
            unit="elements",
            slice=f"{comm} opCount {number}".strip(),
            size=size,
        )
