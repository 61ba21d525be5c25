"""Files that a command writes: what could not be written is refused before the work begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["check_new"]

PAGE = b"<!doctype html"
HEAD = 512  # bytes of a file that tell whether it is a page


def check_new(file: Path | None, *, force: bool, read: Iterable[str] = (), page: bool = False) -> None:
    """Refuses a file that exists, that is read, or whose folder does not exist.

    Args:
        file: Where to; None writes nothing.
        force: Whether an existing file may be overwritten.
        read: Paths that the command reads: these are never overwritten.
        page: A web page is written: only another one, or an empty file, is overwritten.

    Raises:
        UsageError: the file exists and `force` is not given, or it may not be overwritten, or it is a
            folder, or its folder does not exist.
    """
    if not file:
        return
    if file.is_dir():
        raise UsageError(f"{file} is a folder", hint="name a file in it")
    if file.exists() and not force:
        raise UsageError(f"{file} exists", hint="--force overwrites it")
    if any(_same(file, path) for path in read):
        raise UsageError(f"{file} is read: it is not overwritten", hint="name another file")
    if page and not _is_page(file):
        raise UsageError(f"{file} is no report: --force does not overwrite it", hint="name another file")
    if not file.parent.is_dir():
        raise UsageError(f"there is no folder {file.parent}", hint="make it, or name another place")


def _same(file: Path, path: str) -> bool:
    try:
        return file.is_file() and file.samefile(path)
    except (OSError, ValueError):  # a URL, standard input, a path that is no path
        return False


def _is_page(file: Path) -> bool:
    """Whether what stands there, if anything does, is a page or empty; a device counts as empty."""
    if not file.is_file():
        return True
    try:
        with file.open("rb") as handle:
            head = handle.read(HEAD).lstrip()
    except OSError:
        return False
    return not head or head.lower().startswith(PAGE)
