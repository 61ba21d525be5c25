"""A pickle as flat arrays: what `readers/safe_pickle.py` does, compiled, without making any object.

Its plain twin is the interpreter in readers/safe_pickle_opcodes.py. Binary protocols (1 to 5) only; a
text opcode of protocol 0 ends it with OLD, a name with UNSAFE. Nothing is called; every write stays
within arrays whose sizes the caller chose. It is one long function: helpers that take the arrays cost
six times as much (they count references).

Glossary: a *value* is one int64, `payload << 3 | tag`; an *object* is a list, tuple, dict or set; its
items stand in *extents* (stretches of `values`), as keys and values in turn for a dict.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

__all__ = [
    "BIG", "BYTES", "DAMAGED", "DICT", "DONE", "FLOAT", "FULL", "INT", "LIST", "OBJECT", "OLD", "PLAIN",
    "SET", "TEXT", "TRUNCATED", "TUPLE", "UNSAFE", "Tape", "new_tape", "parse",
    "pick",
]  # fmt: skip

# Tags of values. INT fits 60 bits; BIG and FLOAT hold the offset of their bytes; PLAIN: None False True.
INT, TEXT, OBJECT, PLAIN, FLOAT, BIG, BYTES = range(7)
LIST, TUPLE, DICT, SET = range(4)
DONE, TRUNCATED, UNSAFE, DAMAGED, FULL, OLD = range(6)

# Classes of opcodes and the width of their argument.
_BAD, _INT, _LONG, _TEXT, _BYTES, _FLOAT, _CONST, _NEW, _GET, _PUT, _MARK, _ADD, _GROUP, _POP, _SKIP, _STOP, \
    _CALL, _OLD = range(18)  # fmt: skip
_CLASSES = {
    _INT: "K1 M2 J4", _LONG: "\x8a1 \x8b4", _TEXT: "\x8c1 X4 \x8d8 U1 T4", _BYTES: "C1 B4 \x8e8 \x968",
    _FLOAT: "G8", _CONST: "N0 \x890 \x880", _NEW: "]0 )0 }0 \x8f0", _GET: "h1 j4", _PUT: "q1 r4 \x940",
    _MARK: "(0", _ADD: "a0 e0 s0 u0 \x900", _GROUP: "\x850 \x860 \x870 t0 l0 d0 \x910", _POP: "00 10 20",
    _SKIP: "\x801 \x958", _STOP: ".0",
    _CALL: "c0 \x930 R0 \x810 \x920 i0 o0 b0 P0 Q0 \x820 \x830 \x840 \x970 \x980",
    _OLD: "I0 L0 F0 S0 V0 p0 g0",
}  # fmt: skip
_KIND = np.zeros(256, dtype=np.uint8)
_WIDTH = np.zeros(256, dtype=np.uint8)
for _kind, _words in _CLASSES.items():
    for _word in _words.split(" "):
        _KIND[ord(_word[0])], _WIDTH[ord(_word[0])] = _kind, int(_word[1])

NONE, FALSE, TRUE = PLAIN, 1 << 3 | PLAIN, 2 << 3 | PLAIN


class Tape(NamedTuple):
    """The arrays; see the glossary. `state` counts what is used of each."""

    data: Any
    state: Any
    stack: Any
    marks: Any
    memo: Any
    values: Any
    kinds: Any
    first: Any
    last: Any
    extents: Any
    texts: Any


def new_tape(data: bytes, budget: int) -> Tape:
    """Arrays for a pickle; pages that stay unused cost nothing.

    Args:
        data: The pickle.
        budget: Bytes that all arrays together may use.
    """
    n = len(data) + 8
    most = min(n, budget // 8)
    return Tape(
        data=np.frombuffer(data, dtype=np.uint8),
        state=np.zeros(6, dtype=np.int64),
        stack=np.empty(most, dtype=np.int64),
        marks=np.empty(min(n, 1 << 20), dtype=np.int64),
        memo=np.zeros(most, dtype=np.int64),
        values=np.empty(most, dtype=np.int64),
        kinds=np.empty(most, dtype=np.uint8),
        first=np.empty(most, dtype=np.int32),
        last=np.empty(most, dtype=np.int32),
        extents=np.empty((most // 2 + 8, 3), dtype=np.int32),
        texts=np.empty((most // 2 + 8, 2), dtype=np.int64),
    )


@njit(cache=True)
def _number(data: Any, at: Any, width: Any) -> Any:
    """An unsigned little-endian integer; more than 7 bytes are cut (no length is that long)."""
    out = np.int64(0)
    for i in range(min(width, 7)):
        out |= np.int64(data[at + i]) << (8 * i)
    return out


@njit(cache=True)
def parse(t: Any, budget: Any) -> Any:  # noqa: C901  # see the head of the file
    """Fills a Tape; returns DONE, TRUNCATED, UNSAFE, DAMAGED, FULL or OLD.

    After DONE `stack[0]` is the object. `state` then holds the offset behind the last opcode that was
    obeyed, and how much is used of values, kinds, extents, texts and memo.
    """
    data, state, stack, marks, memo, values, kinds, first, last, extents, texts = t
    size = data.size
    zero: Any = np.int64(0)
    at = sp = nmarks = nvalues = nobjects = nextents = ntexts = nmemo = floor = steps = zero
    status = TRUNCATED
    while at < size:
        code = np.int64(data[at])
        kind, width = _KIND[code], np.int64(_WIDTH[code])
        here = at + 1
        at = here + width
        if at > size:
            break
        steps += 1
        if steps & 4095 == 0 and (
            8 * (nvalues + nmemo + sp) + 9 * nobjects + 12 * nextents + 16 * ntexts > budget
        ):
            status = FULL
            break
        if sp + 4 > stack.size or nobjects >= kinds.size or ntexts >= texts.shape[0] or nmarks >= marks.size:
            status = FULL
            break
        if kind == _GET:
            index = _number(data, here, width)
            if index >= memo.size or memo[index] == 0:
                status = DAMAGED
                break
            stack[sp] = memo[index] - 1
            sp += 1
        elif kind == _INT:
            number = _number(data, here, width)
            if width == 4 and number >= 1 << 31:
                number -= 1 << 32
            stack[sp] = number << 3
            sp += 1
        elif kind in (_LONG, _TEXT, _BYTES):
            count = _number(data, here, width)
            start = at
            at += count
            if at > size:
                break
            if kind != _LONG:
                texts[ntexts, 0], texts[ntexts, 1] = start, count
                stack[sp] = ntexts << 3 | (TEXT if kind == _TEXT else BYTES)
                ntexts += 1
            else:
                number = _number(data, start, count)
                if 0 < count <= 7 and number >> (8 * count - 1) & 1:
                    number -= np.int64(1) << (8 * count)
                stack[sp] = number << 3 if count <= 7 else start << 3 | BIG
            sp += 1
        elif kind == _PUT:
            index = _number(data, here, width) if width else nmemo
            if sp <= floor or index >= memo.size:
                status = DAMAGED
                break
            memo[index] = stack[sp - 1] + 1
            nmemo += 1
        elif kind == _CONST:
            stack[sp] = NONE if code == 78 else FALSE if code == 0x89 else TRUE
            sp += 1
        elif kind == _MARK:
            marks[nmarks] = floor = sp
            nmarks += 1
        elif kind == _FLOAT:
            stack[sp] = here << 3 | FLOAT
            sp += 1
        elif kind == _NEW:
            kinds[nobjects] = LIST if code == 93 else DICT if code == 125 else SET if code == 0x8F else TUPLE
            first[nobjects] = last[nobjects] = -1
            stack[sp] = nobjects << 3 | OBJECT
            nobjects += 1
            sp += 1
        elif kind in (_ADD, _GROUP):
            # The items stand from `start` to `sp`; what they go into stands before, or is new.
            if code in (97, 115):  # APPEND, SETITEM
                start = sp - (1 if code == 97 else 2)
            elif 0x85 <= code <= 0x87:  # TUPLE1, 2, 3
                start = sp - (code - 0x84)
            else:
                start = floor
                nmarks -= 1
                if nmarks < 0:
                    status = DAMAGED
                    break
                floor = marks[nmarks - 1] if nmarks else 0
            if kind == _ADD:
                target = stack[start - 1] if start > floor else np.int64(PLAIN)
                owner = target >> 3
                wanted = LIST if code in (97, 101) else SET if code == 0x90 else DICT
                if target & 7 != OBJECT or kinds[owner] != wanted:
                    status = DAMAGED
                    break
            else:
                owner = nobjects
                wanted = LIST if code == 108 else DICT if code == 100 else SET if code == 0x91 else TUPLE
                kinds[owner], first[owner], last[owner] = wanted, -1, -1
                nobjects += 1
            count = sp - start
            if start < floor or (wanted == DICT and count % 2):
                status = DAMAGED
                break
            if nvalues + count > values.size or nextents >= extents.shape[0] or nvalues + count >= 1 << 31:
                status = FULL
                break
            if count:
                for i in range(count):
                    values[nvalues + i] = stack[start + i]
                extents[nextents, 0], extents[nextents, 1], extents[nextents, 2] = nvalues, count, -1
                if last[owner] < 0:
                    first[owner] = nextents
                else:
                    extents[last[owner], 2] = nextents
                last[owner] = nextents
                nextents += 1
                nvalues += count
            sp = start
            if kind == _GROUP:
                stack[sp] = owner << 3 | OBJECT
                sp += 1
        elif kind == _POP:
            if code == 50 and sp > floor:  # DUP
                stack[sp] = stack[sp - 1]
                sp += 1
            elif code == 48 and sp > floor:  # POP
                sp -= 1
            elif code != 50 and nmarks:
                nmarks -= 1
                sp = floor
                floor = marks[nmarks - 1] if nmarks else 0
            else:
                status = DAMAGED
                break
        elif kind == _STOP:
            status = DONE if sp > 0 else DAMAGED
            stack[0] = stack[sp - 1] if sp > 0 else NONE
            break
        elif kind != _SKIP:
            status = UNSAFE if kind == _CALL else OLD if kind == _OLD else DAMAGED
            break
    state[0], state[1], state[2] = at, nvalues, nobjects
    state[3], state[4], state[5] = nextents, ntexts, nmemo
    return status


@njit(cache=True)
def pick(t: Any, dicts: Any, names: Any, codes: Any, picked: Any) -> None:
    """Takes the values of some keys out of many dicts.

    Args:
        t: A parsed Tape.
        dicts: [count], values of the dicts.
        names: [wanted, 1 + longest], the wanted keys as bytes; the first number is the length.
        codes: [texts], scratch: 0 not looked at yet, 1 not wanted, 2 + row of `names`.
        picked: [wanted + 1, count]; filled where a key is there, the last of equal keys wins. The last
            row becomes 1 where the value is no dict.
    """
    data, _, _, _, _, values, kinds, first, _, extents, texts = t
    for i in range(dicts.size):
        value = dicts[i]
        if value & 7 != OBJECT or kinds[value >> 3] != DICT:
            picked[names.shape[0], i] = 1
            continue
        extent = first[value >> 3]
        while extent >= 0:
            start, count = extents[extent, 0], extents[extent, 1]
            for k in range(start, start + count, 2):
                if values[k] & 7 != TEXT:
                    continue
                text = values[k] >> 3
                if codes[text] == 0:
                    codes[text] = 1
                    for n in range(names.shape[0]):
                        same = names[n, 0] == texts[text, 1]
                        for b in range(names[n, 0]):
                            same = same and names[n, 1 + b] == data[texts[text, 0] + b]
                            if not same:
                                break
                        if same:
                            codes[text] = 2 + n
                            break
                if codes[text] > 1:
                    picked[codes[text] - 2, i] = values[k + 1]
            extent = extents[extent, 2]
