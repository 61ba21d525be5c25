"""How noisy the machine was between two moments: load, steal, waiting for a core; and what that forbids.

Glossary: *steal* is processor time that the hypervisor gave to others; *PSI* is the kernel's pressure
stall information, here the time in which at least one task waited for a core.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moexray.core.limits.ab import AbLimits

__all__ = ["Moment", "Noise", "moment", "noise", "refusal"]

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Moment:
    """Counters of the machine; None where the kernel does not tell.

    Args:
        at_s: Monotonic clock.
        cores: Cores of the machine.
        load: Load average of a minute.
        steal: Ticks of all cores that the hypervisor kept.
        ticks: Ticks of all cores.
        stalled_s: Time in which some task waited for a core.
    """

    at_s: float
    cores: int
    load: float | None
    steal: int | None
    ticks: int | None
    stalled_s: float | None


@dataclass(frozen=True, slots=True)
class Noise:
    """What disturbed a measurement; None where the kernel does not tell.

    Args:
        cores: Cores of the machine.
        load: Load average of a minute, the larger of the two moments.
        steal_ratio: Share of processor time between them that the hypervisor kept.
        stall_ratio: Share of the time between them in which some task waited for a core.
    """

    cores: int
    load: float | None
    steal_ratio: float | None
    stall_ratio: float | None


def moment(proc: Path = PROC, cores: int | None = None) -> Moment:
    """Reads the counters now.

    Args:
        proc: Where procfs is mounted.
        cores: Cores of the machine; as the system says where None.
    """
    load = _first(proc / "loadavg", r"([\d.]+)")
    ticks = re.search(r"^cpu +([\d ]+)", _text(proc / "stat"), re.MULTILINE)
    # user nice system idle iowait irq softirq steal; guest time is part of user
    fields = [int(x) for x in ticks[1].split()[:8]] if ticks else []
    stalled = _first(proc / "pressure" / "cpu", r"some .*total=(\d+)")
    return Moment(
        at_s=time.monotonic(),
        cores=cores or os.cpu_count() or 1,
        load=load,
        steal=fields[7] if len(fields) > 7 else None,
        ticks=sum(fields) if fields else None,
        stalled_s=None if stalled is None else stalled / 1e6,
    )


def noise(first: Moment, last: Moment) -> Noise:
    """What happened between two moments."""
    loads = [m.load for m in (first, last) if m.load is not None]
    steal = stall = None
    if first.steal is not None and last.steal is not None and first.ticks is not None and last.ticks:
        steal = (last.steal - first.steal) / max(1, last.ticks - first.ticks)
    if first.stalled_s is not None and last.stalled_s is not None:
        stall = (last.stalled_s - first.stalled_s) / max(1e-9, last.at_s - first.at_s)
    return Noise(first.cores, max(loads, default=None), steal, stall)


def refusal(seen: Noise, limits: AbLimits) -> str:
    """Why wall-clock latencies allow no verdict on this machine; empty where they do."""
    told = []
    if seen.load is not None and seen.load > limits.load_per_core * seen.cores:
        told.append(
            f"load {seen.load:.1f} on {seen.cores} cores (limit {limits.load_per_core * seen.cores:.1f})"
        )
    if seen.steal_ratio is not None and seen.steal_ratio > limits.steal_ratio:
        told.append(f"steal {seen.steal_ratio:.1%} (limit {limits.steal_ratio:.1%})")
    if seen.stall_ratio is not None and seen.stall_ratio > limits.stall_ratio:
        told.append(
            f"tasks waited for a core {seen.stall_ratio:.0%} of the time (limit {limits.stall_ratio:.0%})"
        )
    return f"the machine is too noisy: {', '.join(told)}" if told else ""


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError:
        return ""


def _first(file: Path, pattern: str) -> float | None:
    found = re.search(pattern, _text(file))
    return float(found[1]) if found else None
