"""Remedies of the snapshot subject: data only."""

from __future__ import annotations

from moexray.core.finding import Remedy

__all__ = ["REMEDIES"]

REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        "snapshot-try-settings",
        "Run `moexray whatif memory` on {source}: it replays this history under other settings, checks the"
        " replay against the recording, and names the line to set.",
        "Nothing is changed by it.",
        "Give it the snapshots of all ranks: what helps one may hurt another.",
    ),
    Remedy(
        "snapshot-move-pins",
        "Allocate the small long-lived tensors of {site} before the large temporaries, or from memory of"
        " their own (moexray.runtime.arena), so that they do not pin the large segments.",
        "Restore the old order, or call the original allocation again: free() each block, close() of the "
        "slots, "
        "release() of the pages. MOEXRAY_OFF=arena,experts: requests get memory of their own.",
        "Slots for experts alone are half a cure: KV by first fit goes on moving blocks. Untested on a GPU.",
        call="moexray.runtime.arena.Arena(total_bytes): ExpertSlots(arena, slots=..., slot_bytes=...) for "
        "expert "
        "weights, Pages(arena, pages=..., page_bytes=..., sequences=...) for KV, allocate(size) for the rest",
        needs="The host allocates these tensors in code that you can change, and knows the sizes of an "
        "expert "
        "and of a page.",
        verify="figures() of the arena: plain and compactions at 0 in steady state. P99 of a step with and "
        "without: benchmarks/arena.py shows how.",
    ),
    Remedy(
        "snapshot-graph-order",
        "Capture the largest batch size first, and fewer sizes, so that the graphs share one set of blocks.",
        "Restore the old list of capture sizes.",
        "empty_cache cannot return these blocks while the graphs live.",
    ),
    Remedy(
        "snapshot-pooled-buffer",
        "Replace the temporary of {site} by one buffer of {bytes} B that is allocated once and reused"
        " (moexray.runtime.buffers), or pad its length to a few sizes.",
        "Call the original allocation again: detach() of the handle, or MOEXRAY_OFF=buffers.",
        "The buffer stays allocated between the steps. Small ones cost more from a pool than from the "
        "caching "
        "allocator: it is for what makes the allocator call the device. Untested on a GPU.",
        call='moexray.runtime.buffers.BufferPool() as pool: pool.replacing(module, "empty").attach(), or '
        "pool.empty(shape, dtype, device=...) in place of torch.empty",
        needs="The temporary is made by a function of the host's own module, and used on one stream.",
        verify="figures() of the pool: made and plain stand still in steady state, reused rises; "
        "segment_alloc "
        "events of the next snapshot.",
    ),
    Remedy(
        "snapshot-batch-small",
        "Batch the small tensors of {site} into one tensor that holds all of them, or take them from a pool"
        " (moexray.runtime.buffers).",
        "Restore the single tensors: detach() of the handle, or MOEXRAY_OFF=buffers.",
        "A pooled tensor of a few bytes costs some 15 us on a CPU: one large tensor is faster where "
        "possible.",
        call='moexray.runtime.buffers.BufferPool() as pool: pool.replacing(module, "empty").attach()',
        needs="The tensors are made by a function of the host's own module, and used on one stream.",
        verify="figures() of the pool: made and plain stand still in steady state; blocks below 256 bytes "
        "in the "
        "next snapshot.",
    ),
    Remedy(
        "snapshot-record-all",
        "Call torch.cuda.memory._record_memory_history(max_entries={entries}) before the first allocation"
        " (before the weights load), and dump after the spike.",
        "torch.cuda.memory._record_memory_history(enabled=None)",
        "About 2 us an event, and several kB an entry with C++ stacks.",
    ),
    Remedy(
        "snapshot-record-again",
        "Record the snapshot again with one release of torch, without changing the file afterwards, and"
        " report the release if it happens again.",
        "Nothing to undo.",
    ),
)
