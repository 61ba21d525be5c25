"""One peer: its socket, its process, and what can be said about it when it falls silent."""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from moexray.core.errors import ExchangeError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

__all__ = ["Link", "aborted", "ready", "state"]

_STATES = {"T": "is stopped (SIGSTOP)", "t": "is stopped by a debugger", "D": "hangs in the kernel (state D)"}


class Link:
    """The connection to one peer.

    Attributes:
        rank: The peer's rank.
        pid: Its process id, as the kernel says; 0 from another pid namespace.
        sequence: Number of the last exchange it spoke of.
        heard_s: When it last spoke, or when waiting for it began; monotonic clock.
    """

    __slots__ = ("__weakref__", "_pidfd_end", "heard_s", "pid", "pidfd", "rank", "sequence", "socket")

    def __init__(self, rank: int, pid: int, connection: socket.socket) -> None:
        connection.settimeout(0)
        self.rank, self.pid, self.socket = rank, pid, connection
        self.sequence, self.heard_s = 0, time.monotonic()
        self.pidfd = -1
        self._pidfd_end: weakref.finalize[..., Link] | None = None
        with contextlib.suppress(OSError, AttributeError):  # other pid namespace, old kernel
            self.pidfd = os.pidfd_open(pid)
            # A socket closes itself when it is dropped; a number does not.
            self._pidfd_end = weakref.finalize(self, os.close, self.pidfd)
            self._pidfd_end.atexit = False

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid})"

    def is_dead(self, wait_s: float = 0.0) -> bool:
        """Its process ended."""
        return self.pidfd >= 0 and bool(ready([self.pidfd], wait_s))

    def close(self) -> None:
        """Gives back both descriptors."""
        self.socket.close()
        if self._pidfd_end is not None:
            self._pidfd_end()
        self.pidfd = -1


def ready(fds: Iterable[int], wait_s: float, events: int = select.POLLIN) -> set[int]:
    """Which of them are ready, or have failed (`select` takes no descriptor above 1023)."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, events)
    return {fd for fd, _ in poll.poll(wait_s * 1000)}


def aborted(link: Link, text: bytes, where: str) -> ExchangeError:
    """What a peer said when it gave up: who is at fault."""
    try:
        fields = json.loads(text)
        what, ranks = str(fields["what"]), tuple(int(rank) for rank in fields["ranks"])
    except (ValueError, TypeError, KeyError, RecursionError):
        what, ranks = "for no reason that can be read", ()
    return ExchangeError(f"{link} gave up: {what}", where=where, ranks=ranks or (link.rank,))


def state(link: Link) -> str:
    """What the kernel says about a silent peer."""
    try:
        stat = Path(f"/proc/{link.pid}/stat").read_text("utf-8", "replace") if link.pid else ""
    except OSError:
        stat = ""
    state = stat.rpartition(")")[2].strip()[:1]
    return _STATES.get(state, "is silent")
