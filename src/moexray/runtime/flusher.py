"""The thread that brings in what a ring holds where no more steps come."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moexray.runtime.recorder import Ring

__all__ = ["TAIL_S", "Flusher"]

TAIL_S = 0.2  # between two looks (our choice)


class Flusher:
    """Of one ring, which it does not keep alive; its thread starts with the first step that is held.

    Attributes:
        awake: The ring is flushed soon; else who holds something calls `wake`.
    """

    def __init__(self, ring: Ring) -> None:
        self.awake = False
        self._ring, self._lock = weakref.ref(ring), threading.RLock()
        self._calls: SimpleQueue[None] = SimpleQueue()  # unlike an Event no fork leaves it locked
        self._thread: threading.Thread | None = None
        weakref.finalize(ring, self._calls.put, None).atexit = False  # the thread ends with the ring

    def wake(self) -> bool:
        """Has the ring flushed soon: once its engine is idle, TAIL_S from now on at the earliest.

        Returns:
            Whether that will be: not where no thread can be had (a limit, or the interpreter ends).
        """
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, daemon=True, name="moexray-ring")
                try:
                    thread.start()
                except RuntimeError:
                    return False
                self._thread = thread
        self.awake = True
        self._calls.put(None)
        return True

    def end(self) -> None:
        """The ring is closed."""
        self._calls.put(None)

    def _run(self) -> None:
        while True:
            self._calls.get()
            time.sleep(TAIL_S)
            ring = self._ring()
            if ring is None or ring.closed:
                return
            if ring.is_busy():  # its own steps flush it, where the caches are warm
                self._calls.put(None)
            else:
                self.awake = False
                with contextlib.suppress(Exception):  # counted in the ring
                    ring.flush()
            del ring
