"""Limits of the snapshot rules."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SnapshotLimits"]


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """Each field: what it bounds, its unit, its source."""

    stuck_bytes: int = 1 << 30  # bytes stuck in one pool; VERDICTS mem.fragmentation
    stuck_ratio: float = 0.25  # stuck / reserved of the pool; VERDICTS mem.fragmentation
    big_segment_bytes: int = 1 << 30  # a segment that is judged by itself; VERDICTS mem.fragmentation
    big_segment_active_ratio: float = 0.10  # active / total of such a segment; VERDICTS mem.fragmentation
    private_free_bytes: int = 256 << 20  # bytes free in a private pool; VERDICTS mem.graph_pool_fragmentation
    private_free_ratio: float = 0.25  # free / reserved of that pool; VERDICTS mem.graph_pool_fragmentation
    churn_step_ratio: float = 0.9  # steps that hold the same size and call site; VERDICTS mem.churn
    churn_warmup_ratio: float = 0.1  # first share of the steps that counts as warm-up (ours)
    churn_device_ratio: float = 0.1  # later steps with device calls for that size, at least (ours)
    churn_steps: int = 8  # fewer steps show no steady state (ours)
    small_request_bytes: int = 256  # a small block is below; VERDICTS mem.small_blocks
    small_alloc_free_ratio: float = 5.0  # alloc : free events of small blocks; VERDICTS mem.small_blocks
    small_stuck_ratio: float = 0.25  # share of the stuck bytes in their segments; VERDICTS mem.small_blocks
    small_stuck_bytes: int = 64 << 20  # below, it is a matter of the small pool only (ours)
    small_allocs: int = 30  # fewer alloc events are not many tiny blocks (ours)
    leak_bytes: int = 1 << 20  # growth of a call site between two snapshots, from which it counts (ours)
    leak_gone_ratio: float = 0.1  # blocks gone per new block of that site, at most (ours)
