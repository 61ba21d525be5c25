"""`moexray export prometheus|alertmanager|grafana|collector`: configuration files of other programs."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moexray.faces.cli.new_file import check_new
from moexray.faces.cli.refuse import refusing
from moexray.faces.cli.say import say
from moexray.live.configs import TARGETS, Places

if TYPE_CHECKING:
    from collections.abc import Callable

    from moexray.live.configs import Target

__all__ = ["commands"]

HELP = {
    "exporter": "HOST:PORT of moexray exporter.",
    "hook": "Address of moexray hook.",
    "prometheus": "Address of Prometheus, for Grafana.",
    "alertmanager": "HOST:PORT of Alertmanager.",
    "traces": "Address of the Jaeger query, for Grafana.",
    "otlp": "HOST:PORT of the OTLP gRPC receiver behind the collector.",
    "runbooks": "Address of docs/live.md, for the alerts' runbook_url.",
}


def commands() -> list[click.Command]:
    """One command a target."""
    return [_command(target) for target in TARGETS]


def _command(target: Target) -> click.Command:
    def write(output: Path, *, force: bool, **places: str) -> None:
        _write(target, Places(**places), output, force=force)

    function: Callable[..., None] = write
    for place in reversed(fields(Places)):
        function = click.option(f"--{place.name}", default=place.default, show_default=True,
                                help=HELP[place.name])(function)  # fmt: skip
    function = click.option("--force", is_flag=True, help="Overwrite existing files.")(function)
    function = click.option("-o", "--output", required=True, help="Folder to write into; made if need be.",
                            type=click.Path(file_okay=False, path_type=Path))(function)  # fmt: skip
    return click.command(target.name, help=target.help)(function)


def _write(target: Target, places: Places, folder: Path, *, force: bool) -> None:
    with refusing():
        folder.mkdir(parents=True, exist_ok=True)
        files = {folder / name: text for name, text in target.files(places).items()}
        for file in files:
            check_new(file, force=force)
        for file, text in files.items():
            file.write_text(text, encoding="utf-8")
            say(f"written: {file}")
    say(f"next: {target.next}")
