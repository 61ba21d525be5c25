"""Remedies of load, scheduling, benchmarks, kernels and answers: data only."""

from __future__ import annotations

from moexray.core.finding import Remedy

__all__ = ["REMEDIES"]

REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        "sched-more-kv",
        "Give the KV cache more room: raise --gpu-memory-utilization (SGLang: --mem-fraction-static) by "
        "0.02 to 0.05, or --kv-cache-dtype fp8, or a larger --tensor-parallel-size.",
        "Set the old value.",
        "Less headroom beside the cache makes an out-of-memory error likelier; FP8 KV can change answers.",
    ),
    Remedy(
        "sched-fewer-seqs",
        "Lower --max-num-seqs (SGLang: --max-running-requests) to about {seqs}, so that admitted requests"
        " fit the cache to their end.",
        "Set the old value.",
        "Requests wait longer before their first token, but are no longer computed twice.",
    ),
    Remedy(
        "sched-more-replicas",
        "Add a replica, or limit admission at the gateway so that the queue stays bounded.",
        "Remove it again.",
        "Check with two scrapes that running requests stand below their limit afterwards.",
    ),
    Remedy(
        "sched-raise-limit",
        "Raise --max-num-seqs (SGLang: --max-running-requests) above {running} if KV use ({kv}) leaves "
        "room.",
        "Set the old value.",
        "The time per token grows with the batch; stop where it passes its target.",
    ),
    Remedy(
        "sched-balance-router",
        "Route requests by load (least running requests or free KV cache per engine) and look for sticky "
        "sessions or prefix affinity that pin them to engine {engine}.",
        "Set the old policy.",
        "Cache-aware policies trade balance for prefix hits: compare the hit rate.",
    ),
    Remedy(
        "sched-align-prefill",
        "Align or limit prefills over the DP ranks (a common prefill interval), use smaller chunks "
        "(--max-num-batched-tokens, SGLang: --chunked-prefill-size), or serve prefill on its own ranks "
        "(disaggregation).",
        "Set the old values.",
        "Smaller chunks lengthen the time to first token.",
    ),
    Remedy(
        "bench-below-card",
        "Keep the peak below the card's memory: a batch below {level}, and watch peak/total, not "
        "out-of-memory errors. On Windows switch off the driver's system-memory fallback, so that it "
        "fails instead of crawling.",
        "Set the old batch.",
        "Spilling to host memory raises no error.",
    ),
    Remedy(
        "metric-pool-gaps",
        "Report the pooled gaps between tokens: maximum, count above ten medians and stalled seconds "
        "beside P99; keep the per-request means only as a throughput figure.",
        "Nothing was changed.",
        "Detailed results are larger (--save-detailed in the serving benchmarks).",
    ),
    Remedy(
        "kernel-slow-shapes",
        "List the slow shapes (a trace grouped by shape), warm them up or pin the other backend for them;"
        " compare tails, not means.",
        "Unpin the backend.",
        "A few shapes decide: benchmark with the shapes of your traffic.",
    ),
    Remedy(
        "kernel-pad-rows",
        "Pad the row of the shared-memory tile by one access width, align vectors to 16 bytes, or swizzle"
        " the columns by the row.",
        "Take the padding out.",
        "It speeds up this kernel only; a bank conflict does not explain a jump of the P99.",
    ),
    Remedy(
        "num-pin-precision",
        "Pin the higher precision or the other kernel for the layers in question ({arm} is the arm that "
        "lost) and repeat the runs.",
        "Remove the pin.",
        "Measure the throughput that it costs.",
    ),
    Remedy(
        "num-fix-backend",
        "Set the backend explicitly for the MoE layers too ({backend} was switched off in one line and "
        "chosen in another), and check the start-up lines.",
        "Remove the setting.",
        "Automatic deny-lists may cover dense layers only.",
    ),
    Remedy(
        "num-batch-invariant",
        "Switch the batch-invariant mode on (vLLM: VLLM_BATCH_INVARIANT=1; SGLang: "
        "--enable-deterministic-inference) where answers must not depend on the batch, and check the "
        "combine step (reduce-scatter after the experts): its order of summation must not depend on the "
        "batch.",
        "Switch it off.",
        "It costs throughput; without it differences of this size are expected.",
    ),
)
