"""An unpickler for untrusted files: containers and numbers only, nothing is imported or called.

Plain pickles go the quick way (safe_pickle_plain.py). All else is interpreted opcode by opcode
(safe_pickle_opcodes.py) instead of by a subclass of `pickle.Unpickler`: there is no import to reach,
the memo is a dict (an index of 4 billion costs nothing), every object is paid from a budget, only flat
keys are hashed, each fault has an offset, and what was built before a file breaks off can be used. A
caller that needs objects (tensors of a .pt file) gives `find_global`, which maps names to the caller's
own functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moexray.core.errors import LimitError, ReadError
from moexray.readers.safe_pickle_machine import Damaged, Machine, Truncated
from moexray.readers.safe_pickle_names import known_name
from moexray.readers.safe_pickle_opcodes import interpret

if TYPE_CHECKING:
    from collections.abc import Callable

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["MAX_PLAIN_BYTES", "load", "loads", "loads_at", "salvage"]

MAX_PLAIN_BYTES = 48 << 20  # longer ones are not interpreted: 16 bytes of stack an opcode, 1 GiB in all


def loads(
    data: bytes,
    *,
    find_global: Callable[[str, str], Callable[..., Any] | None] | None = None,
    persistent: Callable[[Any], Any] | None = None,
) -> Any:
    """The object of a pickle; see loads_at."""
    return loads_at(data, 0, find_global=find_global, persistent=persistent)[0]


def loads_at(
    data: bytes,
    start: int,
    *,
    find_global: Callable[[str, str], Callable[..., Any] | None] | None = None,
    persistent: Callable[[Any], Any] | None = None,
) -> tuple[Any, int]:
    """The object of a pickle that begins at an offset, and the offset behind it.

    Args:
        data: What holds the pickle.
        start: Where it begins.
        find_global: (module, name) -> a function of the caller's own that stands for that name, or
            None to refuse. Without it every name is refused. What it returns is called with the
            pickled arguments; state (BUILD) goes to the method `pickle_state` of the result, if any.
        persistent: Stands for objects outside the pickle (the storages of torch); refused if None.

    Raises:
        UnsafeError: it names something that find_global does not know.
        LimitError: it unfolds past the budget.
        ReadError: it is damaged or ends early; `where` gives the offset.
    """
    machine = Machine(data, start, find_global, persistent)
    try:
        return _guarded(machine), machine.at
    except Truncated:
        raise ReadError(
            "the pickle ends before its end mark",
            where=f"offset {len(data)}",
            hint="record it again, and let the writer finish",
        ) from None


def salvage(data: bytes, machine: Machine | None = None) -> tuple[Any, int | None]:
    """The object of a pickle, as far as it goes.

    Args:
        data: The pickle.
        machine: What interprets it where it is not plain; one that refuses every name by default.

    Returns:
        (object, offset): offset is None if it is whole, else where it breaks off; the containers
        that were open there hold what was complete, unfinished records of a list are dropped.

    Raises:
        UnsafeError, LimitError, ReadError: as loads_at.
    """
    from moexray.readers.safe_pickle_plain import NOT_PLAIN, plain

    if (whole := plain(data)) is not NOT_PLAIN:
        return whole, None
    machine = machine or Machine(data)
    try:
        return _guarded(machine), None
    except Truncated:
        return _close(machine), len(data)


def load(source: Source, out: Reading) -> Any:
    """The object of a pickle file; a file that breaks off gives what was whole, with a problem noted.

    Raises:
        UnsafeError: an opcode names anything but containers and numbers.
        LimitError: it is too long, or unfolds past the budget.
        ReadError: it is damaged, or nothing of it was whole.
    """
    data = source.data()
    if len(data) > MAX_PLAIN_BYTES:
        raise LimitError(f"the pickle passes {MAX_PLAIN_BYTES >> 20} MiB", hint="give a shorter capture")
    machine = Machine(data, find_global=known_name)
    document, offset = salvage(data, machine)
    if machine.too_wide:
        text = f"{machine.too_wide} integers are wider than any address or size; they count as unknown"
        out.problem("input.dirty_table", text, lost=None, values={"integers": machine.too_wide})
    if offset is not None:
        text = f"the pickle breaks off at byte {offset}; the whole records before it were used"
        out.problem("input.truncated", text, where=f"offset {offset}", lost=None, values={"offset": offset})
    return document


def _guarded(machine: Machine) -> Any:
    try:
        return interpret(machine)
    except (Damaged, IndexError, KeyError, ValueError, TypeError, AttributeError, OverflowError) as why:
        reason = why if isinstance(why, Damaged) else f"{type(why).__name__}: {why}"
        raise ReadError(
            f"the pickle is damaged at byte {machine.at} ({reason})",
            where=f"offset {machine.at}",
            hint="record it again, or copy it again",
        ) from why


def _close(m: Machine) -> Any:
    """Closes the containers that were open where the data end."""
    pending = m.stack
    if m.marks:  # an empty container near the end may be a record whose items were still to come
        empty = [i for i, item in enumerate(pending) if isinstance(item, (dict, list, set)) and not item]
        del pending[empty[-1] if empty else len(pending) :]
    while m.marks:
        below = m.marks.pop()
        target = below[-1] if below else None
        holders = [*below[-2:-1], *(m.marks[-1][-1:] if m.marks else ())]
        if isinstance(target, list):
            target.extend(pending)
        elif isinstance(target, dict) and not any(isinstance(h, list) for h in holders):
            odd = next((i for i, k in enumerate(pending) if i % 2 == 0 and not isinstance(k, str)), None)
            _fold(pending, len(pending) if odd is None else odd)
            target.update(zip(pending[::2], pending[1::2], strict=False))
        elif below:
            below.pop()  # an unfinished record in a list, or a tuple in the making
        pending = below
    _fold(pending, 1)
    return pending[0] if pending else None


def _fold(items: list[Any], start: int) -> None:
    """Puts what stands at `start` and behind into the container before it (one-item APPEND, SETITEM)."""
    while start > 0 and len(items) > start:
        value = items.pop()
        if items and isinstance(items[-1], list):
            items[-1].append(value)
        elif len(items) > 1 and isinstance(items[-1], str) and isinstance(items[-2], dict):
            items[-2][items.pop()] = value
