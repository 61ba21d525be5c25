"""Limits of A/B measurement: what makes a machine too noisy for verdicts on wall-clock latency."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AbLimits"]


@dataclass(frozen=True, slots=True)
class AbLimits:
    """Each field: what it bounds, its unit, its source.

    Args:
        load_per_core: Load average of a minute per core. Source: project measurement on 2 cores, with no
            fault in either arm the P99 of a step of 2 ms was 15-25 ms at 3.5 a core; none of it at 0.8.
        steal_ratio: Share of processor time that the hypervisor kept. Source: project assumption, at 2 % a
            window of 100 ms loses 2 ms, near the margins that are asked for.
        stall_ratio: Share of the time in which some task waited for a core (PSI, cpu, some). Source: project
            assumption, a quarter of all steps then starts late.
    """

    load_per_core: float = 1.5
    steal_ratio: float = 0.02
    stall_ratio: float = 0.25
