"""One line of text without its wrapping: colours, container prefixes, quoting, time, rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy
from moexray.readers.lines.container import unwrap
from moexray.readers.lines.prefix import LEVELS, looks_like_seconds, take_prefix
from moexray.readers.lines.stamp import year_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from moexray.readers.lines.container import Wrapped

__all__ = ["Cleaner", "Line", "clean_lines"]

# CSI and OSC sequences, charset switches, and CSI whose escape character was lost in a paste
ANSI = lazy(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b[=>78cDEHM]"
    r"|\x9b[0-?]*[ -/]*[@-~]|\[\d{1,3}(?:;\d{1,3})*m(?=\[|\(|[A-Z ]|$)"
)
CONTROL = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 127, 0xFEFF])
QUOTE = lazy(r"(?:\s{0,3}>\s?)+")
BAR = lazy(r"\d{1,3}%\s*\||\d\s*/\s*\d+ \[\d\d:\d\d|\bit/s\b|\bs/it\b")
REPEATED = lazy(r"\[repeated (\d+)x across cluster\]")
ASSIGNED = lazy(r"\brank (\d+) in world size \d+ is assigned as ")
LONGEST = 1 << 15  # characters of a line that we look at
DIGITS = lazy(r"\d{100,}")  # no count and no size; Python refuses to read some as integers


@dataclass(frozen=True, slots=True)
class Line:
    """A cleaned line.

    Args:
        number: From 1, in the file.
        text: The message: without colours and without any prefix, message words untouched.
        t_s: Seconds on the clock of the file (epoch UTC where the line has a date; a date without a
            year takes the year of the file's other dates, else 1970); None if no time.
        rank: Global rank if the prefix names it.
        worker: The worker's name as printed, e.g. "DP0 TP1", "Worker_EP3".
        level: debug, info, warning, error or None.
        known: The line has the form of a log line of a known engine or runtime.
        quoted: The line was quoted ("> ").
        full: The line without colours and container prefixes, to be quoted as evidence.
        relative: t_s counts from the start of a process, not from a date.
        repeats: How often Ray says that the line occurred.
        clock: How often the file's clock jumped before; times compare only within one number.
    """

    number: int
    text: str
    t_s: float | None = None
    rank: int | None = None
    worker: str | None = None
    level: str | None = None
    known: bool = False
    quoted: bool = False
    full: str = ""
    relative: bool = False
    repeats: int = 1
    clock: int = 0


def clean_lines(text: str) -> list[Line]:
    """Splits text into cleaned lines; blank ones keep their place."""
    cleaner = Cleaner(text[: 1 << 16])
    return list(cleaner.lines(enumerate(text.split("\n"), 1)))


class Cleaner:
    """Cleans the lines of one file in their order.

    Args:
        head: The start of the text; it tells the year of stamps without one, and whether lines
            start with plain seconds.
    """

    def __init__(self, head: str) -> None:
        plain = ANSI.sub("", head)
        self.year = year_of(plain)
        self.seconds = looks_like_seconds(plain)
        self._ranks: dict[str, int | None] = {}

    def lines(self, numbered: Iterable[tuple[int, str]]) -> Iterator[Line]:
        """Yields cleaned lines of (number, raw line); parts of a split record are joined."""
        open_record: tuple[int, Wrapped] | None = None
        for given, raw in numbered:
            for piece in _pieces(raw):
                number = given
                text, quoted = _strip(piece)
                wrapped = _unwrap(text, self.year)
                if open_record is not None:
                    number, first = open_record
                    if wrapped is None:
                        yield self._line(number, first.text, first, quoted=quoted)
                        number = given
                    else:
                        wrapped = replace(wrapped, text=(first.text + wrapped.text)[:LONGEST])
                    open_record = None
                if wrapped is not None and wrapped.partial:
                    open_record = (number, wrapped)
                    continue
                for part in (text if wrapped is None else wrapped.text).split("\n"):
                    yield self._line(number, part, wrapped, quoted=quoted)
        if open_record is not None:
            yield self._line(open_record[0], open_record[1].text, open_record[1], quoted=False)

    def _line(self, number: int, text: str, wrapped: Wrapped | None, *, quoted: bool) -> Line:
        message, prefix = take_prefix(text, self.year, seconds=self.seconds)
        t_s, relative, level, rank = prefix.t_s, prefix.relative, prefix.level, prefix.rank
        if wrapped is not None:
            if wrapped.t_s is not None and (t_s is None or relative or (wrapped.dated and not prefix.dated)):
                t_s, relative = wrapped.t_s, False
            level = level or LEVELS.get(wrapped.level or "")
            rank = wrapped.rank if rank is None else rank
        if prefix.worker and rank is None:
            rank = self._rank(prefix.worker, message)
        repeats = REPEATED.search(message) if "[repeated " in message else None
        return Line(
            number,
            message,
            t_s,
            rank,
            prefix.worker,
            level,
            prefix.known or (wrapped is not None and wrapped.known),
            quoted,
            message if len(message) == len(text) else text,
            relative,
            int(repeats[1]) if repeats else 1,
        )

    def _rank(self, worker: str, message: str) -> int | None:
        """A worker that once said which global rank it is keeps it, unless it speaks for several."""
        m = ASSIGNED.search(message) if "in world size" in message else None
        if m:
            rank = int(m[1])
            known = self._ranks.setdefault(worker, rank)
            if known != rank:
                self._ranks[worker] = None
            return rank
        return self._ranks.get(worker)


def _pieces(raw: str) -> Iterator[str]:
    """The parts of a line between carriage returns; progress bars keep their last state only."""
    raw = raw.rstrip("\r")
    if "\r" not in raw:
        yield raw
        return
    parts = [p for p in raw.split("\r") if p.strip()]
    for i, part in enumerate(parts):
        if i == len(parts) - 1 or not BAR.search(part):
            yield part


def _strip(piece: str) -> tuple[str, bool]:
    """Takes colours, control characters and quote marks off."""
    text = piece[:LONGEST]
    if len(text) >= 100:
        text = DIGITS.sub("?", text)
    if "\x1b" in text or "\x9b" in text or ("m" in text and "[" in text):
        text = ANSI.sub("", text)
    if not text.isprintable():
        text = text.translate(CONTROL)
    quoted = False
    if ">" in text[:8] and (m := QUOTE.match(text)):
        text, quoted = text[m.end() :], True
    return text, quoted


def _unwrap(text: str, year: int) -> Wrapped | None:
    """Takes off nested containers ("service-1 | {json}"); the outermost time is the best one."""
    outer: Wrapped | None = None
    for _ in range(3):
        inner = unwrap(text if outer is None else outer.text, year)
        if inner is None:
            break
        if outer is not None:
            timed = outer if outer.t_s is not None else inner
            inner = replace(
                inner,
                t_s=timed.t_s,
                dated=timed.dated,
                partial=inner.partial or outer.partial,
                level=inner.level or outer.level,
                rank=outer.rank if inner.rank is None else inner.rank,
            )
        outer = inner
    return outer
