"""Names that a pickle of plain data may hold, each answered by a function of our own: nothing is imported.

Ordered and default dicts become dicts, deques and sets lists, numbers of numpy plain numbers. All other
names are refused by the interpreter.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from moexray.readers.safe_pickle_machine import Damaged

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["known_name"]

# dtype of numpy (kind and bytes) -> code of struct
CODES = {
    "b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
    "f2": "e", "f4": "f", "f8": "d",
}  # fmt: skip
BUILTINS = ("builtins", "__builtin__")
FACTORIES = ("list", "dict", "int", "float", "str", "bool", "tuple")  # of default dicts; never called


class _Type:
    """A dtype of numpy; its byte order comes as state."""

    def __init__(self, code: str) -> None:
        self.code, self.order = code, "<"

    def pickle_state(self, state: Any) -> None:
        """Takes the byte order out of (version, order, ...)."""
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">"):
            self.order = state[1]


def known_name(module: str, name: str) -> Callable[..., Any] | None:
    """What stands for a name in a pickle; None refuses it."""
    if module == "collections":
        return {"OrderedDict": _dict, "defaultdict": _dict, "deque": _list}.get(name)
    if module in BUILTINS:
        return _list if name in ("set", "frozenset") else _never if name in FACTORIES else None
    if (module, name) == ("numpy", "dtype"):
        return _dtype
    if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "scalar":
        return _scalar
    return _encoded if (module, name) == ("_codecs", "encode") else None


def _dict(*args: Any) -> dict[Any, Any]:
    """Empty, or of the pairs that old pickles give as text keys and values."""
    pairs = args[0] if args and isinstance(args[0], list) else []
    return {p[0]: p[1] for p in pairs if isinstance(p, list) and len(p) == 2 and type(p[0]) is str}


def _list(*args: Any) -> list[Any]:
    return list(args[0]) if args and isinstance(args[0], list | tuple) else []


def _never(*_: Any) -> Any:
    raise Damaged("a call of a factory")


def _dtype(*args: Any) -> _Type:
    code = args[0] if args and isinstance(args[0], str) else ""
    code = code.lstrip("<>=|")
    if code not in CODES:
        raise Damaged(f"a numpy type {code[:20]!r} that is no number")
    return _Type(code)


def _scalar(*args: Any) -> Any:
    kind, data = args if len(args) == 2 else (None, None)
    if not isinstance(kind, _Type) or not isinstance(data, bytes):
        raise Damaged("a numpy number without type or bytes")
    try:
        return struct.unpack(kind.order + CODES[kind.code], data)[0]
    except struct.error as why:
        raise Damaged(f"a numpy number of {len(data)} bytes") from why


def _encoded(*args: Any) -> bytes:
    """Bytes as pickles of protocol 2 hold them: text and its encoding."""
    if len(args) != 2 or not isinstance(args[0], str) or args[1] not in ("latin1", "latin-1"):
        raise Damaged("bytes in an unknown encoding")
    try:
        return args[0].encode("latin-1")
    except UnicodeEncodeError as why:
        raise Damaged("text that is no bytes") from why
