"""Temporaries from buffers that are kept: a drop-in for numpy's and torch's `empty` that stops allocating.

Glossary: a *root* is the memory of one buffer; a *view* is the array or tensor that the caller gets; a
buffer is *idle* when nothing refers to its root any more, neither a view nor anything made from one
(slices, transposes, what autograd keeps). Only an idle buffer serves again, so there is nothing to give
back and nothing to give back too early. A *role* names temporaries that share buffers whatever their
sizes: the input of expert after expert.

Without a role sizes are rounded up to classes (token-wise: other token counts find the same buffer); with
one the buffers of the role are as large as its largest request so far (expert-wise).

Threads may share a pool: its lock is held for the search, and while a buffer is allocated. On CUDA
(untested on a GPU) a buffer serves the stream that it was made on; a temporary that other streams use must
not come from a pool.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from moexray.algorithms.policies import GRANULE, Segregated
from moexray.core.errors import UsageError
from moexray.runtime.buffer_kinds import Buffer, Numpy, Torch, is_named, kind_of, sizes_of, traits
from moexray.runtime.checks import is_whole
from moexray.runtime.guard import Guard, renew_in_children
from moexray.runtime.handle import Handle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ALIGNMENT", "BufferPool", "PoolFigures", "aligned_empty", "aligned_empty_like"]

ALIGNMENT = GRANULE  # bytes
CLASSES = 4  # per doubling: a buffer is at most a quarter larger than asked (analyse/reuse tries others)

Key = tuple[Any, ...]
Asked = tuple[type[Numpy | Torch], tuple[int, ...], int]  # kind, shape, bytes


# ---- aligned helpers


def aligned_empty(
    shape: int | Sequence[int], dtype: Any, *, device: Any = None, strides: Sequence[int] | None = None,
    alignment: int = ALIGNMENT,
) -> Any:  # fmt: skip
    """An array (numpy dtype) or tensor (torch dtype) whose lowest byte lies at a multiple of `alignment`.

    Args:
        shape: As `empty` takes it.
        dtype: Of numpy or torch; decides what is made.
        device: For tensors only.
        strides: In the library's own unit (numpy bytes, torch elements); None is dense, in C order.
        alignment: Bytes, a power of two.

    Raises:
        UsageError: the alignment is no power of two, or a device is asked for an array.
    """
    _check(alignment)
    kind = kind_of(dtype, device)
    shape, span = sizes_of(kind, shape, dtype, strides)
    return kind.view(Buffer(kind, span, device, alignment), kind.blank(dtype, device), shape, strides)


def aligned_empty_like(like: Any, *, alignment: int = ALIGNMENT) -> Any:
    """An aligned array or tensor with the shape, type, device and strides of another, gaps included.

    Where elements of `like` share memory (a broadcast, a sliding window) the result is dense.

    Raises:
        UsageError: the alignment is no power of two.
    """
    shape, dtype, device, strides = traits(like)
    return aligned_empty(shape, dtype, device=device, strides=strides, alignment=alignment)


# ---- the pool


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """What a pool did.

    Args:
        reused: Requests that an idle buffer served.
        made: Buffers allocated.
        plain: Requests that got memory of their own: over the limit, or not for a pool (a graph capture, a
            compilation, a trace, objects).
        held_bytes: Held now.
        peak_bytes: Most ever held.
    """

    reused: int
    made: int
    plain: int
    held_bytes: int
    peak_bytes: int


class BufferPool:
    """Buffers for temporaries. Off, or where it fails, requests are answered by `aligned_empty`.

    Args:
        alignment: Of each buffer, bytes, a power of two.
        classes: Size classes per doubling.
        limit_bytes: Most that the pool may hold; None is no limit.
        name: For the kill switch.

    Raises:
        UsageError: the alignment is no power of two.
    """

    def __init__(
        self, *, alignment: int = ALIGNMENT, classes: int = CLASSES, limit_bytes: int | None = None,
        name: str = "buffers",
    ) -> None:  # fmt: skip
        _check(alignment)
        if not is_whole(classes):
            raise UsageError(f"{classes} size classes per doubling", hint="a whole number from 1")
        self.alignment, self.limit_bytes = alignment, limit_bytes
        self.guard = Guard(name)
        self._class_of = lru_cache(4096)(Segregated(None, alignment, classes).class_size)
        self._rows: dict[Key, list[Buffer]] = {}
        self.renew()
        renew_in_children(self)
        self._reused = self._made = self._plain = self._held = self._peak = 0

    def renew(self) -> None:
        """Makes the lock, in a forked child anew."""
        self._lock = threading.RLock()  # what dies under it may run code that asks again

    def empty(
        self, shape: int | Sequence[int], dtype: Any, *, device: Any = None,
        strides: Sequence[int] | None = None, role: str = "",
    ) -> Any:  # fmt: skip
        """As `aligned_empty`, from an idle buffer where there is one. The content is left over.

        Raises:
            UsageError: a device is asked for an array, or there is no such shape, strides or type.
        """
        kind = kind_of(dtype, device)
        sizes, span = sizes_of(kind, shape, dtype, strides)  # the caller's errors are no fault of ours
        original: Callable[[], Any] = partial(
            aligned_empty, sizes, dtype, device=device, strides=strides, alignment=self.alignment
        )
        asked = (kind, sizes, span)
        return self.guard.run(lambda: self._take(original, asked, dtype, device, strides, role), original)

    def empty_like(self, like: Any, *, role: str = "") -> Any:
        """As `aligned_empty_like`, from an idle buffer where there is one."""
        shape, dtype, device, strides = traits(like)
        return self.empty(shape, dtype, device=device, strides=strides, role=role)

    def trim(self) -> int:
        """Lets idle buffers go; the bytes that were freed."""
        with self._lock:
            return self._drop(1 << 62)

    def figures(self) -> PoolFigures:
        """The counters, taken together."""
        with self._lock:
            return PoolFigures(self._reused, self._made, self._plain, self._held, self._peak)

    def replacing(self, owner: Any, name: str, *, role: str = "") -> Handle:
        """A handle that puts the pool in the place of a host's allocation call.

        Args:
            owner: A module, class or object of the host; not numpy or torch, which the pool itself calls.
            name: Of an attribute that is called as `empty(shape, dtype=..., device=...)`. Calls with other
                arguments, or without a dtype that is numpy's or torch's own, go to the original; so does
                what gets no buffer of the pool.
            role: See the head of this file.

        Raises:
            UsageError: the owner is numpy or torch.
        """
        if getattr(owner, "__name__", "") in {"numpy", "torch"}:
            raise UsageError(f"the pool itself calls {owner.__name__}.{name}", hint="name the host's own")

        def install(handle: Handle) -> None:
            original: Callable[..., Any] = getattr(owner, name, None) or _missing(owner, name)

            def pooled(*args: Any, **kwargs: Any) -> Any:
                usual = len(args) == 1 and kwargs.keys() <= {"dtype", "device"}
                dtype, device = kwargs.get("dtype"), kwargs.get("device")
                if not (handle.attached and usual and is_named(dtype)):
                    return original(*args, **kwargs)
                try:
                    kind = kind_of(dtype, device)
                    asked = (kind, *sizes_of(kind, args[0], dtype, None))
                except UsageError:
                    return original(*args, **kwargs)  # which refuses it in its own words
                plain: Callable[[], Any] = partial(original, *args, **kwargs)
                return self.guard.run(lambda: self._take(plain, asked, dtype, device, None, role), plain)

            handle.replace(owner, name, pooled)

        return Handle(self.guard.name, install)

    # ---- inside

    def _take(
        self, original: Callable[[], Any], asked: Asked, dtype: Any, device: Any, strides: Any, role: str
    ) -> Any:
        kind, sizes, span = asked
        blank = kind.blank(dtype, device)
        place = kind.place(blank)
        if place is not None:
            need = self._class_of(-(-span // self.alignment) * self.alignment)
            key = (kind, *place, role or need)
            with self._lock:
                buffer = self._find(key, need) or self._make(key, need, device)
                if buffer is not None:  # the view is made under the lock: from then on it is not idle
                    return kind.view(buffer, blank, sizes, strides)
        with self._lock:
            self._plain += 1
        return original()

    def _find(self, key: Key, need: int) -> Buffer | None:
        row = self._rows.get(key, [])
        for at, buffer in enumerate(row):
            if buffer.size >= need and buffer.idle():
                if buffer.changed():
                    self._held -= buffer.size
                    del row[at]
                    return self._find(key, need)
                self._reused += 1
                return buffer
        return None

    def _make(self, key: Key, need: int, device: Any) -> Buffer | None:
        row = self._rows.setdefault(key, [])
        need = max([need, *(b.size for b in row)])
        row[:] = [b for b in row if b.size >= need or not self._gone(b)]  # a role outgrew them
        if self.limit_bytes is not None and self._held + need > self.limit_bytes:
            self._drop(self._held + need - self.limit_bytes)
            if self._held + need > self.limit_bytes:
                return None
        try:
            buffer = Buffer(key[0], need, device, self.alignment)
        except (MemoryError, RuntimeError):  # of torch the latter: what lies idle here may be what is missing
            if not self._drop(1 << 62):
                raise
            buffer = Buffer(key[0], need, device, self.alignment)
        row.append(buffer)
        self._made += 1
        self._held += need
        self._peak = max(self._peak, self._held)
        return buffer

    def _gone(self, buffer: Buffer) -> bool:
        """Notes that a buffer goes, if it is idle."""
        if not buffer.idle():
            return False
        self._held -= buffer.size
        return True

    def _drop(self, wanted: int) -> int:
        freed = 0
        for row in self._rows.values():
            for at in reversed(range(len(row))):
                if freed < wanted and self._gone(row[at]):
                    freed += row.pop(at).size
        return freed


def _check(alignment: int) -> None:
    if not is_whole(alignment) or alignment & (alignment - 1):
        raise UsageError(f"an alignment of {alignment} is no power of two")


def _missing(owner: Any, name: str) -> Any:
    raise UsageError(f"{owner!r} has no {name} to replace", hint="is this version supported?")
