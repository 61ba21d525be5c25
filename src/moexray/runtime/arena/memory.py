"""The bytes below an arena: one array or tensor, with views of it and moves within it."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.core.errors import UsageError
from moexray.runtime.buffers import ALIGNMENT, aligned_empty
from moexray.runtime.checks import is_whole
from moexray.runtime.guard import say_once
from moexray.runtime.host_memory import shortage

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Memory"]

PAGE_BYTES = 4096  # the least of common systems
SCRATCH_BYTES = 32 << 20  # moves on a device go through so much beside the arena (our choice)

_log = logging.getLogger(__name__)


class Memory:
    """A row of bytes.

    Args:
        raw: uint8, one dimension, dense: an array, or a tensor on any device.
        keep: What must live as long as the bytes.

    Attributes:
        torn: A move onto itself has begun and its caller has not yet noted (by False) that the bytes lie
            at the new place: were it to end here, they would be lost.

    Raises:
        UsageError: raw is something else.
    """

    def __init__(self, raw: Any, keep: Any = None) -> None:
        if isinstance(raw, np.ndarray):
            dense = raw.flags.c_contiguous and raw.flags.writeable
        else:
            dense = raw.is_contiguous()
        if str(raw.dtype).rpartition(".")[2] != "uint8" or raw.ndim != 1 or not dense:
            what = f"memory of {raw.dtype} in {raw.ndim} dimensions"
            raise UsageError(what, hint="a dense row of uint8 that may be written to")
        self.raw, self._keep = raw, keep
        self.size = int(raw.shape[0])
        self.device: Any = None if isinstance(raw, np.ndarray) else raw.device
        self._bytes: memoryview | None = None
        self._scratch: Any = None
        self.torn = False
        if isinstance(raw, np.ndarray):
            self._bytes, self.address = raw.data, int(raw.ctypes.data)
        else:
            self.address = int(raw.data_ptr())
            if raw.device.type == "cpu":
                self._bytes = memoryview(raw.numpy())

    @classmethod
    def take(cls, size: int, *, device: Any = None, alignment: int = ALIGNMENT) -> Memory:
        """Takes memory: an array without a device, a tensor with one.

        On CUDA it lies in a `torch.cuda.MemPool` of its own, so that no other tensor is ever cut from its
        segment (untested on a GPU).

        Raises:
            UsageError: a size below 1, an alignment that is no power of two, or memory of the host is short.
        """
        if not is_whole(size):
            raise UsageError(f"an arena of {size} bytes", hint="a whole number from 1")
        if str(device or "cpu").startswith("cpu") and (why := shortage(size)):
            raise UsageError(f"an arena of {size} bytes: {why}")
        if device is None:
            return cls._touched(aligned_empty(size, np.uint8, alignment=alignment))
        import torch

        pool, own = None, contextlib.nullcontext()
        if torch.device(device).type == "cuda":
            if hasattr(torch.cuda, "MemPool"):
                pool = torch.cuda.MemPool()
                own = torch.cuda.use_mem_pool(pool, device)
            else:
                say_once(f"torch {torch.__version__} has no MemPool: an arena shares torch's pool", log=_log)
        with own, torch.inference_mode(mode=False):  # usable in any mode
            return cls._touched(aligned_empty(size, torch.uint8, device=device, alignment=alignment), pool)

    @classmethod
    def _touched(cls, raw: Any, keep: Any = None) -> Memory:
        """Writes each page of host memory once, so that no page fault is left for a step."""
        memory = cls(raw, keep)
        if memory._bytes is not None:
            raw[::PAGE_BYTES] = 0
        return memory

    def alike(self, size: int, alignment: int) -> Memory:
        """Plain memory of the same kind, in nobody's pool."""
        if self.device is None or self.device.type == "cpu":
            return Memory.take(size, device=self.device, alignment=alignment)
        return Memory(aligned_empty(size, self.raw.dtype, device=self.device, alignment=alignment))

    def view(self, offset: int, size: int) -> Any:
        """uint8 [size], the bytes themselves."""
        return self.raw[offset : offset + size]

    def ready(self) -> None:
        """Takes what moves need, so that none fails for memory later."""
        if self._bytes is None and self._scratch is None:
            import torch

            with torch.inference_mode(mode=False):
                self._scratch = self.raw.new_empty(min(SCRATCH_BYTES, self.size))

    def move(self, source: int, target: int, size: int) -> None:
        """Copies bytes downwards or apart; source and target may overlap if target <= source. See `torn`."""
        overlap = target + size > source and target < source + size
        if self._bytes is not None:
            self.torn = overlap
            self._bytes[target : target + size] = self._bytes[source : source + size]  # memmove
            return
        self.ready()
        for at, many in _chunks(size, len(self._scratch)):
            scratch = self._scratch[:many]
            scratch.copy_(self.raw[source + at : source + at + many])
            self.torn = overlap
            self.raw[target + at : target + at + many].copy_(scratch)


def _chunks(size: int, step: int) -> Iterator[tuple[int, int]]:
    for at in range(0, size, step):
        yield at, min(step, size - at)
