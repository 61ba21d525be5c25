"""What the caching allocator counts, under the names of torch.cuda.memory_stats().

Bytes or events. Source: torch.cuda.memory_stats of PyTorch 2.13, restated.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters", "Usage"]


@dataclass(slots=True)
class Usage:
    """Bytes in use now and at their peaks, of one kind of pool or of all.

    Args:
        allocated: Blocks handed out, slack included; a deferred free no longer counts.
        requested: What their requests asked for, deferred frees included.
        active: Blocks handed out or deferred.
        reserved: Segments and mapped pages.
        inactive_split: Free blocks of segments that hold something else; expandable ones do not count.
        segments: Segments of cudaMalloc.
    """

    allocated: int = 0
    requested: int = 0
    active: int = 0
    reserved: int = 0
    inactive_split: int = 0
    segments: int = 0
    peak_allocated: int = 0
    peak_requested: int = 0
    peak_active: int = 0
    peak_reserved: int = 0
    peak_inactive_split: int = 0
    peak_segments: int = 0

    def reserve(self, size: int, segments: int) -> None:
        """Counts bytes and segments taken from (or, negative, given back to) the driver."""
        self.reserved += size
        self.segments += segments
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self.peak_segments = max(self.peak_segments, self.segments)

    def hand_out(self, size: int, requested: int) -> None:
        """Counts a block handed out."""
        self.allocated += size
        self.active += size
        self.requested += requested
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self.peak_active = max(self.peak_active, self.active)
        self.peak_requested = max(self.peak_requested, self.requested)

    def set_split(self, change: int) -> None:
        """Counts free bytes of split segments."""
        self.inactive_split += change
        self.peak_inactive_split = max(self.peak_inactive_split, self.inactive_split)


@dataclass(slots=True)
class Counters(Usage):
    """All pools together, and events.

    Args:
        retries: Requests for which everything cached was given back (num_alloc_retries).
        ooms: Requests that failed (num_ooms).
        oom_rejections: Of these, the ones refused before anything was given back.
        device_allocs, device_frees: Calls of cudaMalloc and cudaFree.
        maps, unmaps: Pages mapped and unmapped: each costs driver calls of its own.
        map_calls, unmap_calls: Ranges of pages, an entry of a history each.
        oversize_allocations, oversize_segments: Now, of at least max_split_size.
    """

    retries: int = 0
    ooms: int = 0
    oom_rejections: int = 0
    device_allocs: int = 0
    device_frees: int = 0
    maps: int = 0
    unmaps: int = 0
    map_calls: int = 0
    unmap_calls: int = 0
    oversize_allocations: int = 0
    oversize_segments: int = 0

    def statistics(self, small: Usage, large: Usage) -> dict[str, int]:
        """The figures as torch.cuda.memory_stats() names them."""
        out = {
            "num_alloc_retries": self.retries,
            "num_ooms": self.ooms,
            "num_oom_rejections": self.oom_rejections,
            "num_device_alloc": self.device_allocs + self.map_calls,
            "num_device_free": self.device_frees + self.unmap_calls,
            "oversize_allocations.current": self.oversize_allocations,
            "oversize_segments.current": self.oversize_segments,
        }
        names = ("allocated", "requested", "active", "reserved", "inactive_split")
        for kind, usage in (("all", self), ("small_pool", small), ("large_pool", large)):
            for name in names:
                out[f"{name}_bytes.{kind}.current"] = getattr(usage, name)
                out[f"{name}_bytes.{kind}.peak"] = getattr(usage, f"peak_{name}")
            out[f"segment.{kind}.current"] = usage.segments
            out[f"segment.{kind}.peak"] = usage.peak_segments
        return out
