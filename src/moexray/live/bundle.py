"""The folder that `moexray record` writes: bounded, whole after a kill, and never in the engine's way.

What is written in lines goes into segments, each line by one system call: a kill of the recorder loses
what it had not yet written, no more. When the folder is full the oldest segments go, across all streams;
when the disk is full what comes is dropped. Both are counted, by stream, in manifest.json.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["LEAST_BYTES", "SCHEMA", "Bundle"]

SCHEMA = "moexray.bundle/1"
LEAST_BYTES = 1 << 20  # of a bundle: below that a segment holds less than a second (our choice)
PARTS = 32  # segments of a full bundle, so that little goes at a time (our choice)
SPARE = 64 << 10  # kept for the manifest


class Bundle:
    """A folder of segments and files.

    Attributes:
        lost: Bytes that a full disk or a failing one did not take, by stream.
        dropped: Bytes that were deleted to make room, by stream.
        error: The last error of the disk; empty if it has taken everything since.

    Args:
        folder: Made new.
        max_bytes: Of all files together.

    Raises:
        UsageError: the folder holds something, cannot be made, or max_bytes is too small.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        if max_bytes < LEAST_BYTES:
            raise UsageError(f"a bundle of {max_bytes} bytes is too small", hint=f"at least {LEAST_BYTES}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            full = next(folder.iterdir(), None) is not None
        except OSError as why:
            raise UsageError(f"{folder}: {why.strerror}", hint="name another folder by -o") from why
        if full:
            raise UsageError(f"{folder} is not empty", hint="a recording needs a folder of its own: -o NEW")
        self.folder, self._max = folder, max_bytes - SPARE
        self.lost: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.error = ""
        self._segments: dict[str, tuple[int, int]] = {}  # stream -> number and size of the one being written
        self._files: deque[tuple[str, Path, int]] = deque()  # closed, oldest first: stream, file, bytes
        self._held = 0

    def append(self, stream: str, text: str, *, header: str = "") -> None:
        """Adds lines to a stream.

        Args:
            stream: Path of its segments below the folder: "latency/steps.csv" becomes latency/steps-0001.csv.
            text: Whole lines.
            header: First line of each segment.
        """
        number, size = self._segments.get(stream, (1, 0))
        data = text.encode()
        if size and size + len(data) > self._max // PARTS:
            self._files.append((stream, self._path(stream, number), size))
            number, size = number + 1, 0
        if not size:
            data = header.encode() + data
        if self._room(len(data)) and self._put(self._path(stream, number), data, size):
            self._segments[stream] = (number, size + len(data))
            self._held += len(data)
        else:
            self.lost[stream] += len(data)

    def file(self, stream: str, name: str, data: bytes) -> None:
        """Adds a file of its own; under its name it is whole.

        Args:
            stream: What it is counted as.
            name: Path below the folder.
            data: Its content.
        """
        path = self.folder / name
        if self._room(len(data)) and self._replace(path, data):
            self._files.append((stream, path, len(data)))
            self._held += len(data)
        else:
            self.lost[stream] += len(data)

    def adopt(self, stream: str, path: Path) -> None:
        """Counts a file that another process wrote into the folder; it goes when its turn comes."""
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            self._held += size
            self._files.append((stream, path, size))
            self._room(0)

    def manifest(self, facts: Mapping[str, Any]) -> bool:
        """Writes manifest.json anew; False where the disk did not take it."""
        names = sorted(p.relative_to(self.folder).as_posix() for p in self.folder.rglob("*") if p.is_file())
        names = [n for n in names if n != "manifest.json" and not n.endswith(".new")]
        about = {
            "schema": SCHEMA, **facts, "files": names,
            "lost_bytes": dict(self.lost), "dropped_bytes": dict(self.dropped), "disk_error": self.error,
        }  # fmt: skip
        return self._replace(self.folder / "manifest.json", json.dumps(about, indent=1).encode() + b"\n")

    def _path(self, stream: str, number: int) -> Path:
        stem, dot, suffix = stream.rpartition(".")
        return self.folder / f"{stem}-{number:04d}{dot}{suffix}"

    def _room(self, size: int) -> bool:
        while self._held + size > self._max and self._files:
            stream, path, held = self._files.popleft()
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            self._held -= held
            self.dropped[stream] += held
        return self._held + size <= self._max

    def _put(self, path: Path, data: bytes, at: int) -> bool:
        """Writes at the end of a file, or not at all."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                written = os.pwrite(fd, data, at)
                if written < len(data):
                    os.ftruncate(fd, at)
                    raise OSError(28, os.strerror(28))
            finally:
                os.close(fd)
        except OSError as why:
            self.error = why.strerror or str(why)
            return False
        self.error = ""
        return True

    def _replace(self, path: Path, data: bytes) -> bool:
        hidden = path.with_name(f"{path.name}.new")
        if not self._put(hidden, data, 0):
            with contextlib.suppress(OSError):
                hidden.unlink(missing_ok=True)
            return False
        try:
            os.truncate(hidden, len(data))
            hidden.replace(path)
        except OSError as why:
            self.error = why.strerror or str(why)
            return False
        return True
