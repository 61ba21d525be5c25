"""`moexray exporter`: sources bring a page up to date, Prometheus scrapes it, remote write sends it.

One process a node: engines only write rings or bundles, all statistics are made here.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Protocol

from moexray.live.page import OPENMETRICS, TEXT
from moexray.live.serve import Reply, Server

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.live.page import Page
    from moexray.live.remote_write import RemoteWrite
    from moexray.live.serve import Request

__all__ = ["Exporter", "Source", "answer"]

ABOUT = b"moexray exporter: the metrics are at /metrics\n"

_log = logging.getLogger(__name__)


class Source(Protocol):
    """What brings a page up to date, every so many seconds."""

    @property
    def every_s(self) -> float:
        """Seconds between two updates."""

    def update(self) -> object:
        """Writes what is new to the page; called again and again by one thread."""


class Exporter:
    """Serves one page until `close`.

    Args:
        page: What is served.
        sources: Brought up to date by one thread, each at its own pace.
        listen: HOST:PORT; None serves nothing.
        token: Needed beyond loopback; empty for none.
        remote: Sends the page as well; None for scrapes only.
    """

    def __init__(
        self, page: Page, sources: Sequence[Source], *, listen: str | None, token: str = "",
        remote: RemoteWrite | None = None,
    ) -> None:  # fmt: skip
        self.page, self.sources, self.remote = page, sources, remote
        self._due = [0.0] * len(sources)
        self._told = [""] * len(sources)  # the last failure of each
        self.server = Server(listen, lambda request: answer(page, request), token) if listen else None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._updating, daemon=True)

    def start(self) -> None:
        """Reads the sources once, then serves and goes on reading."""
        self.update()
        if self.server:
            self.server.start()
        if self.remote:
            self.remote.start()
        self._thread.start()

    def close(self) -> None:
        """Ends reading, sending and serving."""
        self._end.set()
        self._thread.join()
        if self.remote:
            self.remote.close()
        if self.server:
            self.server.close()

    def update(self) -> None:
        """Updates the sources that are due; one that fails is told, counted and tried again."""
        for i, source in enumerate(self.sources):
            if time.monotonic() < self._due[i]:
                continue
            try:
                source.update()
                self._told[i] = ""
            except Exception as why:  # noqa: BLE001  # whatever a recording holds, the page goes on
                if self._told[i] != (told := repr(why)):  # several times a second is enough for no log
                    _log.exception("a source failed")
                    self._told[i] = told
                self.page.drop("updates", "failed")
            self._due[i] = time.monotonic() + source.every_s

    def _updating(self) -> None:
        while self._due and not self._end.wait(max(0.0, min(self._due) - time.monotonic())):
            self.update()


def answer(page: Page, request: Request) -> Reply:
    """/metrics in the format that the scraper asks for."""
    if request.path == "/":
        return Reply(200, ABOUT)
    if request.path != "/metrics" or request.method != "GET":
        return Reply(404, b"only GET /metrics\n")
    modern = "application/openmetrics-text" in request.headers.get("Accept", "")
    return Reply(200, page.render(openmetrics=modern), OPENMETRICS if modern else TEXT)
