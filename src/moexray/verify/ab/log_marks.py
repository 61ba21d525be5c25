"""Marks from a server's log while it is written: rearrangements of experts, compilation, snapshots."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self

from moexray.core.errors import UsageError
from moexray.core.run import Reading
from moexray.readers.lines.engine import parse
from moexray.readers.lines.line import clean_lines
from moexray.verify.ab.schedule import Mark

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

__all__ = ["LogMarks"]

LOOK_S = 0.05  # half a window: a line is dated to one window
MOST_BYTES = 4 << 20  # read at one look
# kind of a log line -> kind of the mark
KINDS = {
    "eplb.start": "rearrangement", "eplb.done": "rearrangement", "eplb.transfer": "rearrangement",
    "jit.compile": "compile", "jit.progress": "compile", "jit.session": "compile", "jit.done": "compile",
    "mem.snapshot": "snapshot",
}  # fmt: skip


class LogMarks:
    """Follows a log from its present end; use it in a `with` block.

    A line is dated by when it appeared. Where it says how long the event took, the mark reaches back so
    far; one that begins an event lasts until the line that ends it.

    Args:
        file: The log.

    Raises:
        UsageError: it cannot be read.
    """

    def __init__(self, file: Path) -> None:
        try:
            self._stream = file.open("rb")
        except OSError as why:
            what = f"the server's log cannot be read ({why.strerror})"
            raise UsageError(what, where=str(file), hint="check the path of --log") from why
        self._stream.seek(0, 2)
        self._rest = b""
        self._marks: list[Mark] = []
        self._open: dict[str, float] = {}
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True, name="moexray-log")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._stream.close()

    def take(self) -> tuple[Mark, ...]:
        """The marks since the last call; an event that is still under way reaches to now."""
        with self._lock:
            now = time.perf_counter()
            out = [*self._marks, *(Mark(what, start, now) for what, start in self._open.items())]
            self._marks.clear()
        return tuple(out)

    def _follow(self) -> None:
        while not self._over.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Reads what was written since the last look."""
        with self._lock:
            *whole, self._rest = (self._rest + self._stream.read(MOST_BYTES)).split(b"\n")
            self._rest = self._rest[:MOST_BYTES]
            if not whole:
                return
            found = Reading("log")
            parse(clean_lines("\n".join(line.decode("utf-8", "replace") for line in whole)), found)
            now = time.perf_counter()
            for row in found.tables.get("log", ()):
                if row["kind"] in KINDS:
                    self._note(row["kind"], row["fields"], now)

    def _note(self, kind: str, fields: dict[str, object], now: float) -> None:
        what = KINDS[kind]
        if kind == "eplb.start" or fields.get("state") == "begin":
            self._open[what] = now
            return
        took = fields.get("seconds")
        back = now - float(took) if isinstance(took, int | float) else now
        ends = kind == "eplb.done" or fields.get("state") == "end"
        start = self._open.pop(what, back) if ends else back
        self._marks.append(Mark(what, min(start, back), now))
