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
        function: "moexray.diagnose.memory:order_of_tests".
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
        name: Key of the diagnosis document: ledger, waits, balance, series, spans, memory_map.
        function: "moexray.diagnose.memory:ledger".
        needs: It runs if at least one of these tables holds anything.
    """

    name: str
    function: str
    needs: tuple[str, ...]


RULES: tuple[Rule, ...] = (
    Rule(
        "moexray.diagnose.oom:order_of_tests",
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
        ("oom",),
    ),
    Rule(
        "moexray.diagnose.oom_log:retries_recovered", ("mem.alloc_retry_recovered",), ("oom", "memory_stats")
    ),
    Rule("moexray.diagnose.oom_log:graph_pool_large", ("mem.graph_pool_large",), ("log",)),
    Rule(
        "moexray.diagnose.gpu_rules:device_rules",
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
        "moexray.diagnose.memory_series:fragmentation_drift", ("mem.fragmentation_drift",), ("memory_stats",)
    ),
    Rule("moexray.diagnose.host:host_oom", ("mem.host_oom",), ("log",)),
    Rule(
        "moexray.diagnose.advice:expandable_segments",
        ("advice.expandable_segments_unsafe",),
        ("launch", "log"),
    ),
    Rule("moexray.diagnose.snapshot:fragmentation", ("mem.fragmentation",), ("snapshot",)),
    Rule("moexray.diagnose.snapshot:private_pools", ("mem.graph_pool_fragmentation",), ("snapshot",)),
    Rule("moexray.diagnose.snapshot_churn:churn", ("mem.churn",), ("snapshot_events",)),
    Rule("moexray.diagnose.snapshot_churn:small_blocks", ("mem.small_blocks",), ("snapshot_events",)),
    Rule("moexray.diagnose.snapshot_history:incomplete", ("snapshot.history_incomplete",), ("snapshot",)),
    Rule("moexray.diagnose.snapshot_history:inconsistent", ("snapshot.inconsistent",), ("snapshot",)),
    Rule(
        "moexray.diagnose.routing:load_rules",
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
    Rule("moexray.diagnose.routing_log:wrong_axis_by_version", ("ep.metric_wrong_axis",), ("log",)),
    Rule("moexray.diagnose.routing_log:skew_by_log", ("ep.skew",), ("log",)),
    Rule("moexray.diagnose.routing_choice:router_ties", ("num.router_ties",), ("logits",)),
    Rule(
        "moexray.diagnose.routing_choice:router_choices",
        ("num.router_divergence", "num.router_noise"),
        ("routes",),
    ),
    Rule(
        "moexray.diagnose.comm:watchdog",
        ("comm.desync", "comm.missing_rank", "comm.size_mismatch"),
        ("comm_report",),
    ),
    Rule("moexray.diagnose.comm_lost:log_ranks", ("input.rank_set",), ("comm_group",)),
    Rule("moexray.diagnose.comm_ras:status", ("comm.lagging_ranks", "comm.missing_rank"), ("comm_ras",)),
    Rule(
        "moexray.diagnose.comm_flight:recorder",
        (
            "comm.desync",
            "comm.missing_rank",
            "comm.size_mismatch",
            "comm.timeout_near",
            "a2a.count_mismatch",
            "a2a.uneven_is_legal",
            "input.rank_set",
        ),
        ("comm_flight",),
    ),
    Rule("moexray.diagnose.comm_links:links", ("comm.slow_transfer",), ("comm_link", "a2a_matrix")),
    Rule("moexray.diagnose.a2a:buffer_limit", ("a2a.buffer_limit",), ("a2a_event",)),
    Rule("moexray.diagnose.a2a:silent_source", ("a2a.silent_source",), ("a2a_event",)),
    Rule("moexray.diagnose.a2a:matrices", ("a2a.count_mismatch", "a2a.uneven_is_legal"), ("a2a_matrix",)),
    Rule(
        "moexray.diagnose.timeline:find",
        (
            "mem.alloc_stall",
            "mem.empty_cache_in_hot_path",
            "comm.straggler_wait",
            "comm.slow_transfer",
            "comm.timeout_near",
            "host.gc_pause",
            "host.stall",
            "jit.compile_in_hot_path",
            "trace.clock_skew",
            "input.rank_set",
        ),
        ("trace",),
    ),
    Rule("moexray.diagnose.engine_stalls:rearrange_stall", ("ep.rearrange_stall",), ("latency", "gaps")),
    Rule(
        "moexray.diagnose.engine_stalls:compile_in_hot_path",
        ("jit.compile_in_hot_path",),
        ("latency", "gaps"),
    ),
    Rule("moexray.diagnose.engine_stalls:snapshot_overhead", ("mem.snapshot_overhead",), ("latency", "gaps")),
    Rule("moexray.diagnose.engine_balance:async_stuck", ("ep.async_stuck",), ("log",)),
    Rule("moexray.diagnose.engine_balance:little_to_gain", ("ep.little_to_gain",), ("log",)),
    Rule("moexray.diagnose.engine_balance:rebalance_cost", ("ep.rebalance_cost_exceeds_gain",), ("bench",)),
    Rule("moexray.diagnose.sched:preemption", ("sched.preemption",), ("metrics", "log")),
    Rule("moexray.diagnose.sched:saturated", ("sched.saturated",), ("metrics", "log")),
    Rule("moexray.diagnose.sched_engines:dp_imbalance", ("sched.dp_imbalance",), ("metrics", "log")),
    Rule("moexray.diagnose.metrics:no_progress", ("comm.no_progress",), ("metrics", "gpu")),
    Rule("moexray.diagnose.metrics:per_request_average", ("metric.per_request_average",), ("gaps",)),
    Rule("moexray.diagnose.metrics:prefill_interference", ("sched.prefill_interference",), ("steps",)),
    Rule("moexray.diagnose.bench:tail_shapes", ("kernel.tail_shapes",), ("bench",)),
    Rule("moexray.diagnose.bench:oversubscription", ("mem.oversubscription",), ("bench",)),
    Rule("moexray.diagnose.kernel:bank_conflict", ("kernel.bank_conflict",), ("kernels", "accesses")),
    Rule("moexray.diagnose.numerics:precision_regression", ("num.precision_regression",), ("scores", "log")),
    Rule("moexray.diagnose.numerics:batch_variance", ("num.batch_variance",), ("mismatch", "logprobs")),
    Rule("moexray.diagnose.engine_jit:compile_skew", ("jit.compile_skew",), ("log",)),
    Rule("moexray.diagnose.engine_jit:cold_runs", ("jit.compile_in_hot_path",), ("bench",)),
    Rule("moexray.diagnose.engine_backend:backend_change", ("kernel.backend_change",), ("log",)),
    Rule("moexray.diagnose.engine_windows:contaminated", ("metric.contaminated_window",), ("bench",)),
)

EXHIBITS: tuple[Exhibit, ...] = (
    Exhibit("ledger", "moexray.diagnose.snapshot_exhibits:ledger", ("snapshot",)),
    Exhibit("series", "moexray.diagnose.snapshot_exhibits:series", ("snapshot_events",)),
    Exhibit("memory_map", "moexray.diagnose.snapshot_exhibits:maps", ("snapshot",)),
    Exhibit("waits", "moexray.diagnose.timeline_exhibits:waits", ("trace",)),
    Exhibit("waits", "moexray.diagnose.comm_flight:waits", ("comm_flight",)),
    Exhibit("series", "moexray.diagnose.timeline_exhibits:series", ("trace",)),
    Exhibit("spans", "moexray.diagnose.timeline_exhibits:spans", ("trace",)),
    Exhibit("ledger", "moexray.diagnose.oom_ledger:ledger", ("oom",)),
    Exhibit("ledger", "moexray.diagnose.gpu_ledger:ledger", ("gpu", "metrics")),
    Exhibit("series", "moexray.diagnose.gpu_ledger:series", ("gpu", "memory_stats", "metrics")),
    Exhibit("balance", "moexray.diagnose.routing_skew:balance", ("counts", "routes", "metrics")),
    Exhibit("series", "moexray.diagnose.routing:drift_series", ("counts", "routes")),
    Exhibit("series", "moexray.diagnose.engine_series:latency_series", ("latency", "gaps")),
    Exhibit("series", "moexray.diagnose.sched_series:series_of_scrapes", ("metrics",)),
)
