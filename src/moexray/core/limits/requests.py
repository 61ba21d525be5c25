"""Limits of the rules about load, scheduling, benchmarks, kernels and answers."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RequestLimits"]


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Each field: what it bounds, its unit, its source."""

    # KV cache use from which preemptions count as caused by a full cache; ratio; verdict catalogue.
    kv_full: float = 0.95
    # KV cache use below which there is room for more requests; ratio; judgement: they grow by what they
    # generate.
    kv_room: float = 0.90
    # Windows over which the queue must rise; count; verdict catalogue.
    rising_windows: int = 3
    # Step time counts as unchanged within this; ratio; verdict catalogue.
    step_time_same: float = 0.10
    # Running requests count as constant within this (no setting known); ratio; judgement.
    running_same: float = 0.03
    # Requests of one engine against the median of the others; factor; verdict catalogue.
    imbalance: float = 2.0
    # Requests above that median before an imbalance is worth a word; count; judgement: below it a
    # single arrival changes the picture.
    imbalance_requests: float = 8.0
    # ... and above that median, seen once only, that need no second look; factor; judgement.
    imbalance_sure: float = 3.0
    # Least time between two scrapes that shows a standstill, where it is known; s; judgement: longer
    # than a long prefill.
    standstill_s: float = 5.0
    # Busy GPUs without memory traffic: time that it must last; s; verdict catalogue.
    spin_s: float = 60.0
    # ... utilisation at least, memory activity at most; ratio; verdict catalogue.
    spin_util: float = 0.90
    spin_memory: float = 0.02
    # ... power at most, as a share of the limit; ratio; judgement: spinning cards draw 15-35 %.
    spin_power: float = 0.40
    # ... and in watts where no limit is known; W; judgement: an idle data-centre card draws 60-150 W.
    spin_power_w: float = 250.0
    # Steps with prefill against steps without; factor; and their least share; ratio; verdict catalogue.
    prefill_factor: float = 2.0
    prefill_share: float = 0.20
    # ... steps of either kind, at least; count; judgement: a median of fewer is one of them.
    prefill_steps: int = 5
    # Inter-token latency against the steps without prefill that is worth a word; factor; judgement.
    itl_factor: float = 1.5
    # Throughput falls below this share where memory passes the card; ratio; verdict catalogue.
    cliff: float = 1.0 / 3.0
    # Totals of cards that differ by less are the same card; and peak memory within this of the total fits
    # it; ratio; judgement: sizes are printed with two or three digits.
    same_card: float = 0.05
    card_slack: float = 0.02
    # A gap above this many medians is a stall; factor; verdict catalogue.
    stall_factor: float = 10.0
    # Percentiles over per-request means hide a stall if their P99 stays below this many medians of the
    # pooled gaps; factor; judgement.
    hidden_factor: float = 3.0
    # Medians of two runs agree within this; ratio; P99 differ by more than this; factor; or mean/median
    # exceeds this in one only; factor; verdict catalogue.
    tail_medians: float = 0.25
    tail_p99: float = 3.0
    tail_mean: float = 2.0
    # Bank conflicts per wavefront; ratio; share of the report's kernel time; ratio; verdict catalogue.
    conflict_ratio: float = 0.15
    kernel_share: float = 0.05
    # Fall of the prefix-cache hit rate or of the acceptance of drafts, from the first to the last third of a
    # record, that is named as seen; ratio; judgement: a third of a usual rate of 0.6.
    rate_fall: float = 0.2
    # ... over at least this many windows; count; judgement: a median of fewer is one of them.
    rate_windows: int = 9
    # Difference of mean scores in standard errors; factor; verdict catalogue.
    score_errors: float = 3.0
