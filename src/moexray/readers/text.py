"""Text: logs, pasted screens, chats. Lines are cleaned once, then given to the line parsers.

A file of up to SMALL_BYTES is kept whole. Of a larger one only lines that hold a *word* of some
parser are kept (and the few lines after them that a hard wrap may have cut off), each word up to a
quota: memory stays bounded however long the log is.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

from moexray.core.source import decode
from moexray.readers.lines import LINE_PARSERS, WORDS
from moexray.readers.lines.clock import number_clocks
from moexray.readers.lines.container import is_json_log
from moexray.readers.lines.line import Cleaner
from moexray.readers.prose import what_is_it

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moexray.core.run import Reading
    from moexray.core.source import Source
    from moexray.readers.lines.line import Line

__all__ = ["parse_lines", "read", "sniff", "sniff_json_log"]

SMALL_BYTES = 24 << 20  # a text up to this size, with LINE_COST a line, is kept whole
LINE_COST = 64  # bytes that a line counts on top of its text: a file of line ends is large, too
QUOTA = 20_000  # lines kept per word of a larger file
AFTER = 3  # lines kept after a hit: hard wraps and tracebacks
LINE_BYTES = 1 << 20  # a longer line is cut (binary rubbish without line ends)
JUMPS_SHOWN = 3


def sniff(head: bytes) -> bool:
    """Text has few control characters; UTF-16 and stray NULs are text, too."""
    sample = head[:4096]
    if sample[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return True
    controls = sum(b < 9 or 13 < b < 27 or 27 < b < 32 for b in sample.replace(b"\0", b""))
    return controls <= len(sample) // 50 and sample.count(0) <= len(sample) * 0.6


def sniff_json_log(head: bytes) -> bool:
    """JSON lines that carry a log (Docker, structured logging), not data."""
    return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{" and is_json_log(head)


def read(source: Source, out: Reading) -> None:
    """Runs every line parser over the lines of the text."""
    found: Counter[str] = Counter()
    head = decode(source.head)[0]
    raw = _thin_out(_numbered(source, found), out)
    parse_lines(list(Cleaner(head).lines(raw)), out, head)
    for encoding in sorted(found):
        part = "the text is" if encoding.startswith("utf") else f"{found[encoding]} lines are"
        text = f"{part} {encoding}, not plain UTF-8; all of it was read"
        out.problem("input.encoding", text, values={"encoding": encoding})


def parse_lines(lines: list[Line], out: Reading, head: str) -> None:
    """Gives cleaned lines to the parsers, once the text is known to be no program or lock file."""
    kind = what_is_it(head, lines)
    if kind and not any(line.known for line in lines):
        out.notes.append(kind)
        return
    lines, jumps = number_clocks(lines)
    for parser in LINE_PARSERS:
        parser.parse(lines, out)
    if not out.rows:
        out.rows = sum(line.known for line in lines)
    if not out.rows:
        out.notes.append("text without a line of a known form")
        return
    if jumps:
        steps = ", ".join(f"{j.step_s:+.0f} s at line {j.number}" for j in jumps[:JUMPS_SHOWN])
        more = f" and {len(jumps) - JUMPS_SHOWN} more" if len(jumps) > JUMPS_SHOWN else ""
        out.problem(
            "input.clock_jump",
            f"the clock steps {steps}{more}; no duration is computed across it",
            where=f"line {jumps[0].number}",
            values={"jumps": len(jumps), "step_s": jumps[0].step_s},
        )


def _numbered(source: Source, found: Counter[str]) -> Iterator[tuple[int, str]]:
    """Yields (number, line) of a source of any encoding; counts encodings other than UTF-8."""
    pieces = source.chunks()
    first = next(pieces, b"")
    wide = _wide(first)
    if wide:
        found[wide] += 1
        decoder = codecs.getincrementaldecoder(wide)("replace")
        start = first.removeprefix(codecs.BOM_UTF16_LE).removeprefix(codecs.BOM_UTF16_BE)
        pieces = (decoder.decode(p).encode() for p in chain((start,), pieces))
    else:
        if first.startswith(codecs.BOM_UTF8):
            found["utf-8-sig"] += 1
        pieces = chain((first.removeprefix(codecs.BOM_UTF8),), pieces)
    rest, number, nul = b"", 0, False
    for piece in pieces:
        nul = nul or b"\0" in piece
        *lines, rest = (rest + piece.replace(b"\0", b"")).split(b"\n")
        for line in lines:
            number += 1
            yield number, _decode(line, found)
        if len(rest) > LINE_BYTES:
            rest = rest[:LINE_BYTES]
    if rest:
        yield number + 1, _decode(rest, found, last=True)
    if nul and not wide:
        found["utf-8+nul"] += 1


def _wide(head: bytes) -> str:
    encoding = decode(head[:4096])[1]
    return encoding if encoding.startswith("utf-16") else ""


def _decode(line: bytes, found: Counter[str], *, last: bool = False) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as why:
        if last and why.start > len(line) - 4:  # the file ends inside a character
            return line[: why.start].decode()
        found["latin-1"] += 1
        return line.decode("latin-1")


def _thin_out(numbered: Iterator[tuple[int, str]], out: Reading) -> Iterator[tuple[int, str]]:
    """Leaves out, after the first SMALL_BYTES, the lines that no parser can use."""
    size = 0
    for item in numbered:
        size += len(item[1]) + LINE_COST
        yield item
        if size > SMALL_BYTES:
            break
    else:
        return
    words = list(WORDS)
    kept: Counter[str] = Counter()
    pattern = _pattern(words)
    follow = dropped = 0
    for number, text in numbered:
        m = pattern.search(text)
        if m:
            word = m[0].lower()
            kept[word] += 1
            if kept[word] == QUOTA:
                words.remove(word)
                pattern = _pattern(words)
            follow = AFTER
            yield number, text
        elif follow and text.strip():
            follow -= 1
            yield number, text
        else:
            dropped += 1
    full = [w for w, n in kept.items() if n >= QUOTA]
    note = f"read as a stream: {dropped} lines past {SMALL_BYTES >> 20} MiB without a known word left out"
    if full:
        note += f"; of lines with {', '.join(full)} only the first {QUOTA} were kept"
    out.notes.append(note)


def _pattern(words: list[str]) -> re.Pattern[str]:
    """Any of the words, any case; nothing if there are none."""
    return re.compile("|".join(map(re.escape, words)) or r"(?!)", re.IGNORECASE)
