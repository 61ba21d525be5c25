"""What the verdicts of the engine subject mean: data only."""

from __future__ import annotations

from moexray.core.verdicts.verdict import Verdict

__all__ = ["VERDICTS"]

VERDICTS: tuple[Verdict, ...] = (
    Verdict(
        "ep.rearrange_stall",
        means="Moving expert weights stops decoding for a while, again and again.",
        decided="Latency spikes (above 5x the median of the series) overlap at least half of the "
        "rearrangements that the log tells of while serving. Count, mean, maximum, stalled seconds"
        " and the share of all steps are given, because a few long stalls do not move a percentile."
        " In a sampled series a row stands for the steps since the row before, a spike for one "
        "step.",
        refuted="Rearrangements of profiling or start-up only; spikes at other times; latency that does "
        "not move at the rearrangements, however many there are.",
        do=(
            "Move experts asynchronously (use_async), or in chunks of layers.",
            "Rearrange less often (step_interval), move fewer experts.",
        ),
        needs=(
            "a latency or step series with times",
            "the engine log of the same run",
        ),
    ),
    Verdict(
        "ep.async_stuck",
        means="Balancing of experts has stopped silently.",
        decided="The countdown to the next rearrangement is negative in the last two or more lines of a "
        "worker, each lower than the one before, and no completion line follows the first of them."
        " An overshoot below a tenth of the interval may be a slow move: confidence 0.6.",
        refuted="A negative value that a completion line or a reset counter follows; balancing that is "
        "off.",
        do=(
            "Restart the engine, or balance synchronously.",
            "Alert on a countdown that stays below 0.",
        ),
        needs=(
            "an engine log with countdown lines",
        ),
    ),
    Verdict(
        "ep.rebalance_cost_exceeds_gain",
        means="Balancing costs more time than the best balance could save.",
        decided="The arm with balancing is slower beyond run noise (3 %, or what repeats show); the cost "
        "of a move (difference / number of moves) is set against the ceiling of balancing (1 - "
        "balancedness, to the value measured after) times the time between two moves, as if all of"
        " it were MoE compute.",
        refuted="No run without balancing; a slowdown that compilation or preemption owns.",
        do=(
            "Rearrange at most every break-even interval.",
            "Asynchronously, or not at all for this load.",
        ),
        needs=(
            "benchmarks with and without balancing",
            "the engine log",
            "counts or balancedness lines",
        ),
    ),
    Verdict(
        "ep.little_to_gain",
        means="Expert load is so even that balancing cannot help much.",
        decided="Ceiling = 1 - balancedness before / after (1 where no after was measured) below 5 % of "
        "MoE time, while balancing is on or under test.",
        refuted="A layer with more than 10 % of the tokens below balancedness 0.80. The logged figure "
        "itself may be wrong (ep.metric_wrong_axis): counts decide.",
        do=(
            "Leave it off for this load; look at kernels, all-to-all and scheduling.",
        ),
        needs=(
            "balancedness lines before and after, or counts",
            "better: benchmarks of both",
        ),
    ),
    Verdict(
        "jit.compile_in_hot_path",
        means="Kernels are compiled while the engine serves.",
        decided="At least half of the latency spikes begin within 2 s after (or during) a compile line "
        "that comes after the engine was ready, clearly more than chance would give; or throughput"
        " climbs over identical runs and settles (3 %) while the log shows compilation.",
        refuted="Compile lines before ready only; compile lines while serving that fewer than half of the "
        "spikes follow.",
        do=(
            "Warm up the missing shapes.",
            "Keep the caches between starts.",
            "Leave the first runs out of an A/B.",
        ),
        needs=(
            "the engine log",
            "a latency series, or the throughput of repeated runs",
        ),
    ),
    Verdict(
        "jit.compile_skew",
        means="Ranks finish compiling so far apart that the first collective times out.",
        decided="Latest minus earliest end of compilation over the nodes reaches the limit that fired, and"
        " the time-out lies between the two ends, one limit after the first. Where the log states "
        "no limit, DeepEP's 100 s on the host are taken. A node that had not finished counts as "
        "later than the time-out.",
        refuted="Ends that lie close together; a time-out that fired before anyone was done.",
        do=(
            "Precompile or share the cache.",
            "A barrier after warm-up.",
            "A longer limit only hides it.",
        ),
        needs=(
            "start-up logs of two or more nodes",
        ),
    ),
    Verdict(
        "kernel.backend_change",
        means="Another kernel backend was chosen in the slower run.",
        decided="The backend lines of two start-up logs differ, and a compared figure is slower beyond run"
        " noise (3 %, or what repeats show), given per load level.",
        refuted="No slower run. Balancedness or settings that differ, too: all differences are named and "
        "the backend alone is not blamed.",
        do=(
            "Pin the backend for the affected range of load.",
        ),
        needs=(
            "both start-up logs",
            "a benchmark of both runs",
        ),
    ),
    Verdict(
        "mem.snapshot_overhead",
        means="Recording allocator snapshots itself pauses serving.",
        decided="At least 80 % of the latency spikes begin within one dump duration of a snapshot write.",
        refuted="Spikes without dumps.",
        do=(
            "include_traces=False or a small max_entries.",
            "Dump at idle.",
        ),
        needs=(
            "a latency series with times",
            "the log of the snapshot writes",
        ),
    ),
    Verdict(
        "metric.contaminated_window",
        means="A window of a comparison contains a one-off event.",
        decided="A rearrangement, a compilation, a snapshot write or a start-up of the log lies inside a "
        "benchmark window, and not in all of them.",
        refuted="The event lies outside every window, or in every one; a series of spikes has that cause "
        "(then the cause leads).",
        do=(
            "Repeat the window, or mark it and leave it out.",
        ),
        needs=(
            "benchmark windows with their times",
            "the engine log",
        ),
    ),
)
