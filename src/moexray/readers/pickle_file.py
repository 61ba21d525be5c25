"""Pickles, read by an unpickler that refuses every global; then offered to the shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.core.errors import ReadError
from moexray.core.pattern import lazy
from moexray.readers.shapes import first_that_takes

if TYPE_CHECKING:

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["SHAPES", "read", "sniff"]

# Each takes (document, source, out) and returns whether the document was its own. First yes wins.
SHAPES: tuple[str, ...] = (
    "moexray.readers.shapes.snapshot:shape",
    "moexray.readers.shapes.flight:read",
    "moexray.readers.shapes.routing:read_pickle",
)


# A pickle of protocol 0 that begins with a name to import or call.
GLOBAL_FIRST = lazy(rb"\(*[ci][A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n[()\]}pqNRtS0-9X.]")


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
    from moexray.readers.shapes import snapshot

    if len(data := source.data()) >= FAST_BYTES:
        tape = load_tape(data)
        if tape is not None and snapshot.from_tape(tape, source, out):
            return
    document = load(source, out)
    if first_that_takes(SHAPES, document, source, out):
        return
    raise ReadError("a pickle of no known shape", where=source.path, hint="see docs/capture.md")
