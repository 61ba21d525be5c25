"""How every command says no: on standard error, and as JSON on standard output where that was asked for."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moexray.core.errors import MoexrayError, UsageError
from moexray.core.json_text import json_text
from moexray.faces.cli.say import say

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["check_paths", "refusing"]


@contextmanager
def refusing() -> Iterator[None]:
    """Ends the command with exit code 2 on an error of the family or a file that cannot be written.

    `--format json` prints the document `moexray.error/1`.
    """
    try:
        yield
    except MoexrayError as why:
        error = why
    except OSError as why:
        if not why.filename:  # the standard output: told where the program ends
            raise
        hint = "check the path, the rights on it and the space left"
        error = UsageError(f"{why.filename} cannot be written ({why.strerror})", hint=hint)
    else:
        return
    say(f"error: {error}", err=True)
    if click.get_current_context().params.get("form") == "json":
        told = {"what": error.what, "where": error.where or None, "try": error.hint or None}
        say(json_text({"schema": "moexray.error/1", "error": told}))
    sys.exit(2)


def check_paths(paths: Iterable[str]) -> None:
    """Refuses a path that is empty or does not exist.

    Raises:
        UsageError: names the first one.
    """
    for path in paths:
        if not path:  # "$UNSET" is not the folder that one happens to be in
            raise UsageError("a path is empty", hint="is a variable of the shell unset? '.' is this folder")
        if path != "-" and not Path(path).exists():
            hint = "check the path; a folder or several files are fine"
            raise UsageError(f"{path} does not exist", hint=hint)
