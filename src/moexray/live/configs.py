"""The configuration files of other programs, by target: what `moexray export TARGET -o DIR` writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moexray.live.dashboard import dashboard, datasources
from moexray.live.rules import rules, rules_test
from moexray.live.yaml_text import yaml_text

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TARGETS", "Places", "Target"]

RULES, RULES_TEST = "moexray-rules.yml", "moexray-rules-test.yml"


@dataclass(frozen=True, slots=True)
class Places:
    """Where the programs are.

    Args:
        exporter: HOST:PORT of moexray exporter.
        hook: Address of moexray hook.
        prometheus: Address of Prometheus.
        alertmanager: HOST:PORT of Alertmanager.
        traces: Address of the Jaeger query, for Grafana.
        otlp: HOST:PORT of the OTLP gRPC receiver behind the collector.
        runbooks: Address of docs/live.md.
    """

    exporter: str = "127.0.0.1:9464"
    hook: str = "http://127.0.0.1:9465"
    prometheus: str = "http://127.0.0.1:9090"
    alertmanager: str = "127.0.0.1:9093"
    traces: str = "http://127.0.0.1:16686"
    otlp: str = "127.0.0.1:4417"
    runbooks: str = "docs/live.md"


@dataclass(frozen=True, slots=True)
class Target:
    """A program and its files.

    Args:
        name: On the command line.
        help: One line.
        files: Places -> {file name: content}.
        next: What to do with them.
    """

    name: str
    help: str
    files: Callable[[Places], dict[str, str]]
    next: str


def _prometheus(p: Places) -> dict[str, str]:
    config = {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": [RULES],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [p.alertmanager]}]}]},
        "scrape_configs": [{"job_name": "moexray", "static_configs": [{"targets": [p.exporter]}]}],
    }
    note = "Exemplars need: prometheus --enable-feature=exemplar-storage"
    return {
        "prometheus.yml": yaml_text(config, note),
        RULES: yaml_text(rules(p.runbooks), "Thresholds are starting points; see docs/live.md."),
        RULES_TEST: yaml_text(rules_test(RULES), f"promtool test rules {RULES_TEST}"),
    }


def _alertmanager(p: Places) -> dict[str, str]:
    webhook: dict[str, Any] = {"url": f"{p.hook}/alerts", "send_resolved": True, "max_alerts": 50}
    config = {
        "route": {
            "receiver": "moexray",
            "group_by": ["alertname", "model", "engine"],
            "group_wait": "10s",
            "group_interval": "1m",
            "repeat_interval": "4h",
        },
        "receivers": [{"name": "moexray", "webhook_configs": [webhook]}],
    }
    note = (
        "Where moexray hook wants a token, add beside url:\n"
        "  http_config: {authorization: {credentials_file: /path/to/token}}"
    )
    return {"alertmanager.yml": yaml_text(config, note)}


def _grafana(p: Places) -> dict[str, str]:
    return {
        "moexray-dashboard.json": json.dumps(dashboard(), indent=1) + "\n",
        "moexray-datasources.yml": yaml_text(datasources(p.prometheus, p.traces)),
    }


def _collector(p: Places) -> dict[str, str]:
    """Span metrics are derived before the sampling, so that they count every span."""
    keep = [
        {"name": "errors", "type": "status_code", "status_code": {"status_codes": ["ERROR"]}},
        {"name": "slow", "type": "latency", "latency": {"threshold_ms": 250}},
        {"name": "some", "type": "probabilistic", "probabilistic": {"sampling_percentage": 1}},
    ]
    config: dict[str, Any] = {
        "receivers": {
            "otlp": {
                "protocols": {"grpc": {"endpoint": "127.0.0.1:4317"}, "http": {"endpoint": "127.0.0.1:4318"}}
            }
        },
        "processors": {
            "memory_limiter": {"check_interval": "1s", "limit_mib": 512},
            "batch": {},
            "tail_sampling": {"decision_wait": "10s", "num_traces": 10_000, "policies": keep},
        },
        "connectors": {
            "spanmetrics": {
                "namespace": "moex.spans",
                "dimensions": [{"name": "moex.layer"}],
                "exemplars": {"enabled": True},
            }
        },
        "exporters": {
            "otlp": {"endpoint": p.otlp, "tls": {"insecure": True}},
            "prometheus": {"endpoint": "127.0.0.1:8889"},
        },
        "service": {
            "pipelines": {
                "traces/all": {
                    "receivers": ["otlp"],
                    "processors": ["memory_limiter"],
                    "exporters": ["spanmetrics", "forward"],
                },
                "traces/kept": {
                    "receivers": ["forward"],
                    "processors": ["tail_sampling", "batch"],
                    "exporters": ["otlp"],
                },
                "metrics": {"receivers": ["spanmetrics"], "exporters": ["prometheus"]},
            }
        },
    }
    config["connectors"]["forward"] = {}
    note = "For the contrib distribution. Not executed in moexray's tests, which have no collector."
    return {"otel-collector.yml": yaml_text(config, note)}


TARGETS: tuple[Target, ...] = (
    Target("prometheus", "Scrape configuration, recording and alerting rules, their test cases.", _prometheus,
           "promtool check config prometheus.yml && promtool test rules moexray-rules-test.yml"),
    Target("alertmanager", "A route that sends alerts to moexray hook.", _alertmanager,
           "amtool check-config alertmanager.yml"),
    Target("grafana", "The dashboard, and data sources whose exemplars lead to traces.", _grafana,
           "import moexray-dashboard.json; put moexray-datasources.yml into provisioning/datasources"),
    Target("collector", "An OpenTelemetry collector: span metrics first, then tail sampling.", _collector,
           "otelcol-contrib --config otel-collector.yml"),
)  # fmt: skip
