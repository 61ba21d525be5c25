"""Limits of the host's own memory: free-page order and compaction."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HostMemoryLimits"]


@dataclass(frozen=True, slots=True)
class HostMemoryLimits:
    """Each field: what it bounds, its unit, its source.

    Args:
        healthy_order: Largest order of a free block (2^order pages) from which memory is healthy; order 9
            of 4 KiB pages is a huge page of 2 MiB. Source: mission, row S14.
        healthy_success_ratio: Compaction attempts that succeed, above which it is healthy. Source: S14.
        critical_order: Largest order at or below which memory is critical. Source: S14.
        critical_success_ratio: Share of successes below which it is critical. Source: S14.
    """

    healthy_order: int = 9
    healthy_success_ratio: float = 0.95
    critical_order: int = 4
    critical_success_ratio: float = 0.70
