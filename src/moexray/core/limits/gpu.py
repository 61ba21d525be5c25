"""Limits of the gpu rules."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GpuLimits"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class GpuLimits:
    """Each field: what it bounds, its unit, its source. Without another source: verdict catalogue.

    Args:
        load_ratio: Utilisation from which a sample is under load.
        slowdown_ratio: Share of the samples under load with a slowdown, from which it counts.
        clock_drop_ratio: How far their median SM clock lies below that of the others, at least.
        same_total_ratio: Totals that differ by at most this are the same memory.
        driver_share_bytes: Total of nvidia-smi minus total of torch that the driver's own part explains.
            Source: 0.4-0.7 GiB on cards of 32-141 GB, up to 1.1 GiB on GH200.
        growth_ratio: Growth of memory in use that counts, share of the total (unknown: first value).
        growth_windows: Windows that lie above the one before, at least.
        like_load_ratio: Loads that differ by at most this share are alike.
        like_samples_ratio: Share of the samples that must lie at like load.
        known_util_ratio: Share of the samples with a utilisation from which it stands for the load. Source:
            own choice.
        drift_samples: Samples that show a drift, and pairs that make a correlation, at least. Source: own
            choice; fewer correlate by chance.
        drift_ratio: Rise of fragments / reserved that counts. Source: below it one segment decides.
        drift_correlation: Rank correlation of fragments / reserved and step time, at least.
        cached_ratio: Cached share of reserved from which used memory is mostly cache.
        cached_bytes: Cached memory below this is not worth a word. Source: a handful of segments.
        own_ratio: Memory outside PyTorch above a normal worker's that counts without a failure, share of
            the total. Source: as growth_ratio.
        other_ratio: Memory of other processes that counts without a failure, share of the total.
            Source: a quarter of the card is a size that an operator budgets.
        idle_ratio: Utilisation at or below which the GPU stands still.
        full_ratio: Share of the total from which memory is full.
        at_full_ratio: Share of the standstills that must fall into full memory ("nearly all").
        stall_count: Standstills, at least. Source: own choice; one is an accident.
        stall_sure_count: Standstills that count although memory is always full. Source: own choice.
        stall_below_ratio: Share of the busy samples at lower memory from which full memory stands out.
            Source: own choice.
        stall_moved_ratio: Or share of the standstills that give memory back. Source: own choice.
        stall_windows: Quarters of the series that hold standstills, at least.
        stall_interval_s: Samples further apart than this miss the gaps, s. Source: frees and
            allocations of one step last below a second.
        stall_confidence: Highest confidence from samples only.
        cliff_ratio: Speed that falls below this share collapses.
        slack_bytes: Free may miss total - reserved - used by this (rounding of three MiB values).
    """

    load_ratio: float = 0.5
    slowdown_ratio: float = 0.2
    clock_drop_ratio: float = 0.15
    same_total_ratio: float = 0.02
    driver_share_bytes: int = 1536 * MIB
    growth_ratio: float = 0.05
    growth_windows: int = 3
    like_load_ratio: float = 0.15
    like_samples_ratio: float = 0.5
    known_util_ratio: float = 0.9
    drift_samples: int = 4
    drift_ratio: float = 0.05
    drift_correlation: float = 0.7
    cached_ratio: float = 0.5
    cached_bytes: int = 256 * MIB
    own_ratio: float = 0.05
    other_ratio: float = 0.25
    idle_ratio: float = 0.05
    full_ratio: float = 0.98
    at_full_ratio: float = 0.9
    stall_count: int = 2
    stall_sure_count: int = 4
    stall_below_ratio: float = 0.2
    stall_moved_ratio: float = 0.5
    stall_windows: int = 2
    stall_interval_s: float = 2.0
    stall_confidence: float = 0.6
    cliff_ratio: float = 1 / 3
    slack_bytes: int = 2 * MIB
