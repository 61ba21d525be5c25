"""Numba twins of the hot algorithms: same names, same arguments, arrays in, arrays out.

Numba keeps what it compiled on disk; the first use after an installation takes up to half a minute, so
it is told once on the log, which without any set-up is standard error.
"""

from __future__ import annotations

import logging
from typing import Any

from numba.core import event

__all__: list[str] = []

logger = logging.getLogger(__name__)


class _Once(event.Listener):
    """Hears of real compilations only; what comes from the cache makes no event."""

    told = False

    def on_start(self, _event: Any) -> None:
        if not self.told:
            self.told = True
            logger.warning("compiling numeric kernels: once per installation, up to 30 s ...")

    def on_end(self, event: Any) -> None:
        """Nothing to tell."""


event.register("numba:compile", _Once())  # type: ignore[no-untyped-call]
