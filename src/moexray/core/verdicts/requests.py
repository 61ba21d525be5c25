"""What the verdicts about load, scheduling, benchmarks, kernels and answers mean: data only."""

from __future__ import annotations

from moexray.core.verdicts.verdict import Verdict

__all__ = ["VERDICTS"]

VERDICTS: tuple[Verdict, ...] = (
    Verdict(
        id="sched.preemption",
        means="Requests are evicted and computed again because the KV cache is full.",
        decided="The preemption counter (SGLang: retracted requests) rises between two scrapes of one server"
        " while KV cache use is >= 95 %; or the log reports preemptions for want of KV cache.",
        refuted="The counter has not moved, whatever its value and the KV use; or KV use is below 95 %.",
        do=(
            "More KV cache: higher memory fraction, FP8 KV cache, more tensor parallelism.",
            "Fewer requests at a time: lower --max-num-seqs or --max-running-requests.",
        ),
        needs=("two scrapes of the metrics under load", "server log"),
    ),
    Verdict(
        id="sched.saturated",
        means="Requests wait because arrivals exceed capacity.",
        decided="Over >= 3 windows the queue rises, requests running stand at their maximum (the setting,"
        " else constant within 3 %), and the time per token (difference of sum / difference of count of"
        " the inter-token histogram) stays within 10 %.",
        refuted="The time per token rose first: then the queue is a consequence. Or the KV cache is full and"
        " requests are preempted: then it is sched.preemption.",
        do=(
            "More replicas, or an admission limit at the gateway.",
            "A higher --max-num-seqs if the KV cache leaves room.",
        ),
        needs=("four or more scrapes", "launch line", "server log"),
    ),
    Verdict(
        id="sched.dp_imbalance",
        means="One engine of a data-parallel server has far more requests; lock-step makes all slow.",
        decided="Requests running (or waiting) of one engine exceed twice the median of the others, by at"
        " least 8 requests, in most of the scrapes that were given.",
        refuted="The engines differ by less. Expert counts decide about ep.skew, not about this.",
        do=("Route by load; check sticky sessions and prefix affinity.",),
        needs=("a scrape with an engine or dp_rank label", "server log with figures per engine"),
    ),
    Verdict(
        id="sched.prefill_interference",
        means="Decode steps wait because some data-parallel rank prefills.",
        decided="Steps with prefill tokens on any rank last >= 2x those without (medians) and are >= 20 % of"
        " the steps. The median inter-token latency is compared with the steps without prefill.",
        refuted="Prefill tokens do not differ between slow and fast steps.",
        do=("Align or limit prefills over the ranks, smaller chunks, or disaggregate.",),
        needs=("step log with durations and prefill tokens", "benchmark result"),
    ),
    Verdict(
        id="metric.per_request_average",
        means="A latency percentile was taken over per-request means and hides stalls.",
        decided="Pooled gaps between tokens hold some above 10 medians, while the P99 over the requests' mean"
        " gaps stays below 3 medians. Gaps of several requests that end at one instant: the server stood"
        " still.",
        refuted="Only aggregates are there: they cannot show it. Or the percentile shows the stalls.",
        do=("Pool the gaps; report maximum, count and stalled seconds beside P99.",),
        needs=("token times or gaps of each request (detailed benchmark result)",),
    ),
    Verdict(
        id="kernel.tail_shapes",
        means="Backends agree in the median and differ in the tail: a few shapes are very slow.",
        decided="Two runs at one load: medians within 25 %, and P99 differ > 3x or mean/median exceeds 2 in"
        " one only.",
        refuted="Tails agree; or a compilation or a rearrangement of experts explains the spikes.",
        do=("List the slow shapes, warm them up or pin the other backend for them.",),
        needs=("benchmark results of both runs", "a trace grouped by shape"),
    ),
    Verdict(
        id="kernel.bank_conflict",
        means="Shared-memory accesses of a kernel are serialised.",
        decided="Bank conflicts / wavefronts (sums of the launches of one kernel) > 15 %, on a kernel with"
        " >= 5 % of the kernel time of the report. Where the report has ideal wavefronts, they are trusted"
        " more. Without a report, from a stated pattern (stride, width and base of the lanes' accesses): the"
        " most words that one of the 32 banks of 4 bytes serves at once, and whether vectors are aligned.",
        refuted="The kernel takes < 5 % of the time, whatever its ratio. It is no cause of a P99 jump.",
        do=("Pad the row by one access width, align vectors to 16 bytes, or swizzle.",),
        needs=("Nsight Compute report (ncu --csv --page raw or details)", "or the access pattern"),
    ),
    Verdict(
        id="num.precision_regression",
        means="Accuracy fell with a numeric setting, beyond noise.",
        decided="The means of two arms differ by more than 3 standard errors: the larger of the spread of the"
        " runs and the binomial error of the number of questions, over both arms. Start-up lines that"
        " switch a backend off and then choose it are named.",
        refuted="The difference lies within 3 standard errors.",
        do=("Pin the higher precision or the other backend for these layers; repeat the runs.",),
        needs=("scores of repeated runs with the number of questions", "start-up log"),
    ),
    Verdict(
        id="num.batch_variance",
        means="The same prompt gives other numbers in another batch.",
        decided="A comparison of one prompt in several batches finds log-probabilities that are not equal bit"
        " by bit, with greedy choice; tokens may still agree.",
        refuted="Sampling is on (temperature > 0), or the inputs differ.",
        do=("Batch-invariant mode; look at the combine step (reduce-scatter after the experts).",),
        needs=("output of a batch-invariance test", "log-probabilities of one prompt per batch size"),
    ),
)
