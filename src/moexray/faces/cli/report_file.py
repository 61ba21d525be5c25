"""`--report FILE`: the HTML page of a diagnosis."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moexray.core.errors import UsageError
from moexray.faces.cli.say import say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["write_report"]


def write_report(report: Path, document: Mapping[str, Any], paths: Sequence[str]) -> None:
    """Renders and writes the page, and says so on standard error.

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
    say(f"written: {report}", err=True)


def _link_base(paths: Sequence[str], report: Path) -> str:
    """Where the files named in the evidence start from, as seen from the report."""
    folder = Path(paths[0]) if len(paths) == 1 and Path(paths[0]).is_dir() else Path()
    try:
        return os.path.relpath(folder.resolve(), report.resolve().parent)
    except (ValueError, RuntimeError):  # another drive; a loop of links
        return ""
