"""Limits of the memory rules."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MemoryLimits"]

MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Each field: what it bounds, its unit, its source.

    Args:
        granule_bytes: One allocator granule, added to the roundings before two printed values count
            as different. Source: ROUND_LARGE of the caching allocator, 2 MiB.
        free_excess_ratio: Free memory must exceed the request by more than this share of it before
            a limit below the card's size is suspected. Source: verdict catalogue, test 4.
        other_bytes: Memory outside this process below this is the driver's and other contexts'
            ordinary share. Source: verdict catalogue, test 6 (driver reserve of 80-140 GB cards
            is 0.4-0.6 GiB).
        context_bytes: Context, libraries and communicator of a normal worker outside PyTorch.
            Source: verdict catalogue, test 7.
        linear_r2: Least coefficient of determination for "linear in tokens".
        ranks_alike_ratio: Sizes of ranks that grow alike differ by at most this share.
        series_points: Least number of sizes that make a growing series.
        graph_share_ratio: Graph capture that takes at least this share of what was available is
            large. Source: verdict catalogue.
        graph_times: Or this many times what another engine needs for the same model.
        buffer_share_ratio: Predicted buffers must explain this share of the memory outside PyTorch.
        margin_confidence: Highest confidence of a verdict decided within the printed rounding.
    """

    granule_bytes: int = 2 * MIB
    free_excess_ratio: float = 0.05
    other_bytes: int = 512 * MIB
    context_bytes: int = 3 * GIB // 2
    linear_r2: float = 0.95
    ranks_alike_ratio: float = 0.05
    series_points: int = 3
    graph_share_ratio: float = 0.25
    graph_times: float = 2.0
    buffer_share_ratio: float = 0.5
    margin_confidence: float = 0.6
