"""What the verdicts of the timeline subject mean: data only."""

from __future__ import annotations

from moexray.core.verdicts.verdict import Verdict

__all__ = ["VERDICTS"]

TRACE = "a trace of torch.profiler or Nsight Systems"
TRACES = "traces of at least two ranks of the same steps"

VERDICTS: tuple[Verdict, ...] = (
    Verdict(
        "mem.alloc_stall",
        "Steps wait for cudaFree and cudaMalloc, because the allocator must give memory back before it "
        "can grow.",
        "Device allocator calls of the launching threads inside steps, as far as no kernel computes "
        "meanwhile, take "
        "at least 5 % of the time of the steps that have them. Without a trace, from nvidia-smi or "
        "memory_stats "
        "samples only, it stays a supposition (confidence 0.6 at most).",
        "The calls lie outside of steps (start-up, between bursts, after the last step), or the first "
        "steps of the "
        "trace only allocate; the device computes meanwhile.",
        ("Bucket or pad lengths.", "Preallocate the largest shape.", "Cap the growth, leave headroom.",
         "Measure growable segments before relying on them."),
        (TRACE, "memory_stats samples", "nvidia-smi samples"),
        ("leave-headroom",),
    ),
    Verdict(
        "mem.empty_cache_in_hot_path",
        "empty_cache runs in the step loop, and each step pays for freeing and allocating again.",
        "An empty_cache frame in at least half of the steps, and device free + malloc calls of at least "
        "5 % of "
        "the time of the steps that have them.",
        "The calls lie between bursts or at idle, or in fewer than half of the steps.",
        ("Remove the call, or make it at idle on every rank.",),
        (f"{TRACE} with Python frames (with_stack=True)",),
    ),
    Verdict(
        "comm.straggler_wait",
        "Long collectives are waiting for a late rank, not slow transfer.",
        "For collectives matched over ranks (group and sequence number, else order of the same operation): "
        "lateness = longest - shortest duration, transfer = shortest, the rank with the shortest came "
        "last. Yes if "
        "the median lateness at one place of the step is at least 5 % of the step, or a single step is "
        "late by more "
        "than 5 median steps. Durations need no common clock. Equal step times of all ranks are no contrary "
        "evidence: the collective makes them equal. A rank that came last because it waited in a collective "
        "of another group passes the blame on to the one that it waited for, and overlapping waits for one "
        "rank count once.",
        "One rank only (it cannot tell waiting from transfer); every rank equally long; the others compute "
        "while they wait. A question only: the wait lies before the trace of the late rank begins, or the "
        "ends of collectives without noted groups disagree.",
        ("Find what the late rank does before: compute, tokens, allocator, host.", "Not the network."),
        (TRACES,),
    ),
    Verdict(
        "host.gc_pause",
        "The host thread of a rank stood still for garbage collection, and its launches came late.",
        "A gap of more than 5 median steps on the launching threads without runtime call or operator, "
        "the device "
        "idle, others waiting for this rank, and a collector record over it: a 'Python GC' event, an "
        "annotation, or "
        "a log line of this rank that ends then and is at least half as long. Without traces: collections "
        "in the log that end with at least half of the spikes of a latency series and take as long.",
        "Collector records of other ranks or other times; an allocator call, a compile or a "
        "rearrangement in the gap.",
        ("gc.collect() and gc.freeze() after warm-up, collections at idle.",),
        (TRACE, "the engine's log"),
        ("host-freeze-gc",),
    ),
    Verdict(
        "host.stall",
        "The host thread of a rank stood still and no record says why.",
        "As host.gc_pause, without a record; never more certain than 0.6.",
        "The gap lies between steps of a rank that is traced alone (no work was there); a record "
        "explains it.",
        ("Stacks at that time (py-spy dump --native), a scheduler trace.",),
        (TRACE,),
    ),
    Verdict(
        "trace.clock_skew",
        "The ranks' clocks differ; times between ranks are valid only after alignment.",
        "Median difference of the ends of matching collectives, at least 0.1 ms, 10 times what is left after "
        "alignment (offset and drift), and 5 % of a typical collective.",
        "One rank only, or no matching collectives.",
        ("Align first.", "One clock source (PTP, chrony)."),
        (TRACES,),
    ),
)
