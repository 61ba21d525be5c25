"""The events of the live page: figures of the moment, quantiles over a window, what a look found."""

import math

import pytest

from moexray.core.finding import Evidence, Finding, Subject
from moexray.core.run import Run
from moexray.diagnose.engine import Diagnosis
from moexray.live.page import Page
from moexray.live.rolling import CHARTS, DIAGNOSES, GAUGES, POINTS, Rolling, quantile
from moexray.live.watch import Report, Spike

STEP = "moex_decode_step_duration_seconds"


def report(*ids, spikes=()):
    found = tuple(Finding(i, "warn", 0.9, f"{i}.", Subject(rank=2), evidence=(Evidence("a", "b", "c"),)) for i in ids)
    return Report(Diagnosis(Run(), found), found, tuple(spikes))


def test_a_point_takes_the_worst_layer_pool_and_sums_memory_over_ranks():
    page = Page()
    for rank, skew, live in ((0, 0.2, 3), (1, 0.6, 4)):
        scope = page.scope(rank=rank)
        scope.set("moex_expert_skew_index", skew, 5)
        scope.set("moex_expert_balancedness_ratio", 1 - skew, 5)
        scope.set("moex_memory_allocated_bytes", live, 0, "default")
    point = Rolling(page).sample(now=10.0).data
    assert (point["t_s"], point["skew"], point["live"]) == (10.0, 0.6, 7)
    assert point["balancedness"] == pytest.approx(0.4)
    assert point["fragmentation"] is None
    assert point["step_p99_s"] is None


def test_quantiles_are_those_of_the_last_minute():
    page = Page()
    rolling, scope = Rolling(page), page.scope()
    for _ in range(1000):
        scope.observe(STEP, 5.0)
    rolling.sample(now=0.0)
    for _ in range(100):
        scope.observe(STEP, 0.012)
    assert rolling.sample(now=30.0).data["step_p99_s"] < 0.1  # the slow steps came before the window
    assert rolling.sample(now=59.0).data["step_p50_s"] < 0.1
    rolling.sample(now=95.0)
    assert rolling.sample(now=96.0).data["step_p50_s"] is None


@pytest.mark.parametrize(("buckets", "q", "value"), [
    ({1.0: 0, 2.0: 10, math.inf: 10}, 0.5, 1.5),
    ({1.0: 10, 2.0: 10, math.inf: 10}, 0.9, 0.9),
    ({1.0: 0, 2.0: 0, math.inf: 4}, 0.5, 2.0),
    ({1.0: 0, math.inf: 0}, 0.5, None),
    ({}, 0.5, None),
])
def test_quantile_as_prometheus_does_it(buckets, q, value):
    assert quantile(buckets, q) == (value if value is None else pytest.approx(value))


def test_who_has_seen_event_n_gets_what_came_after():
    rolling = Rolling(Page())
    rolling.sample(now=1.0)
    rolling.told(report("mem.x", "ep.y", spikes=[Spike("lat.csv", 7, 1, 0.5, "mem.x")]))
    kinds = [(e.seq, e.kind) for e in rolling.since(0)]
    assert kinds == [(1, "point"), (2, "finding"), (3, "finding"), (4, "spike")]
    assert [e.data["id"] for e in rolling.since(1)[:2]] == ["ep.y", "mem.x"]  # prepended one by one: mem.x on top
    assert [e.seq for e in rolling.since(3)] == [4]
    spike = rolling.since(3)[0].data
    assert (spike["cause"], spike["report"], spike["source"], spike["line"]) == ("mem.x", 1, "lat.csv", 7)
    assert rolling.diagnosis(1)["verdict"] == rolling.diagnosis()["verdict"] == "mem.x"


def test_memory_is_bounded():
    rolling = Rolling(Page())
    assert rolling.diagnosis() is None
    for n in range(POINTS + 50):
        rolling.sample(now=float(n))
    for _ in range(DIAGNOSES + 3):
        rolling.told(report("mem.x"))
    assert sum(e.kind == "point" for e in rolling.since(0)) == POINTS
    assert rolling.diagnosis(1) is None
    assert rolling.diagnosis(DIAGNOSES + 3) is not None


def test_every_line_of_a_chart_is_a_key_of_a_point():
    keys = {key for chart in CHARTS for key, _ in chart.lines}
    assert keys == {*GAUGES, "step_p50_s", "step_p99_s"}
    assert keys <= set(Rolling(Page()).sample().data)


def test_a_number_of_another_server_gives_all():
    rolling = Rolling(Page())
    for n in range(3):
        rolling.sample(now=float(n))
    assert [e.seq for e in rolling.since(2)] == [3]
    assert [e.seq for e in rolling.since(3)] == []
    assert [e.seq for e in rolling.since(500)] == [1, 2, 3]
