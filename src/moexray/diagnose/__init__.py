"""Rules: from tables to findings. `RULES` and `EXHIBITS` list everything that is said or drawn.

Functions are named as "module:function" and imported only if a table that they need holds
anything: a log without a trace never loads numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EXHIBITS", "RULES", "Exhibit", "Rule"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One function `(run: Run, limits: Limits) -> list[Finding]` and what it needs.

    Args:
        function: "moexray.diagnose.memory.oom:order_of_tests".
        ids: Verdict ids that it may return.
        needs: It runs if at least one of these tables holds anything.
    """

    function: str
    ids: tuple[str, ...]
    needs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Exhibit:
    """One function `(run: Run) -> list[dict]` whose result is shown beside the findings.

    Args:
        name: Key of the diagnosis document: seen, ledger, waits, balance, series, spans, spans_cut,
            memory_map.
        function: "moexray.diagnose.memory.oom_ledger:ledger".
        needs: It runs if at least one of these tables holds anything.
    """

    name: str
    function: str
    needs: tuple[str, ...]


LOAD = ("metrics", "log", "iterations")  # tables that tell requests running, waiting and KV use

RULES: tuple[Rule, ...] = (
    Rule(
        "moexray.diagnose.memory.oom:order_of_tests",
        (
            "mem.fragmentation",
            "mem.fragmentation_contributes",
            "mem.true_exhaustion",
            "mem.limit_below_free",
            "mem.other_process",
            "mem.oversubscription",
            "mem.non_torch",
            "mem.non_torch_buffers",
            "mem.unbudgeted_activation",
            "mem.capture_headroom",
            "mem.oom_unexplained",
            "advice.expandable_segments_unsafe",
        ),
        ("oom", "snapshot"),
    ),
    Rule(
        "moexray.diagnose.memory.oom_log:retries_recovered",
        ("mem.alloc_retry_recovered",),
        ("oom", "memory_stats"),
    ),
    Rule("moexray.diagnose.memory.oom_log:graph_pool_large", ("mem.graph_pool_large",), ("log",)),
    Rule(
        "moexray.diagnose.gpu.rules:device_rules",
        (
            "smi.unified_memory",
            "smi.mig_limit",
            "smi.throttled",
            "smi.gpu_lost",
            "mem.growth_unattributed",
            "mem.alloc_stall",
            "mem.cached_not_leaked",
            "mem.non_torch",
            "mem.non_torch_buffers",
            "mem.other_process",
            "mem.oversubscription",
        ),
        ("gpu", "gpu_event", "mig", "memory_stats", "metrics"),
    ),
    Rule(
        "moexray.diagnose.memory.series:fragmentation_drift", ("mem.fragmentation_drift",), ("memory_stats",)
    ),
    Rule("moexray.diagnose.memory.host:host_oom", ("mem.host_oom",), ("log",)),
    Rule(
        "moexray.diagnose.advice:expandable_segments",
        ("advice.expandable_segments_unsafe",),
        ("launch", "log"),
    ),
    Rule("moexray.diagnose.memory.snapshot:fragmentation", ("mem.fragmentation",), ("snapshot",)),
    Rule("moexray.diagnose.memory.snapshot:private_pools", ("mem.graph_pool_fragmentation",), ("snapshot",)),
    Rule("moexray.diagnose.memory.snapshot_churn:churn", ("mem.churn",), ("snapshot_events",)),
    Rule("moexray.diagnose.memory.snapshot_churn:small_blocks", ("mem.small_blocks",), ("snapshot_events",)),
    Rule(
        "moexray.diagnose.memory.snapshot_history:incomplete", ("snapshot.history_incomplete",), ("snapshot",)
    ),
    Rule("moexray.diagnose.memory.snapshot_history:inconsistent", ("snapshot.inconsistent",), ("snapshot",)),
    Rule(
        "moexray.diagnose.routing.loads:load_rules",
        (
            "ep.skew",
            "ep.drift",
            "ep.skew_to_oom",
            "ep.duplicate_replica",
            "ep.metric_wrong_axis",
            "ep.counts_multiplied",
            "input.shape_mismatch",
            "input.rank_set",
            "num.expert_output_dropped",
        ),
        ("counts", "routes", "placement", "metrics"),
    ),
    Rule("moexray.diagnose.routing.log:wrong_axis_by_version", ("ep.metric_wrong_axis",), ("log",)),
    Rule("moexray.diagnose.routing.log:skew_by_log", ("ep.skew",), ("log",)),
    Rule("moexray.diagnose.routing.choice:router_ties", ("num.router_ties",), ("logits",)),
    Rule(
        "moexray.diagnose.routing.choice:router_choices",
        ("num.router_divergence", "num.router_noise"),
        ("routes",),
    ),
    Rule(
        "moexray.diagnose.comm.watchdog:watchdog",
        ("comm.desync", "comm.missing_rank", "comm.size_mismatch"),
        ("comm_report",),
    ),
    Rule("moexray.diagnose.comm.lost:log_ranks", ("input.rank_set",), ("comm_group",)),
    Rule(
        "moexray.diagnose.comm.inspector:inspector",
        ("comm.straggler_wait", "comm.slow_transfer"),
        ("comm_perf",),
    ),
    Rule("moexray.diagnose.comm.ras:status", ("comm.lagging_ranks", "comm.missing_rank"), ("comm_ras",)),
    Rule(
        "moexray.diagnose.comm.flight:recorder",
        (
            "comm.desync",
            "comm.missing_rank",
            "comm.size_mismatch",
            "comm.timeout_near",
            "comm.straggler_wait",
            "host.gc_pause",
            "jit.compile_in_hot_path",
            "a2a.count_mismatch",
            "a2a.uneven_is_legal",
            "input.rank_set",
        ),
        ("comm_flight",),
    ),
    Rule("moexray.diagnose.comm.links:links", ("comm.slow_transfer",), ("comm_link", "a2a_matrix")),
    Rule("moexray.diagnose.comm.a2a:buffer_limit", ("a2a.buffer_limit",), ("a2a_event",)),
    Rule("moexray.diagnose.comm.a2a:silent_source", ("a2a.silent_source",), ("a2a_event",)),
    Rule(
        "moexray.diagnose.comm.a2a:matrices", ("a2a.count_mismatch", "a2a.uneven_is_legal"), ("a2a_matrix",)
    ),
    Rule(
        "moexray.diagnose.timeline.traces:find",
        (
            "mem.alloc_stall",
            "mem.empty_cache_in_hot_path",
            "comm.straggler_wait",
            "comm.slow_transfer",
            "comm.timeout_near",
            "host.gc_pause",
            "host.stall",
            "jit.compile_in_hot_path",
            "ep.rearrange_stall",
            "ep.skew",
            "mem.snapshot_overhead",
            "trace.clock_skew",
            "input.rank_set",
        ),
        ("trace",),
    ),
    Rule("moexray.diagnose.engine_logs.stalls:rearrange_stall", ("ep.rearrange_stall",), ("latency", "gaps")),
    Rule(
        "moexray.diagnose.engine_logs.stalls:compile_in_hot_path",
        ("jit.compile_in_hot_path",),
        ("latency", "gaps"),
    ),
    Rule("moexray.diagnose.engine_logs.stalls:gc_pause", ("host.gc_pause",), ("latency", "gaps")),
    Rule(
        "moexray.diagnose.engine_logs.stalls:snapshot_overhead",
        ("mem.snapshot_overhead",),
        ("latency", "gaps"),
    ),
    Rule("moexray.diagnose.engine_logs.balance:async_stuck", ("ep.async_stuck",), ("log",)),
    Rule("moexray.diagnose.engine_logs.balance:little_to_gain", ("ep.little_to_gain",), ("log",)),
    Rule(
        "moexray.diagnose.engine_logs.balance:rebalance_cost", ("ep.rebalance_cost_exceeds_gain",), ("bench",)
    ),
    Rule("moexray.diagnose.serving.sched:preemption", ("sched.preemption",), LOAD),
    Rule("moexray.diagnose.serving.sched:saturated", ("sched.saturated",), LOAD),
    Rule("moexray.diagnose.serving.engines:dp_imbalance", ("sched.dp_imbalance",), LOAD),
    Rule("moexray.diagnose.serving.metrics:no_progress", ("comm.no_progress",), ("metrics", "gpu")),
    Rule("moexray.diagnose.serving.metrics:per_request_average", ("metric.per_request_average",), ("gaps",)),
    Rule(
        "moexray.diagnose.serving.metrics:prefill_interference", ("sched.prefill_interference",), ("steps",)
    ),
    Rule("moexray.diagnose.compute.bench:tail_shapes", ("kernel.tail_shapes",), ("bench",)),
    Rule("moexray.diagnose.compute.bench:oversubscription", ("mem.oversubscription",), ("bench",)),
    Rule("moexray.diagnose.compute.kernel:bank_conflict", ("kernel.bank_conflict",), ("kernels", "accesses")),
    Rule(
        "moexray.diagnose.compute.numerics:precision_regression",
        ("num.precision_regression",),
        ("scores", "log"),
    ),
    Rule(
        "moexray.diagnose.compute.numerics:batch_variance", ("num.batch_variance",), ("mismatch", "logprobs")
    ),
    Rule("moexray.diagnose.engine_logs.jit:compile_skew", ("jit.compile_skew",), ("log",)),
    Rule("moexray.diagnose.engine_logs.jit:cold_runs", ("jit.compile_in_hot_path",), ("bench",)),
    Rule("moexray.diagnose.engine_logs.backend:backend_change", ("kernel.backend_change",), ("log",)),
    Rule("moexray.diagnose.engine_logs.windows:contaminated", ("metric.contaminated_window",), ("bench",)),
)

EXHIBITS: tuple[Exhibit, ...] = (
    Exhibit("seen", "moexray.diagnose.serving.seen:seen", ("launch", "sanitizer", *LOAD)),
    Exhibit("ledger", "moexray.diagnose.memory.snapshot_exhibits:ledger", ("snapshot",)),
    Exhibit("series", "moexray.diagnose.memory.snapshot_exhibits:series", ("snapshot_events",)),
    Exhibit("memory_map", "moexray.diagnose.memory.snapshot_exhibits:maps", ("snapshot",)),
    Exhibit("waits", "moexray.diagnose.timeline.exhibits:waits", ("trace",)),
    Exhibit("waits", "moexray.diagnose.comm.flight:waits", ("comm_flight",)),
    Exhibit("series", "moexray.diagnose.timeline.exhibits:series", ("trace",)),
    Exhibit("spans", "moexray.diagnose.timeline.exhibits:spans", ("trace",)),
    Exhibit("spans_cut", "moexray.diagnose.timeline.exhibits:spans_cut", ("trace",)),
    Exhibit("ledger", "moexray.diagnose.memory.oom_ledger:ledger", ("oom",)),
    Exhibit("ledger", "moexray.diagnose.gpu.ledger:ledger", ("gpu", "metrics")),
    Exhibit("series", "moexray.diagnose.gpu.ledger:series", ("gpu", "memory_stats", "metrics")),
    Exhibit("balance", "moexray.diagnose.routing.skew:balance", ("counts", "routes", "metrics")),
    Exhibit("balance", "moexray.diagnose.comm.exhibits:matrices", ("a2a_matrix",)),
    Exhibit("series", "moexray.diagnose.routing.loads:drift_series", ("counts", "routes")),
    Exhibit("series", "moexray.diagnose.engine_logs.series:latency_series", ("latency", "gaps")),
    Exhibit("series", "moexray.diagnose.serving.series:series_of_scrapes", ("metrics",)),
)
