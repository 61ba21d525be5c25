"""The page against the parsers of prometheus_client, and the laws of its ceiling and counters."""

import ast
import math
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from moexray.live.metrics import DROPS, METRICS, SCOPE, metric
from moexray.live.page import LABEL_LENGTH, Page

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def filled(page=None):
    """A page that holds a series of every metric."""
    page = page or Page()
    scope = page.scope(model="M", engine="vllm", rank=0)
    for m in METRICS:
        labels = [f"{name}-1" for name in m.labels]
        if m.kind == "gauge":
            scope.set(m.name, 0.25, *labels)
        elif m.kind == "counter":
            scope.add(m.name, 3, *labels)
        else:
            scope.observe(m.name, 0.002, *labels, trace_id=TRACE)
    return page


def samples_of(page, parser, *, modern):
    text = page.render(openmetrics=modern).decode()
    return [s for family in parser(text) for s in family.samples]


@pytest.mark.parametrize(("parser", "modern"), [(openmetrics, True), (plain, False)])
def test_every_metric_reads_back_with_name_labels_and_value(parser, modern):
    page = filled()
    read = {(s.name, tuple(sorted(s.labels.items()))): s.value for s in samples_of(page, parser, modern=modern)}
    expected = {(s.name, tuple(sorted(s.labels))): s.value for s in page.samples()}
    assert read == pytest.approx(expected)
    assert len(read) == page.series


def test_exemplars_stand_in_openmetrics_only():
    page = filled()
    marks = [s.exemplar for s in samples_of(page, openmetrics, modern=True) if s.exemplar]
    histograms = [m for m in METRICS if m.kind == "histogram"]
    assert [(m.labels, m.value) for m in marks] == [({"trace_id": TRACE}, 0.002)] * len(histograms)
    assert TRACE not in page.render(openmetrics=False).decode()


def test_units_end_the_names_and_help_is_there():
    for m in METRICS:
        assert m.name.startswith("moex_")
        assert ":" not in m.name
        assert m.name.endswith("_total") == (m.kind == "counter")
        assert m.help.endswith(".")
        assert set(SCOPE).isdisjoint(m.labels)


def test_empty_labels_are_left_out():
    page = Page()
    page.scope(model="M").set("moex_expert_skew_index", 0.5, 3)
    [sample] = [s for s in page.samples() if s.name == "moex_expert_skew_index"]
    assert sample.labels == (("model", "M"), ("layer", "3"))


@given(st.text(max_size=LABEL_LENGTH))
def test_any_label_reads_back(text):
    page = Page()
    page.scope(model=text).set("moex_expert_skew_index", 1, 0)
    [sample] = [s for s in samples_of(page, openmetrics, modern=True) if s.name == "moex_expert_skew_index"]
    assert sample.labels.get("model", "") == text


def test_a_value_that_is_not_finite_takes_the_series_away():
    page = Page()
    scope, before = page.scope(), page.series
    scope.set("moex_expert_skew_index", 0.5, 0)
    assert page.series == before + 1
    scope.set("moex_expert_skew_index", math.nan, 0)
    assert page.series == before
    scope.set("moex_expert_skew_index", math.inf, 0)
    assert page.value("moex_expert_skew_index", "", "", "", 0) is None


def test_the_ceiling_holds_and_says_what_it_refused():
    page = Page(ceiling=50)
    scope = page.scope()
    for layer in range(80):
        scope.set("moex_expert_skew_index", 0.5, layer)
    scope.observe("moex_decode_step_duration_seconds", 0.1)
    assert len(page.samples()) == page.series == 50 + page.own_series
    assert page.value("moex_exporter_dropped_total", "series", "ceiling") == 80 - 50 + 1


def test_what_was_replaced_makes_room():
    page = Page(ceiling=10)
    scope = page.scope()
    for first in range(5):
        experts = {("0", str(first * 10 + e)): e + 1.0 for e in range(10)}
        scope.replace("moex_expert_tokens_total", experts)
        shown = {s.labels[1][1] for s in page.samples() if s.name == "moex_expert_tokens_total"}
        assert shown == {e for _, e in experts}
    assert page.value("moex_exporter_dropped_total", "series", "ceiling") == 0


def test_replace_leaves_other_scopes_alone():
    page = Page()
    page.scope(rank=1).replace("moex_memory_reserved_bytes", {("0", "default"): 5.0})
    page.scope(rank=0).replace("moex_memory_reserved_bytes", {})
    assert page.value("moex_memory_reserved_bytes", "", "", 1, 0, "default") == 5


def test_a_counter_of_the_source_that_starts_anew_goes_on_here():
    page = Page()
    for raw in (5, 7, 2, 2, 3):
        page.scope().follow("moex_allocator_retries_total", raw, 0)
    assert page.value("moex_allocator_retries_total", "", "", "", "0") == 7 + 3


def test_counters_do_not_fall():
    with pytest.raises(ValueError, match="cannot fall"):
        Page().scope().add("moex_spike_total", -1, "unknown")


def test_wrong_labels_are_a_bug_of_ours():
    with pytest.raises(ValueError, match="has the labels"):
        Page().scope().add("moex_spike_total", 1)
    with pytest.raises(KeyError):
        metric("moex_nothing")


def test_buckets_add_up():
    page = Page()
    scope, values = page.scope(), (0.0005, 0.001, 0.0011, 3.0, 100.0)
    for value in values:
        scope.observe("moex_decode_step_duration_seconds", value)
    read = {s.labels.get("le", s.name): s.value for s in samples_of(page, openmetrics, modern=True) if "step" in s.name}
    assert read["0.001"] == 2  # a border belongs to its bucket
    assert read["0.0025"] == 3
    assert read["5.0"] == 4
    assert read["+Inf"] == read["moex_decode_step_duration_seconds_count"] == 5
    assert read["moex_decode_step_duration_seconds_sum"] == pytest.approx(sum(values))


def test_no_update_of_any_thread_is_lost():
    page = Page()

    def work():
        for _ in range(2000):
            page.scope().add("moex_spike_total", 1, "unknown")
            page.scope().observe("moex_decode_step_duration_seconds", 0.01)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        page.render(openmetrics=True)
    for t in threads:
        t.join()
    assert page.value("moex_spike_total", "", "", "", "unknown") == 8000
    assert [s.value for s in page.samples() if s.name.endswith("_count")] == [8000]


def test_every_loss_is_of_the_closed_set_and_explained():
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "live.md").read_text("utf-8")
    assert len(set(DROPS)) == len(DROPS)
    for signal, reason in DROPS:
        assert signal in page
        assert reason in page, f"docs/live.md does not say what {signal} {reason} means"
    named = set()
    for file in (root / "src" / "moexray" / "live").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "drop":
                words = [a.value for a in node.args[:2] if isinstance(a, ast.Constant)]
                if len(words) == 2:
                    named.add(tuple(words))
    assert named <= set(DROPS)
    assert len(named) > 10


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "x" * 10_000, 10**400, "\ud83d" * 500])
def test_a_label_that_no_page_can_hold_costs_no_page(text):
    page = Page()
    page.scope(model=text, rank=text).add("moex_expert_tokens_total", 1, text, text)
    found = openmetrics(page.render(openmetrics=True).decode())
    [sample] = [s for f in found for s in f.samples if s.name == "moex_expert_tokens_total"]
    assert max(map(len, sample.labels.values())) <= LABEL_LENGTH
    page.scope(model=text, rank=text).set("moex_expert_skew_index", 0.5, text)
    page.scope(model=text, rank=text).set("moex_expert_skew_index", math.nan, text)  # the same series
    assert "moex_expert_skew_index" not in {s.name for s in page.samples()}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1])
def test_what_is_no_count_changes_no_counter(value):
    page = Page()
    scope = page.scope()
    scope.follow("moex_allocator_retries_total", 3, 0)
    scope.follow("moex_allocator_retries_total", value, 0)
    scope.observe("moex_decode_step_duration_seconds", 0.5)
    scope.observe("moex_decode_step_duration_seconds", value)
    with pytest.raises(ValueError, match="moex_spike_total cannot"):
        scope.add("moex_spike_total", value, "unknown")
    assert page.value("moex_allocator_retries_total", "", "", "", "0") == 3
    assert page.value("moex_decode_step_duration_seconds", "", "", "") == 0.5


@pytest.mark.parametrize("jump_s", [-86_400, 86_400])
def test_a_clock_that_jumps_does_not_hide_that_data_are_old(monkeypatch, jump_s):
    """The alert on stale data must neither sleep for a day nor fire for one."""
    page, day, run = Page(), 1_000_000_000.0, 5_000.0
    monkeypatch.setattr("moexray.live.page.time.time", lambda: day)
    monkeypatch.setattr("moexray.live.page.time.monotonic", lambda: run)
    page.fresh(day - 2)
    day, run = day + jump_s + 60, run + 60
    page.samples()
    assert page.value("moex_exporter_lag_seconds") == 62
