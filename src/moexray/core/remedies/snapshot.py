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
        " their own (moexray.runtime.arena: Arena, for expert weights ExpertSlots, for KV Pages), so that"
        " they do not pin the large segments.",
        "Restore the old order, or call the original allocation again.",
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
        " (moexray.runtime.buffers: BufferPool().empty(shape, dtype, device=...) in place of torch.empty),"
        " or pad its length to a few sizes.",
        "Call the original allocation again.",
        "The buffer stays allocated between the steps.",
    ),
    Remedy(
        "snapshot-batch-small",
        "Batch the small tensors of {site} into one tensor that holds all of them, or take them from a pool"
        " (moexray.runtime.buffers.BufferPool).",
        "Restore the single tensors.",
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
