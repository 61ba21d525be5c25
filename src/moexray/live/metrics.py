"""Every metric that moexray exports, in one place. docs/metrics.md is generated from METRICS.

Glossary: a *series* is one metric with one set of label values, a *scope* the labels that all metrics of
one process share (model, engine, rank); a label without a value is left out. The *window* of a metric is
the last WINDOW_S seconds of what was drained.

Names: base units, `_total` for counters, no colon (those are recording rules, live/rules.py). What engines
export themselves (KV usage, TTFT, queue length, device memory) is not exported again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "DROPS", "LEAST_TOKENS", "METRICS", "SCOPE", "TIMED", "UNKNOWN", "WINDOW_S", "Kind", "Metric", "metric",
]  # fmt: skip

Kind = Literal["gauge", "counter", "histogram"]

SCOPE = ("model", "engine", "rank")
WINDOW_S = 60.0  # seconds; long enough for the floors below at a few hundred tokens a second
# Tokens an expert has on average before a share says anything: the Gini index of even routing is
# 1 / sqrt(pi n) by chance, 0.18 at 10; same least number as analyse/routing_drift.py.
LEAST_TOKENS = 10

# Seconds; decode steps of 1 ms to 10 s, a bucket border at most 2.5 times the last one.
STEP_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
# Seconds; collectives take 10 us to a second, a watchdog ends the rest.
COMM_BUCKETS = (
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 1.0,
)  # fmt: skip

# What can be lost, as (signal, reason): a closed set, each at 0 from the start, so that `increase` sees the
# first loss. docs/live.md says what each means.
DROPS = (
    ("series", "ceiling"), ("records", "overwritten"), ("records", "not_recorded"), ("steps", "killed"),
    ("rings", "refused"),
    ("files", "unreadable"), ("samples", "queue_full"), ("samples", "refused"), ("samples", "closed"),
    ("updates", "failed"), ("alerts", "truncated"), ("alerts", "refused"), ("alerts", "queue_full"),
    ("alerts", "not_stored"), ("traces", "rate"), ("traces", "evicted"), ("spans", "late"),
    ("spans", "giant"), ("spans", "queue_full"), ("spans", "not_sent"), ("logs", "not_sent"),
    ("logs", "queue_full"),
)  # fmt: skip
# Verdicts that stop or stretch steps: what may explain a spike. A closed set, so that the label cannot
# grow; UNKNOWN is a spike that none of them explains.
UNKNOWN = "unknown"
TIMED = (
    "mem.alloc_stall", "mem.empty_cache_in_hot_path", "mem.snapshot_overhead", "comm.straggler_wait",
    "comm.slow_transfer", "ep.rearrange_stall", "jit.compile_in_hot_path", "jit.compile_skew",
    "host.gc_pause", "host.stall", "sched.preemption", "sched.prefill_interference",
    "sched.saturated", "smi.throttled",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric.

    Args:
        name: As exported, with unit and suffix.
        kind: gauge, counter or histogram.
        labels: Beyond those of the scope.
        help: What it counts, its window and what chance alone gives.
        buckets: Upper borders of a histogram, in its unit, without +Inf.
        scoped: It has the labels of the scope; else it is about the exporter itself.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()
    scoped: bool = True

    @property
    def family(self) -> str:
        """The name in OpenMetrics: of a counter without `_total`."""
        return self.name.removesuffix("_total") if self.kind == "counter" else self.name

    @property
    def unit(self) -> str:
        """Base unit that ends the name; empty for counts."""
        last = self.family.rpartition("_")[2]
        return last if last in ("seconds", "bytes", "ratio") else ""

    @property
    def label_names(self) -> tuple[str, ...]:
        """All labels in order."""
        return (*SCOPE, *self.labels) if self.scoped else self.labels

    @property
    def series(self) -> int:
        """Series that one set of labels makes: a histogram has one per bucket, +Inf, _sum and _count."""
        return len(self.buckets) + 3 if self.kind == "histogram" else 1


def _memory() -> tuple[Metric, ...]:
    pool = ("device", "pool")
    return (
        Metric("moex_fragmentation_ratio", "gauge", pool,
               "1 - largest free block / all free bytes inside the allocator, 0 when nothing is free, at the "
               "last snapshot. Healthy processes exceed 0.9: alert on moex_memory_stuck_bytes beside it."),
        Metric("moex_memory_reserved_bytes", "gauge", pool, "Bytes of all segments of the pool."),
        Metric("moex_memory_allocated_bytes", "gauge", pool, "Bytes of live blocks, pending frees included."),
        Metric("moex_memory_largest_free_block_bytes", "gauge", pool, "The largest free block of the pool."),
        Metric("moex_memory_stuck_bytes", "gauge", pool,
               "Free bytes beside live blocks, which empty_cache cannot give back."),
        Metric("moex_allocator_retries_total", "counter", ("device",),
               "Device allocations that failed, flushed the cache and were tried again (num_alloc_retries)."),
        Metric("moex_allocator_oom_total", "counter", ("device",), "Out-of-memory errors raised (num_ooms)."),
        Metric("moex_allocator_segment_events_total", "counter", ("device", "event"),
               "Segments allocated, freed, mapped and unmapped, from the allocator's history."),
        Metric("moex_allocator_stall_seconds", "histogram", ("device",),
               "Device allocator calls (cudaMalloc, cudaFree, mapping) of one trace.", COMM_BUCKETS),
    )  # fmt: skip


def _routing() -> tuple[Metric, ...]:
    layer = ("layer",)
    window = f"over the last {WINDOW_S:.0f} s"
    least = f"absent below {LEAST_TOKENS} tokens per expert"
    return (
        Metric("moex_expert_skew_index", "gauge", layer,
               f"expert_skew_index: Gini coefficient of tokens per logical expert {window}: 0 even, 1 all on "
               f"one. Even routing shows 1/sqrt(pi n) by chance at n tokens per expert; {least}."),
        Metric("moex_expert_balancedness_ratio", "gauge", layer,
               f"Mean / max of tokens over EP ranks {window}: 1 even; {least}. Absent where the EP size is "
               "unknown; experts lie contiguously unless a placement is given."),
        Metric("moex_expert_tokens_total", "counter", ("layer", "expert"),
               "Choices (token-expert pairs) of a logical expert. Only the busiest experts of the window are "
               "shown unless all are asked for; one that comes back goes on at its true count."),
        Metric("moex_routed_choices_total", "counter", layer, "Choices of all experts of the layer."),
        Metric("moex_routing_drift_ratio", "gauge", layer,
               f"Jensen-Shannon divergence / ln 2 of the mix of experts {window} from the reference: 0 same, "
               "1 disjoint. The reference is the first full window. Chance alone gives "
               f"(E - 1) / 8 (1/n + 1/m) / ln 2 at n and m choices; {least}."),
        Metric("moex_routing_collisions_total", "counter", layer,
               "Choices beyond even capacity, per step: sum over experts of max(0, n_e - ceil(n k / E))."),
        Metric("moex_expert_capacity_dropped_tokens_total", "counter", layer,
               "Choices that named no expert (-1): dropped at the capacity limit, or padding."),
    )  # fmt: skip


def _exchange() -> tuple[Metric, ...]:
    way = ("direction",)
    return (
        Metric("moex_alltoall_duration_seconds", "histogram", way,
               "All-to-all kernels: shortest rank of each exchange, so that waiting is not counted. "
               "Direction is dispatch or combine by the kernel's name, else unknown.", COMM_BUCKETS),
        Metric("moex_alltoall_wait_seconds", "histogram", way,
               "Longest minus shortest rank of each all-to-all: the wait for the last one.", COMM_BUCKETS),
        Metric("moex_alltoall_mismatch_total", "counter", ("kind",),
               "Exchanges whose sizes (size) or order (sequence) differ between ranks, as diagnosed."),
    )  # fmt: skip


def _steps() -> tuple[Metric, ...]:
    return (
        Metric("moex_decode_step_duration_seconds", "histogram", (),
               "Engine steps. Exemplars carry the trace id of kept steps only.", STEP_BUCKETS),
        Metric("moex_spike_total", "counter", ("cause",),
               "Stalls of the latency series, by the verdict that explains them (moexray explain CAUSE), "
               "unknown where none does."),
        Metric("moex_remedy_actions_total", "counter", ("remedy", "outcome"),
               "Calls of remedies in a recorded process since it began: applied; fallback, the remedy raised "
               "or took a lower way; skipped, it was switched off or given up."),
        Metric("moex_hook_overhead_ratio", "gauge", (),
               "Time spent in recording hooks / time of the steps, over what was drained last."),
    )  # fmt: skip


def _own() -> tuple[Metric, ...]:
    return (
        Metric("moex_exporter_dropped_total", "counter", ("signal", "reason"),
               "What was lost, in units of its signal; docs/live.md lists the reasons.",
               scoped=False),
        Metric("moex_hook_runs_total", "counter", ("outcome",),
               "Alerts dealt with by moexray hook: done, failed, cooldown.", scoped=False),
        Metric("moex_traces_total", "counter", ("decision",),
               "Traces that ended, by why they were kept (error, alert, slo, slow, reference, ratio) or not "
               "(no, rate).", scoped=False),
        Metric("moex_trace_completeness_ratio", "gauge", (),
               "Layer spans made / layer executions of the kept steps, since the start.", scoped=False),
        Metric("moex_span_duration_seconds", "histogram", ("span", "label", "value"),
               "Spans of the process, counted before any sampling; label and value from the enrichment "
               "rules, without both: all spans of the name.", STEP_BUCKETS),
        Metric("moex_exporter_lag_seconds", "gauge", (), "Age of the newest data of the page.", scoped=False),
        Metric("moex_build_info", "gauge", ("version", "schema"), "1; joins versions.", scoped=False),
    )  # fmt: skip


METRICS: tuple[Metric, ...] = (*_memory(), *_routing(), *_exchange(), *_steps(), *_own())
_BY_NAME = {m.name: m for m in METRICS}


def metric(name: str) -> Metric:
    """The metric of that name; KeyError if none is declared."""
    return _BY_NAME[name]
