"""comm.no_progress and metric.per_request_average."""

import json

import numpy as np
import pytest

from load_samples import page, said
from moexray.core.limits import Limits
from moexray.core.run import Reading, build_run
from moexray.diagnose.serving.metrics import no_progress

STATE = {"running": 6, "waiting": 11, "kv": 0.4, "preempted": 0, "tokens": 815, "itl": (20.0, 900)}


def test_tokens_stand_still_while_requests_run():
    found = said({"a.prom": page({0: STATE}), "b.prom": page({0: STATE})})
    assert list(found) == ["comm.no_progress"]
    finding = found["comm.no_progress"]
    assert finding.severity == "error"
    assert "6 requests run and 11 wait" in finding.claim
    assert "815" in finding.claim


@pytest.mark.parametrize(
    "files",
    [
        {"a.prom": page({0: STATE})},
        {n: page({0: {**STATE, "running": 0}}) for n in ("a.prom", "b.prom")},
        {"a.prom": page({0: STATE}), "b.prom": page({0: {**STATE, "tokens": 816}})},
        {"a.prom": page({0: {**STATE, "tokens": 700}}), "b.prom": page({0: STATE}), "c.prom": page({0: {**STATE, "tokens": 900}})},
    ],
    ids=["one-scrape", "idle", "progress", "three-with-progress"],
)
def test_no_standstill(files):
    assert said(files) == {}


def test_two_scrapes_within_a_second_cannot_tell():
    text = page({0: STATE}, stamp=1790000000000) + page({0: STATE}, stamp=1790000001000)
    assert said({"a.prom": text})["comm.no_progress"].cannot_tell


def test_one_of_two_engines_stands():
    busy = {**STATE, "tokens": 900}
    later = {**STATE, "tokens": 950}
    found = said({"a.prom": page({0: STATE, 1: busy}), "b.prom": page({0: STATE, 1: later})})
    assert "on engine 0" in found["comm.no_progress"].claim


def spinning(seconds, util=0.99, memory=0.0, power=130.0):
    t = np.arange(0.0, seconds + 1, 10.0)
    t = np.repeat(t, 2)
    full = np.full(len(t), 1.0)
    out = Reading("text")
    columns = {"t_s": t, "device": np.tile([0, 1], len(t) // 2), "util_ratio": util * full, "mem_util_ratio": memory * full,
               "power_w": power * full, "power_limit_w": 700 * full}
    out.add_columns("gpu", columns, source="smi.csv", rows=len(t))
    return build_run([("smi.csv", out)], [])


def test_cards_that_spin_for_a_minute():
    [finding] = no_progress(spinning(120), Limits())
    assert (finding.id, finding.value) == ("comm.no_progress", 120.0)


@pytest.mark.parametrize(
    "run", [spinning(30), spinning(120, memory=0.3), spinning(120, power=500.0), spinning(120, util=0.5), spinning(120, memory=np.nan)],
    ids=["short", "memory-works", "power", "idle", "memory-unknown"],
)
def test_cards_that_work_or_idle(run):
    assert no_progress(run, Limits()) == []


def token_times(stall=0.9, requests=20, tokens=100):
    """All requests stall at the same instant."""
    return {f"r{i}": [round(0.001 * i + 0.02 * k + (stall if k > 50 else 0.0), 6) for k in range(tokens)] for i in range(requests)}


def test_per_request_means_hide_a_stall_of_the_server():
    found = said({"t.json": json.dumps({"token_times_s": token_times()})})
    assert list(found) == ["metric.per_request_average"]
    finding = found["metric.per_request_average"]
    # mean of a request: (98 x 20 ms + 920 ms) / 99 = 29.1 ms
    assert "P99 over per-request means is 29.1 ms and hides 20 gaps" in finding.claim
    assert "20 requests stall at the same instant" in finding.claim
    assert finding.value == pytest.approx(0.92)


@pytest.mark.parametrize("times", [token_times(stall=0.0), token_times(stall=0.1), token_times(tokens=60, stall=20.0)],
                         ids=["none", "five-medians", "the-mean-shows-it"])
def test_nothing_is_hidden(times):
    assert said({"t.json": json.dumps({"token_times_s": times})}) == {}
