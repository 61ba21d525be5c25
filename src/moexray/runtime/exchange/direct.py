"""Large parts in one copy: the receiver reads them where they lie in the sender's memory.

`process_vm_readv` needs the right to trace the other process. One user has it among its own processes,
unless the host says no (kernel.yama.ptrace_scope above 0 without CAP_SYS_PTRACE, seccomp, a process that
is not dumpable, another pid namespace): so each pair of ranks tries, and rings carry what may not be read.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moexray.runtime.exchange.mesh import Mesh

__all__ = ["address", "meet", "read"]


class _Piece(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


_readv: Any = None
try:
    _readv = ctypes.CDLL(None, use_errno=True).process_vm_readv
except (OSError, AttributeError):  # not Linux, or a C library without it
    pass
else:
    _readv.restype = ctypes.c_ssize_t
    _pieces = (ctypes.POINTER(_Piece), ctypes.c_ulong)
    _readv.argtypes = (ctypes.c_int, *_pieces, *_pieces, ctypes.c_ulong)


def address(view: memoryview) -> int:
    """Where the bytes of a writable view lie; they must be kept alive by their owner."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def read(pid: int, source: int, into: memoryview) -> None:
    """Fills `into` with what lies at `source` in another process.

    Raises:
        OSError: it may not be read, is not there, or the process is gone.
    """
    if _readv is None:
        raise OSError("no process_vm_readv")
    at, left = address(into), len(into)
    while left:
        here, there = _Piece(at, left), _Piece(source, left)
        done = _readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if done <= 0:  # part of it may have come: the rest is asked for until there is none
            why = ctypes.get_errno()
            raise OSError(why, os.strerror(why))
        at, source, left = at + done, source + done, left - done


def meet(mesh: Mesh) -> set[int]:
    """Peers that can read this rank's memory; a collective call.

    Raises:
        ExchangeError: a peer is gone or silent.
    """
    world = len(mesh.links) + 1
    mark = bytearray(_mark(mesh.group, mesh.rank))
    lies_at = mesh.vote("", totals=[address(memoryview(mark))] * world).totals
    seen = [0] * world
    for link in mesh.links:
        expected = _mark(mesh.group, link.rank)
        found = bytearray(len(expected))
        try:
            if link.pidfd >= 0:  # a death after the read must be seen
                read(link.pid, lies_at[link.rank], memoryview(found))
        except OSError:
            continue
        seen[link.rank] = int(found == expected)
    told = mesh.vote("", totals=seen).totals
    return {rank for rank, can in told.items() if can == 1}


def _mark(group: str, rank: int) -> bytes:
    """What a rank shows to be found by; never empty."""
    return f"moexray {rank} {group}".encode()
