"""What is written for other programs, judged by those programs where they are installed."""

import json
import shutil
import subprocess
from dataclasses import replace

import pytest
import yaml

from moexray.live import rules as module
from moexray.live.configs import TARGETS, Places
from moexray.live.dashboard import PANELS, dashboard, datasources
from moexray.live.metrics import METRICS
from moexray.live.rules import ALERTS, RECORDS, rules, rules_test
from moexray.live.yaml_text import yaml_text

promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed (apt: prometheus)")
amtool = pytest.mark.skipif(not shutil.which("amtool"), reason="amtool is not installed (apt: prometheus-alertmanager)")
NAMES = {m.name for m in METRICS} | {
    f"{m.name}_{part}" for m in METRICS if m.kind == "histogram" for part in ("bucket", "sum", "count")
}


def run(*line, cwd):
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def written(tmp_path):
    for target in TARGETS:
        for name, text in target.files(Places()).items():
            (tmp_path / name).write_text(text)
    return tmp_path


def test_yaml_reads_back():
    document = {
        "texts": ["plain", "true", "no", "15s", "a: b", "{{ $x }}", "", "-", "é\n'\"", "# c", "null"],
        "numbers": [1, 0.5, -3, 10_000], "none": None, "bool": True, "empty": {}, "list": [[1, [2]], [], {"a": {"b": [1]}}],
        "nested": {"a": [{"b": 1, "c": {"d": "e"}}, {"b": 2}]}, "on": "on",
    }  # fmt: skip
    assert yaml.safe_load(yaml_text(document, "two\nlines")) == document


@promtool
def test_the_configuration_and_the_rules_are_valid(written):
    done = run("promtool", "check", "config", "prometheus.yml", cwd=written)
    assert done.returncode == 0, done.stdout + done.stderr


@promtool
def test_each_alert_fires_on_its_case_and_not_on_the_near_miss(written):
    done = run("promtool", "test", "rules", "moexray-rules-test.yml", cwd=written)
    assert done.returncode == 0, done.stdout + done.stderr


@promtool
@pytest.mark.parametrize("expr", ["vector(1) > 2", "vector(1)"])
def test_the_cases_would_see_broken_rules(tmp_path, monkeypatch, expr):
    """Alerts that never fire fail their first case, those that always do the second."""
    monkeypatch.setattr(module, "ALERTS", tuple(replace(a, expr=expr, wait="0s") for a in ALERTS))
    (tmp_path / "r.yml").write_text(yaml_text(rules("x")))
    (tmp_path / "t.yml").write_text(yaml_text(rules_test("r.yml")))
    done = run("promtool", "test", "rules", "t.yml", cwd=tmp_path)
    assert done.returncode == 1
    assert all(a.name in done.stdout + done.stderr for a in ALERTS)


@amtool
def test_the_route_to_the_hook_is_valid(written):
    done = run("amtool", "check-config", "alertmanager.yml", cwd=written)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_say_what_to_do():
    assert len({a.name for a in ALERTS}) == len(ALERTS) == 8
    for alert in ALERTS:
        assert alert.fires != alert.quiet
        assert alert.description.endswith(".")
    for name in RECORDS:
        assert name.startswith("moex:")


def used(expr):
    """Names of our metrics in a query."""
    import re

    return set(re.findall(r"\bmoex_\w+", expr))


def test_rules_and_panels_name_metrics_that_exist():
    exprs = [a.expr for a in ALERTS] + list(RECORDS.values()) + [q for p in PANELS for q, _ in p.queries]
    assert all(used(e) <= NAMES for e in exprs)


def test_every_metric_is_on_the_dashboard():
    shown = set().union(*(used(q) for p in PANELS for q, _ in p.queries))
    bare = {n.removesuffix("_bucket") for n in shown}
    assert {m.name for m in METRICS} - bare == set()


def test_the_dashboard_is_whole():
    page = dashboard()
    json.dumps(page, allow_nan=False)
    places = [tuple(p["gridPos"].values()) for p in page["panels"]]
    assert len(set(places)) == len(places)
    assert len({p["id"] for p in page["panels"]}) == len(places)
    assert all(p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 for p in page["panels"])
    variables = {v["name"] for v in page["templating"]["list"]}
    for panel in PANELS:
        for query, _ in panel.queries:
            import re

            assert set(re.findall(r"\$(\w+)", query)) - {"__rate_interval"} <= variables
    links = json.dumps(page["links"])
    assert "moexray-traces" in links
    assert "${hook}/reports" in links


def test_exemplars_lead_to_the_traces():
    metrics, traces = datasources("http://p", "http://j")["datasources"]
    [to] = metrics["jsonData"]["exemplarTraceIdDestinations"]
    assert (to["name"], to["datasourceUid"]) == ("trace_id", traces["uid"])
    back = traces["jsonData"]["tracesToMetrics"]
    assert back["datasourceUid"] == metrics["uid"]
    skew = next(m for m in METRICS if m.name == "moex_expert_skew_index")
    assert {t["value"] for t in back["tags"]} == set(skew.label_names)
    assert all(used(q["query"]) <= NAMES for q in back["queries"])
    assert any(t["exemplar"] for p in dashboard()["panels"] for t in p["targets"])


def test_the_collector_counts_spans_before_it_samples(written):
    """No collector is installed here: its keys are checked, it was not run."""
    config = yaml.safe_load((written / "otel-collector.yml").read_text())
    pipelines = config["service"]["pipelines"]
    for pipe in pipelines.values():
        for part, known in (("receivers", ("receivers", "connectors")), ("exporters", ("exporters", "connectors")),
                            ("processors", ("processors",))):  # fmt: skip
            assert all(any(name in config[k] for k in known) for name in pipe.get(part, ()))
    assert "spanmetrics" in pipelines["traces/all"]["exporters"]
    assert "tail_sampling" not in pipelines["traces/all"]["processors"]
    assert "tail_sampling" in pipelines["traces/kept"]["processors"]


def test_places_are_put_in(tmp_path):
    places = Places(exporter="e:1", hook="http://h:2", alertmanager="a:3", runbooks="https://r/live.md")
    texts = {name: text for t in TARGETS for name, text in t.files(places).items()}
    assert "e:1" in texts["prometheus.yml"]
    assert "a:3" in texts["prometheus.yml"]
    assert "http://h:2/alerts" in texts["alertmanager.yml"]
    assert "https://r/live.md#moexroutingdrift" in texts["moexray-rules.yml"]
