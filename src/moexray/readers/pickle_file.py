"""Pickles, read by an unpickler that refuses every global; then offered to the shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moexray.core.errors import ReadError
from moexray.readers.shapes import routing

if TYPE_CHECKING:
    from collections.abc import Callable

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["SHAPES", "read", "sniff"]

# Each takes (document, source, out) and returns whether the document was its own. First yes wins.
SHAPES: tuple[Callable[[Any, Source, Reading], bool], ...] = (
    routing.read_pickle,
)


def sniff(head: bytes) -> bool:
    """Protocol 2-5 mark, or the opening of protocol 0/1 containers."""
    return (head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05") or head[:3] in (b"(dp", b"(lp")


def read(source: Source, out: Reading) -> None:
    """Loads the pickle safely and gives it to the first shape that knows it."""
    from moexray.readers.safe_pickle import load

    document = load(source, out)
    for shape in SHAPES:
        if shape(document, source, out):
            return
    raise ReadError("a pickle of no known shape", where=source.path, hint="see docs/capture.md")
