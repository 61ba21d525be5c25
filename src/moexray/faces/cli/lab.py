"""`moexray lab`: incidents made on purpose."""

from __future__ import annotations

import click

from moexray.faces.cli import lab_stress

__all__ = ["command"]


@click.group("lab")
def command() -> None:
    """Make incidents on purpose, to see what the rest of moexray says of them."""


command.add_command(lab_stress.command)
