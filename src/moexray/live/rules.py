"""Recording and alerting rules for Prometheus, each alert with data on which it fires and nearly fires.

Thresholds are starting points: those that a verdict shares come from core/limits, the others are judgement
and wait for figures of real fleets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moexray.core.limits.routing import RoutingLimits

__all__ = ["ALERTS", "RECORDS", "Alert", "rules", "rules_test"]

INTERVAL = "15s"
SCOPE = "model, engine"
BALANCED = RoutingLimits().balancedness
SKEW = 0.4  # Gini; judgement: with EP 8 this is a balancedness of about 0.6 on recorded traffic
DRIFT = 0.1  # of ln 2; judgement: ten floors at 10,000 choices of 256 experts are 0.05
STUCK = 0.1  # of the reserved bytes; judgement
TAIL = 3.0  # P99 / P50 of a step; judgement, steps of steady decode lie within 1.5
LAG_S = 60  # the recorder and the drain write every second



def _quantile(q: float) -> str:
    """Quantile of the steps of the last five minutes."""
    rate = "rate(moex_decode_step_duration_seconds_bucket[5m])"
    return f"histogram_quantile({q}, sum by ({SCOPE}, le) ({rate}))"


RECORDS: dict[str, str] = {
    "moex:fragmentation_ratio:max": f"max by ({SCOPE}) (moex_fragmentation_ratio)",
    "moex:expert_skew_index:p95_by_model": "quantile by (model) (0.95, moex_expert_skew_index)",
    "moex:decode_step_duration_seconds:p99_5m": _quantile(0.99),
    "moex:spike:rate5m": f"sum by ({SCOPE}, cause) (rate(moex_spike_total[5m]))",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert and its two test cases.

    Args:
        name: CamelCase.
        expr: When.
        wait: How long it must hold.
        severity: warning or critical.
        summary: One line; may name labels by template.
        description: What it means, and what to do first.
        fires: Series, with values by the minute, on which it fires after 20 minutes.
        quiet: Nearly the same, on which it must not.
    """

    name: str
    expr: str
    wait: str
    severity: str
    summary: str
    description: str
    fires: dict[str, str]
    quiet: dict[str, str]


def _steps(slow: int) -> dict[str, str]:
    """100 steps a minute of 5 to 10 ms, so many of them 2.5 to 5 s."""
    name = "moex_decode_step_duration_seconds_bucket"
    fast = 100 - slow
    return {
        f'{name}{{model="M",le="0.005"}}': "0x20",
        f'{name}{{model="M",le="0.01"}}': f"0+{fast}x20",
        f'{name}{{model="M",le="2.5"}}': f"0+{fast}x20",
        f'{name}{{model="M",le="5.0"}}': "0+100x20",
        f'{name}{{model="M",le="+Inf"}}': "0+100x20",
    }


def _pool(ratio: float | None, stuck: int, device: int = 0) -> dict[str, str]:
    labels = f'{{model="M",device="{device}",pool="default"}}'
    known = {} if ratio is None else {f"moex_fragmentation_ratio{labels}": f"{ratio}x20"}
    return {
        **known,
        f"moex_memory_stuck_bytes{labels}": f"{stuck}x20",
        f"moex_memory_reserved_bytes{labels}": "1000x20",
    }


def _exchange(wait: int) -> dict[str, str]:
    labels = '{model="M",direction="combine"}'
    return {
        f"moex_alltoall_wait_seconds_sum{labels}": f"0+{wait}x20",
        f"moex_alltoall_duration_seconds_sum{labels}": "0+10x20",
    }


def _memory_alerts() -> tuple[Alert, ...]:
    return (
        Alert(
            "MoexFragmentationHigh",
            f"moex_memory_stuck_bytes > {STUCK} * moex_memory_reserved_bytes "
            "unless moex_fragmentation_ratio <= 0.5",  # an attached engine tells no ratio
            "5m", "warning",
            "Device {{ $labels.device }} of rank {{ $labels.rank }}: {{ $value | humanize1024 }}B are stuck",
            "Free memory lies beside live blocks: empty_cache cannot give it back, large requests fail. Take "
            "a snapshot and run moexray diagnose; it names the call sites that pin it.",
            _pool(None, 200), {**_pool(0.9, 50), **_pool(0.4, 200, device=1)},
        ),
        Alert(
            "MoexAllocatorRetrying",
            "increase(moex_allocator_retries_total[10m]) > 0", "1m", "warning",
            "Rank {{ $labels.rank }} retries device allocations",
            "Each retry gives cached blocks back and synchronises the device. Cap the largest shape or leave "
            "headroom; moexray whatif memory tries allocator settings on a recorded history.",
            {'moex_allocator_retries_total{model="M",rank="0",device="0"}': "0x10 1x10"},
            {'moex_allocator_retries_total{model="M",rank="0",device="0"}': "1 2 2x18"},
        ),
    )  # fmt: skip


def _routing_alerts() -> tuple[Alert, ...]:
    skew = 'moex_expert_skew_index{model="M",layer="3"}'
    balance = 'moex_expert_balancedness_ratio{model="M",layer="3"}'
    drift = 'moex_routing_drift_ratio{model="M",layer="3"}'
    return (
        Alert(
            "MoexExpertSkewHigh",
            f"moex_expert_skew_index > {SKEW} unless moex_expert_balancedness_ratio >= {BALANCED}",
            "10m", "warning",
            "Layer {{ $labels.layer }} of {{ $labels.model }}: expert skew {{ $value | humanize }}",
            "Few experts take most tokens, and where the EP size is known their ranks are uneven, too. "
            "moexray plan proposes a placement from recorded traffic.",
            {skew: "0.5x20", balance: "0.6x20"}, {skew: "0.5x20", balance: "0.9x20"},
        ),
        Alert(
            "MoexRoutingDrift",
            f"moex_routing_drift_ratio > {DRIFT}", "10m", "warning",
            "Layer {{ $labels.layer }} of {{ $labels.model }}: the mix of experts has changed",
            "Traffic differs from the first minute of this process: a placement made for that may no longer "
            "fit. moexray routing tells since when.",
            {drift: "0.3x20"}, {drift: "0.3x9 0.05 0.3x9"},
        ),
        Alert(
            "MoexAlltoallStraggler",
            f"sum by ({SCOPE}, direction) (rate(moex_alltoall_wait_seconds_sum[5m])) > 0.5 * "
            f"sum by ({SCOPE}, direction) (rate(moex_alltoall_duration_seconds_sum[5m]))",
            "5m", "warning",
            "{{ $labels.direction }} waits for a late rank",
            "Ranks wait for the last one for more than half of the transfer's time. moexray timeline names "
            "that rank and what it did before; it is seldom the network.",
            _exchange(9), _exchange(4),
        ),
    )  # fmt: skip


def _other_alerts() -> tuple[Alert, ...]:
    spikes = 'moex_spike_total{model="M",cause="%s"}'
    dropped = 'moex_exporter_dropped_total{signal="samples",reason="queue_full"}'
    return (
        Alert(
            "MoexSpikeCoupled",
            f"({_quantile(0.99)} > {TAIL:.0f} * {_quantile(0.5)}) and on ({SCOPE}) "
            f'(sum by ({SCOPE}) (increase(moex_spike_total{{cause!="unknown"}}[10m])) > 0)',
            "2m", "critical",
            "P99 of a step of {{ $labels.model }} is {{ $value | humanizeDuration }}, with a known cause",
            "Steps are slow now and moexray watch found why: see moex_spike_total by cause, and moexray "
            "explain CAUSE for what to change.",
            {**_steps(5), spikes % "mem.alloc_stall": "0+1x20"}, {**_steps(5), spikes % "unknown": "0+1x20"},
        ),
        Alert(
            "MoexTelemetryStale",
            f'moex_exporter_lag_seconds > {LAG_S} or up{{job="moexray"}} == 0', "2m", "warning",
            "Metrics of {{ $labels.instance }} are old or missing",
            "The exporter is down, or the engine and its recorder write nothing: the other alerts are blind.",
            {"moex_exporter_lag_seconds": "0+60x20"},
            {"moex_exporter_lag_seconds": "5x20", 'up{job="moexray"}': "1x20"},
        ),
        Alert(
            "MoexTelemetryDropping",
            "sum by (instance, signal, reason) (increase(moex_exporter_dropped_total[10m])) > 0",
            "1m", "warning",
            "{{ $value | humanize }} {{ $labels.signal }} were lost: {{ $labels.reason }}",
            "docs/live.md says what each reason means and what to change.",
            {dropped: "0x10 500x10"}, {dropped: "500x20"},
        ),
    )  # fmt: skip


ALERTS: tuple[Alert, ...] = (*_memory_alerts(), *_routing_alerts(), *_other_alerts())


def rules(runbooks: str) -> dict[str, Any]:
    """The rule file as a document.

    Args:
        runbooks: Address of docs/live.md; its headings are the alerts' names.
    """
    alerts = [
        {
            "alert": a.name,
            "expr": a.expr,
            "for": a.wait,
            "labels": {"severity": a.severity},
            "annotations": {
                "summary": a.summary,
                "description": a.description,
                "runbook_url": f"{runbooks}#{a.name.lower()}",
            },
        }
        for a in ALERTS
    ]
    records = [{"record": name, "expr": expr} for name, expr in RECORDS.items()]
    return {
        "groups": [
            {"name": "moexray-records", "interval": INTERVAL, "rules": records},
            {"name": "moexray-alerts", "interval": INTERVAL, "rules": alerts},
        ]
    }


def rules_test(rule_file: str) -> dict[str, Any]:
    """The cases as a document for `promtool test rules`."""
    return {
        "rule_files": [rule_file],
        "evaluation_interval": INTERVAL,
        "tests": [case for a in ALERTS for case in (_case(a, fires=True), _case(a, fires=False))],
    }


def _case(alert: Alert, *, fires: bool) -> dict[str, Any]:
    data = alert.fires if fires else alert.quiet
    firing = f'count(ALERTS{{alertname="{alert.name}",alertstate="firing"}})'
    expected = [{"labels": "{}", "value": 1}] if fires else []
    return {
        "name": f"{alert.name} {'fires' if fires else 'does not fire'}",
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in data.items()],
        "promql_expr_test": [{"expr": firing, "eval_time": "18m", "exp_samples": expected}],
    }
