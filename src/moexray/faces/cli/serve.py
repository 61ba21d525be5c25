"""`moexray serve`: the live page of a recording, or of running engines."""

from __future__ import annotations

import logging
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moexray.core.errors import UsageError
from moexray.faces.cli.exporter import read_token, serving
from moexray.faces.cli.refuse import refusing
from moexray.faces.cli.say import say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moexray.live.exporter import Source
    from moexray.live.page import Page
    from moexray.live.rolling import Rolling

__all__ = ["command", "live_sources"]

LISTEN = "127.0.0.1:9466"
SAMPLE_S = 1.0


@click.command("serve")
@click.argument("folder", required=False, metavar="[DIR]", type=click.Path(path_type=Path))
@click.option("--attach", is_flag=True, help="Show running engines (the default without DIR).")
@click.option("--rings", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
              help="Where the rings of engines are; else MOEXRAY_RINGS, else the user's folder in /dev/shm.")
@click.option("--listen", default=LISTEN, show_default=True, metavar="HOST:PORT", help="Where the page is.")
@click.option("--every", "every_s", type=click.FloatRange(0.05), default=5.0, show_default=True,
              help="Seconds between two looks at DIR.")
@click.option("--window", "window_s", type=click.FloatRange(0), default=300.0, show_default=True,
              help="Files of DIR changed within so many seconds are read; 0 reads all.")
@click.option("--ep", "ep_size", type=click.IntRange(1, 65536), default=1,
              help="Expert-parallel size of attached engines.")
@serving
def command(folder: Path | None, listen: str, token_file: Path | None, **more: Any) -> None:
    """Show skew, fragmentation, latency and spikes live in a browser, until stopped.

    DIR is the folder of a recording, also one that is still written: it is diagnosed again whenever it
    changes, and a click on a spike leads to the diagnosis that explains it. Without DIR the engines that
    moexray is attached to are shown. The page can be read on this machine only, unless a token is given.
    """
    logging.basicConfig(format="%(levelname)s: %(message)s")
    with refusing():
        try:
            import uvicorn

            from moexray.faces.web.app import make_app
        except ImportError as why:
            hint = "pip install 'moexray[web,live]'"
            raise UsageError(f"the live page needs {why.name}", hint=hint) from why
        from moexray.live.exporter import Exporter
        from moexray.live.page import Page
        from moexray.live.rolling import Rolling
        from moexray.live.serve import check_address

        token = read_token(token_file)
        bound = _bind(*check_address(listen, token))
        page = Page()
        rolling = Rolling(page)
        exporter = Exporter(page, list(live_sources(page, rolling, folder, more)), listen=None)
        app = make_app(rolling, title=str(folder) if folder else "running engines", token=token)
        exporter.start()
    end = threading.Event()
    sampler = threading.Thread(target=_sampling, args=(rolling, end), daemon=True)
    sampler.start()
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    path = "?token=..." if token else ""
    say(f"the live page is at http://{shown}:{port}/{path}; Ctrl-C ends it", err=True)
    settings = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    try:
        uvicorn.Server(settings).run(sockets=[bound])
    except KeyboardInterrupt:
        pass
    finally:
        end.set()
        exporter.close()


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as why:
        hint = "another program may have it: take another port"
        raise UsageError(f"cannot listen on {host}:{port} ({why.strerror or why})", hint=hint) from why


def live_sources(page: Page, rolling: Rolling, folder: Path | None, more: dict[str, Any]) -> Iterator[Source]:
    """What brings a page up to date: a folder that is watched, or the rings of running engines."""
    from moexray.live.drain import Drain
    from moexray.live.engines import Engines
    from moexray.live.folder import Folder, Names
    from moexray.live.watch import Watch

    names = Names(more["model"], more["engine"])
    if folder:
        yield Watch(Folder(page, folder, names, window_s=more["window_s"]), more["every_s"], rolling.told)
    if more["attach"] or more["rings"] or not folder:
        yield Engines(page, Drain(more["rings"]), names, ep_size=more["ep_size"])


def _sampling(rolling: Rolling, end: threading.Event) -> None:
    while not end.wait(SAMPLE_S):
        rolling.sample()
