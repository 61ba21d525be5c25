"""Pickles, read by an unpickler that refuses every global; then offered to the shapes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from moexray.core.errors import ReadError
from moexray.readers.shapes import flight, routing, snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["SHAPES", "read", "sniff"]

# Each takes (document, source, out) and returns whether the document was its own. First yes wins.
SHAPES: tuple[Callable[[Any, Source, Reading], bool], ...] = (
    snapshot.shape,
    flight.read,
    routing.read_pickle,
)


# A pickle of protocol 0 that begins with a name to import or call.
GLOBAL_FIRST = re.compile(rb"\(*[ci][A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n[()\]}pqNRtS0-9X.]")


def sniff(head: bytes) -> bool:
    """Protocol 2-5 mark, the opening of protocol 0/1 containers, or of a call."""
    if head[:1] == b"\x80":
        return head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    if head[:1] in (b"}", b"]"):
        return head[1:2] in (b"q", b"r", b"(", b".")
    return head[:3] in (b"(dp", b"(lp") or GLOBAL_FIRST.match(head) is not None


def read(source: Source, out: Reading) -> None:
    """Loads the pickle safely and gives it to the first shape that knows it."""
    from moexray.readers.safe_pickle import load
    from moexray.readers.safe_pickle_tape import FAST_BYTES, load_tape

    if len(data := source.data()) >= FAST_BYTES:
        tape = load_tape(data)
        if tape is not None and snapshot.from_tape(tape, source, out):
            return
    document = load(source, out)
    for shape in SHAPES:
        if shape(document, source, out):
            return
    raise ReadError("a pickle of no known shape", where=source.path, hint="see docs/capture.md")
