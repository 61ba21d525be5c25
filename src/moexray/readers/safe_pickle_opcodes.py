"""The opcodes of pickle, protocols 0 to 5, as steps of the safe unpickler's stack machine."""

from __future__ import annotations

import codecs
import struct
from typing import TYPE_CHECKING, Any

from moexray.core.errors import UnsafeError
from moexray.readers.safe_pickle_machine import Damaged, Machine, Truncated, check_key

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["interpret"]


def interpret(m: Machine) -> Any:
    """Obeys the opcodes up to STOP and returns the object; `m.at` then stands behind it.

    Raises:
        Truncated: the data end before STOP. For the others see Machine.
    """
    data, size, table = m.data, len(m.data), _TABLE
    while m.at < size:
        _frequent(m)
        code = data[m.at]
        m.at += 1
        if code == _STOP:
            return m.stack.pop()
        step = table[code]
        if step is None:
            raise Damaged(f"unknown opcode 0x{code:02x}")
        step(m)
    raise Truncated


def _frequent(m: Machine) -> None:  # one branch an opcode
    """The table's steps for frequent opcodes, well before the end of the data, without a call for each."""
    data, memo, marks, at, stack = m.data, m.memo, m.marks, m.at, m.stack
    last = len(data) - _LONGEST
    try:
        while at < last:
            code = data[at]
            if code == _GET:
                stack.append(memo[data[at + 1]])
                at += 2
            elif code == _GET4:
                stack.append(memo[int.from_bytes(data[at + 1 : at + 5], "little")])
                at += 5
            elif code == _INT1:
                stack.append(data[at + 1])
                at += 2
            elif code == _INT4:
                stack.append(_SIGNED(data, at + 1)[0])
                at += 5
            elif code == _MARK:
                m.pay(60)
                marks.append(stack)
                stack = []
                at += 1
            elif code in _MADE:
                m.pay(90)
                stack.append([] if code == _LIST else {})
                at += 1
            elif code in _PUTS:
                width = _PUTS[code]
                index = int.from_bytes(data[at + 1 : at + 1 + width], "little") if width else len(memo)
                if index not in memo:
                    m.pay(100)
                memo[index] = stack[-1]
                at += 1 + width
            elif code == _APPEND:
                m.extend(stack[-2], stack[-1:])
                del stack[-1]
                at += 1
            elif code in _PLAIN:
                stack.append(_PLAIN[code])
                at += 1
            elif code == _INT2:
                stack.append(data[at + 1] | data[at + 2] << 8)
                at += 3
            elif code == _LONG and data[at + 1] <= 8:
                m.pay(36)
                end = at + 2 + data[at + 1]
                stack.append(int.from_bytes(data[at + 2 : end], "little", signed=True))
                at = end
            elif code in _FILL:
                items, stack = stack, marks.pop()
                (m.extend if code == _APPENDS else m.put_items)(stack[-1], items)
                at += 1
            else:
                break
    finally:
        m.at, m.stack = at, stack


def _integer(m: Machine) -> None:
    line = m.line()
    if line in (b"00", b"01"):
        m.fresh(line == b"01")
    else:
        m.digits(line)


def _quoted(m: Machine) -> None:
    line = m.line().strip()
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise Damaged("a string without quotes")
    m.fresh(codecs.escape_decode(line[1:-1])[0].decode("utf-8", "replace"))


def _unicode_line(m: Machine) -> None:
    line = m.line()
    m.pay(4 * len(line) + 60)
    m.stack.append(codecs.decode(line, "raw_unicode_escape", "replace"))


def _frozen(m: Machine) -> None:
    items = m.group()
    for item in items:
        check_key(item, 0)
    m.fresh(frozenset(items))
    m.pay(100 * len(items))


def _dict_of_group(m: Machine) -> None:
    items = m.group()
    made: dict[Any, Any] = {}
    m.put_items(made, items)
    m.fresh(made)


def _list_of_group(m: Machine) -> None:
    items = m.group()
    m.fresh(items)


def _tuple_of_group(m: Machine) -> None:
    items = m.group()
    m.pay(60 + 8 * len(items))
    m.stack.append(tuple(items))


def _instance(m: Machine) -> None:
    """INST: a name from two lines, arguments from the last mark."""
    args = tuple(m.group())
    m.name(m.line().decode("utf-8", "replace"), m.line().decode("utf-8", "replace"))
    m.call(m.stack.pop(), args)


def _object(m: Machine) -> None:
    items = m.group()
    m.call(items[0], tuple(items[1:]))


def _stack_global(m: Machine) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise Damaged("a name that is no text")
    m.name(module, name)


def _new_object_with_keywords(m: Machine) -> None:
    m.stack.pop()
    args, target = m.stack.pop(), m.stack.pop()
    m.call(target, args)


def _reduce(m: Machine) -> None:
    args, target = m.stack.pop(), m.stack.pop()
    m.call(target, args)


def _mark(m: Machine) -> None:
    m.marks.append(m.stack)
    m.stack = []
    m.pay(60)


def _refused(what: str) -> Callable[[Machine], None]:
    def step(m: Machine) -> None:
        raise UnsafeError(f"the pickle uses {what}", where=f"offset {m.at}")

    return step


def _protocol(m: Machine) -> None:
    if (version := m.number(1)) > 5:
        raise Damaged(f"protocol {version}")


def _frame(m: Machine) -> None:
    m.take(8)  # how long the frame is: we hold all of the data anyway


def _pop_mark(m: Machine) -> None:
    m.group()


def _set(m: Machine) -> None:
    m.pay(150)
    m.fresh(set())


def _appends(m: Machine) -> None:
    items = m.group()
    m.extend(m.stack[-1], items)


def _set_items(m: Machine) -> None:
    items = m.group()
    m.put_items(m.stack[-1], items)


def _add_items(m: Machine) -> None:
    items = m.group()
    m.put_members(m.stack[-1], items)


def _pop(m: Machine) -> None:
    if m.stack:
        m.stack.pop()
    else:
        m.group()


_STOP = ord(".")
_GET, _GET4, _INT1, _INT2, _INT4, _LONG, _MARK = b"hjKMJ\x8a("
_LIST, _APPEND, _APPENDS = b"]ae"
_PUTS = {ord("q"): 1, ord("r"): 4, 0x94: 0}
_MADE, _FILL = b"]}", b"eu"
_PLAIN = {ord("N"): None, 0x88: True, 0x89: False}
_LONGEST = 10  # bytes of the longest opcode of _frequent
_SIGNED = struct.Struct("<i").unpack_from
_STEPS: dict[bytes, Callable[[Machine], None]] = {
    b"\x80": _protocol,
    b"\x95": _frame,
    b"(": _mark,
    b"0": _pop,
    b"1": _pop_mark,
    b"2": lambda m: m.fresh(m.stack[-1]),
    b"N": lambda m: m.stack.append(None),
    b"\x88": lambda m: m.stack.append(True),
    b"\x89": lambda m: m.stack.append(False),
    b"I": _integer,
    b"J": lambda m: m.stack.append(int.from_bytes(m.take(4), "little", signed=True)),
    b"K": lambda m: m.stack.append(m.take(1)[0]),
    b"M": lambda m: m.stack.append(m.number(2)),
    b"L": lambda m: m.digits(m.line().rstrip(b"L")),
    b"\x8a": lambda m: m.long(m.number(1)),
    b"\x8b": lambda m: m.long(m.number(4)),
    b"F": lambda m: m.fresh(float(m.line()[:80])),
    b"G": lambda m: m.stack.append(struct.unpack(">d", m.take(8))[0]),
    b"S": _quoted,
    b"T": lambda m: m.text(m.number(4)),
    b"U": lambda m: m.text(m.number(1)),
    b"V": _unicode_line,
    b"X": lambda m: m.text(m.number(4)),
    b"\x8c": lambda m: m.text(m.number(1)),
    b"\x8d": lambda m: m.text(m.number(8)),
    b"B": lambda m: m.raw(m.number(4)),
    b"C": lambda m: m.raw(m.number(1)),
    b"\x8e": lambda m: m.raw(m.number(8)),
    b"\x96": lambda m: m.raw(m.number(8)),
    b"]": lambda m: m.fresh([]),
    b"}": lambda m: m.fresh({}),
    b")": lambda m: m.stack.append(()),
    b"\x8f": _set,
    b"a": lambda m: m.extend(m.stack[-2], [m.stack.pop()]),
    b"e": _appends,
    b"s": lambda m: m.put_items(m.stack[-3], [m.stack.pop(-2), m.stack.pop()]),
    b"u": _set_items,
    b"\x90": _add_items,
    b"\x91": _frozen,
    b"l": _list_of_group,
    b"d": _dict_of_group,
    b"t": _tuple_of_group,
    b"\x85": lambda m: m.tuple_of(1),
    b"\x86": lambda m: m.tuple_of(2),
    b"\x87": lambda m: m.tuple_of(3),
    b"p": lambda m: m.remember(int(m.line()[:20])),
    b"q": lambda m: m.remember(m.number(1)),
    b"r": lambda m: m.remember(m.number(4)),
    b"\x94": lambda m: m.remember(len(m.memo)),
    b"g": lambda m: m.stack.append(m.memo[int(m.line()[:20])]),
    b"h": lambda m: m.stack.append(m.memo[m.number(1)]),
    b"j": lambda m: m.stack.append(m.memo[m.number(4)]),
    b"c": lambda m: m.name(m.line().decode("utf-8", "replace"), m.line().decode("utf-8", "replace")),
    b"\x93": _stack_global,
    b"R": _reduce,
    b"\x81": _reduce,
    b"\x92": _new_object_with_keywords,
    b"i": _instance,
    b"o": _object,
    b"b": Machine.build,
    b"P": lambda m: m.person(m.line().decode("utf-8", "replace")),
    b"Q": lambda m: m.person(m.stack.pop()),
    b"\x82": _refused("the extension registry"),
    b"\x83": _refused("the extension registry"),
    b"\x84": _refused("the extension registry"),
    b"\x97": _refused("buffers outside it"),
    b"\x98": _refused("buffers outside it"),
}
_TABLE: list[Callable[[Machine], None] | None] = [_STEPS.get(bytes((code,))) for code in range(256)]
