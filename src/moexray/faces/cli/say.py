"""The one way to the screen: control characters of an input never reach the terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap

import click

from moexray.faces.plain import visible

__all__ = ["columns", "say"]

LEAST_WIDTH = 40  # a terminal that says it is narrower is not believed


def say(text: str, *, err: bool = False) -> None:
    """Prints text, on standard error if `err`; lines wider than a terminal are broken between words."""
    click.echo(visible(text) if err else _fitted(visible(text)), err=err)


def columns(most: int) -> int:
    """Characters of a line on standard output: at most so many, fewer on a narrower terminal."""
    if not sys.stdout.isatty():
        return most
    return min(most, max(LEAST_WIDTH, shutil.get_terminal_size().columns))


def _fitted(text: str) -> str:
    """For a terminal only, and not JSON: what is piped or copied as data keeps its lines."""
    width = columns(max(map(len, text.split("\n"))))
    if text[:1] in ("{", "["):
        return text
    return "\n".join(line if len(line) <= width else _broken(line, width) for line in text.split("\n"))


def _broken(line: str, width: int) -> str:
    indent = " " * min(len(line) - len(line.lstrip()) + 2, width // 2)
    return textwrap.fill(line, width, subsequent_indent=indent, replace_whitespace=False,
                         break_long_words=False, break_on_hyphens=False)  # fmt: skip
