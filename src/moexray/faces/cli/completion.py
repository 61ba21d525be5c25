"""`moexray completion`: the script that makes a shell complete our commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from moexray.faces.cli.main import main

__all__ = ["command"]


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of SHELL; add it to the shell's start-up file.

    Example: moexray completion bash >> ~/.bashrc
    """
    found = get_completion_class(shell)
    if found is None:  # cannot happen for the three choices; keeps the type checker honest
        raise click.UsageError(f"no completion for {shell}")
    complete = found(main, {}, "moexray", "_MOEXRAY_COMPLETE")
    text = complete.source_template % complete.source_vars()  # source() would start the shell itself
    click.echo(text)
