"""`moexray watch`: diagnoses a recording while it grows."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moexray.faces.cli.exporter import read_token, serving, stopping
from moexray.faces.cli.refuse import refusing
from moexray.faces.cli.say import say
from moexray.faces.numbers import counted, human_seconds

if TYPE_CHECKING:
    from moexray.live.watch import Report

__all__ = ["command"]

SHOWN = 5  # spikes of a look, by cause


@click.command("watch")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--window", "window_s", type=click.FloatRange(0), default=300.0, show_default=True,
              help="Files changed within so many seconds are read; 0 reads all.")
@click.option("--every", "every_s", type=click.FloatRange(0.05), default=10.0, show_default=True,
              help="Seconds between two looks.")
@click.option("--once", is_flag=True, help="Look once at all files, print, and end.")
@click.option("--format", "form", type=click.Choice(["text", "ndjson"]), default="text", show_default=True)
@click.option("--listen", metavar="HOST:PORT", help="Serve the metrics, too.")
@serving
def command(
    folder: Path, window_s: float, every_s: float, form: str, listen: str | None, token_file: Path | None,
    **more: Any,
) -> None:  # fmt: skip
    """Diagnose DIR again whenever its files change; print the findings and spikes that are new.

    Spikes are stalls of the latency series. Each is counted under the verdict that explains it, or as
    unknown, in moex_spike_total{cause} (--listen).
    """
    from moexray.live.exporter import Exporter
    from moexray.live.folder import Folder, Names
    from moexray.live.page import Page
    from moexray.live.watch import Watch

    logging.basicConfig(format="%(levelname)s: %(message)s")
    with refusing():
        page = Page()
        names = Names(more["model"], more["engine"])
        read = Folder(page, folder, names, window_s=0 if more["once"] else window_s)
        watch = Watch(read, every_s, _TELL[form])
        if more["once"]:
            found = watch.update()
            if found and not found.findings and not found.spikes:
                say(f"nothing found in {counted(len(found.diagnosis.run.inputs), 'file')}", err=True)
            return
        wait = stopping()
        exporter = Exporter(page, [watch], listen=listen, token=read_token(token_file))
        exporter.start()
    say(f"watching {folder}: what is new is printed as it comes; Ctrl-C ends it", err=True)
    if window_s and read.is_old():
        what = f"no file of it was written in the last {window_s:g} s, none is read yet"
        say(f"  {what}; --window 0 reads all", err=True)
    if exporter.server:
        say(f"serving {exporter.server.url}/metrics", err=True)
    wait()
    exporter.close()


def _text(report: Report) -> None:
    found = report.diagnosis
    if not report.findings and not report.spikes:
        return
    files = counted(len(found.run.inputs), "file")
    say(f"{time.strftime('%H:%M:%S')} {files}: {found.verdict}")
    for finding in report.findings:
        first = finding.claim.partition(". ")[0]
        say(f"  {finding.severity:<5} {finding.id}: {first}")
    causes: dict[str, list[float]] = {}
    for spike in report.spikes:
        causes.setdefault(spike.cause, []).append(spike.seconds)
    for cause, values in sorted(causes.items(), key=lambda item: -sum(item[1]))[:SHOWN]:
        say(f"  {counted(len(values), 'spike')} by {cause}, the longest {human_seconds(max(values))}")


def _ndjson(report: Report) -> None:
    document = {
        "schema": "moexray.watch/1",
        "time_s": time.time(),
        "verdict": report.diagnosis.verdict,
        "findings": [f.to_json() for f in report.findings],
        "spikes": [
            {"source": s.source, "line": s.line, "rank": s.rank, "value_s": s.seconds, "cause": s.cause}
            for s in report.spikes
        ],
    }
    say(json.dumps(document, allow_nan=False))


_TELL = {"text": _text, "ndjson": _ndjson}
