"""How to see with moexray whether a remedy helped: one text for all that are seen the same way. Data only.

A remedy that is a call has a text of its own. One that only looks (nothing to undo) has a text where moexray
reads what it brings. A verdict that is not said of the artefacts from after, with the same kinds of files as
before, is the check; where a figure is more telling, the text names it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CHECKS", "Check"]


@dataclass(frozen=True, slots=True)
class Check:
    """One way to see it.

    Args:
        text: For people.
        remedies: Ids.
    """

    text: str
    remedies: tuple[str, ...]


CHECKS: tuple[Check, ...] = (
    # ---- memory
    Check(
        "The same load again: moexray diagnose on its log finds no out-of-memory line. What the room "
        "costs: moexray compare BEFORE AFTER on latencies, or moexray ab on the live server.",
        ("lower-utilization", "cap-batched-tokens", "chunk-prefill", "more-shards", "raise-fraction",
         "free-other-process", "budget-beside-others", "stay-below-total", "larger-mig-profile",
         "larger-container", "bench-below-card", "release-cache"),
    ),
    Check(
        "Before: moexray whatif memory SNAPSHOT replays the history with it. After: a snapshot under the "
        "same load, and moexray compare BEFORE AFTER: stuck bytes fall, the largest free block grows.",
        ("expandable-segments", "max-split-size", "gc-threshold", "try-segments"),
    ),
    Check(
        "A snapshot after the capture: moexray diagnose tells no mem.graph_pool_fragmentation; moexray "
        "compare BEFORE AFTER has the change of reserved bytes.",
        ("snapshot-graph-order",),
    ),
    Check(
        "Its own check of the replay against the recording must hold, else its advice is not given; after"
        " the change moexray compare BEFORE AFTER on two snapshots.",
        ("snapshot-try-settings", "replay-history"),
    ),
    Check(
        "moexray inspect SNAPSHOT: snapshot_events has rows, and spans the time of the spike; moexray "
        "diagnose no longer tells snapshot.history_incomplete or snapshot.inconsistent.",
        ("snapshot-record-all", "snapshot-record-again"),
    ),
    Check(
        "The log of the next start: moexray diagnose no longer tells advice.expandable_segments_unsafe. "
        "Speed: moexray compare BEFORE AFTER on latencies.",
        ("drop-expandable-segments", "disable-custom-all-reduce", "no-sleep-mode"),
    ),
    Check(
        "nvidia-smi and torch.cuda.memory_stats() of one moment under load, given to moexray diagnose "
        "together: it states the bytes outside PyTorch, or whose growth it is.",
        ("fewer-channels", "lower-dispatch-tokens", "fewer-captures", "sample-non-torch",
         "attribute-growth", "empty-cache-once"),
    ),
    Check(
        "num_alloc_retries of torch.cuda.memory_stats() goes on telling what the log no longer does "
        "(moex_allocator_retries_total of moexray exporter --attach).",
        ("quieten-log",),
    ),
    Check(
        "A trace under the same load: moexray diagnose no longer tells mem.alloc_stall or "
        "mem.empty_cache_in_hot_path, and moexray timeline shows what is left of the gaps.",
        ("bucket-shapes", "preallocate-largest", "no-empty-cache", "clean-at-boundaries"),
    ),
    # ---- cards
    Check(
        "nvidia-smi -q of all cards under load: moexray diagnose tells neither smi.throttled nor "
        "smi.gpu_lost; moexray timeline on traces of all ranks says whether that rank still comes last.",
        ("cool-or-cap", "drain-node"),
    ),
    # ---- engines
    Check(
        "Log and latency series of the same time: moexray diagnose tells no ep.rearrange_stall, "
        "ep.async_stuck or ep.rebalance_cost_exceeds_gain; moexray compare BEFORE AFTER has the change of"
        " P99. The price: moexray routing COUNTS, balancedness.",
        ("eplb-async", "eplb-interval", "eplb-fewer-moves", "eplb-off", "eplb-restart"),
    ),
    Check(
        "The log from the next start on, with the latencies: moexray diagnose tells no "
        "jit.compile_in_hot_path or jit.compile_skew.",
        ("jit-warm-up", "jit-cache", "jit-precompile", "jit-barrier"),
    ),
    Check(
        "Two runs of one setting: moexray compare FIRST SECOND says no change. Only then compare two "
        "settings.",
        ("jit-leave-out", "window-repeat"),
    ),
    Check(
        "The gaps of two runs, each a CSV of step,itl_ms: moexray compare BEFORE AFTER has P99 and the "
        "longest with intervals.",
        ("metric-pool-gaps",),
    ),
    Check(
        "Latencies and log around the next dump: moexray diagnose tells no mem.snapshot_overhead.",
        ("snapshot-light", "snapshot-idle"),
    ),
    Check(
        "Both settings with the shapes of your traffic: moexray ab on a live server, or moexray compare "
        "BEFORE AFTER on benchmark results; look at P99 and the longest, not at means.",
        ("backend-pin", "kernel-slow-shapes", "kernel-pad-rows"),
    ),
    # ---- experts
    Check(
        "Beforehand on later counts than the plan was made on: moexray plan COUNTS. Then counts of the "
        "same load: moexray routing COUNTS --ep RANKS, balancedness rises; while it serves, "
        "moex_expert_balancedness_ratio.",
        ("re-place-experts", "redundant-experts", "rebalance-now", "rebalance-oftener",
         "split-over-replicas", "swap-replica"),
    ),
    Check(
        "moexray routing COUNTS --ep RANKS: its balancedness over ranks is what yours should say.",
        ("recompute-balance",),
    ),
    Check(
        "moexray routing COUNTS: the choices of each layer are the tokens of its window x experts per "
        "token.",
        ("divide-counts",),
    ),
    Check(
        "Latencies and memory of the same load: moexray compare BEFORE AFTER; moexray diagnose no longer "
        "tells ep.skew_to_oom.",
        ("cap-tokens-per-rank",),
    ),
    Check(
        "Choices of two runs on the same prompts, given to moexray diagnose together: no num.router_ties,"
        " num.router_divergence or num.router_noise is left.",
        ("route-in-fp32", "replay-routing", "router-noise-off"),
    ),
    Check(
        "Routed and combined counts again: moexray diagnose no longer tells num.expert_output_dropped.",
        ("avoid-dropping-kernel",),
    ),
    # ---- collectives
    Check(
        "The job passes this collective; dumps of all ranks after it: moexray diagnose tells no "
        "comm.desync, comm.missing_rank or comm.size_mismatch.",
        ("comm-find-branch", "comm-compare-shapes"),
    ),
    Check(
        "After the next timeout, dumps of all ranks: moexray diagnose names the rank and no longer asks "
        "for them.",
        ("comm-keep-recorder",),
    ),
    Check(
        "Stop one rank in a test (SIGSTOP): the probe fails within its window, /health does not.",
        ("comm-token-liveness",),
    ),
    Check(
        "Traces of all ranks under the same load: moexray timeline TRACES says for each collective who "
        "came last and how long the others waited.",
        ("comm-mend-late-rank", "comm-find-late-work", "comm-check-link", "look-elsewhere"),
    ),
    Check(
        "Logs of all ranks after it: moexray diagnose tells no a2a.buffer_limit; moexray compare BEFORE "
        "AFTER on latencies of prefill and decode.",
        ("a2a-normal-mode-for-prefill", "a2a-raise-limit", "a2a-same-limit"),
    ),
    Check(
        "moexray timeline TRACES: the stated error of the clock offsets lies far below the waits.",
        ("clock-align",),
    ),
    # ---- requests and answers
    Check(
        "Two scrapes of /metrics a minute apart under the same load, given to moexray diagnose together: "
        "preemptions and waiting requests stand still. moexray ab says what it does to latency.",
        ("sched-more-kv", "sched-fewer-seqs", "sched-more-replicas", "sched-raise-limit"),
    ),
    Check(
        "Scrapes of all engines at two moments, or traces of all ranks: moexray diagnose tells no "
        "sched.dp_imbalance or sched.prefill_interference.",
        ("sched-balance-router", "sched-align-prefill"),
    ),
    Check(
        "The same scored runs again, as many of each arm: moexray diagnose tells no "
        "num.precision_regression; moexray ab says what it costs.",
        ("num-pin-precision", "num-fix-backend"),
    ),
    Check(
        "The batch-invariance test again: moexray diagnose on its output tells no num.batch_variance; "
        "moexray ab says what it costs.",
        ("num-batch-invariant",),
    ),
)
