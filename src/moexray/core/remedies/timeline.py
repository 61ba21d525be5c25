"""Remedies of the timeline subject: data only."""

from __future__ import annotations

from moexray.core.finding import Remedy

__all__ = ["REMEDIES"]

REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        "bucket-shapes",
        "Pad or bucket batch and sequence lengths to a few sizes, so that cached blocks fit again.",
        "Remove the padding.",
        "Padding computes tokens that are thrown away; choose buckets from the lengths that occur.",
    ),
    Remedy(
        "preallocate-largest",
        "Run the largest shape once before serving, so that the pool has its final size from the start.",
        "Remove the warm-up.",
        "The memory is then held all the time.",
    ),
    Remedy(
        "try-segments",
        "Do not assume that expandable_segments helps: replay this rank's allocation history, or trace "
        "the same "
        "load with and without it.",
        "Unset the allocator option.",
        "Reported not to help in some cases; clashes with custom all-reduce, sleep mode and CUDA IPC.",
    ),
    Remedy(
        "no-empty-cache",
        "Remove the empty_cache call from the step loop, or call it at idle, on every rank at the same time.",
        "Put the call back.",
        "Memory then stays cached: nvidia-smi shows it as used.",
    ),
    Remedy(
        "comm-find-late-work",
        "Find what {who} does before the collective ({what}); more bandwidth does not help.",
        "Nothing is changed by looking.",
    ),
    Remedy(
        "host-freeze-gc",
        "Call gc.collect() and gc.freeze() after warm-up, and collect between batches or at idle; "
        "moexray.runtime.gc_window does both.",
        "gc.unfreeze(); or detach() of the window, which puts all settings back; or MOEXRAY_OFF=gc-window.",
        "Do not switch collection off for good: cycles would pile up.",
        call="moexray.runtime.gc_window.GcWindow().attach() after warm-up, and between() of the window "
        "between two batches, between(idle=True) at idle",
        needs="The launching thread can call between() where no batch waits; nothing else moves the "
        "collector's thresholds meanwhile.",
        verify="figures() of the window: unasked at 0, longest_unasked_ns small; the gaps of the next trace.",
    ),
    Remedy(
        "host-stacks",
        "Take stacks of the launching thread while it stands (py-spy dump --native), or trace the scheduler "
        "(perf sched, nsys osrt).",
        "Nothing is changed by looking.",
    ),
    Remedy(
        "clock-align",
        "Align by the ends of collectives before comparing times of ranks (moexray does); use one clock "
        "source "
        "(PTP, chrony) on the nodes.",
        "Nothing is changed by aligning.",
    ),
)
