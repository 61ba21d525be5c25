"""Nsight Systems exports (SQLite, also gzipped) -> the table trace, one batch per process.

The file is opened read-only and only from the tables of events; tables with environments, host names
and command lines are never touched. Times are nanoseconds, moved to epoch time where the session start
is recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moexray.core.errors import LimitError, ReadError
from moexray.core.rank_name import rank_in_name
from moexray.core.tables.timeline import CATEGORIES

if TYPE_CHECKING:
    import sqlite3

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["read", "sniff"]

MAGIC = b"SQLite format 3\0"
MAX_MEMORY_BYTES = 320 << 20  # a packed export is held twice while it is opened
MAX_ROWS = 4_000_000  # per table
MAX_STEPS = 2_000_000_000  # of SQLite's virtual machine, against hostile files
RANGES = (59, 60)  # NVTX push/pop and start/end
PID = 0xFFFFFF

# (table, category, columns): start, end, process or thread, device, stream, correlation, name, bytes.
TABLES = (
    ("CUPTI_ACTIVITY_KIND_KERNEL", "kernel", ("demangledName", "shortName", "mangledName")),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", "memcpy", ()),
    ("CUPTI_ACTIVITY_KIND_MEMSET", "memset", ()),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", "runtime", ("nameId",)),
    ("NVTX_EVENTS", "annotation", ("text", "textId")),
)
NEEDED = {name for name, _, _ in TABLES}
OTHERS = {"StringIds", "TARGET_INFO_SESSION_START_TIME", "ANALYSIS_DETAILS", "sqlite_master"}


def sniff(head: bytes) -> bool:
    """The magic of SQLite files; other databases are refused by `read`."""
    return head.startswith(MAGIC)


def read(source: Source, out: Reading) -> None:
    """Reads kernels, copies, runtime calls and NVTX ranges.

    Raises:
        LimitError: a packed export too large to be opened in memory.
        ReadError: a database without event tables, or a damaged one.
    """
    import sqlite3

    try:
        connection = _open(source)
        try:
            _fill(connection, source, out)
        finally:
            connection.close()
    except sqlite3.Error as why:
        raise ReadError(
            f"a damaged or hostile SQLite file ({why})",
            where=source.path,
            hint="export it again with nsys export",
        ) from why


def _open(source: Source) -> sqlite3.Connection:
    import sqlite3

    if source.file is not None and not source.compression:
        path = source.file.resolve().as_uri()
        connection = sqlite3.connect(f"{path}?mode=ro&immutable=1", uri=True)
    else:
        data = source.data()
        if len(data) > MAX_MEMORY_BYTES:
            raise LimitError(
                f"a packed export of {len(data) >> 20} MiB",
                where=source.path,
                hint="unpack it and give the .sqlite",
            )
        connection = sqlite3.connect(":memory:")
        connection.deserialize(data)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute("PRAGMA query_only=ON")
    budget = [MAX_STEPS // 100_000]

    def spend() -> bool:
        budget[0] -= 1
        return budget[0] < 0

    connection.set_progress_handler(spend, 100_000)
    connection.set_authorizer(_allow)
    return connection


def _allow(action: int, table: str | None, _column: str | None, _base: str | None, _by: str | None) -> int:
    """Reading of the event tables only; no functions, views, attachments or writes."""
    import sqlite3

    if action == sqlite3.SQLITE_SELECT:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_READ and table in NEEDED | OTHERS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


class _Collected:
    """Rows of all tables with shared names and lanes."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.lanes: dict[tuple[int, int], int] = {}
        # process, start, end, category, name, lane, device, stream, correlation, bytes
        self.rows: list[tuple[int, ...]] = []
        self.skipped = 0

    def name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names))

    def lane(self, process: int, track: int) -> int:
        return self.lanes.setdefault((process, track), len(self.lanes))


def _fill(connection: sqlite3.Connection, source: Source, out: Reading) -> None:
    present = {
        name for name, kind in connection.execute("SELECT name, type FROM sqlite_master") if kind == "table"
    }
    if not present & (NEEDED - {"NVTX_EVENTS"}):
        raise ReadError(
            "a SQLite file without event tables of Nsight Systems",
            where=source.path,
            hint="nsys export --type sqlite of a profile with -t cuda",
        )
    strings = dict(connection.execute("SELECT id, value FROM StringIds")) if "StringIds" in present else {}
    got = _Collected()
    for table, category, texts in TABLES:
        if table in present:
            _table(connection, table, CATEGORIES.index(category), texts, strings, got)
    if not got.rows:
        raise ReadError("an Nsight Systems export without any event", where=source.path)
    if got.skipped:
        out.problem(
            "input.negative_duration",
            f"{got.skipped} events have impossible times; they were left out",
            lost=got.skipped,
            values={"dropped": got.skipped},
        )
    out.reader = "nsys"
    _batches(got, _shift(connection, present, min(r[1] for r in got.rows)), source, out)


def _table(
    connection: sqlite3.Connection, table: str, category: int, texts: tuple[str, ...],
    strings: dict[int, str], got: _Collected,
) -> None:  # fmt: skip
    """Takes one table; columns that this version of the export lacks count as unknown."""
    have = [d[0] for d in connection.execute(f'SELECT * FROM "{table}" LIMIT 0').description]  # noqa: S608
    wanted = ["start", "end", "globalPid", "globalTid", "deviceId", "streamId", "correlationId", "bytes",
              "copyKind", "eventType", *texts]  # fmt: skip
    listed = ", ".join(f'"{c}"' if c in have else "NULL" for c in wanted)
    query = f'SELECT {listed} FROM "{table}" LIMIT {MAX_ROWS}'  # noqa: S608  # names are constants above
    for row in connection.execute(query):
        start, end, pid, tid, device, stream, correlation, size, kind, event, *names = row
        if table == "NVTX_EVENTS" and (event not in RANGES or end is None):
            continue
        if not isinstance(start, int) or not isinstance(end, int) or not 0 <= start <= end < 1 << 62:
            got.skipped += 1
            continue
        text = next((_text(n, strings) for n in names if n is not None), None) or _plain(table, kind)
        process = int((pid if pid is not None else tid or 0) >> 24) & PID
        on_device = isinstance(device, int)
        track = -1 - int(stream or 0) - (int(device) << 20) if on_device else int(tid or 0) & PID
        got.rows.append(
            (
                process, start, end, category, got.name(text), got.lane(process, track),
                int(device) if on_device else -1, int(stream or 0) if on_device else -1,
                correlation if isinstance(correlation, int) else -1, size if isinstance(size, int) else -1,
            )
        )  # fmt: skip


def _text(value: Any, strings: dict[int, str]) -> str:
    text = strings.get(value, "") if isinstance(value, int) else str(value)
    return text.partition("_v")[0] if text.startswith(("cuda", "cu")) and text[-4:].isdigit() else text


def _plain(table: str, kind: Any) -> str:
    names = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
    return f"Memcpy {names.get(kind, '')}".strip() if "MEMCPY" in table else "Memset"


def _shift(connection: sqlite3.Connection, present: set[str], first: int) -> int:
    """What to add to times to get epoch ns; 0 where the session start is not recorded."""
    if "TARGET_INFO_SESSION_START_TIME" not in present:
        return 0
    query = "SELECT utcEpochNs, systemClockNs FROM TARGET_INFO_SESSION_START_TIME"
    row = connection.execute(query).fetchone()
    if not row or not all(isinstance(v, int) for v in row):
        return 0
    epoch, clock = row
    normalised = first < clock  # such times count from the start of the session
    return int(epoch if normalised else epoch - clock)


def _batches(got: _Collected, shift: int, source: Source, out: Reading) -> None:
    import numpy as np

    table = np.array(got.rows, np.int64)
    lanes = [(process, track, "") for process, track in got.lanes]
    processes = np.unique(table[:, 0]).tolist()
    for process in processes:
        mine = table[table[:, 0] == process]
        mine = mine[np.argsort(mine[:, 1], kind="stable")]
        keys = ("category", "name", "lane", "device", "stream", "correlation", "bytes")
        columns: dict[str, Any] = {key: mine[:, 3 + i] for i, key in enumerate(keys)}
        columns |= {"ts_ns": mine[:, 1] + shift, "dur_ns": mine[:, 2] - mine[:, 1]}
        out.add_columns(
            "trace",
            columns,
            source=source.path,
            rows=len(mine),
            names=list(got.names),
            lanes=lanes,
            rank=rank_in_name(source.path) if len(processes) == 1 else None,
            world_size=None,
            groups=[],
            devices=[],
            format="nsys",
            base_ns=shift,
            resolution_ns=1,
            label=f"process {process}",
        )
