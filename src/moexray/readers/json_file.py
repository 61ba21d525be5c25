"""JSON and JSON lines: parsed once (tolerantly), then offered to the shapes.

A *shape* looks at a parsed document and, if it is its own, fills the tables. Kineto traces do not
come this way when they are sound: readers/kineto.py reads them typed and fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moexray.core.errors import ReadError

if TYPE_CHECKING:
    from collections.abc import Callable

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["SHAPES", "read", "sniff"]

# Each takes (document, source, out) and returns whether the document was its own. JSON lines
# arrive as a list of objects. First yes wins.
SHAPES: tuple[Callable[[Any, Source, Reading], bool], ...] = ()


def sniff(head: bytes) -> bool:
    """An object or array that goes on like JSON (a log line may start with a bracket, too)."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:400]
    if start[:1] == b"{":
        return start[1:].lstrip()[:1] in (b'"', b"}", b"'") or start[1:].strip() == b""
    if start[:1] == b"[":
        return start[1:].lstrip()[:1] in (b"{", b"[", b"]", b'"') or start[1:].lstrip()[:1].isdigit()
    return False


def read(source: Source, out: Reading) -> None:
    """Parses the document and gives it to the first shape that knows it."""
    from moexray.readers.tolerant_json import load

    document = load(source, out)
    for shape in SHAPES:
        if shape(document, source, out):
            return
    raise ReadError("JSON of no known shape", where=source.path, hint="see docs/capture.md")
