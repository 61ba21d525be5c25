"""Arrays and tensors as a pool of buffers sees them: how large, from which memory, used by how many."""

from __future__ import annotations

import math
import operator
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Buffer", "Numpy", "Torch", "is_named", "kind_of", "sizes_of", "traits"]


class Numpy:
    """Arrays; strides in bytes."""

    @staticmethod
    def itemsize(dtype: Any) -> int:
        """Bytes of an element."""
        return int(np.dtype(dtype).itemsize)

    @staticmethod
    def stride_bytes(dtype: Any) -> int:
        """Bytes of a stride of 1."""
        del dtype
        return 1

    @staticmethod
    def blank(dtype: Any, device: Any) -> Any:
        """What becomes the view."""
        del device
        return np.dtype(dtype)

    @staticmethod
    def place(blank: Any) -> tuple[Any, ...] | None:
        """What else must be equal for a buffer to serve; None where no buffer may."""
        return None if blank.hasobject else ()

    @staticmethod
    def root(size: int, device: Any) -> tuple[Any, int]:
        """(root, its address)."""
        if device is not None:
            raise UsageError(f"an array on device {device}", hint="give a torch dtype, or no device")
        root = np.empty(size, np.uint8)
        return root, root.__array_interface__["data"][0]

    @staticmethod
    def users(buffer: Buffer) -> int:
        """References to the root."""
        return sys.getrefcount(buffer.root)

    @staticmethod
    def extent(root: Any) -> tuple[int, ...]:
        """(address, bytes) where a caller could change them; numpy refuses to resize what has views."""
        del root
        return ()

    @staticmethod
    def view(buffer: Buffer, blank: Any, shape: tuple[int, ...], strides: Any) -> Any:
        """The array or tensor over a buffer."""
        if blank.hasobject:
            return np.empty(shape, blank)
        start = buffer.start
        if strides is not None:  # the first element lies above the lowest where a stride is negative
            start -= sum(s * (n - 1) for n, s in zip(shape, strides, strict=True) if s < 0 < n)
        return np.ndarray(shape, blank, buffer.root, start, strides)


class Torch:
    """Tensors; strides in elements."""

    @staticmethod
    def itemsize(dtype: Any) -> int:
        """Bytes of an element."""
        return int(dtype.itemsize)

    stride_bytes = itemsize

    @staticmethod
    def blank(dtype: Any, device: Any) -> Any:
        """What becomes the view."""
        import torch

        return torch.empty(0, dtype=dtype, device=device)

    @staticmethod
    def place(blank: Any) -> tuple[Any, ...] | None:
        """See Numpy. Captured and traced code would go on using its buffers behind our back."""
        import torch

        where = blank.device
        if where.type == "meta" or type(blank) is not torch.Tensor or torch.compiler.is_compiling():
            return None
        if torch._C._len_torch_dispatch_stack():  # noqa: SLF001 - a tracer; no public name tells it
            return None
        if where.type != "cuda":
            return (where,)
        if torch.cuda.is_current_stream_capturing():
            return None
        return (where, torch.cuda.current_stream(where).cuda_stream)

    @staticmethod
    def root(size: int, device: Any) -> tuple[Any, int]:
        """(root, its address)."""
        import torch

        root = torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()
        return root, root.data_ptr()

    @staticmethod
    def users(buffer: Buffer) -> int:
        """References to the storage, from tensors and from Python.

        `tensor.untyped_storage()` may give our own root again: only Python counts that. torch has no
        public name for the other count (its own graph trees use this one).
        """
        import torch

        return int(torch._C._storage_Use_Count(buffer.root._cdata)) + sys.getrefcount(buffer.root)  # noqa: SLF001

    @staticmethod
    def extent(root: Any) -> tuple[int, ...]:
        """(address, bytes): `resize_` and `out=` of a view put other memory below the storage."""
        return root.data_ptr(), root.nbytes()

    @staticmethod
    def view(buffer: Buffer, blank: Any, shape: tuple[int, ...], strides: Any) -> Any:
        """The array or tensor over a buffer."""
        start = buffer.start // blank.element_size()
        return blank.set_(buffer.root, start, shape, () if strides is None else strides)


class Buffer:
    """Memory of `size` bytes from the multiple of `alignment` at `start`; idle until a view is made."""

    __slots__ = ("_alone", "_extent", "kind", "root", "size", "start")

    def __init__(self, kind: type[Numpy | Torch], size: int, device: Any, alignment: int) -> None:
        self.kind, self.size = kind, size
        self.root, address = kind.root(size + alignment - 1, device)
        self.start = -address % alignment
        self._extent = kind.extent(self.root)
        self._alone = kind.users(self)

    def idle(self) -> bool:
        """Nothing but this object refers to the root."""
        return self.kind.users(self) == self._alone

    def changed(self) -> bool:
        """Its memory is not the one that it was made with: size and alignment no longer hold."""
        return self.kind.extent(self.root) != self._extent


def is_named(dtype: Any) -> bool:
    """Whether it is a type of numpy or torch: None, `float` or text may mean either."""
    is_numpy = isinstance(dtype, np.dtype) or (isinstance(dtype, type) and issubclass(dtype, np.generic))
    return is_numpy or type(dtype).__module__ == "torch"


def kind_of(dtype: Any, device: Any) -> type[Numpy | Torch]:
    """Whether an array or a tensor is asked for.

    Raises:
        UsageError: a device is asked for an array.
    """
    if type(dtype).__module__ == "torch":
        return Torch
    if device is not None:
        raise UsageError(f"an array on device {device}", hint="give a torch dtype, or no device")
    return Numpy


def sizes_of(
    kind: type[Numpy | Torch], shape: int | Sequence[int], dtype: Any, strides: Sequence[int] | None
) -> tuple[tuple[int, ...], int]:
    """The shape as a tuple, and the bytes from the lowest to the highest element, at least 1.

    Raises:
        UsageError: no such shape, strides or type.
    """
    try:
        whole = (shape,) if isinstance(shape, int) or hasattr(shape, "__index__") else shape
        sizes = tuple([operator.index(n) for n in whole])  # from a list: else it is made larger and cut
        item = kind.itemsize(dtype)
        span = max(math.prod(sizes) * item, 1)
        if strides is not None and 0 not in sizes:
            steps = sum(abs(s) * (n - 1) for n, s in zip(sizes, strides, strict=True))
            span = item + kind.stride_bytes(dtype) * steps
    except (TypeError, ValueError) as why:
        raise UsageError(f"shape {shape!r:.200}, type {dtype!r:.50}, strides {strides}: {why}") from None
    if sizes and min(sizes) < 0:
        raise UsageError(f"shape {shape!r:.200}", hint="no size below 0")
    return sizes, span


def traits(like: Any) -> tuple[tuple[int, ...], Any, Any, Any]:
    """(shape, dtype, device, strides), strides None where elements share memory."""
    if hasattr(like, "stride"):
        shape, strides, device, item = tuple(like.shape), tuple(like.stride()), like.device, 1
    else:
        like = np.asarray(like)
        shape, strides, device, item = like.shape, like.strides, None, like.itemsize
    reach = item  # bytes (elements for torch) that the inner dimensions cover
    for stride, size in sorted((abs(s), n) for n, s in zip(shape, strides, strict=True) if n > 1):
        if stride < reach:
            return shape, like.dtype, device, None
        reach = stride * (size - 1) + reach
    return shape, like.dtype, device, strides
