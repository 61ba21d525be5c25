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
        linear_r2: Least coefficient of determination for "linear in tokens". Source: verdict catalogue.
        ranks_alike_ratio: Sizes of ranks that grow alike differ by at most this share. Source: verdict
            catalogue.
        series_points: Least number of different token counts that make a growing series. Source: own
            choice; any two points lie on a line.
        rising_ratio: Share of the steps of such a series that rise, at least. Source: own choice; a
            chunk that ends a prompt is shorter.
        next_least_ratio: Request / largest size of the series from which it may be the next of it.
            Source: own choice.
        next_most_ratio: And up to which. Source: own choice; a doubled chunk with what is added to it.
        graph_share_ratio: Graph capture that takes at least this share of what was available is
            large. Source: verdict catalogue.
        graph_times: Or this many times what another engine needs for the same model. Source: verdict
            catalogue.
        buffer_share_ratio: Predicted buffers must explain this share of the memory outside PyTorch.
            Source: verdict catalogue.
        buffer_most_ratio: Predicted buffers above this multiple of it contradict themselves. Source: own
            choice; the prediction is a leading term.
        host_near_s: A device error this near to an unexplained death of a process explains it, s.
            Source: own choice.
        margin_confidence: Highest confidence of a verdict decided within the printed rounding. Source:
            own choice, that of a co-movement (verdict catalogue: 0.5 to 0.7).
    """

    granule_bytes: int = 2 * MIB
    free_excess_ratio: float = 0.05
    other_bytes: int = 512 * MIB
    context_bytes: int = 3 * GIB // 2
    linear_r2: float = 0.95
    ranks_alike_ratio: float = 0.05
    series_points: int = 3
    rising_ratio: float = 0.6
    next_least_ratio: float = 0.95
    next_most_ratio: float = 3.0
    graph_share_ratio: float = 0.25
    graph_times: float = 2.0
    buffer_share_ratio: float = 0.5
    buffer_most_ratio: float = 1.5
    host_near_s: float = 60.0
    margin_confidence: float = 0.6
