"""The one way to the screen: control characters of an input never reach the terminal."""

from __future__ import annotations

import click

from moexray.faces.plain import visible

__all__ = ["say"]


def say(text: str, *, err: bool = False) -> None:
    """Prints text, on standard error if `err`."""
    click.echo(visible(text), err=err)
