"""The Grafana dashboard: latency, spikes, routing, memory, exchange and the state of the telemetry itself.

Built as plain data (schema 39, Grafana 10.4 and later). Every query runs in the tests against a Prometheus
with data; how the page looks was not checked in a Grafana.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moexray.live.rules import ALERTS, STUCK

__all__ = ["PANELS", "SOURCES_UID", "VARIABLES", "Panel", "dashboard", "datasources"]

SCHEMA = 39
SOURCES_UID = {"metrics": "moexray-metrics", "traces": "moexray-traces"}
VARIABLES = ("job", "model", "engine", "rank")
WHERE = 'job=~"$job",model=~"$model",engine=~"$engine"'
RANKS = f'{WHERE},rank=~"$rank"'
SPAN = "$__rate_interval"
WIDTH, HEIGHT, COLUMNS = 8, 7, 3


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture.

    Args:
        title: What it shows.
        unit: Grafana's name of the unit.
        queries: (PromQL, legend).
        kind: Grafana's type of panel.
        exemplars: Show exemplars, which lead to traces.
        text: What to mind.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    exemplars: bool = False
    text: str = ""


def _quantile(q: float, name: str, by: str = "") -> str:
    return f"histogram_quantile({q}, sum by (le{by}) (rate({name}_bucket{{{WHERE}}}[{SPAN}])))"


def _sum(function: str, name: str, by: str, where: str = RANKS) -> str:
    """Rate or increase of a counter, added up by some labels."""
    return f"sum by ({by}) ({function}({name}{{{where}}}[{SPAN}]))"


def _latency() -> tuple[Panel, ...]:
    step = "moex_decode_step_duration_seconds"
    spikes = _sum("increase", "moex_spike_total", "cause", WHERE)
    mismatch = _sum("increase", "moex_alltoall_mismatch_total", "kind", WHERE)
    fell_back = _sum("increase", "moex_remedy_actions_total", "remedy", f'{WHERE},outcome="fallback"')
    return (
        Panel("Step duration", "s", tuple((_quantile(q, step), f"p{q * 100:g}") for q in (0.5, 0.9, 0.99)),
              exemplars=True, text="Diamonds are exemplars: they lead to the trace of that step."),
        Panel("Spikes by cause", "short", ((spikes, "{{cause}}"),),
              text="Causes are verdicts: moexray explain CAUSE says what to change."),
        Panel("Errors", "short",
              ((_sum("increase", "moex_allocator_oom_total", "rank"), "out of memory, rank {{rank}}"),
               (mismatch, "all-to-all {{kind}} mismatch"),
               (fell_back, "{{remedy}} fell back"))),
    )  # fmt: skip


def _routing() -> tuple[Panel, ...]:
    collisions = _sum("rate", "moex_routing_collisions_total", "layer")
    choices = _sum("rate", "moex_routed_choices_total", "layer")
    experts = _sum("rate", "moex_expert_tokens_total", "layer, expert")
    lost = _sum("rate", "moex_expert_capacity_dropped_tokens_total", "layer")
    return (
        Panel("Expert skew (Gini) by layer", "none",
              ((f"moex_expert_skew_index{{{RANKS}}}", "layer {{layer}} rank {{rank}}"),),
              text="0 even, 1 all on one expert. By chance 1/sqrt(pi n) at n tokens per expert."),
        Panel("Balancedness by layer", "percentunit",
              ((f"moex_expert_balancedness_ratio{{{RANKS}}}", "layer {{layer}}"),),
              text="Mean / max over EP ranks: 1 is even."),
        Panel("Busiest experts", "short", ((f"topk(10, {experts})", "layer {{layer}} expert {{expert}}"),),
              text="Choices a second."),
        Panel("Collisions", "percentunit", ((f"{collisions} / {choices}", "layer {{layer}}"),),
              text="Share of the choices beyond even capacity."),
        Panel("Drift from the reference", "percentunit",
              ((f"moex_routing_drift_ratio{{{RANKS}}}", "layer {{layer}}"),)),
        Panel("Choices without an expert", "short", ((lost, "layer {{layer}}"),)),
    )  # fmt: skip


def _memory() -> tuple[Panel, ...]:
    pool = "rank {{rank}} device {{device}} {{pool}}"
    segments = _sum("increase", "moex_allocator_segment_events_total", "event")
    return (
        Panel("Fragmentation ratio", "percentunit", ((f"moex_fragmentation_ratio{{{RANKS}}}", pool),),
              text=f"Above 0.9 on healthy processes: mind stuck bytes above {STUCK:.0%} of the reserved."),
        Panel("Memory of the allocator", "bytes",
              tuple((f"moex_memory_{n}_bytes{{{RANKS}}}", f"{n} {pool}")
                    for n in ("reserved", "allocated", "stuck"))),
        Panel("Largest free block", "bytes", ((f"moex_memory_largest_free_block_bytes{{{RANKS}}}", pool),)),
        Panel("Allocator retries and segments", "short",
              ((_sum("increase", "moex_allocator_retries_total", "rank"), "retries rank {{rank}}"),
               (segments, "segment {{event}}"))),
        Panel("Allocator stalls", "s",
              ((_quantile(0.99, "moex_allocator_stall_seconds", ", device"), "p99 device {{device}}"),)),
    )  # fmt: skip


def _exchange() -> tuple[Panel, ...]:
    def quantiles(name: str) -> tuple[tuple[str, str], ...]:
        by = ", direction"
        return (
            (_quantile(0.5, name, by), "p50 {{direction}}"), (_quantile(0.99, name, by), "p99 {{direction}}"),
        )  # fmt: skip

    job = 'job=~"$job"'
    lost = _sum("increase", "moex_exporter_dropped_total", "signal, reason", job)
    runs = _sum("increase", "moex_hook_runs_total", "outcome", 'job=~".*"')  # of another job
    traces = _sum("increase", "moex_traces_total", "decision", job)
    spans = f"histogram_quantile(0.99, sum by (le, span) (rate(moex_span_duration_seconds_bucket[{SPAN}])))"
    versions = f"moex_build_info{{{job}}}"
    return (
        Panel("All-to-all transfer", "s", quantiles("moex_alltoall_duration_seconds")),
        Panel("All-to-all: wait for the last rank", "s", quantiles("moex_alltoall_wait_seconds")),
        Panel("Telemetry: lost, age, cost", "short",
              ((lost, "{{signal}} {{reason}}"),
               (runs, "alerts looked into: {{outcome}}"),
               (f"max(moex_exporter_lag_seconds{{{job}}})", "age in s"),
               (f"max(moex_hook_overhead_ratio{{{WHERE}}})", "share of a step spent recording"))),
        Panel("Traces kept and dropped", "short",
              ((traces, "{{decision}}"),
               (f"max(moex_trace_completeness_ratio{{{job}}})", "completeness of kept steps"))),
        Panel("Spans, before sampling", "s", ((spans, "p99 {{span}}"),), exemplars=True),
        Panel("Versions", "short", ((versions, "{{instance}} {{version}}"),), kind="table"),
    )  # fmt: skip


PANELS: tuple[Panel, ...] = (*_latency(), *_routing(), *_memory(), *_exchange())


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "uid": "moexray",
        "title": "moexray: mixture of experts",
        "tags": ["moexray"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "15s",
        "templating": {"list": [_source(), *(_variable(name) for name in VARIABLES), _report()]},
        "annotations": {"list": [_alerts(), _reports()]},
        "links": _links(),
        "panels": [_panel(i, panel) for i, panel in enumerate(PANELS)],
    }


def _source() -> dict[str, Any]:
    return {"name": "metrics", "type": "datasource", "query": "prometheus", "current": {}}


def _variable(name: str) -> dict[str, Any]:
    of = "moex_build_info" if name == "job" else 'moex_routed_choices_total{job=~"$job"}'
    return {
        "name": name, "type": "query", "datasource": {"type": "prometheus", "uid": "$metrics"},
        "query": {"query": f"label_values({of}, {name})", "refId": name}, "refresh": 2, "multi": True,
        "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def _report() -> dict[str, Any]:
    return {"name": "hook", "label": "Address of moexray hook", "type": "textbox", "query": "http://127.0.0.1:9465"}


def _alerts() -> dict[str, Any]:
    names = "|".join(a.name for a in ALERTS)
    return {
        "name": "Alerts", "enable": True, "iconColor": "red", "titleFormat": "{{alertname}}",
        "datasource": {"type": "prometheus", "uid": "$metrics"},
        "expr": f'ALERTS{{alertname=~"{names}",alertstate="firing"}}',
    }  # fmt: skip


def _reports() -> dict[str, Any]:
    """What `moexray hook --grafana` posts."""
    return {
        "name": "Reports", "enable": True, "iconColor": "blue",
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "target": {"type": "tags", "tags": ["moexray"], "matchAny": True, "limit": 100},
    }  # fmt: skip


def _links() -> list[dict[str, Any]]:
    pane = (
        '{"x":{"datasource":"' + SOURCES_UID["traces"] + '","queries":[{"refId":"A","queryType":"search",'
        '"service":"${job}"}],"range":{"from":"${__from}","to":"${__to}"}}}'
    )
    traces = f"/explore?schemaVersion=1&panes={pane}"
    return [
        {"title": "Traces of this service", "type": "link", "url": traces, "targetBlank": True},
        {"title": "Reports of moexray hook", "type": "link", "url": "${hook}/reports", "targetBlank": True},
    ]


def _panel(place: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(place, COLUMNS)
    source = {"type": "prometheus", "uid": "$metrics"}
    targets = [
        {
            "refId": chr(ord("A") + i), "expr": expr, "legendFormat": legend, "exemplar": panel.exemplars,
            "datasource": source, **({"instant": True, "format": "table"} if panel.kind == "table" else {}),
        }
        for i, (expr, legend) in enumerate(panel.queries)
    ]  # fmt: skip
    return {
        "id": place + 1,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": source,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def datasources(prometheus: str, jaeger: str) -> dict[str, Any]:
    """Provisioning of Grafana's data sources: from exemplars to traces, from spans to metrics.

    Args:
        prometheus: Its address.
        jaeger: Its query address.
    """
    to_traces = [{"name": "trace_id", "datasourceUid": SOURCES_UID["traces"]}]
    metrics = {
        "name": "moexray metrics", "uid": SOURCES_UID["metrics"], "type": "prometheus", "access": "proxy",
        "url": prometheus, "jsonData": {"exemplarTraceIdDestinations": to_traces},
    }  # fmt: skip
    tags = [{"key": f"moex.{label}", "value": label} for label in ("model", "engine", "rank", "layer")]
    queries = [
        {"name": "skew of this layer", "query": "moex_expert_skew_index{$__tags}"},
        {"name": "choices of this layer", "query": "rate(moex_routed_choices_total{$__tags}[1m])"},
    ]
    to_metrics = {"datasourceUid": SOURCES_UID["metrics"], "tags": tags, "queries": queries}
    traces = {
        "name": "moexray traces", "uid": SOURCES_UID["traces"], "type": "jaeger", "access": "proxy",
        "url": jaeger, "jsonData": {"tracesToMetrics": to_metrics},
    }  # fmt: skip
    return {"apiVersion": 1, "datasources": [metrics, traces]}
