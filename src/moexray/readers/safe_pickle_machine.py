"""The stack machine of the safe unpickler: stack, memo, budget, and what may not be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moexray.core.errors import LimitError, UnsafeError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BUDGET_BYTES", "Damaged", "Machine", "Truncated", "check_key"]

BUDGET_BYTES = 640 << 20  # objects that one pickle may make
MAX_INT_BYTES = 64  # the widest integers in artefacts are 64-bit; wider ones only cost time: unknown
MAX_DIGITS = 80
MAX_KEY_DEPTH = 3  # tuples as keys: hashing a deep one recurses in C
KEY_BITS = 60  # integer keys beyond can be made to collide


class Truncated(Exception):  # noqa: N818  # no error of the family: it steers salvage
    """The data end before STOP."""


@dataclass(frozen=True, slots=True)
class _Global:
    """A name that `find_global` agreed to; calls nothing until REDUCE."""

    call: Callable[..., Any]


class Damaged(Exception):  # noqa: N818  # becomes a ReadError with the offset
    """An opcode that cannot be obeyed."""


class Machine:
    """Reads one pickle; see safe_pickle.loads_at for the arguments.

    Raises (all methods):
        Truncated: the data end.
        Damaged, IndexError, KeyError, ValueError, TypeError, AttributeError: nonsense.
        UnsafeError: a name that find_global does not know.
        LimitError: the budget is spent.
    """

    def __init__(
        self,
        data: bytes,
        start: int = 0,
        find_global: Callable[[str, str], Callable[..., Any] | None] | None = None,
        persistent: Callable[[Any], Any] | None = None,
    ) -> None:
        self.data, self.at = data, start
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.room = BUDGET_BYTES
        self.too_wide = 0  # integers that no measure has; they count as unknown
        self.find_global, self.persistent = find_global, persistent

    # ---- reading

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        end = self.at + count
        if end > len(self.data):
            raise Truncated
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def number(self, width: int) -> int:
        """An unsigned little-endian integer."""
        return int.from_bytes(self.take(width), "little")

    def line(self) -> bytes:
        """Up to the next newline, which is eaten."""
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise Truncated
        piece = self.data[self.at : end]
        self.at = end + 1
        return piece

    def pay(self, count: int) -> None:
        """Takes what an object costs from the budget."""
        self.room -= count
        if self.room < 0:
            raise LimitError(
                f"the pickle unfolds to more than {BUDGET_BYTES >> 20} MiB",
                where=f"offset {self.at}",
                hint="give a shorter capture",
            )

    # ---- making values

    def text(self, count: int) -> None:
        """Pushes UTF-8 text."""
        piece = self.take(count)
        self.pay(count + 60)
        self.stack.append(piece.decode("utf-8", "replace"))

    def raw(self, count: int) -> None:
        """Pushes bytes."""
        piece = self.take(count)
        self.pay(count + 40)
        self.stack.append(piece)

    def long(self, count: int) -> None:
        """Pushes a signed integer of `count` bytes; None for one that is too wide."""
        piece = self.take(count)
        self.pay(36)
        self.too_wide += count > MAX_INT_BYTES
        small = count <= MAX_INT_BYTES
        self.stack.append(int.from_bytes(piece, "little", signed=True) if small else None)

    def digits(self, line: bytes) -> None:
        """Pushes an integer written in digits; None for one that is too wide."""
        self.too_wide += len(line) > MAX_DIGITS
        self.fresh(int(line) if len(line) <= MAX_DIGITS else None)

    def fresh(self, value: Any) -> None:
        """Pushes a new small object."""
        self.pay(90)
        self.stack.append(value)

    def group(self) -> list[Any]:
        """The items since the last mark."""
        items, self.stack = self.stack, self.marks.pop()
        return items

    def tuple_of(self, count: int) -> None:
        """Makes a tuple of the last items."""
        if len(self.stack) < count:
            raise Damaged("too few items for a tuple")
        self.pay(60 + 8 * count)
        items = tuple(self.stack[-count:])
        self.stack[-count:] = [items]

    def remember(self, index: int) -> None:
        """Notes the top under an index."""
        if index not in self.memo:
            self.pay(100)
        self.memo[index] = self.stack[-1]

    def put_items(self, target: Any, items: list[Any]) -> None:
        """Adds keys and values, alternating, to a dict."""
        if not isinstance(target, dict) or len(items) % 2:
            raise Damaged("items for something that is no dict")
        self.pay(100 * (len(items) // 2))
        for key in items[::2]:
            if type(key) is not str:
                check_key(key, 0)
        target.update(zip(items[::2], items[1::2], strict=True))

    def put_members(self, target: Any, items: list[Any]) -> None:
        """Adds members to a set."""
        if not isinstance(target, set):
            raise Damaged("members for something that is no set")
        self.pay(100 * len(items))
        for item in items:
            check_key(item, 0)
        target.update(items)

    def extend(self, target: Any, items: list[Any]) -> None:
        """Adds items to a list."""
        if not isinstance(target, list):
            raise Damaged("items for something that is no list")
        self.pay(8 * len(items))
        target.extend(items)

    # ---- names and calls

    def name(self, module: str, name: str) -> None:
        """Pushes what stands for a global, or refuses it."""
        found = self.find_global(module, name) if self.find_global else None
        if found is None:
            raise UnsafeError(
                f"the pickle asks for {module[:80]}.{name[:80]}; nothing was imported or called",
                where=f"offset {self.at}",
                hint="export it as JSON, or use a converter that you trust",
            )
        self.stack.append(_Global(found))

    def call(self, target: Any, args: Any) -> None:
        """Calls the function that find_global gave for a name."""
        if not isinstance(target, _Global) or not isinstance(args, tuple):
            raise Damaged("a call of something that is no name")
        self.pay(100)
        self.stack.append(target.call(*args))

    def build(self) -> None:
        """State of an object: given to its method `pickle_state`, else dropped."""
        state, target = self.stack.pop(), self.stack[-1]
        hook = getattr(target, "pickle_state", None)
        if hook is not None:
            hook(state)

    def person(self, key: Any) -> None:
        """Pushes an object that lives outside the pickle."""
        if self.persistent is None:
            raise UnsafeError("the pickle asks for objects outside it", where=f"offset {self.at}")
        self.stack.append(self.persistent(key))


def check_key(key: Any, depth: int) -> None:
    """Only flat keys are hashed: no deep tuples (recursion), no integers made to collide."""
    if isinstance(key, tuple):
        if depth >= MAX_KEY_DEPTH or len(key) > 64:
            raise Damaged("a key that is too deep")
        for item in key:
            check_key(item, depth + 1)
    elif isinstance(key, int):
        if key.bit_length() > KEY_BITS:
            raise Damaged("an integer key beyond 60 bits")
    elif not (key is None or isinstance(key, (str, bytes, float))):
        raise Damaged(f"a key of type {type(key).__name__}")
