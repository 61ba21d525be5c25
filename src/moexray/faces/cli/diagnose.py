"""`moexray diagnose`: the main job."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moexray.core.finding import SEVERITIES
from moexray.core.limits.load import load_limits
from moexray.diagnose.engine import Diagnosis, diagnose
from moexray.faces.cli.new_file import check_new
from moexray.faces.cli.refuse import check_paths, refusing
from moexray.faces.cli.report_file import closer_look, write_report
from moexray.faces.cli.say import columns, say
from moexray.faces.cli.screen import WIDTH, as_markdown, as_text
from moexray.faces.plain import visible
from moexray.readers.read_any import read_any
from moexray.readers.remote import is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moexray.core.limits import Limits

__all__ = ["command"]


@click.command("diagnose")
@click.argument("paths", nargs=-1, required=True, metavar="PATH... | -", type=click.Path())
@click.option("--format", "form", type=click.Choice(["text", "json", "md"]), default="text",
              show_default=True, help="What is printed on standard output.")
@click.option("--all", "whole", is_flag=True,
              help="Print all evidence, remedies and undo steps, not the first ones.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path),
              help="Write an offline HTML report, too.")
@click.option("--force", is_flag=True, help="Overwrite an existing report.")
@click.option("--fail-on", type=click.Choice([*SEVERITIES, "never"]), default="warn",
              show_default=True, help="Least severity that gives exit code 1.")
@click.option("--limits", "limits_file", type=click.Path(dir_okay=False, path_type=Path),
              help="TOML file that overrides thresholds, e.g. [routing] balancedness = 0.7.")
@click.option("--executor", type=click.Choice(["processes", "ray"]),
              help="For folders of many ranks: summarise each one in a pool of processes or on Ray.")
@click.option("--workers", type=click.IntRange(min=1), help="Ranks at a time; default: number of cores.")
@click.option("--work", type=click.Path(file_okay=False, path_type=Path),
              help="Folder of the summaries, which a second run takes up; default: below the cache.")
@click.option("--no-redact", is_flag=True, help="Quote secrets, hosts and user names as they are.")
@click.option("--quiet", is_flag=True, help="No progress on standard error.")
def command(
    paths: tuple[str, ...], form: str, report: Path | None, fail_on: str, limits_file: Path | None,
    **more: Any,
) -> None:
    """Say what broke, from whatever artefacts there are.

    PATH is a file, a folder or a URL (logs, nvidia-smi output, metrics, benchmarks, snapshots, dumps,
    traces, expert counts), or - for standard input. Exit code: 0 nothing found at or above
    --fail-on, 1 findings, 2 bad usage or no usable input.
    """
    with refusing():
        check_paths(p for p in paths if not is_url(p))
        if any(map(is_url, paths)):
            more["executor"] = more["executor"] or "processes"
        check_new(report, force=more["force"], read=paths, page=True)
        limits = load_limits(limits_file) if limits_file else None
        result = _fleet(paths, limits, more) if more["executor"] else _diagnose(paths, limits, more)
        document = result.to_json()
        if report:
            document |= closer_look(result.run, document)
            write_report(report, document, paths)
    for failure in result.failures:
        say(f"warning: {failure}", err=True)
    if form == "json":
        say(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False))
    else:
        width = {"width": columns(WIDTH)} if form == "text" else {}
        say((as_text if form == "text" else as_markdown)(document, whole=more["whole"], **width))
    sys.exit(_exit_code(result, fail_on))


def _diagnose(paths: tuple[str, ...], limits: Limits | None, more: dict[str, Any]) -> Diagnosis:
    with _progress(shown=not more["quiet"] and sys.stderr.isatty()) as tell:
        run = read_any(paths, tell)
    return diagnose(run, limits, secrets=more["no_redact"])


def _fleet(paths: tuple[str, ...], limits: Limits | None, more: dict[str, Any]) -> Diagnosis:
    from moexray.faces.cli.fleet import diagnose_fleet

    where = {name: more[name] for name in ("executor", "workers", "work", "quiet")}
    return diagnose_fleet(paths, limits, secrets=more["no_redact"], **where)


def _exit_code(result: Diagnosis, fail_on: str) -> int:
    if not result.run.inputs:
        return 2
    if fail_on == "never":
        return 0
    least = SEVERITIES.index(fail_on)
    return int(any(SEVERITIES.index(f.severity) >= least for f in result.findings))


@contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[str], None] | None]:
    """A line on a terminal with the file that is read; gone at the end, before anything else is said."""
    most = shutil.get_terminal_size().columns - 10

    def tell(name: str) -> None:
        click.echo(f"\r\x1b[Kreading {visible(name)[-max(most, 10):]}", nl=False, err=True)

    try:
        yield tell if shown else None
    finally:
        if shown:
            click.echo("\r\x1b[K", nl=False, err=True)
