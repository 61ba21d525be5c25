"""Latency series: names, units, clocks, ranks; tables that are none."""

import math

import pytest

from text_runs import run_of

N = 30


def table(header, row, n=N):
    return header + "\n" + "".join(row(i) + "\n" for i in range(n))


CASES = [
    ("t_s,itl_ms", lambda i: f"{i * 0.03:.3f},{30 + i}", "itl", "relative", 0.0, 0.03),
    ("step,step_time_us", lambda i: f"{i},{30000 + i}", "step", "none", math.nan, 0.03),
    ("timestamp,latency", lambda i: f"{1793324141.5 + i},0.03", "latency", "epoch", 1793324141.5, 0.03),
    ("ts_ms;tpot_s", lambda i: f"{1793324141500 + i};0.03", "tpot", "epoch", 1793324141.5, 0.03),
    ("time,e2e_ms", lambda i: f"2026-10-30 01:35:41.{i:03d},30", "e2e", "epoch", 1793324141.0, 0.03),
    ("time,ttft_ms", lambda i: f"01:35:{i:02d}.000,30", "ttft", "day", 5700.0, 0.03),
    ("start_s,step_ms", lambda i: f"{i}.0,30", "step", "relative", 0.03, 0.03),
    ("t_s,time_per_output_token_s", lambda i: f"{i * 0.03:.3f},0.03", "tpot", "relative", 0.0, 0.03),
    ("step,latency", lambda i: f"{i},30", "latency", "none", math.nan, 0.03),  # no unit: 30 is ms
]


@pytest.mark.parametrize(("header", "row", "what", "clock", "first_t", "first_v"), CASES, ids=[c[0] for c in CASES])
def test_series(header, row, what, clock, first_t, first_v):
    run = run_of(x=table(header, row))
    (batch,) = run.batches("latency")
    assert (batch.attrs["what"], batch.attrs["clock"], run.inputs[0].rows) == (what, clock, N)
    assert batch.columns["value_s"][0] == pytest.approx(first_v)
    assert batch.columns["t_s"][0] == pytest.approx(first_t, nan_ok=True)
    assert batch.columns["line"][0] == 2


def test_ranks_are_series_of_their_own():
    run = run_of(x=table("t_s,rank,step_ms", lambda i: f"{i},TP{i % 2},{30 + i % 2}"))
    assert [(b.attrs["rank"], len(b.columns["t_s"])) for b in run.batches("latency")] == [(0, 15), (1, 15)]


def test_impossible_durations_are_left_out():
    run = run_of(x=table("t_s,itl_ms", lambda i: f"{i},{-1 if i == 4 else 30}"))
    assert len(run.batches("latency")[0].columns["t_s"]) == N - 1
    assert [p.id for _, p in run.problems] == ["input.dirty_table"]


@pytest.mark.parametrize(
    "text",
    [
        table("request_id,t_s,latency_ms", lambda i: f"r{i},{i},30"),
        table("step,prefill_tokens,step_ms", lambda i: f"{i},0,30"),
        table("step,layer,expert,count", lambda i: f"{i},0,1,2"),
        table("t_s,itl_ms", lambda i: f"{i},30", n=5),
        table("concurrency,mean_itl_ms", lambda i: f"{i},30"),
    ],
)
def test_other_tables(text):
    assert run_of(x=text).batches("latency") == ()


def test_cost_of_snapshots():
    run = run_of(x="entries,with_traces_ms,without_traces_ms\n5000,70.5,0.2\n100,1.5,0.2\n")
    got = [(r["entries"], r["traces"], r["seconds"]) for r in run.rows("snapshot_cost")]
    assert got == [(5000, True, 0.0705), (5000, False, 0.0002), (100, True, 0.0015), (100, False, 0.0002)]
    assert run.inputs[0].rows == 2


@pytest.mark.parametrize(
    "text",
    [
        "".join(f'{{"ts": {1793324141.5 + i}, "itl_ms": 30, "ok": true}}\n' for i in range(N)),
        "[" + ",".join(f'{{"ts": {1793324141.5 + i}, "itl_ms": 30}}' for i in range(N)) + "]",
        '{"meta": "x", "samples": [' + ",".join(f'{{"ts": {1793324141.5 + i}, "itl_ms": 30}}' for i in range(N)) + "]}",
        "".join(f'{{"ts": {1793324141.5 + i}, "metrics": {{"itl_ms": 30, "bs": 4}}}}\n' for i in range(N)),
        f'{{"ts": {[1793324141.5 + i for i in range(N)]}, "itl_ms": {[30] * N}}}',
    ],
)
def test_series_in_json(text):
    run = run_of(x=text)
    (batch,) = run.batches("latency")
    assert (batch.attrs["what"], batch.attrs["clock"], run.inputs[0].rows) == ("itl", "epoch", N)
    assert batch.columns["value_s"][0] == pytest.approx(0.03)


def test_few_runs_in_json_are_no_series():
    run = run_of(x="[" + ",".join(f'{{"concurrency": {2**i}, "itl_ms": 30, "tok_s": 9}}' for i in range(20)) + "]")
    assert not run.batches("latency")
    assert run.rows("bench")


@pytest.mark.parametrize(
    ("header", "value"),
    [("when,forward_ms", "30"), ("finish_time_s,ms_per_step", "30"), ("start_ts,duration_ms", "30"), ("utc;dt", "0.03")],
)
def test_a_table_that_nobody_knows_with_a_time_and_a_duration(header, value):
    comma = ";" if ";" in header else ","
    run = run_of(x=table(header, lambda i: f"{1793324141.5 + i}{comma}{value if i % 2 else value + '.1' * ('.' not in value)}"))
    (batch,) = run.batches("latency")
    assert (batch.attrs["what"], batch.attrs["clock"]) == ("latency", "epoch")
    assert batch.columns["value_s"][1] == pytest.approx(0.03)
    assert run_of(x="[" + ",".join(f'{{"when": {1793324141 + i}, "forward_ms": {30 + i % 2}}}' for i in range(N)) + "]").batches("latency")


@pytest.mark.parametrize("header", ["when,watts", "when,forward_ms,backward_ms", "who,forward_ms"])
def test_other_unknown_tables_stay_unknown(header):
    columns = header.count(",")
    run = run_of(x=table(header, lambda i: ",".join([str(1793324141 + (i if "when" in header else -i)), *["30"] * columns])))
    assert not run.batches("latency")
