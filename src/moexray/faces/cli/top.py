"""`moexray top`: the figures of the live page in a terminal, for a server over SSH."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moexray.core.errors import UsageError
from moexray.faces.cli.refuse import refusing
from moexray.faces.cli.serve import live_sources

if TYPE_CHECKING:
    from moexray.faces.terminal import Top

__all__ = ["command", "make_top"]


@click.command("top")
@click.argument("folder", required=False, metavar="[DIR]", type=click.Path(path_type=Path))
@click.option("--attach", is_flag=True, help="Show running engines (the default without DIR).")
@click.option("--rings", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
              help="Where the rings of engines are; else MOEXRAY_RINGS, else the user's folder in /dev/shm.")
@click.option("--every", "every_s", type=click.FloatRange(0.05), default=5.0, show_default=True,
              help="Seconds between two looks at DIR.")
@click.option("--window", "window_s", type=click.FloatRange(0), default=300.0, show_default=True,
              help="Files of DIR changed within so many seconds are read; 0 reads all.")
@click.option("--ep", "ep_size", type=click.IntRange(1, 65536), default=1,
              help="Expert-parallel size of attached engines.")
def command(folder: Path | None, **more: Any) -> None:
    """Show skew, fragmentation, latency, spikes and findings of DIR, or of running engines, in the terminal.

    q quits; the arrow keys walk through the findings, and the claim of the chosen one is shown in full.
    """
    logging.disable(logging.WARNING)  # the screen is not theirs
    with refusing():
        app = make_top(folder, more)
    app.run()


def make_top(folder: Path | None, more: dict[str, Any]) -> Top:
    """The application, reading its sources already.

    Raises:
        UsageError: the folder does not exist, or an extra is missing.
    """
    try:
        from moexray.faces.terminal import Top
        from moexray.live.exporter import Exporter
    except ImportError as why:
        raise UsageError(f"top needs {why.name}", hint="pip install 'moexray[tui,live]'") from why
    from moexray.live.page import Page
    from moexray.live.rolling import Rolling

    page = Page()
    rolling = Rolling(page)
    names = {"model": "", "engine": "", **more}
    exporter = Exporter(page, list(live_sources(page, rolling, folder, names)), listen=None)
    exporter.start()
    return Top(rolling, str(folder) if folder else "running engines", exporter.close)
