"""`moexray export`: what was read and found, in the formats of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moexray.core.errors import UsageError
from moexray.faces.cli.export_config import commands
from moexray.faces.cli.new_file import check_new
from moexray.faces.cli.refuse import refusing
from moexray.faces.cli.say import say
from moexray.faces.numbers import counted

if TYPE_CHECKING:
    from moexray.core.run import Run
    from moexray.diagnose.engine import Diagnosis

__all__ = ["command"]

CHUNK = 5_000  # events encoded at once


@click.group("export")
def command() -> None:
    """Write what was read and found for other tools to open, and their configurations."""


for _one in commands():
    command.add_command(_one)


@command.command("perfetto")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path),
              help="File to write, *.json or *.json.gz.")  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def perfetto(paths: tuple[str, ...], output: Path, *, force: bool) -> None:
    """One trace of all ranks in PATH on one clock, with gaps, waiting, memory and findings as tracks.

    Open it at ui.perfetto.dev or in chrome://tracing.
    """
    from moexray.diagnose.engine import diagnose
    from moexray.readers.read_any import read_any

    with refusing():
        check_new(output, force=force, read=paths)
        run = read_any(paths)
        if not run.present.intersection(("trace", "snapshot_events")):
            raise UsageError("no trace and no memory history to draw", hint="give traces or snapshots")
        try:
            count = _write(output, run, diagnose(run))
        except OSError as why:  # a write that fails does not know its file: a full disk
            why.filename = why.filename or str(output)
            raise
    say(f"written: {output} ({counted(count, 'event')})")
    say("next: open it at ui.perfetto.dev (nothing is uploaded) or in chrome://tracing")


def _write(output: Path, run: Run, found: Diagnosis) -> int:
    """Writes chunk by chunk, beside the target first, so that a failure leaves no half a file."""
    import gzip
    from functools import partial
    from itertools import islice

    import msgspec

    from moexray.faces.perfetto import events

    device = output.exists() and not output.is_file()  # /dev/stdout, a pipe: nothing may take its place
    part = output if device else output.with_name(f"{output.name}.part")
    opener: Any = partial(gzip.open, compresslevel=3) if output.suffix == ".gz" else open
    count = 0
    try:
        with opener(part, "wb") as out:
            out.write(b'{"displayTimeUnit": "ns", "traceEvents": [')
            stream = events(run, found)
            while chunk := list(islice(stream, CHUNK)):
                out.write(b"" if not count else b",\n")
                out.write(msgspec.json.encode(chunk)[1:-1])
                count += len(chunk)
            out.write(b"]}\n")
        if not device:
            part.replace(output)
    finally:
        if not device:
            part.unlink(missing_ok=True)
    return count
