"""Text: logs, pasted screens, chats. Lines are cleaned once, then given to the line parsers.

A file of up to SMALL_BYTES is kept whole. Of a larger one, between its head and its tail, only lines
that hold a *word* of some parser are kept (and the few lines after them that a hard wrap may have cut
off), each word up to a quota: memory stays bounded however long the log is.
"""

from __future__ import annotations

import codecs
from collections import Counter, deque
from itertools import chain
from typing import TYPE_CHECKING

from moexray.core.source import decode
from moexray.readers.lines import LINE_PARSERS, WORDS
from moexray.readers.lines.choose import Chooser
from moexray.readers.lines.clock import number_clocks
from moexray.readers.lines.container import is_json_log
from moexray.readers.lines.line import Cleaner
from moexray.readers.prose import what_is_it

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moexray.core.run import Reading
    from moexray.core.source import Source
    from moexray.readers.lines import LineParser
    from moexray.readers.lines.line import Line

__all__ = ["parse_lines", "read", "sniff", "sniff_json_log"]

SMALL_BYTES = 8 << 20  # a text up to this size, with LINE_COST a line, is kept whole
LINE_COST = 64  # bytes that a line counts on top of its text: a file of line ends is large, too
TAIL_BYTES = 2 << 20  # the end of a larger text that is kept whole: what went wrong last stands there
QUOTA = 20_000  # lines kept per word of a larger file
MOST_LINES = 400_000  # lines kept of what lies beyond SMALL_BYTES
AFTER = 3  # lines kept after a hit: hard wraps and tracebacks
LINE_BYTES = 1 << 20  # a longer line is cut (binary rubbish without line ends)
JUMPS_SHOWN = 3
AT_ONCE = 20_000  # lines that are searched for the parsers' words together


def sniff(head: bytes) -> bool:
    """Text has few control characters; UTF-16 and stray NULs are text, too."""
    sample = head.replace(b"\0" * 16, b"")[:4096]  # a log cut while it was written has runs of zeros
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
    lines = list(Cleaner(head).lines(_numbered(source, out, found)))
    parse_lines(lines, out, head)
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
    for parser in _needed(lines):
        parser.parse(lines, out)
    if not out.rows:
        out.rows = sum(line.known for line in lines)
    if not out.rows:
        out.notes.append("text without a line of a known form")
        return
    if jumps:
        spans = _spans(lines)
        steps = ", ".join(f"{j.step_s:+.0f} s at line {j.number}" for j in jumps[:JUMPS_SHOWN])
        more = f" and {len(jumps) - JUMPS_SHOWN} more" if len(jumps) > JUMPS_SHOWN else ""
        out.problem(
            "input.clock_jump",
            f"the clock steps {steps}{more}; no duration is computed across it (stretches of {spans})",
            where=f"line {jumps[0].number}",
            values={"jumps": len(jumps), "step_s": jumps[0].step_s},
        )


def _needed(lines: list[Line]) -> list[LineParser]:
    """The parsers of which a word stands in the text; the others stay unloaded."""
    needed: set[str] = set()
    for at in range(0, len(lines), AT_ONCE):
        low = "\n".join(line.text for line in lines[at : at + AT_ONCE]).lower()
        needed.update(p.name for p in LINE_PARSERS if p.name not in needed and any(w in low for w in p.words))
    return [p for p in LINE_PARSERS if p.name in needed]


def _spans(lines: list[Line]) -> str:
    """How long the stretches between the jumps are."""
    ends: dict[int, tuple[float, float]] = {}
    for line in lines:
        if line.t_s is not None:
            low, high = ends.get(line.clock, (line.t_s, line.t_s))
            ends[line.clock] = min(low, line.t_s), max(high, line.t_s)
    shown = [f"{high - low:.0f} s" for low, high in ends.values()]
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")


def _blocks(source: Source, found: Counter[str]) -> Iterator[bytes]:
    """Yields pieces of whole lines in UTF-8 without NULs; counts other encodings in `found`."""
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
    rest = b""
    for piece in pieces:
        whole = piece.replace(b"\0", b"")
        if len(whole) < len(piece):
            found["utf-8+nul"] = 1
        lines, end, rest = (rest + whole).rpartition(b"\n")
        if end:
            yield lines + end
        rest = rest[:LINE_BYTES]
    if rest:
        yield rest


def _numbered(source: Source, out: Reading, found: Counter[str]) -> Iterator[tuple[int, str]]:
    """Yields (number, line); between head and tail of a large text only lines that a parser may use."""
    number, size = 1, 0
    waiting: deque[tuple[int, int, bytes]] = deque()  # (number, lines, block): they may be the tail
    held = lines = left_out = 0
    chooser = Chooser(WORDS, QUOTA, AFTER)
    for block in chain(_blocks(source, found), (b"",)):
        count = block.count(b"\n") + (not block.endswith(b"\n"))
        if size <= SMALL_BYTES:
            size += len(block) + LINE_COST * count
            if block:
                yield from _whole(number, block, found)
        elif block:
            waiting.append((number, count, block))
            held += len(block) + LINE_COST * count
        while held > TAIL_BYTES and (len(waiting) > 1 or not block):
            first, given, oldest = waiting.popleft()
            held -= len(oldest) + LINE_COST * given
            chosen = chooser.choose(oldest) if lines < MOST_LINES else []
            lines += len(chosen)
            left_out += given - len(chosen)
            for i, line in chosen:
                yield first + i, _decode(line, found)
        number += count
    for first, _, block in waiting:
        yield from _whole(first, block, found)
    if left_out:
        full = ", ".join(chooser.full)
        note = f"; only the first {QUOTA} lines and the last were kept of: {full}" if full else ""
        out.notes.append(f"read as a stream: {left_out} lines without a known word were left out{note}")


def _whole(number: int, block: bytes, found: Counter[str]) -> Iterator[tuple[int, str]]:
    """All lines of a block."""
    for i, line in enumerate(block.removesuffix(b"\n").split(b"\n")):
        yield number + i, _decode(line, found)


def _wide(head: bytes) -> str:
    encoding = decode(head.replace(b"\0" * 16, b"")[:4096])[1]
    return encoding if encoding.startswith("utf-16") else ""


def _decode(line: bytes, found: Counter[str]) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as why:
        if why.reason == "unexpected end of data" and why.start > len(line) - 4:
            return line[: why.start].decode()  # cut inside a character
        found["latin-1"] += 1
        return line.decode("latin-1")
