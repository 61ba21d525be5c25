"""Remedies of the snapshot subject: data only."""

from __future__ import annotations

from moexray.core.finding import Remedy

__all__ = ["REMEDIES"]

REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        "snapshot.try_settings",
        "Run `moexray whatif memory` on {source}: it replays this history under other settings, checks the"
        " replay against the recording, and names the line to set.",
        "Nothing is changed by it.",
        "Give it the snapshots of all ranks: what helps one may hurt another.",
    ),
    Remedy(
        "snapshot.expandable",
        "Start with PYTORCH_ALLOC_CONF=expandable_segments:True (torch >= 2.1; before 2.9 the variable is"
        " PYTORCH_CUDA_ALLOC_CONF): a segment grows in pages, and free pages go back one by one.",
        "Remove the setting and restart.",
        "Clashes with custom all-reduce, sleep mode and other users of legacy CUDA IPC; check these first,"
        " and replay this history before you rely on it.",
    ),
    Remedy(
        "snapshot.max_split",
        "Start with PYTORCH_ALLOC_CONF=max_split_size_mb:{mib} (torch >= 1.8; before 2.9"
        " PYTORCH_CUDA_ALLOC_CONF): larger blocks are no longer split for small tensors.",
        "Remove the setting and restart.",
        "Too small a value makes large requests fail while weights load; replay this history before you"
        " rely on it.",
    ),
    Remedy(
        "snapshot.gc_threshold",
        "Add garbage_collection_threshold:0.8 together with a memory fraction below 1"
        " (set_per_process_memory_fraction): unused whole segments go back before the limit is hit.",
        "Remove both settings and restart.",
        "Gives back whole free segments only; it cannot free a segment that a live block pins.",
    ),
    Remedy(
        "snapshot.move_pins",
        "Allocate the small long-lived tensors of {site} before the large temporaries (or from a pool of"
        " their own), so that they do not pin the large segments.",
        "Restore the old order.",
    ),
    Remedy(
        "snapshot.graph_order",
        "Capture the largest batch size first, and fewer sizes, so that the graphs share one set of blocks.",
        "Restore the old list of capture sizes.",
        "empty_cache cannot return these blocks while the graphs live.",
    ),
    Remedy(
        "snapshot.pooled_buffer",
        "Replace the temporary of {site} by one buffer of {bytes} B that is allocated once and reused"
        ", or pad its length to a few sizes.",
        "Call the original allocation again.",
        "The buffer stays allocated between the steps.",
    ),
    Remedy(
        "snapshot.batch_small",
        "Pool or batch the small tensors of {site}: one tensor that holds all of them, or a free list.",
        "Restore the single tensors.",
    ),
    Remedy(
        "snapshot.record_all",
        "Call torch.cuda.memory._record_memory_history(max_entries={entries}) before the first allocation"
        " (before the weights load), and dump after the spike.",
        "torch.cuda.memory._record_memory_history(enabled=None)",
        "About 2 us an event, and several kB an entry with C++ stacks.",
    ),
    Remedy(
        "snapshot.record_again",
        "Record the snapshot again with one release of torch, without changing the file afterwards, and"
        " report the release if it happens again.",
        "Nothing to undo.",
    ),
)
