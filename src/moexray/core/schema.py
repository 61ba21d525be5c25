"""Tables are declared once: each column has a name, a type, a unit and a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from moexray.core.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

__all__ = ["Column", "Kind", "Table"]

Kind = Literal["int", "float", "str", "bool", "object"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Args:
        name: Lower case; the unit ends the name (`dur_ns`, `free_bytes`, `idle_frac`).
        kind: int (64 bit), float (64 bit), str, bool, or object (a small Python value).
        unit: "" for counts and names, else "bytes", "ns", "s", "ratio", ...
        doc: One sentence for docs/tables.md.
    """

    name: str
    kind: Kind
    unit: str
    doc: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table's name, meaning and columns; the columns never depend on the input.

    Unknown is null (None, NaN in float arrays), never 0 or -1. A batch that a reader adds may
    leave columns out; they count as unknown.
    """

    name: str
    doc: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> frozenset[str]:
        """Names of the declared columns."""
        return frozenset(c.name for c in self.columns)

    def check(self, columns: Mapping[str, Any]) -> None:
        """Refuses columns that the table does not declare.

        Raises:
            SchemaError: a column is unknown.
        """
        if unknown := set(columns) - self.names:
            raise SchemaError(f"table {self.name} has no column {', '.join(sorted(unknown))}")

    def schema(self) -> dict[str, pl.DataType | type[pl.DataType]]:
        """The polars schema of a frame of this table (without the provenance columns)."""
        import polars as pl

        types: dict[Kind, Any] = {
            "int": pl.Int64,
            "float": pl.Float64,
            "str": pl.String,
            "bool": pl.Boolean,
            "object": pl.Object,
        }
        return {c.name: types[c.kind] for c in self.columns}
