"""The file of a ring: where what lies in it, in which folder, and whether its writer still runs.

Layout, little endian: LIVE words from 64, gauges from 256, the description (JSON) from 512, REMEDY entries,
then totals uint64 [sites, experts] and tokens uint64 [sites], then the slots: a RECORD, counts uint32
[experts], ids int16 [ids]. The slot of a request that a step served holds a LINK in place of the RECORD.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import mmap
import os
import platform
import stat
import struct
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.runtime.guard import Tally

__all__ = [
    "DESCRIPTION",
    "FOLDER_VARIABLE",
    "GAUGES",
    "LINK",
    "LIVE",
    "LIVE_AT",
    "MAGIC",
    "RECORD",
    "REMEDIES_AT",
    "REMEDY",
    "REQUEST",
    "ROUTER",
    "SCHEMA",
    "STEP",
    "TOTALS_AT",
    "Layout",
    "Site",
    "create",
    "is_running",
    "namespace",
    "put_remedies",
    "recording_folder",
    "ring_folder",
    "started",
    "sweep",
    "take",
]

FOLDER_VARIABLE = "MOEXRAY_RINGS"
SCHEMA = "moexray.ring/2"
MAGIC = b"moexring"
ROUTER, STEP, REQUEST = 1, 2, 3  # kinds of records
GAUGES = 32  # at most
DESCRIPTION = 512, (63 << 10)  # offset and end of the JSON text: 58 sites take 4 KiB
REMEDIES_AT, TOTALS_AT = DESCRIPTION[1], 64 << 10  # offsets of the REMEDY entries and of the totals
LIVE_AT = 64  # offset of LIVE
LIVE = ("head", "steps", "own_ns", "step_ns", "failures", "closed", "beat_ns", "remedies", "held")  # uint64
RECORD = np.dtype(
    {
        "names": ["seq", "step", "t0_ns", "t1_ns", "stream", "graph",
                  "layer", "site", "kind", "rows", "pairs"],
        "formats": ["<u8", "<i8", "<i8", "<i8", "<i8", "<u8", "<i4", "<i2", "<u2", "<u4", "<u4"],
        "itemsize": 64,
    }
)  # fmt: skip
LINK = np.dtype(
    {
        "names": ["seq", "step", "trace_high", "trace_low", "span", "kind"],
        "formats": ["<u8", "<i8", "<u8", "<u8", "<u8", "<u2"],
        "offsets": [0, 8, 16, 24, 32, 54],
        "itemsize": RECORD.itemsize,
    }
)  # the span, by its ids, that a step was done for
REMEDY = np.dtype([("name", "S40"), ("applied", "<u8"), ("fallback", "<u8"), ("skipped", "<u8")])


@dataclass(frozen=True, slots=True)
class Site:
    """A router of the model.

    Args:
        path: Of its module.
        layer: Number in that path, dense layers count; -1 where it has none.
        experts: Logical experts to choose from.
        k: Experts per token.
    """

    path: str
    layer: int
    experts: int
    k: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where what lies in the file.

    Args:
        routers: Sites; 0 for a ring of steps only.
        experts: Of the router with the most.
        ids: Chosen expert ids kept per record, the first ones of a call; 0 keeps counts only.
        slots: Records held at a time.
    """

    routers: int
    experts: int
    ids: int
    slots: int

    @classmethod
    def within(cls, routers: int, experts: int, ids: int, max_bytes: int) -> Layout:
        """As many slots as fit.

        Raises:
            UsageError: not even two steps fit.
        """
        bare = cls(routers, experts, ids, 0)
        slots = (max_bytes - bare.size) // bare.record_bytes
        if slots < 2 * (routers + 1):
            need = bare.size + 2 * (routers + 1) * bare.record_bytes
            raise UsageError(
                f"{max_bytes} bytes do not hold two steps of {routers} routers x {experts} experts",
                hint=f"at least {need} bytes, or fewer ids",
            )
        return cls(routers, experts, ids, slots)

    @property
    def record_bytes(self) -> int:
        """One slot, a multiple of 8."""
        return RECORD.itemsize + -(-(4 * self.experts + 2 * self.ids) // 8) * 8

    @property
    def slots_at(self) -> int:
        """Offset of the first slot."""
        return TOTALS_AT + 8 * self.routers * (self.experts + 1)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.slots_at + self.slots * self.record_bytes

    def totals(self, memory: Any) -> np.ndarray[Any, Any]:
        """uint64 [sites, experts]: pairs since the ring was made."""
        flat = np.frombuffer(memory, np.uint64, self.routers * self.experts, TOTALS_AT)
        return flat.reshape(self.routers, self.experts)

    def tokens(self, memory: Any) -> np.ndarray[Any, Any]:
        """uint64 [sites]: rows since the ring was made."""
        place = TOTALS_AT + 8 * self.routers * self.experts
        return np.frombuffer(memory, np.uint64, self.routers, place)

    def slots_of(self, memory: Any) -> np.ndarray[Any, Any]:
        """uint8 [slots, record_bytes]."""
        flat = np.frombuffer(memory, np.uint8, self.slots * self.record_bytes, self.slots_at)
        return flat.reshape(self.slots, self.record_bytes)


def put_remedies(memory: Any, words: Any, tallies: Sequence[Tally], told: int) -> int:
    """Writes what remedies did; how many stand there now.

    Args:
        memory: The file.
        words: The same as uint64.
        tallies: In the same order each time.
        told: So many names stand there already.
    """
    size = REMEDY["name"].itemsize
    for number, tally in enumerate(tallies):
        at = REMEDIES_AT + number * REMEDY.itemsize
        if number >= told:
            memory[at : at + size] = tally.name.encode()[:size].ljust(size, b"\0")
        word = (at + size) // 8
        words[word], words[word + 1], words[word + 2] = tally.applied, tally.fallbacks, tally.skipped
    return len(tallies)


def ring_folder(folder: str | Path | None = None, *, make: bool = False) -> Path:
    """Where rings lie: `folder`, else MOEXRAY_RINGS, else /dev/shm/moexray-UID.

    Raises:
        UsageError: it belongs to somebody else or others may write there.
    """
    shm = Path("/dev/shm")  # noqa: S108 - our folder in it belongs to us alone, which is checked below
    base = shm if shm.is_dir() else Path(tempfile.gettempdir())
    path = Path(folder or os.environ.get(FOLDER_VARIABLE) or base / f"moexray-{os.getuid()}")
    if make:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        about = path.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
            raise UsageError(
                "the folder of the rings is not ours alone",
                where=str(path),
                hint=f"{FOLDER_VARIABLE}=a folder of this user that others cannot write to",
            )
    return path


def is_running(pid: int, start: int, space: int) -> bool | None:
    """Whether the process that had this id at that start still runs; None: it is in another pid namespace."""
    if space != namespace():
        return None
    now = started(pid)
    return now is not None and now == start


def started(pid: int) -> int | None:
    """Start of a process in clock ticks since boot; None: there is none, or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        return None if fields[0] in ("Z", "X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def namespace() -> int:
    """Number of this process's pid namespace; 0 where that cannot be told."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def take(fd: int, size: int, folder: Path) -> None:
    """Takes the space of a file; where there is none, closed rings in the folder go first.

    Raises:
        OSError: there is none.
    """
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as why:
        if why.errno != errno.ENOSPC or not sweep(folder, math.inf, closed_s=0):
            raise
        os.posix_fallocate(fd, 0, size)


def create(folder: Path, number: int, about: dict[str, Any], size: int) -> tuple[Path, mmap.mmap]:
    """A new ring's file, which appears whole, and its memory.

    Args:
        folder: Where it comes to lie.
        number: Of the ring in this process.
        about: Its description, beside what says whose it is.
        size: Bytes.

    Raises:
        UsageError: the description is too long.
        OSError: no space.
    """
    pid, space = os.getpid(), namespace()
    path = folder / f"{space}-{pid}-{number}.ring"
    whose = {
        "schema": SCHEMA, "pid": pid, "started": started(pid), "namespace": space, "host": platform.node(),
        "wall_ns": time.time_ns(), "mono_ns": time.monotonic_ns(),
    }  # fmt: skip
    text = json.dumps(whose | about).encode()
    if DESCRIPTION[0] + len(text) > DESCRIPTION[1]:
        raise UsageError(f"{len(about['sites'])} routers are too many to describe in a ring")
    hidden = path.with_suffix(".new")
    fd = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        take(fd, size, folder)
        memory = mmap.mmap(fd, size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        for page in range(0, size, mmap.PAGESIZE):  # else the first write to each is a page fault
            memory[page] = 0
        memory[: len(MAGIC)] = MAGIC
        memory[DESCRIPTION[0] : DESCRIPTION[0] + len(text)] = text
        hidden.rename(path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    return path, memory


def recording_folder(base: Path) -> Path:
    """A new folder in `base` for the rings of what this process records.

    Those of recorders that were killed go once nobody writes into them any more: they take memory.
    """
    for left in base.glob("record-*-*-*"):
        with contextlib.suppress(OSError, ValueError):
            space, pid, start = (int(word) for word in left.name.split("-")[1:4])
            if is_running(pid, start, space) is False:
                sweep(left, 0, closed_s=0)
                left.rmdir()  # not while there are others in it
    mine = f"record-{namespace()}-{os.getpid()}-{started(os.getpid()) or 0}-"
    return Path(tempfile.mkdtemp(prefix=mine, dir=base))


def sweep(folder: Path, stale_s: float, closed_s: float) -> int:
    """Removes rings that nobody drained; who has one mapped goes on reading it. How many.

    Args:
        folder: Where they lie.
        stale_s: Age of the last step of a ring whose writer died.
        closed_s: Time since a ring was closed.
    """
    removed, now, live = 0, time.monotonic_ns(), struct.Struct(f"<{len(LIVE)}Q")
    for path in folder.glob("*-*-*.*"):
        with contextlib.suppress(OSError, ValueError, struct.error, AttributeError):
            space, pid, _ = (int(word) for word in path.stem.split("-"))
            if space != namespace():
                continue
            with path.open("rb") as file:
                head = file.read(DESCRIPTION[1])
            words = dict(zip(LIVE, live.unpack_from(head, LIVE_AT), strict=True))
            about = json.loads(head[DESCRIPTION[0] :].rstrip(b"\0") or b"{}")  # empty: it is being made
            age_s = (now - words["beat_ns"]) / 1e9
            start = about.get("started") or started(pid)  # another process may have the number by now
            is_stale = age_s > stale_s and not is_running(pid, start or 0, space)
            if is_stale or (words["closed"] and age_s > closed_s):
                path.unlink()
                removed += 1
    return removed
