"""A Run: everything that was read, as tables with their provenance. Rules see nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from moexray.core.errors import SchemaError
from moexray.core.source import Problem
from moexray.core.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping

    import polars as pl

    from moexray.core.schema import Table

__all__ = ["Batch", "Input", "Reading", "Row", "Run", "Skipped", "build_run", "merge"]

Row = dict[str, Any]
T = TypeVar("T")
_TABLES: dict[str, Table] = {t.name: t for t in TABLES}


@dataclass(frozen=True, slots=True)
class Batch:
    """What one file gave to one table, as columns (lists or numpy arrays of equal length).

    `attrs` are facts of the whole batch (rank, device, schema version, clock), not of a row.
    """

    table: str
    source: str
    columns: Mapping[str, Any]
    attrs: Mapping[str, Any]


@dataclass(slots=True)
class Reading:
    """What one reader took out of one file; filled by the reader, then frozen into the Run.

    Small tables are filled row by row with `add`; big ones (trace events, snapshot history,
    counts) as arrays with `add_columns`.
    """

    reader: str
    rows: int = 0
    tables: dict[str, list[Row]] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, table: str, /, *, where: str, **columns: Any) -> None:
        """Adds one row; `where` is its line, row or place in the file. Counts as one record."""
        _TABLES[table].check(columns)
        self.tables.setdefault(table, []).append({"where": where, **columns})
        self.rows += 1

    def add_columns(
        self, table: str, columns: Mapping[str, Any], *, source: str, rows: int, **attrs: Any
    ) -> None:
        """Adds a batch of arrays that count as `rows` records."""
        _TABLES[table].check(columns)
        if len({len(c) for c in columns.values()}) > 1:
            raise SchemaError(f"columns of {table} differ in length")
        self.batches.append(Batch(table, source, columns, attrs))
        self.rows += rows

    def problem(self, id: str, text: str, **more: Any) -> None:
        """Notes something wrong with the file; see core.source.Problem for the keys."""
        self.problems.append(Problem(id, text, **more))


@dataclass(frozen=True, slots=True)
class Input:
    """A file that was read."""

    path: str
    reader: str
    rows: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that gave nothing, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Run:
    """All tables of all files. Immutable; rows become polars frames on first access only."""

    inputs: tuple[Input, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    problems: tuple[tuple[str, Problem], ...] = ()
    tables: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    arrays: Mapping[str, tuple[Batch, ...]] = field(default_factory=dict)
    _derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, make: Callable[..., T], *args: Hashable) -> T:
        """`make(run, *args)`, worked out at the first call and kept with the run; nobody may change it."""
        key = (make, args)
        if key not in self._derived:
            self._derived[key] = make(self, *args)
        return cast("T", self._derived[key])

    @property
    def present(self) -> frozenset[str]:
        """Names of the tables that hold anything."""
        return frozenset(self.tables) | frozenset(self.arrays)

    def rows(self, table: str) -> tuple[Row, ...]:
        """Rows of a small table; each has `source`, `where` and every declared column (or None)."""
        return self.tables.get(table, ())

    def batches(self, table: str) -> tuple[Batch, ...]:
        """Array batches of a big table, one per file (or per file and device)."""
        return self.arrays.get(table, ())

    def nothing_found(self) -> str:
        """Why a table may be empty, for errors: files that gave nothing, then what was wrong with others."""
        told = {s.path: s.reason for s in self.skipped}
        for path, problem in self.problems:
            told.setdefault(path, problem.text)
        named = [f"{path}: {text}" for path, text in told.items()][:3]
        return "; ".join(named) or "nothing of the kind in what was given"

    def by_source(self, table: str) -> Iterator[tuple[str, tuple[Row, ...]]]:
        """Rows grouped by file, in the order of the files."""
        groups: dict[str, list[Row]] = {}
        for row in self.rows(table):
            groups.setdefault(row["source"], []).append(row)
        for source, rows in groups.items():
            yield source, tuple(rows)

    def frame(self, table: str) -> pl.DataFrame:
        """The table as a polars frame, provenance columns first."""
        import polars as pl

        schema = _TABLES[table].schema()
        parts: list[pl.DataFrame] = []
        if rows := self.rows(table):
            full = {"source": pl.String, "where": pl.String, **schema}
            parts.append(pl.DataFrame(list(rows), schema=full, strict=False))
        for batch in self.batches(table):
            frame = pl.DataFrame(dict(batch.columns))
            lists = [c for c in frame.columns if isinstance(frame.schema[c], pl.Array)]
            frame = frame.with_columns(pl.col(c).arr.to_list() for c in lists).with_columns(
                pl.lit(batch.source).alias("source"), pl.lit(None, pl.String).alias("where")
            )
            missing = [pl.lit(None, t).alias(n) for n, t in schema.items() if n not in frame.columns]
            frame = frame.with_columns(*missing) if missing else frame
            casts = [pl.col(n).cast(t) for n, t in schema.items() if t is not pl.Object]
            parts.append(frame.with_columns(*casts).select("source", "where", *schema))
        if not parts:
            return pl.DataFrame(schema={"source": pl.String, "where": pl.String, **schema})
        return pl.concat(parts, how="vertical_relaxed")


def build_run(readings: list[tuple[str, Reading]], skipped: list[Skipped]) -> Run:
    """Freezes the readings of many files, in their order, into one Run."""
    tables: dict[str, list[Row]] = {}
    arrays: dict[str, list[Batch]] = {}
    for path, reading in readings:
        for name, rows in reading.tables.items():
            blank = dict.fromkeys(_TABLES[name].names)
            tables.setdefault(name, []).extend({**blank, "source": path, **row} for row in rows)
        for batch in reading.batches:
            named = batch if batch.source else replace(batch, source=path)
            arrays.setdefault(batch.table, []).append(named)
    return Run(
        inputs=tuple(Input(p, r.reader, r.rows, tuple(r.notes)) for p, r in readings if r.rows),
        skipped=tuple(skipped),
        problems=tuple((p, problem) for p, r in readings for problem in r.problems),
        tables={n: tuple(r) for n, r in tables.items()},
        arrays={n: tuple(b) for n, b in arrays.items()},
    )


def merge(runs: list[Run]) -> Run:
    """Joins runs (several saved ones, or the artefacts of several ranks) in their order."""
    if len(runs) == 1:
        return runs[0]
    names = {n for r in runs for n in r.tables}
    arrays = {n for r in runs for n in r.arrays}
    return Run(
        inputs=tuple(i for r in runs for i in r.inputs),
        skipped=tuple(s for r in runs for s in r.skipped),
        problems=tuple(p for r in runs for p in r.problems),
        tables={n: tuple(x for r in runs for x in r.rows(n)) for n in names},
        arrays={n: tuple(b for r in runs for b in r.batches(n)) for n in arrays},
    )
