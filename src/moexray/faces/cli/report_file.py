"""`--report FILE`: the HTML page of a diagnosis."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moexray.core.errors import MoexrayError, UsageError
from moexray.faces.cli.say import say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moexray.core.run import Run

__all__ = ["closer_look", "save_page", "write_report"]

GAPS = 25  # the longest ones that are shown


def write_report(report: Path, document: Mapping[str, Any], paths: Sequence[str]) -> None:
    """Renders and writes the page, and says so on standard error.

    Args:
        report: Where to.
        document: The diagnosis, `moexray.diagnosis/1`.
        paths: What was read: evidence is linked from there.

    Raises:
        UsageError: it cannot be written.
    """
    save_page(report, document, paths)
    say(f"written: {report}", err=True)


def save_page(report: Path, document: Mapping[str, Any], paths: Sequence[str]) -> None:
    """The same without a word; see write_report."""
    from moexray.faces.report import render

    page = render(document, link_base=_link_base(paths, report))
    try:
        report.write_text(page, encoding="utf-8")
    except OSError as why:
        raise UsageError(
            f"{report} cannot be written ({why.strerror})", hint="check its rights and the space left"
        ) from why


def closer_look(run: Run, document: Mapping[str, Any]) -> dict[str, Any]:
    """What a report shows beyond the findings, as keys of the document: experiments cost seconds.

    Args:
        run: What was read.
        document: The diagnosis; what it accuses decides what is looked at.

    Returns:
        `gaps`: the longest ones of `moexray.timeline/1`, where a trace was read. `whatif`: the whole
        `moexray.whatif.memory/1`, where memory is accused and a history was read.
    """
    out: dict[str, Any] = {}
    accused = {f["id"].split(".")[0] for f in document["findings"] if f["severity"] != "info"}
    if "trace" in run.present:
        from moexray.faces.cli.timeline import describe

        try:
            found = describe(run)["gaps"]
        except MoexrayError:
            found = []  # a trace without slices of a device
        out["gaps"] = sorted(found, key=lambda g: -int(g["dur_ns"]))[:GAPS]
    if "mem" in accused and "snapshot_events" in run.present:
        from moexray.faces.cli.whatif_words import figures
        from moexray.whatif import allocator

        begin = time.perf_counter()
        try:
            study = allocator.study(run, allocator.Memory(), allocator.Use())
        except MoexrayError:
            return out  # nothing that can be replayed
        out["whatif"] = figures(study, time.perf_counter() - begin)
    return out


def _link_base(paths: Sequence[str], report: Path) -> str:
    """Where the files named in the evidence start from, as seen from the report."""
    folder = Path(paths[0]) if len(paths) == 1 and Path(paths[0]).is_dir() else Path()
    try:
        return os.path.relpath(folder.resolve(), report.resolve().parent)
    except (ValueError, RuntimeError):  # another drive; a loop of links
        return ""
