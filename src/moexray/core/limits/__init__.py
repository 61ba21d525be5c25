"""Every limit that a rule compares with, in one place, each with its unit and its source."""

from __future__ import annotations

from dataclasses import dataclass, field

from moexray.core.limits.ab import AbLimits
from moexray.core.limits.comm import CommLimits
from moexray.core.limits.engine import EngineLimits
from moexray.core.limits.gpu import GpuLimits
from moexray.core.limits.host_memory import HostMemoryLimits
from moexray.core.limits.memory import MemoryLimits
from moexray.core.limits.requests import RequestLimits
from moexray.core.limits.routing import RoutingLimits
from moexray.core.limits.snapshot import SnapshotLimits
from moexray.core.limits.timeline import TimelineLimits

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Defaults are those of the verdict catalogue; a user overrides them per subject."""

    memory: MemoryLimits = field(default_factory=MemoryLimits)
    snapshot: SnapshotLimits = field(default_factory=SnapshotLimits)
    gpu: GpuLimits = field(default_factory=GpuLimits)
    engine: EngineLimits = field(default_factory=EngineLimits)
    comm: CommLimits = field(default_factory=CommLimits)
    requests: RequestLimits = field(default_factory=RequestLimits)
    routing: RoutingLimits = field(default_factory=RoutingLimits)
    timeline: TimelineLimits = field(default_factory=TimelineLimits)
    host_memory: HostMemoryLimits = field(default_factory=HostMemoryLimits)
    ab: AbLimits = field(default_factory=AbLimits)
