"""`moexray inspect`: what was read into which tables."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moexray.core.tables import TABLES
from moexray.faces.cli.refuse import check_paths, refusing
from moexray.faces.cli.say import say
from moexray.faces.numbers import counted, human
from moexray.readers.read_any import read_any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moexray.core.run import Run

__all__ = ["command"]

TIMES = ("t_s", "ts_ns", "t_ns", "time_ns", "time_us", "t_from_s")
SCALE = {"s": 1.0, "us": 1e-6, "ns": 1e-9}


@click.command("inspect")
@click.argument("paths", nargs=-1, required=True, metavar="PATH... | -", type=click.Path())
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--save", type=click.Path(file_okay=False, path_type=Path),
              help="Save the tables as a folder of Parquet files with a manifest.")
@click.option("--force", is_flag=True, help="Overwrite what --save finds there.")
def command(paths: tuple[str, ...], form: str, save: Path | None, *, force: bool) -> None:
    """What was read from PATH into which tables: row counts and time spans."""
    with refusing():
        check_paths(paths)
        run = read_any(paths)
        if save:
            from moexray.core.store import save as save_run

            save_run(run, save, force=force)
            say(f"written: {save}", err=True)
    tables = list(describe(run))
    if form == "json":
        files = [asdict(i) for i in run.inputs]
        skipped = [asdict(s) for s in run.skipped]
        document = {"schema": "moexray.inspect/1", "tables": tables, "inputs": files, "skipped": skipped}
        say(json.dumps(document, indent=1))
    else:
        _print(run, tables)
    if not run.inputs:
        say("error: nothing in what was given could be used\n"
                   "  try:   docs/capture.md says what can be read and how to take it", err=True)
    sys.exit(0 if run.inputs else 2)


def describe(run: Run) -> Iterable[dict[str, Any]]:
    """One entry per table that holds anything: files, rows, time span in seconds (or null)."""
    for table in TABLES:
        rows, batches = run.rows(table.name), run.batches(table.name)
        if not rows and not batches:
            continue
        count = len(rows) + sum(len(next(iter(b.columns.values()), ())) for b in batches)
        files = {r["source"] for r in rows} | {b.source for b in batches}
        span = _span(run, table.name)
        yield {"table": table.name, "doc": table.doc, "files": len(files), "rows": count, "span_s": span}


def _span(run: Run, table: str) -> float | None:
    """Longest time span within one file: clocks of different files need not agree."""
    best: float | None = None
    for name in TIMES:
        scale = SCALE[name.rsplit("_", 1)[1]]
        groups = [[r[name] for r in rows if r.get(name) is not None] for _, rows in run.by_source(table)]
        groups += [[x for x in b.columns[name] if x == x] for b in run.batches(table) if name in b.columns]  # noqa: PLR0124  # NaN
        for values in groups:
            if values:
                span = float(max(values) - min(values)) * scale
                best = span if best is None else max(best, span)
    return best


def _print(run: Run, tables: list[dict[str, Any]]) -> None:
    width = max((len(t["table"]) for t in tables), default=0)
    for t in tables:
        span = f", spans {human(t['span_s'], 's')}" if t["span_s"] else ""
        rows, files = counted(t["rows"], "row"), counted(t["files"], "file")
        say(f"{t['table']:<{width}}  {rows:>13} from {files}{span}")
        say(f"{'':<{width}}  {t['doc'].split('. ')[0].split(': ')[0].rstrip('.')}")
    if tables:
        say("")
    for i in run.inputs:
        say(f"read     {i.path}  ({i.reader}, {counted(i.rows, 'record')})")
        for note in i.notes:
            say(f"         {note}")
    for s in run.skipped:
        say(f"skipped  {s.path}: {s.reason}")
    for path, p in run.problems:
        say(f"note     {path}: {p.id}: {p.text}")
