"""`--report FILE`: the HTML page of a diagnosis, checked before the work and written after it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["check_report", "write_report"]


def check_report(report: Path | None, *, force: bool) -> None:
    """Refuses, before anything is read, what could not be written.

    Raises:
        UsageError: the file exists and `force` is not given, or its folder does not exist.
    """
    if report and report.exists() and not force:
        raise UsageError(f"{report} exists", hint="--force overwrites it")
    if report and not report.parent.is_dir():
        raise UsageError(
            f"there is no folder {report.parent} for the report", hint="make it, or name another place"
        )


def write_report(report: Path, document: Mapping[str, Any], paths: Sequence[str]) -> None:
    """Renders and writes the page.

    Args:
        report: Where to.
        document: The diagnosis, `moexray.diagnosis/1`.
        paths: What was read: evidence is linked from there.

    Raises:
        UsageError: it cannot be written.
    """
    from moexray.faces.report import render

    page = render(document, link_base=_link_base(paths, report))
    try:
        report.write_text(page, encoding="utf-8")
    except OSError as why:
        raise UsageError(
            f"{report} cannot be written ({why.strerror})", hint="check its rights and the space left"
        ) from why


def _link_base(paths: Sequence[str], report: Path) -> str:
    """Where the files named in the evidence start from, as seen from the report."""
    folder = Path(paths[0]) if len(paths) == 1 and Path(paths[0]).is_dir() else Path()
    try:
        return os.path.relpath(folder.resolve(), report.resolve().parent)
    except ValueError:  # another drive
        return ""
