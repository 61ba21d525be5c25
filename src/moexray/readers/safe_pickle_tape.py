"""Large pickles as flat arrays (kernels/pickle_tape.py): no object is made until it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moexray.core.errors import LimitError, ReadError, UnsafeError
from moexray.readers.safe_pickle import MAX_PLAIN_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

__all__ = ["FAST_BYTES", "Tape", "load_tape"]

FAST_BYTES = 4 << 20  # from here on compiling and loading numba costs less than interpreting
MEMORY_BYTES = 880 << 20  # data and arrays together; 1 GiB is the bar for the whole process
MAX_DEPTH = 50  # nesting of what is turned into Python objects
MAX_BUILT = 3_000_000  # objects that are turned into Python objects


class Tape:
    """A parsed pickle. A *value* is an int64 of the kernel; `root` is the value of the whole."""

    def __init__(self, arrays: Any, root: int) -> None:
        self.arrays, self.root = arrays, root
        self._built: dict[int, Any] = {}
        self._texts: dict[int, str] = {}

    def kind(self, value: int) -> str:
        """list, tuple, dict, set, or "" for anything else."""
        from moexray.kernels import pickle_tape as kernel

        if value & 7 != kernel.OBJECT:
            return ""
        return ("list", "tuple", "dict", "set")[self.arrays.kinds[value >> 3]]

    def items(self, value: int) -> NDArray[Any]:
        """The values in a container, keys and values in turn for a dict."""
        import numpy as np

        a, parts = self.arrays, []
        extent = int(a.first[value >> 3])
        while extent >= 0:
            start, count, extent = (int(n) for n in a.extents[extent])
            parts.append(a.values[start : start + count])
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def pairs(self, value: int) -> dict[str, int]:
        """The text keys of a dict with their values; the last of equal keys wins."""
        from moexray.kernels import pickle_tape as kernel

        flat = self.items(value).tolist()
        keys = zip(flat[::2], flat[1::2], strict=True)
        return {self.text(k): v for k, v in keys if k & 7 == kernel.TEXT}

    def text(self, value: int) -> str:
        """The text of a TEXT value."""
        known = self._texts.get(value)
        if known is None:
            at, count = (int(n) for n in self.arrays.texts[value >> 3])
            known = self.arrays.data[at : at + count].tobytes().decode("utf-8", "replace")
            self._texts[value] = known
        return known

    def build(self, value: int, depth: int = 0) -> Any:
        """The Python object of a value; objects that are shared stay shared.

        Raises:
            LimitError: too deep, or too many.
        """
        from moexray.kernels import pickle_tape as kernel

        tag, payload = value & 7, value >> 3
        if tag == kernel.INT:
            return payload
        if tag == kernel.TEXT:
            return self.text(value)
        if tag != kernel.OBJECT:
            return self._scalar(tag, payload)
        if payload in self._built:
            return self._built[payload]
        if depth > MAX_DEPTH or len(self._built) > MAX_BUILT:
            raise LimitError("the pickle nests too deep or holds too much beside its history")
        flat = self.items(value).tolist()
        kind = self.kind(value)
        if kind == "dict":
            made: dict[Any, Any] = {}
            self._built[payload] = made
            for key, item in zip(flat[::2], flat[1::2], strict=True):
                if key & 7 in (kernel.TEXT, kernel.INT):
                    made[self.build(key)] = self.build(item, depth + 1)
            return made
        whole: list[Any] = []
        self._built[payload] = whole
        whole += [self.build(item, depth + 1) for item in flat]
        if kind == "tuple":
            self._built[payload] = tuple(whole)
        return self._built[payload]

    def forget(self, values: Iterable[int]) -> None:
        """Drops objects that were built and are done with; built again, they are new ones."""
        from moexray.kernels import pickle_tape as kernel

        for value in values:
            if value & 7 == kernel.OBJECT:
                self._built.pop(value >> 3, None)

    def _scalar(self, tag: int, payload: int) -> Any:
        import struct

        from moexray.kernels import pickle_tape as kernel

        data = self.arrays.data
        if tag == kernel.PLAIN:
            return (None, False, True)[payload]
        if tag == kernel.FLOAT:
            return struct.unpack(">d", data[payload : payload + 8].tobytes())[0]
        if tag == kernel.BYTES:
            at, count = (int(n) for n in self.arrays.texts[payload])
            return data[at : at + count].tobytes()
        return 1 << 64  # an integer beyond 56 bits: no address, size or time is; readers refuse it


def load_tape(data: bytes) -> Tape | None:
    """Parses a pickle of protocol 1 to 5.

    Returns:
        The tape; None where the interpreter has to look: protocol 0, and what it can name or salvage.

    Raises:
        UnsafeError: it names a global.
        LimitError: it unfolds past the memory bound.
        ReadError: it is damaged or breaks off.
    """
    from moexray.kernels import pickle_tape as kernel

    budget = max(MEMORY_BYTES - len(data), 0)
    arrays = kernel.new_tape(data, budget)
    status = kernel.parse(arrays, budget)
    where = f"offset {int(arrays.state[0])}"
    if status == kernel.DONE:
        root = int(arrays.stack[0])
        spent = arrays.marks[:0].copy()  # stack and memo served the parser only
        return Tape(arrays._replace(stack=spent, memo=spent, marks=spent), root)
    if status == kernel.OLD or (status in (kernel.TRUNCATED, kernel.UNSAFE) and len(data) <= MAX_PLAIN_BYTES):
        return None
    if status == kernel.UNSAFE:
        raise UnsafeError("the pickle names something to import or call", where=where)
    if status == kernel.FULL:
        raise LimitError(
            f"the pickle unfolds past {MEMORY_BYTES >> 20} MiB", where=where, hint="give a shorter capture"
        )
    if status == kernel.TRUNCATED:
        raise ReadError(f"the pickle breaks off at byte {len(data)}", where=where, hint="record it again")
    raise ReadError(f"the pickle is damaged at byte {where[7:]}", where=where, hint="copy it again")
