"""Nsight Systems exports as SQLite (also gzipped); see nsys_export.py.

The file is opened read-only; only the tables that are read are allowed to SQLite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moexray.core.errors import LimitError, ReadError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["read", "sniff"]

MAGIC = b"SQLite format 3\0"
MAX_MEMORY_BYTES = 320 << 20  # a packed export is held twice while it is opened
MAX_STEPS = 2_000_000_000  # of SQLite's virtual machine, against hostile files
AT_ONCE = 50_000  # rows
MOST_COUNTED = 50_000_000  # rows of a table


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

    from moexray.readers.nsys_export import fill

    try:
        connection = _open(source)
        try:
            fill(_Database(connection), source.path, out)
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

    from moexray.readers.nsys_export import EVENT_TABLES, OTHER_TABLES

    if action == sqlite3.SQLITE_SELECT:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_READ and table in EVENT_TABLES | OTHER_TABLES | {"sqlite_master"}:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


class _Database:
    """An Export whose tables are those of a database; see nsys_export.Export."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        listed = connection.execute("SELECT name, type FROM sqlite_master")
        self.present = {name for name, kind in listed if kind == "table"}

    def count(self, table: str) -> int:
        """Rows of a table, counted here: functions of SQL are denied."""
        query = f'SELECT 1 FROM "{table}" LIMIT {MOST_COUNTED}'  # noqa: S608  # names are constants of ours
        return sum(1 for _ in self.connection.execute(query))

    def chunks(self, table: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The rows of a table in chunks of columns."""
        run = self.connection.execute
        have = [d[0] for d in run(f'SELECT * FROM "{table}" LIMIT 0').description]  # noqa: S608
        wanted = [c for c in columns if c in have]
        listed = ", ".join(f'"{c}"' for c in wanted) or "NULL"
        cursor = run(f'SELECT {listed} FROM "{table}"')  # noqa: S608  # names are constants of ours
        while rows := cursor.fetchmany(AT_ONCE):
            yield dict(zip(wanted, map(list, zip(*rows, strict=True)), strict=False))
