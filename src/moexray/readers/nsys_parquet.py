"""Nsight Systems exports as a folder of Parquet files, one a table (parquetdir); see nsys_export.py.

The files of a folder are one artefact: read_any gives them as the parts of one Source.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from moexray.core.errors import LimitError, MoexrayError, ReadError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import polars as pl

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["MAGIC", "read", "sniff"]

MAGIC = b"PAR1"
MAX_TABLE_ROWS = 20_000_000  # a few bytes of Parquet may claim any number of rows
AT_ONCE = 250_000  # rows


def sniff(head: bytes) -> bool:
    """The magic of Parquet; files of no known table are refused by `read`."""
    return head.startswith(MAGIC)


def read(source: Source, out: Reading) -> None:
    """Reads the event tables among the parts of the source.

    Raises:
        ReadError: none of them is a table of events, or the one of kernels is damaged.
    """
    from moexray.readers.nsys_export import fill

    folder = _Folder(source.parts or (source,), out)
    fill(folder, source.path, out)


class _Folder:
    """An Export whose tables are files; see nsys_export.Export."""

    def __init__(self, parts: tuple[Source, ...], out: Reading) -> None:
        from moexray.readers.nsys_export import EVENT_TABLES, OTHER_TABLES

        named = {part.name.partition(".")[0]: part for part in parts}
        self.parts = {name: part for name, part in named.items() if name in EVENT_TABLES | OTHER_TABLES}
        self.present = set(self.parts)
        self.out = out

    def count(self, table: str) -> int:
        """Rows of a table; 0 for a damaged one."""
        try:
            return _rows(_held(self.parts[table]))
        except BaseException as why:  # as in chunks, which tells it
            if isinstance(why, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            return 0

    def chunks(self, table: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The rows of a table in chunks of columns; a damaged table is told and gives what it has."""
        part = self.parts[table]
        try:
            yield from _chunks(part, columns)
        except (MoexrayError, GeneratorExit):
            raise
        except BaseException as why:  # polars tells damage by errors of its own and by panics
            if isinstance(why, KeyboardInterrupt | SystemExit | MemoryError):
                raise
            text = f"the table {table} cannot be read ({' '.join(str(why).split())[:120]})"
            self.out.problem("input.truncated", text, where=part.path, lost=None)
        finally:
            part.release()


def _chunks(part: Source, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    import polars as pl

    held = _held(part)
    schema = pl.read_parquet_schema(held)
    count = _rows(held)
    if count > MAX_TABLE_ROWS:
        raise LimitError(
            f"a table of {count:,} rows", where=part.path, hint="export a part of it: nsys export --times"
        )
    wanted = [c for c in columns if c in schema]
    if not wanted:
        raise ReadError("a table without any known column", where=part.path)
    frames = pl.scan_parquet(held).select(wanted)
    for at in range(0, count, AT_ONCE):
        frame = frames.slice(at, AT_ONCE).collect()
        yield {name: _column(frame[name]) for name in wanted}


def _held(part: Source) -> Any:
    return part.file if part.file is not None and not part.compression else io.BytesIO(part.data())


def _rows(held: Any) -> int:
    import polars as pl

    found = pl.scan_parquet(held).select(pl.len()).collect().item()
    return int(found)


def _column(series: pl.Series) -> Any:
    """An array of integers with -1 for unknown, or a list of texts."""
    import polars as pl

    if series.dtype == pl.UInt64:
        series = series.reinterpret(signed=True)
    if series.dtype.is_integer():
        return series.cast(pl.Int64).fill_null(-1).to_numpy()
    if series.dtype in (pl.Categorical, pl.Enum, pl.Binary):
        series = series.cast(pl.String, strict=False)
    return series.to_list()
