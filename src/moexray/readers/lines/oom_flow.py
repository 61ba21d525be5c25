"""Joins what hard wraps, quoting and pretty-printing tore apart: stretches of text without white space.

Glossary: a *stretch* is a run of neighbouring lines some of which hold words of an out-of-memory
message; its *flow* is their text squeezed, that is without white space, quotes and box drawing, so
that a break at any column, inside a word or a number, leaves no trace.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from moexray.readers.lines.line import Line

__all__ = ["Flow", "flows", "squeeze"]

# Pieces of the messages; one of them survives on some line even in a narrow column.
WORDS = (
    "of mem",
    "out of",
    "OutOfMem",
    "OUT_OF_",
    "MemoryAlloc",
    "to alloc",
    "memory alloc",
    "capac",
    "by PyT",
    "unalloc",
    "reserved",
    "already",
    "allowed mem",
    "OOM on",
    "in use.",
)
BEFORE, AFTER = 8, 24  # lines around such words that may belong to the message
BATCH = 4096  # lines that are searched at once
LONGEST = 20_000  # lines of one stretch

_DROPPED = lazy(r"[\s\"'`|\\│┃║╭╮╰╯─━┆┊*\u00ad\u200b-\u200f\u2060\ufeff]+")
_ESCAPE = lazy(r"\\(?:u00[0-9a-fA-F]{2}|[nrt])")
_TAG = lazy(r"</?(?:br|p|pre|code|span|div|td|tr|li|b|i|font)\b[^<>]{0,80}>", re.IGNORECASE)
_GUTTER = lazy(r"^\s*(?:[>|│┃║]\s*)+|^[\w.-]{1,60} +\| +")


@dataclass(frozen=True, slots=True)
class Flow:
    """One stretch, squeezed.

    Args:
        text: The squeezed text.
        starts: Where each line begins in it, ascending; as many as `lines`.
        lines: The lines of the stretch.
        first: Index of the first of them in the file's lines.
    """

    text: str
    starts: tuple[int, ...]
    lines: Sequence[Line]
    first: int

    def index(self, offset: int) -> int:
        """Index in `lines` of the line that holds the character at `offset`."""
        return bisect_right(self.starts, offset) - 1

    def lead(self, offset: int) -> str:
        """The text of that line before `offset`, white space included."""
        line = self.index(offset)
        wanted = offset - self.starts[line]
        text = self.lines[line].text
        low, high = 0, len(text)
        while low < high:
            middle = (low + high) // 2
            if len(squeeze(text[:middle])) < wanted:
                low = middle + 1
            else:
                high = middle
        return text[:low]


def squeeze(text: str) -> str:
    """The text without white space, quotes, escapes, entities and drawing characters."""
    if "&" in text and ";" in text:
        from html import unescape

        text = unescape(text)
    if "<" in text:
        text = _TAG.sub("", text)
    if "\\" in text:
        text = _ESCAPE.sub("", text)
    return _DROPPED.sub("", text)


def flows(lines: Sequence[Line]) -> Iterator[Flow]:
    """Yields the stretches of a file in which an out-of-memory message may stand."""
    for first, last in _stretches(lines):
        part = lines[first:last]
        starts, pieces, at = [], [], 0
        shared = ""
        for line in part:
            text = line.text
            if shared and text.startswith(shared):
                text = text[len(shared) :]
            elif line.quoted or text[:1] in ">|│┃║ " or " | " in text[:64]:
                text = _GUTTER.sub("", text)
            piece = squeeze(text)
            piece = piece.removesuffix("=")  # soft break of quoted-printable mail
            shared = _speaker(line.text) or shared
            starts.append(at)
            pieces.append(piece)
            at += len(piece)
        yield Flow("".join(pieces), tuple(starts), part, first)


_SPEAKER = lazy(r"^(?:\[[^\]]{1,30}\] )?[A-Za-z_][\w.@ -]{0,29}: (?:> ?)*(?=\S)|^[^:]{0,60}\[\d+\]: ")


def _speaker(text: str) -> str:
    """A prefix that an exporter may repeat before each part of a broken line ("user_a: ")."""
    m = _SPEAKER.match(text)
    return m[0] if m and "rror" not in m[0] else ""


def _stretches(lines: Sequence[Line]) -> Iterator[tuple[int, int]]:
    begin = end = 0
    for at in _hits(lines):
        if end and at - BEFORE <= end and at - begin < LONGEST:
            end = min(at + AFTER, len(lines))
            continue
        if end:
            yield begin, end
        begin, end = max(at - BEFORE, end), min(at + AFTER, len(lines))
    if end:
        yield begin, end


def _hits(lines: Sequence[Line]) -> Iterator[int]:
    """Indices of lines that hold one of WORDS; batches are ruled out as a whole first."""
    for start in range(0, len(lines), BATCH):
        batch = lines[start : start + BATCH]
        joined = "\n".join([line.text for line in batch])
        words = [w for w in WORDS if w in joined]
        if words:
            for i, line in enumerate(batch, start):
                text = line.text
                if any(w in text for w in words):
                    yield i
