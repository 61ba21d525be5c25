"""Mends one damaged JSON value where only one reading exists.

Glossary: *mending* rewrites tokens (bare inf, raw control characters, bad escapes, a lost comma) into
valid JSON; a value that could be read in two ways is not mended.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from moexray.core.pattern import lazy

__all__ = ["MISSING_WORD", "Mended", "Repairs", "mend"]

MAX_SPAN = 1 << 20  # characters of one value that we try to mend
MAX_TOKENS = 200_000
MAX_DEPTH = 200
NAMED = 12  # damaged records that are named

TOKEN = lazy(
    r"""(?P<space>[ \t\r\n]+)
    |(?P<str>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")
    |(?P<bad>"(?:[^"\\]|\\.)*")
    |(?P<single>'(?:[^'\\\n]|\\.)*')
    |(?P<mark>[{}\[\]:,])
    |(?P<num>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?=[ \t\r\n,\]}]|$))
    |(?P<word>[^ \t\r\n,\[\]{}:"']+)""",
    re.VERBOSE | re.DOTALL,
)
MISSING = frozenset(
    word
    for stem in ("nan", "inf", "infinity", "nan(ind)", "nan(snan)", "1.#inf", "1.#ind", "1.#qnan")
    for word in (stem, "-" + stem, "+" + stem)
) | {"n/a", "na", "none", "nil", "undefined", "null"}
BOOLS = {"true": "true", "false": "false"}
# A missing value where a value stands, in a text that may hold the same words in a string: QUICK.
WORDS = r"[+-]?(?:[iI]nf(?:inity)?|INF|NaN|nan|NAN|N/A|n/a|None|undefined)(?=[ \t\r\n]*[,}\]])"
MISSING_WORD = lazy(WORDS)
BARE = lazy(rf"(?<=[:,\[])([ \t\r\n]*){WORDS}")
QUICK = 1 << 14  # characters of a record that is mended by replacing its bare words only
LOOSE_NUMBER = lazy(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
ESCAPE = lazy(r"\\(?:[\"\\/bfnrt]|u[0-9a-fA-F]{4})|\\|[\x00-\x1f]|\"")


@dataclass(slots=True)
class Repairs:
    """What was repaired or lost in one document.

    Args:
        tokens: Bare words (inf, nan, N/A, None) that became null, and numbers of a loose form.
        strings: Strings with raw control characters, bad escapes or single quotes.
        commas: Commas and values that were missing or too many.
        bytes: Byte sequences that are no UTF-8, and stray bytes between values.
        dropped: Records that had two readings or none.
        named: Which records, at most a dozen.
        records: Whole records that were kept.
        end: "" sound; "mark": only closing brackets are missing; "record": cut inside a record.
        offset: Where the text ended early, in characters.
    """

    tokens: int = 0
    strings: int = 0
    commas: int = 0
    bytes: int = 0
    dropped: int = 0
    named: list[str] = field(default_factory=list)
    records: int = 0
    end: str = ""
    offset: int = 0

    @property
    def count(self) -> int:
        """Everything that was repaired without loss."""
        return self.tokens + self.strings + self.commas + self.bytes

    def add(self, other: Repairs) -> None:
        """Sums the repairs of one value up."""
        self.tokens += other.tokens
        self.strings += other.strings
        self.commas += other.commas
        self.bytes += other.bytes
        self.dropped += other.dropped
        self.records += other.records
        self.named += other.named[: NAMED - len(self.named)]
        if other.end:
            self.end, self.offset = other.end, other.offset

    def name(self, index: int, value: object, what: str = "") -> None:
        """Remembers which record it was."""
        if len(self.named) < NAMED:
            title = value.get("name") if isinstance(value, dict) else None
            label = f" ({str(title)[:60]})" if title else ""
            self.named.append(f"record {index}{label}{what}")


@dataclass(frozen=True, slots=True)
class Mended:
    """A mended value and where it ends in the text."""

    value: Any
    end: int
    repairs: Repairs


class _Unclear(Exception):  # noqa: N818  # control flow inside this file only
    """Two readings, or none."""


def mend(text: str, start: int, limit: int) -> Mended | None:
    """Reads the value at `start`, repairing what has one reading.

    Args:
        text: The document.
        start: Where the value begins.
        limit: Where it must have ended.

    Returns:
        The value, its end and what was repaired; None where it stays unclear or is cut.
    """
    if limit - start <= QUICK and (quick := _quick(text[start:limit].rstrip(" \t\r\n,"), start)):
        return quick
    writer = _Writer(Repairs())
    position, tokens = start, 0
    limit = min(limit, start + MAX_SPAN)
    try:
        while not writer.done:
            token = TOKEN.match(text, position, limit)
            tokens += 1
            if token is None or tokens > MAX_TOKENS:
                return None
            position = token.end()
            if token.lastgroup != "space":
                writer.take(str(token.lastgroup), token.group())
        value = json.loads("".join(writer.out))
    except (_Unclear, ValueError, RecursionError):
        return None
    return Mended(value, position, writer.repairs)


def _quick(record: str, start: int) -> Mended | None:
    """A record whose only fault are bare words for missing values.

    With a string in the place of each word a match inside a string would break the JSON, so that a
    text which decodes had none.
    """
    marked, count = BARE.subn(r'\1""', record)
    if not count:
        return None
    try:
        json.loads(marked)
        value = json.loads(BARE.sub(r"\1null", record))
    except (ValueError, RecursionError):
        return None
    return Mended(value, start + len(record), Repairs(tokens=count))


class _Writer:
    """A push-down automaton over tokens that writes valid JSON.

    `state` is what must come next: value, key, colon, more (a comma or the end).
    """

    def __init__(self, repairs: Repairs) -> None:
        self.out: list[str] = []
        self.repairs = repairs
        self.stack: list[str] = []
        self.state = "value"
        self.done = False

    def take(self, kind: str, token: str) -> None:
        if kind in ("bad", "single"):
            self.repairs.strings += 1
            self._string(_quote(token))
        elif kind == "str":
            self._string(token)
        elif kind == "mark":
            self._mark(token)
        elif kind == "num":
            self._value(token)
        else:
            self._word(token)

    def _string(self, token: str) -> None:
        if self.state == "more" and self.stack:
            self._put_comma()
        if self.state == "key":
            self.out.append(token)
            self.state = "colon"
        else:
            self._value(token)

    def _value(self, token: str) -> None:
        if self.state != "value":
            raise _Unclear
        self.out.append(token)
        self._after()

    def _word(self, token: str) -> None:
        bare = token.strip("\x00\ufffd")
        low = bare.lower()
        if not "".join(c for c in bare if c.isprintable()):
            self.repairs.bytes += 1
        elif bare in ("true", "false", "null"):
            self._value(bare)
        elif low in MISSING:
            self.repairs.tokens += 1
            self._value("null")
        elif low in BOOLS:
            self.repairs.tokens += 1
            self._value(BOOLS[low])
        elif LOOSE_NUMBER.fullmatch(bare) and not re.match(r"[+-]?0[0-9]", bare):
            self.repairs.tokens += 1
            self._value(repr(float(bare)))
        else:
            raise _Unclear

    def _mark(self, mark: str) -> None:
        if mark in "{[":
            if self.state == "more" and self.stack and self.stack[-1] == "[":
                self._put_comma()
            if self.state != "value" or len(self.stack) > MAX_DEPTH:
                raise _Unclear
            self.out.append(mark)
            self.stack.append(mark)
            self.state = "value" if mark == "[" else "key"
        elif mark == ":":
            if self.state != "colon":
                raise _Unclear
            self.out.append(mark)
            self.state = "value"
        elif mark == ",":
            self._comma()
        else:
            self._close(mark)

    def _comma(self) -> None:
        if self.state == "value" and self.stack[-1:] == ["{"]:
            self._no_value()
        elif self.state == "key":
            self.repairs.commas += 1
            return
        elif self.state != "more" or not self.stack:
            raise _Unclear
        self.out.append(",")
        self.state = "key" if self.stack[-1] == "{" else "value"

    def _close(self, mark: str) -> None:
        if not self.stack or (self.stack[-1] == "{") != (mark == "}"):
            raise _Unclear
        if self.state == "value" and mark == "}":
            self._no_value()
        elif self.state == "colon":
            raise _Unclear
        elif self.out[-1] == ",":
            self.out.pop()
            self.repairs.commas += 1
        self.out.append(mark)
        self.stack.pop()
        self._after()

    def _no_value(self) -> None:
        self.out.append("null")
        self.repairs.commas += 1

    def _put_comma(self) -> None:
        self.out.append(",")
        self.repairs.commas += 1
        self.state = "key" if self.stack[-1] == "{" else "value"

    def _after(self) -> None:
        self.state = "more"
        self.done = not self.stack


def _quote(token: str) -> str:
    """A valid JSON string with the characters of a damaged one."""

    def fix(match: re.Match[str]) -> str:
        found = match.group()
        if found == '"':
            return '\\"'
        if found == "\\":
            return "\\\\"
        return found if len(found) > 1 else json.dumps(found)[1:-1]

    body = token[1:-1]
    if token[0] == "'":
        body = body.replace("\\'", "'")
    return f'"{ESCAPE.sub(fix, body)}"'
