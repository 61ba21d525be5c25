"""The recovering JSON parser: enters damaged containers by hand, reads sound parts at full speed.

Glossary: a *record* is an element of an array; damage is repaired or dropped record by record.
"""

from __future__ import annotations

import json
import re
from typing import Any

from moexray.core.pattern import lazy
from moexray.readers.json_mend import MISSING_WORD, Repairs, mend

__all__ = ["Recovery"]

NEAR = 1 << 16  # a fault this close to the start of a record is mended; farther: go into the record
WINDOW = 1 << 14  # characters given to the decoder at once: it counts lines up to each fault
TAIL = 16  # a fault this close to the end of a window may be the window's own
MOST_UNCLEAR = 50_000  # records with no single reading; damaged ones behind them are not mended
DAMAGE_COST = 1000  # characters' worth of budget that a damaged record takes
MAX_LEVELS = 12  # containers that are entered by hand
SPACE = lazy(r"[ \t\r\n,]*")
OPENING = lazy(r"[{\[]")
FIRST_KEY = lazy(r'\{\s*"([^"\\]{1,64})"\s*:')


class _Counting:
    """Counts NaN and Infinity, which the standard decoder lets pass."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _name: str) -> None:
        self.count += 1


class Recovery:
    """Parses one damaged text; `repairs` tells what was done and lost."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.repairs = Repairs()
        self.constants = _Counting()
        self.decoder = json.JSONDecoder(parse_constant=self.constants)
        self.budget = 20 * len(text) + (1 << 20)  # characters that may be read again
        self.keys: set[str] = set()
        self.jumped = False
        self.window, self.base = "", 0
        self.unclear = 0  # records that could not be mended

    def documents(self) -> Any:
        """All values at the top level; the value itself if there is one, None if none."""
        found: list[Any] = []
        position = self._skip(0)
        while position < len(self.text) and not self.repairs.end and self.budget > 0:
            begin = self._opening(position)
            if begin is None:
                self.repairs.bytes += bool(found)  # junk after the last document
                break
            if begin > position:
                self.repairs.bytes += 1
            value, position = self._value(begin, 0)
            found.append(value)
            position = self._skip(position)
        self.repairs.tokens += self.constants.count
        if not any(found) or (not self.repairs.records and self.repairs.end == "record"):
            found = [x for x in found if x]
        return (found[0] if len(found) == 1 else found) if found else None

    def _skip(self, position: int) -> int:
        match = SPACE.match(self.text, position)
        return match.end() if match else position

    def _between(self, position: int, *, first: bool, closing: str) -> int:
        """Skips what stands between two members and counts commas that are lost or too many."""
        after = self._skip(position)
        commas = self.text.count(",", position, after)
        last = self.text[after : after + 1] in (closing, "")
        if self.jumped:
            self.jumped = False  # the comma went with the record that was dropped
        elif commas > 1 and closing == "]":
            self.repairs.dropped += commas - 1  # an element may stand between them
        elif commas != (0 if first or last else 1) and after < len(self.text):
            self.repairs.commas += 1
        return after

    def _opening(self, position: int) -> int | None:
        """The next opening bracket of a document; junk before it is left out."""
        match = OPENING.search(self.text, position)
        return match.start() if match else None

    def _raw(self, position: int) -> tuple[Any, int] | int:
        """(value, end), or how far the sound part reaches."""
        before, size = self.constants.count, WINDOW
        while True:
            self._slide(position, size)
            start = position - self.base
            whole = self.base + len(self.window) >= len(self.text)
            try:
                value, end = self.decoder.raw_decode(self.window, start)
                if whole or end < len(self.window):
                    return value, end + self.base
            except json.JSONDecodeError as why:
                if whole or (why.pos < len(self.window) - TAIL and not why.msg.startswith("Unterminated")):
                    far = why.pos + self.base
                    break
            except (ValueError, RecursionError):
                far = position
                self.budget -= NEAR
                break
            self.constants.count = before
            self.budget -= len(self.window) - start
            size = 8 * size if self.budget > 0 else len(self.text)
        self.constants.count = before
        self.budget -= far - position
        return far

    def _slide(self, position: int, size: int) -> None:
        """Cuts a window of the text, unless the last one holds that much behind the place."""
        reach = min(len(self.text), position + size // 2 if size == WINDOW else position + size)
        if position < self.base or reach > self.base + len(self.window) or len(self.window) > 2 * size:
            self.window, self.base = self.text[position : position + size], position

    def _value(self, position: int, level: int) -> tuple[Any, int]:
        """The value at the place, as far as it can be read."""
        before = self.constants.count
        result = self._raw(position)
        mark = self.text[position : position + 1]
        enter_it = mark in ("{", "[") and level < MAX_LEVELS and self.budget > 0
        if isinstance(result, tuple):
            if self.constants.count == before or not enter_it:
                return result
            self.constants.count = before  # go in, so that the records with NaN are named
            self.budget -= result[1] - position
        if enter_it:
            enter = self._object if mark == "{" else self._array
            return enter(position + 1, level + 1)
        if word := MISSING_WORD.match(self.text, position):
            self.repairs.tokens += 1
            return None, word.end()
        self.budget -= DAMAGE_COST // 10
        mended = mend(self.text, position, len(self.text)) if self.budget > 0 else None
        if mended is None:
            self._lose(len(self.text))
            return None, len(self.text)
        self.repairs.add(mended.repairs)
        return mended.value, mended.end

    def _object(self, position: int, level: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        while True:
            position = self._between(position, first=not found, closing="}")
            if position >= len(self.text):
                self._end("mark")
                return found, position
            if self.text[position] == "}":
                return found, position + 1
            key = self._raw(position)
            if not isinstance(key, tuple) or not isinstance(key[0], str):
                self._lose(position)
                return found, len(self.text)
            colon = self.text.find(":", key[1], key[1] + 64)
            if colon < 0 or self.text[key[1] : colon].strip():
                self._lose(position)
                return found, len(self.text)
            position = self._skip(colon + 1)
            if position >= len(self.text):
                self._end("record")
                return found, position
            found[key[0]], position = self._value(position, level)

    def _array(self, position: int, level: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while True:
            position = self._between(position, first=not found, closing="]")
            if position >= len(self.text):
                self._end("mark")
                break
            if self.text[position] == "]":
                position += 1
                break
            if self.budget <= 0:
                self._lose(position)
                position = len(self.text)
                break
            before = self.constants.count
            result = self._raw(position)
            if isinstance(result, tuple):
                if self.constants.count > before:
                    self.repairs.name(len(found), result[0])
                found.append(result[0])
                position = result[1]
                continue
            position = self._damaged(position, result, level, found)
        self.repairs.records += len(found)
        return found, position

    def _damaged(self, position: int, far: int, level: int, found: list[Any]) -> int:
        """Handles a damaged element; returns where to go on."""
        text = self.text
        limit = self._next_record(position, found)
        near = far - position < NEAR and self.unclear <= MOST_UNCLEAR
        mended = mend(text, position, limit) if near else None
        self.unclear += mended is None
        self.budget -= DAMAGE_COST if mended is None else DAMAGE_COST // 4
        if mended is not None:
            self.repairs.add(mended.repairs)
            self.repairs.name(len(found), mended.value)
            found.append(mended.value)
            return mended.end
        if far - position >= NEAR and text[position] in "{[" and level < MAX_LEVELS and self.budget > 0:
            value, position = self._value(position, level)
            found.append(value)
            return position
        if limit >= len(text):
            if far >= len(text.rstrip()) or text.find("}", far) < 0:
                self._end("record")
            else:
                self._lose(position)
            return len(text)
        self.repairs.dropped += 1
        self.repairs.name(len(found), None, f" at offset {position} dropped")
        self.jumped = True
        return limit

    def _next_record(self, position: int, found: list[Any]) -> int:
        """Where the next sibling starts: an object that opens with the key of earlier ones."""
        for value in found[-1:] if self.keys else found[:64]:
            if isinstance(value, dict) and value and len(self.keys) < 8:
                self.keys.add(next(iter(value)))
        own = FIRST_KEY.match(self.text, position)
        keys = {*self.keys, own.group(1)} if own else self.keys
        if not keys:
            return len(self.text)
        words = "|".join(re.escape(k) for k in sorted(keys))
        match = re.compile(rf'\{{\s*"(?:{words})"\s*:').search(self.text, position + 1)
        limit = match.start() if match else len(self.text)
        self.budget -= limit - position
        return limit

    def _end(self, kind: str) -> None:
        if self.repairs.end != "record":
            self.repairs.end, self.repairs.offset = kind, len(self.text)

    def _lose(self, position: int) -> None:
        """The rest of the text has no single reading."""
        self.repairs.dropped += 1
        if len(self.repairs.named) < 12:
            self.repairs.named.append(f"the rest from offset {position}")
