"""A Run on disk: a folder of Parquet files with a manifest, `moexray.run/1`.

Layout: `manifest.json` (inputs, skipped, problems, one entry per part) and `<table>-<n>.parquet`.
Columns of kind object are JSON text. What was saved loads to an equal Run.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from moexray.core.errors import ReadError, UsageError
from moexray.core.run import Batch, Input, Row, Run, Skipped
from moexray.core.source import MAX_LOAD_BYTES, Problem
from moexray.core.tables import TABLES

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from moexray.core.schema import Table

__all__ = ["SCHEMA", "is_saved", "load", "save"]

SCHEMA = "moexray.run/1"
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 64 << 20
_TABLES: dict[str, Table] = {t.name: t for t in TABLES}


def save(run: Run, folder: Path, *, force: bool = False) -> None:
    """Writes a Run; the manifest last, so that a broken save is never taken for a Run.

    Raises:
        UsageError: the folder holds files and `force` is not set.
    """
    import numpy as np
    import polars as pl

    if folder.exists() and any(folder.iterdir()) and not force:
        raise UsageError(f"{folder} is not empty", hint="--force overwrites what was saved there")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    for old in folder.glob("*.parquet"):
        old.unlink()
    parts: list[dict[str, Any]] = []
    for name, rows in run.tables.items():
        kinds = {c.name: c.kind for c in _TABLES[name].columns}
        columns = {
            key: [json.dumps(r[key]) if kinds.get(key) == "object" else r[key] for r in rows]
            for key in ("source", "where", *kinds)
        }
        schema = {"source": pl.String, "where": pl.String, **_TABLES[name].schema()}
        schema = {k: pl.String if kinds.get(k) == "object" else t for k, t in schema.items()}
        file = f"{name}-rows.parquet"
        pl.DataFrame(columns, schema=schema, strict=False).write_parquet(folder / file)
        parts.append({"table": name, "file": file, "kind": "rows"})
    for name, batches in run.arrays.items():
        for i, batch in enumerate(batches):
            file = f"{name}-{i}.parquet"
            filled: dict[str, Any] = {
                k: v if isinstance(v, list) else np.asarray(v) for k, v in batch.columns.items()
            }
            pl.DataFrame(filled).write_parquet(folder / file)
            attrs = json.loads(json.dumps(dict(batch.attrs), default=_plain))
            part = {"table": name, "file": file, "kind": "array", "source": batch.source}
            parts.append({**part, "attrs": attrs})
    manifest = {
        "schema": SCHEMA,
        "inputs": [asdict(i) for i in run.inputs],
        "skipped": [asdict(s) for s in run.skipped],
        "problems": [{"path": p, **asdict(x)} for p, x in run.problems],
        "parts": parts,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, default=_plain), encoding="utf-8")


def is_saved(folder: Path) -> bool:
    """Whether a folder holds a saved Run (and not a bundle of artefacts)."""
    file = folder / MANIFEST
    if not file.is_file():
        return False
    try:
        with file.open("rb") as handle:
            return f'"schema": "{SCHEMA}"'.encode() in handle.read(200)
    except OSError:
        return False


def load(folder: Path) -> Run:
    """Reads a saved Run.

    Raises:
        ReadError: no saved Run is there, or it is damaged.
    """
    import polars as pl

    if not is_saved(folder):
        raise ReadError("no saved run is here", where=str(folder), hint="moexray inspect PATH --save DIR")
    try:
        _within((folder / MANIFEST).stat().st_size, MAX_MANIFEST_BYTES)
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        taken = 0
        tables: dict[str, tuple[Row, ...]] = {}
        arrays: dict[str, list[Batch]] = {}
        for part in manifest["parts"]:
            name = part["table"]
            file = _part(folder, str(part["file"]), name)
            taken += _expanded(file)
            _within(taken, MAX_LOAD_BYTES)
            frame = pl.read_parquet(file, glob=False)
            if part["kind"] == "rows":
                objects = [c.name for c in _TABLES[name].columns if c.kind == "object"]
                tables[name] = tuple(_unpack(row, objects) for row in frame.to_dicts())
            else:
                columns = {s.name: _values(s) for s in frame}
                arrays.setdefault(name, []).append(Batch(name, part["source"], columns, part["attrs"]))
        return Run(
            inputs=tuple(Input(**{**i, "notes": tuple(i["notes"])}) for i in manifest["inputs"]),
            skipped=tuple(Skipped(**s) for s in manifest["skipped"]),
            problems=tuple((p.pop("path"), Problem(**p)) for p in manifest["problems"]),
            tables=tables,
            arrays={n: tuple(b) for n, b in arrays.items()},
        )
    except (OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError) as why:
        raise ReadError(f"the saved run is damaged ({why})", where=str(folder), hint="save it again") from why


def _values(column: pl.Series) -> Any:
    """A column of a batch: an array, or a list where it is text, which may have holes."""
    import polars as pl

    return column.to_list() if column.dtype in (pl.String, pl.Null) else column.to_numpy()


def _within(size: int, limit: int) -> None:
    if size > limit:
        raise ValueError(f"it expands past {limit >> 20} MiB")


def _part(folder: Path, file: str, table: str) -> Path:
    """The Parquet file of a part: a regular file of this folder under the name that `save` gives."""
    path = folder / file
    if not re.fullmatch(rf"{re.escape(table)}-(?:rows|\d+)\.parquet", file) or not path.is_file():
        raise ValueError(f"{file!r} is no part of it")
    return path


def _expanded(file: Path) -> int:
    """Bytes that a Parquet file takes in memory, about: its cells at 16 bytes, at least its size."""
    import polars as pl

    lazy = pl.scan_parquet(file, glob=False)
    rows = int(lazy.select(pl.len()).collect().item())
    return max(rows * len(lazy.collect_schema()) * 16, file.stat().st_size)


def _unpack(row: Row, objects: list[str]) -> Row:
    return {k: json.loads(v) if k in objects and v is not None else v for k, v in row.items()}


def _plain(value: Any) -> Any:
    """Numpy scalars and arrays, tuples and sets as JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)
