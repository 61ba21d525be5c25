"""Files that a command writes: what could not be written is refused before the work begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check_new"]


def check_new(file: Path | None, *, force: bool) -> None:
    """Refuses a file that exists, or whose folder does not.

    Args:
        file: Where to; None writes nothing.
        force: Whether an existing file may be overwritten.

    Raises:
        UsageError: the file exists and `force` is not given, or its folder does not exist.
    """
    if file and file.exists() and not force:
        raise UsageError(f"{file} exists", hint="--force overwrites it")
    if file and not file.parent.is_dir():
        raise UsageError(f"there is no folder {file.parent}", hint="make it, or name another place")
