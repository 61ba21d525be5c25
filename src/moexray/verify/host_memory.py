"""The host's own view of fragmentation: free blocks by order (/proc/buddyinfo) and compaction (/proc/vmstat).

Glossary: the kernel keeps free pages in blocks of 2^*order* pages; *compaction* moves pages to make
larger blocks. `compact_stall` counts requests that had to wait for it, `compact_success` those after
which a block was there. Source: Documentation/filesystems/proc.rst and mm/vmstat.c of Linux.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from moexray.core.limits.host_memory import HostMemoryLimits

__all__ = ["HostMemory", "Zone", "judge", "read_host_memory", "since"]

PROC = Path("/proc")
BUDDY = re.compile(r"Node\s+(\d{1,9}), zone\s+(\S+)((?:\s+\d{1,18}){1,64})\s*", re.ASCII)
MOST_BYTES = 1 << 20  # both files are a few kB


@dataclass(frozen=True, slots=True)
class Zone:
    """Free blocks of one zone: `blocks[order]` of 2^order pages."""

    node: int
    name: str
    blocks: tuple[int, ...]

    @property
    def pages(self) -> int:
        """Free pages."""
        return sum(count << order for order, count in enumerate(self.blocks))

    @property
    def order(self) -> int | None:
        """The largest order with a free block; None where nothing is free."""
        return max((order for order, count in enumerate(self.blocks) if count), default=None)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """What the kernel tells at one moment.

    Args:
        zones: Empty where /proc/buddyinfo cannot be read.
        stalls, successes: Compaction since boot; None where /proc/vmstat does not tell.
    """

    zones: tuple[Zone, ...] = ()
    stalls: int | None = None
    successes: int | None = None

    @property
    def order(self) -> int | None:
        """The largest free order; of each node the zone with most free pages counts, the worst node decides.

        The small zones for old devices stay whole on any machine and would hide the rest.
        """
        largest = [
            max((z for z in self.zones if z.node == node), key=lambda z: z.pages)
            for node in dict.fromkeys(z.node for z in self.zones)
        ]
        orders = [zone.order for zone in largest]
        return min((-1 if o is None else o for o in orders), default=None)

    @property
    def success_ratio(self) -> float | None:
        """Compactions that succeeded, of those that a request waited for; None where there were none."""
        if self.stalls is None or self.successes is None or self.stalls <= 0:
            return None
        return min(self.successes / self.stalls, 1.0)


def read_host_memory(proc: Path = PROC) -> HostMemory:
    """Reads the counters; what is absent or malformed is left out."""
    found = filter(None, map(BUDDY.fullmatch, _lines(proc / "buddyinfo")))
    zones = tuple(Zone(int(m[1]), m[2], tuple(map(int, m[3].split()))) for m in found)
    counters = {}
    for line in _lines(proc / "vmstat"):
        key, _, value = line.partition(" ")
        if value.strip().isdecimal():
            counters[key] = int(value)
    return HostMemory(zones, counters.get("compact_stall"), counters.get("compact_success"))


def since(before: HostMemory, after: HostMemory) -> HostMemory:
    """The zones of `after`, and the compaction between the two."""
    if before.stalls is None or before.successes is None or after.stalls is None or after.successes is None:
        return after
    return replace(after, stalls=after.stalls - before.stalls, successes=after.successes - before.successes)


def judge(host: HostMemory, limits: HostMemoryLimits | None = None) -> tuple[str, str]:
    """Healthy, critical, in between, or cannot tell; and the reason.

    Args:
        host: The counters.
        limits: Where the lines are; None are the defaults.

    Returns:
        ("healthy" | "strained" | "critical" | "cannot tell", reason).
    """
    limits = limits or HostMemoryLimits()
    order, ratio = host.order, host.success_ratio
    if order is None:
        return "cannot tell", "/proc/buddyinfo is not there (no Linux, or a container hides it)"
    has = "nothing is free" if order < 0 else f"the largest free block has order {order}"
    if ratio is None:
        why = "is not counted here" if host.stalls is None else "was never needed"
        return "cannot tell", f"{has}; compaction {why}, so there is no share of successes"
    reason = f"{has}; {host.successes} of {host.stalls} compactions succeeded ({ratio:.0%})"
    if order >= limits.healthy_order and ratio > limits.healthy_success_ratio:
        return "healthy", reason
    if order <= limits.critical_order and ratio < limits.critical_success_ratio:
        return "critical", reason
    return "strained", reason


def _lines(path: Path) -> list[str]:
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            return file.read(MOST_BYTES).splitlines()
    except OSError:
        return []
