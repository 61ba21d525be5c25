"""The quick way through pickles that hold nothing but containers, numbers and plain text.

`plain` first walks over all opcodes. Only if each is on the short list below does the unpickler of
the standard library build the objects, and that one, too, is told to refuse every name. The list has
no opcode that names, calls, or reaches outside, and none that costs much more than its bytes:

* At most PER_BYTE bytes of objects per byte of pickle (an empty dict is one byte), so the length bounds
  the memory. Texts and integers lie in the data; memo indices stay below 2**20.
* A tuple can be a key; its hash is found anew each time and recurses. So tuples are few, and none can
  be fetched again from the memo; or they are at most MOST_SHARED, of three items at most.

All else, damage included, is left to the interpreter, which is slow and has the last word.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn

from moexray.core.errors import UnsafeError
from moexray.core.pattern import lazy
from moexray.readers.safe_pickle_machine import BUDGET_BYTES

__all__ = ["NOT_PLAIN", "plain"]

NOT_PLAIN = object()
PER_BYTE = 100
MOST_TUPLES = 10_000  # nesting depth that hashing one can reach
MOST_SHARED = 4

PUT = rb"(?:q.|r..[\x00-\x0f]\x00|\x94)"
# Without text: what is fetched, small numbers, containers and how they are filled; the group is a tuple
# that is not stored. At most 2,000 at a time: the engine keeps a state for each.
RUN = lazy(
    rb"(?s:[hK].|[(Neausd)\x88\x89]|M..|J.{4}|[\]}]" + PUT + rb"?|j..[\x00-\x0f]\x00|G.{8}"
    + b"".join(rb"|\x8a\%03o.{%d}" % (n, n) for n in range(9))
    + rb"|([t\x85-\x87](?![qr\x94]))|\x95.{3}\x00{5}){1,2000}"
)  # fmt: skip
SHARED = lazy(rb"(?s:[\x85-\x87]" + PUT + rb")")
STORED = lazy(rb"(?s:" + PUT + rb")")
WIDTHS = {b"X": 4, b"\x8c": 1}  # text: bytes of its length
DAMAGE = (pickle.UnpicklingError, EOFError, ValueError, LookupError, TypeError, AttributeError, OverflowError)


class _Refusing(pickle.Unpickler):
    """Builds containers; refuses every name."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise UnsafeError(f"the pickle asks for {module[:80]}.{name[:80]}; nothing was imported or called")

    def persistent_load(self, key: Any) -> NoReturn:
        del key
        raise UnsafeError("the pickle asks for objects outside it")


def plain(data: bytes) -> Any:
    """The object of a pickle that is plain and whole, else NOT_PLAIN."""
    if len(data) * PER_BYTE > BUDGET_BYTES or not _is_plain(data):
        return NOT_PLAIN
    try:
        return _Refusing(io.BufferedReader(io.BytesIO(data))).load()
    except DAMAGE:
        return NOT_PLAIN


def _is_plain(data: bytes) -> bool:
    """Whether every opcode up to the end mark is on the list."""
    if data[:1] != b"\x80" or not 2 <= data[1] <= 5:
        return False
    if sum(data.count(code) for code in b"t\x85\x86\x87") > MOST_TUPLES:
        return False
    shared, loose, at = 0, False, 2
    while (code := data[at : at + 1]) != b".":
        if (match := RUN.match(data, at)) is not None:
            at, loose = match.end(), loose or match[1] is not None
        elif (width := WIDTHS.get(code)) is not None:
            start = at + 1 + width
            end = start + int.from_bytes(data[at + 1 : start], "little")
            if end >= len(data) or not data[start:end].isascii():
                return False
            stored = STORED.match(data, end)
            at = stored.end() if stored else end
        elif (match := SHARED.match(data, at)) is not None:
            at, shared = match.end(), shared + 1
        else:
            return False
    return not shared or (shared <= MOST_SHARED and not loose)
