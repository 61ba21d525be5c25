"""What the verdicts of the snapshot subject mean: data only."""

from __future__ import annotations

from moexray.core.verdicts.verdict import Verdict

__all__ = ["VERDICTS"]

VERDICTS: tuple[Verdict, ...] = (
    Verdict(
        id="snapshot.history_incomplete",
        means="The event history does not reach back to the start, so sums over it are not totals.",
        decided="Never enabled: no events, or the one entry of state mode (info). Wrapped: the overflow flag"
        " is set or the ring is full. Late or unknown: live blocks, frees or segments without their"
        " allocation among the events. An old format without the flag and without such a gap: cannot tell."
        " The timeline is rebuilt backwards from the final segments; a peak above the card's memory proves"
        " that it is wrong.",
        refuted="Walked backwards, the events end at 0 bytes reserved and 0 live, and the flag is not set.",
        do=("Record with a larger max_entries, started before the first allocation.",),
        needs=("allocator snapshot",),
    ),
    Verdict(
        id="snapshot.inconsistent",
        means="The snapshot contradicts itself; the segments concerned were left out.",
        decided="Block sizes do not add up to the segment, blocks leave gaps, segments overlap, a size is"
        " below zero or no number, active_size differs from the live blocks, or a block state is unknown.",
        refuted="Requested and rounded sizes differ by definition: that is no contradiction.",
        do=("Record again with one release of torch; report the release if it happens again.",),
        needs=("allocator snapshot",),
    ),
    Verdict(
        id="mem.graph_pool_fragmentation",
        means="A private pool (CUDA graph, MemPool) holds free blocks that only this pool can use.",
        decided="Per pool id other than (0, 0): inactive bytes >= 256 MiB and >= 25 % of what it reserves.",
        refuted="The default pool, or a snapshot without pool ids.",
        do=(
            "Capture the largest batch size first, and fewer sizes.",
            "Expandable segments, after the checks of advice.expandable_segments_unsafe.",
            "Not empty_cache: it cannot return these blocks while the graphs live.",
        ),
        needs=("allocator snapshot with pool ids",),
    ),
    Verdict(
        id="mem.churn",
        means="Temporaries that are made anew in every step make the allocator call the device in steady"
        " state.",
        decided="The same size at the same call site is allocated and freed in >= 90 % of the steps"
        " (annotations; without any, the period of the call site), and segment_alloc, segment_free, map or"
        " unmap events belong to it in >= 10 % of the steps after the first tenth.",
        refuted="Hits of the cache only, or growth at start-up only.",
        do=("One buffer that is allocated once and reused.", "Pad the length to a few sizes."),
        needs=("allocator snapshot with history",),
        remedies=("snapshot-pooled-buffer",),
    ),
    Verdict(
        id="mem.small_blocks",
        means="Many tiny short-lived blocks split larger ones.",
        decided="Blocks of fewer than 256 requested bytes, more than 5 alloc events for a free, in segments"
        " that hold >= 25 % of the stuck bytes (and >= 64 MiB).",
        refuted="Nothing stuck beside them.",
        do=("Pool or batch the allocations of that call site.",),
        needs=("allocator snapshot with history",),
        remedies=("snapshot-batch-small",),
    ),
)
