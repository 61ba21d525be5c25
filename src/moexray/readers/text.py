"""Text: logs, pasted screens, chats. Lines are cleaned once, then given to the line parsers.

Glossary: a *line parser* takes the cleaned lines of a whole file and adds rows; its *words* are
lower-case literals one of which a line must hold to be kept at all (that bounds memory and time).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.core.source import decode
from moexray.readers.lines import LINE_PARSERS, clean_lines

if TYPE_CHECKING:
    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["read", "sniff"]


def sniff(head: bytes) -> bool:
    """Text has few control characters; UTF-16 and stray NULs are text, too."""
    sample = head[:4096]
    if sample[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return True
    controls = sum(b < 9 or 13 < b < 27 or 27 < b < 32 for b in sample.replace(b"\0", b""))
    return controls <= len(sample) // 50 and sample.count(0) <= len(sample) * 0.6


def read(source: Source, out: Reading) -> None:
    """Runs every line parser over the lines of the text."""
    text, encoding = decode(source.data())
    if encoding != "utf-8":
        out.problem("input.encoding", f"the text is {encoding}, not plain UTF-8; it was read as such",
                    values={"encoding": encoding})
    lines = clean_lines(text)
    for parser in LINE_PARSERS:
        parser.parse(lines, out)
    if not out.rows:
        out.rows = sum(line.known for line in lines)
    if not out.rows:
        out.notes.append("text without a line of a known form")
