"""`moexray lab`: incidents made on purpose."""

from __future__ import annotations

import click

from moexray.faces.cli import lab_run, lab_stress, lab_train

__all__ = ["command"]


@click.group("lab")
def command() -> None:
    """Make incidents on purpose, to see what the rest of moexray says of them."""


for one in (lab_run.command, lab_stress.command, lab_train.command):
    command.add_command(one)
