"""How much memory of the host may still be taken: asked first, because too much is not refused, but kills.

The kernel promises pages that it does not have; whoever touches them meets the out-of-memory killer,
which may choose another process. The same holds for a control group over its limit.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["SPARE_BYTES", "available_bytes", "shortage"]

SPARE_BYTES = 256 << 20  # left to others by whoever takes memory here (our choice)
_SMALL_BYTES = 16 << 20  # not worth the question, which takes some 100 us (our choice)


def available_bytes() -> int:
    """Memory that may still be taken: of the host, and of each control group (v2) around us."""
    lines = _read("/proc/meminfo").splitlines()
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for line in _read("/proc/self/cgroup").splitlines():
        if line.startswith("0::/"):
            folder = Path("/sys/fs/cgroup", line[4:])
            for group in (folder, *folder.parents):
                limit, used = _read(group / "memory.max").strip(), _read(group / "memory.current").strip()
                if limit.isdigit() and used.isdigit():
                    found.append(int(limit) - int(used) + _reclaimable(group))
    return min(found, default=1 << 62)


def shortage(size: int) -> str:
    """Why `size` bytes cannot be taken; empty if they can."""
    if size < _SMALL_BYTES or (available := available_bytes()) >= size + SPARE_BYTES:
        return ""
    return f"memory is short: {available} bytes available, {size} wanted, {SPARE_BYTES} to be spared"


def _reclaimable(group: Path) -> int:
    for line in _read(group / "memory.stat").splitlines():
        if line.startswith("inactive_file "):
            return int(line.split()[1])
    return 0


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text("ascii")
    except (OSError, ValueError):
        return ""
