"""`moexray memory`: the figures of allocator snapshots, without judgement."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moexray.core.errors import UsageError
from moexray.faces.cli.new_file import check_new
from moexray.faces.cli.refuse import check_paths, refusing
from moexray.faces.cli.report_file import write_report
from moexray.faces.cli.say import say
from moexray.faces.cli.size_option import SizeOption

if TYPE_CHECKING:
    from collections.abc import Sized

    from moexray.core.limits import Limits
    from moexray.core.run import Run

__all__ = ["command"]


@click.command("memory")
@click.argument("paths", nargs=-1, required=True, metavar="FILE...", type=click.Path())
@click.option("--request", "requests", multiple=True, type=SizeOption(),
              help="Request to test instead of powers of two, e.g. 2GiB; repeatable.")
@click.option("--small-block", type=SizeOption(),
              help="Small-block filter: requests below this size.  [default: 256]")
@click.option("--small-ratio", type=click.FloatRange(min=0),
              help="Small-block filter: more allocations per free than this.  [default: 5]")
@click.option("--depth", type=click.IntRange(1, 5), default=1, show_default=True,
              help="Frames shown of each call site.")
@click.option("--diff", is_flag=True, help="Compare two snapshots: FILE FILE are before and after.")
@click.option("--limits", "limits_file", type=click.Path(dir_okay=False, path_type=Path),
              help="TOML file that overrides thresholds, e.g. [snapshot] small_request_bytes = 512.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path),
              help="Write the HTML report of the diagnosis, with memory map and timeline, too.")
@click.option("--force", is_flag=True, help="Overwrite an existing report.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(paths: tuple[str, ...], form: str, report: Path | None, **options: Any) -> None:
    """Figures of allocator snapshots: who holds what, what is stuck, what lives how long, what to reuse.

    FILE is a file or a folder: snapshots, profiles with memory events, logs of allocations as JSON
    lines. The latter two have lifetimes and reuse plans only.

    Fragmentation ratio: 1 - largest free block / free bytes, 0 when nothing is free; it exceeds
    0.9 on healthy snapshots. Stuck bytes, which empty_cache cannot give back, are the figure to
    judge by. The ratio over all blocks is the variant of some incident reports.

    With --diff the changes are after - before: what has grown is positive.
    """
    with refusing():
        _check(paths, diff=options["diff"])
        check_new(report, force=options["force"], read=paths, page=True)
        limits = _limits(options)
        from moexray.readers.read_any import read_any

        runs = [read_any([path]) for path in paths] if options["diff"] else [read_any(paths)]
        text = _output(runs, form, limits, options)
        if report:
            from moexray.diagnose.engine import diagnose

            read = paths[-1:] if options["diff"] else paths
            write_report(report, diagnose(runs[-1], limits).to_json(), read)
    say(text)


def _check(paths: tuple[str, ...], *, diff: bool) -> None:
    check_paths(paths)
    if diff and len(paths) != 2:
        raise UsageError(f"--diff compares two snapshots, {len(paths)} given", hint="name before and after")


def _limits(options: dict[str, Any]) -> Limits:
    from moexray.core.limits import Limits
    from moexray.core.limits.load import load_limits

    limits = load_limits(options["limits_file"]) if options["limits_file"] else Limits()
    given = {"small_request_bytes": options["small_block"], "small_alloc_free_ratio": options["small_ratio"]}
    chosen = {name: value for name, value in given.items() if value is not None}
    return replace(limits, snapshot=replace(limits.snapshot, **chosen))


def _check_found(found: Sized, run: Run) -> None:
    if not found:
        raise UsageError(
            f"no allocator snapshot ({run.nothing_found()})",
            hint="torch.cuda.memory._dump_snapshot(); see docs/capture.md",
        )


def _output(runs: list[Run], form: str, limits: Limits, options: dict[str, Any]) -> str:
    """The document or its text.

    Raises:
        UsageError: nothing of the kind was read.
    """
    from moexray.analyse.snapshot import shots
    from moexray.core.run import merge
    from moexray.faces.cli import memory_diff, memory_tensors, memory_text
    from moexray.faces.cli.memory_document import document

    sides = [shots(run) for run in runs]
    entries = None
    if options["diff"]:
        for side, run in zip(sides, runs, strict=True):
            _check_found(side, run)
        entries = memory_diff.compare(sides[0], sides[1], limits.snapshot)
        if form == "text":
            return memory_diff.as_text(entries)
    found = [shot for side in sides for shot in side]
    whole = document(found, options["requests"], limits.snapshot, memory_tensors.rows(merge(runs)))
    _check_found(found or whole["tensors"], runs[0])
    if entries is not None:
        whole["diff"] = entries
    if form == "json":
        return json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False)
    return memory_text.as_text(whole, options["depth"])
