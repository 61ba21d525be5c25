"""Shared memory without a name: nothing is left behind, whoever is killed, and whenever.

Both kinds are descriptors that other ranks get over a socket: a memfd, or an unnamed file in a
folder (pages that can be written back when memory is short). The kernel frees them with the last
process that has them.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from moexray.core.errors import ExchangeError
from moexray.runtime.host_memory import available_bytes

__all__ = ["make_file", "make_memory", "map_reading", "map_writing"]

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def make_memory(size: int, wanted: int, spare: int) -> int:
    """A descriptor of `size` bytes of memory that nobody can resize.

    Args:
        size: Bytes, a multiple of the page size.
        wanted: Bytes that all ranks together are about to take.
        spare: Bytes that must stay available afterwards.

    Raises:
        OSError: the kernel has none.
        ExchangeError: memory is short. Asked beforehand, because a control group over its limit
            does not refuse a page: it kills.
    """
    if (available := available_bytes()) < wanted + spare:
        raise ExchangeError(
            f"memory is short: {available} bytes available, {wanted} wanted, {spare} to be spared"
        )
    fd = os.memfd_create("moexray-exchange", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        _allocate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def make_file(size: int, folder: str | None) -> int:
    """A descriptor of `size` bytes on disk, without a name in `folder` (None: the temp folder).

    Raises:
        OSError: no such folder, no right to write there, no space, or no unnamed files (NFS).
    """
    if folder is None:
        import tempfile  # half of the time to import this package

        folder = tempfile.gettempdir()
    fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC | os.O_EXCL, 0o600)
    try:
        _allocate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


def map_writing(fd: int, size: int) -> mmap.mmap:
    """Maps and touches `size` bytes, so that no page fault is left for later."""
    return mmap.mmap(fd, size, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ | mmap.PROT_WRITE)


def map_reading(fd: int, offset: int, size: int) -> mmap.mmap:
    """Maps and touches `size` bytes of a peer's segment, for reading only.

    Raises:
        OSError: it cannot be mapped.
        ExchangeError: it is too short, hence reading it would kill this process.
    """
    held = os.fstat(fd).st_size
    if held < offset + size:
        raise ExchangeError(f"segment of {held} bytes, {offset + size} expected")
    return mmap.mmap(fd, size, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ, offset=offset)


def _allocate(fd: int, size: int) -> None:
    """Takes the space now: a full disk met later would be a SIGBUS."""
    os.posix_fallocate(fd, 0, size)
