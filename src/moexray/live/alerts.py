"""Whether an alert fires now, asked of Alertmanager: while one does, every step's trace is worth keeping.

It is asked by a thread of its own: an answer that takes its time must not hold up the reading of rings.
"""

from __future__ import annotations

import http.client
import json
import logging
import threading
import urllib.parse
import urllib.request

from moexray.core.errors import UsageError

__all__ = ["AlertState"]

MAX_REPLY = 1 << 22  # bytes

_log = logging.getLogger(__name__)


class AlertState:
    """A source of the exporter that knows whether one of our alerts is active.

    Args:
        url: Of Alertmanager.

    Raises:
        UsageError: it is no address of the web.
    """

    every_s = 5.0

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"{url} is no address of an Alertmanager", hint="e.g. http://127.0.0.1:9093")
        wanted = [("active", "true"), ("silenced", "false"), ("inhibited", "false"),
                  ("filter", 'alertname=~"Moex.*"'), ("filter", 'alertname!~"MoexTelemetry.*"')]  # fmt: skip
        self._url = f"{url.rstrip('/')}/api/v2/alerts?{urllib.parse.urlencode(wanted)}"
        self.active = False
        self._asking: threading.Thread | None = None

    def __call__(self) -> bool:
        """Whether one fired when last asked."""
        return self.active

    def update(self) -> None:
        """Begins to ask; while an Alertmanager does not answer it counts as quiet."""
        if self._asking is not None and self._asking.is_alive():
            self._quiet("it is still awaited")
            return
        self._asking = threading.Thread(target=self._ask, daemon=True)
        self._asking.start()

    def answered(self, wait_s: float) -> bool:
        """Waits for the answer to the last question."""
        if self._asking is not None:
            self._asking.join(wait_s)
        return self._asking is not None and not self._asking.is_alive()

    def _ask(self) -> None:
        try:
            with urllib.request.urlopen(self._url, timeout=2) as answer:  # noqa: S310
                told = json.loads(answer.read(MAX_REPLY))
            self.active = isinstance(told, list) and bool(told)
        except (OSError, ValueError, http.client.HTTPException, RecursionError) as why:
            self._quiet(str(why))

    def _quiet(self, why: str) -> None:
        if self.active:
            _log.warning("Alertmanager does not answer (%s)", why)
        self.active = False
