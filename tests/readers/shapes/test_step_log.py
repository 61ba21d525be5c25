import json

import pytest

from load_samples import read

WIDE = "step,step_ms,prefill_tokens_dp0,prefill_tokens_dp1\n0,30,0,0\n1,280,512,0\n2,290,512,512\n"
LONG = "step,dp_rank,step_ms,prefill_tokens\n0,0,30,0\n0,1,29,0\n1,0,280,512\n1,1,270,0\n2,0,290,512\n2,1,290,512\n"
LINES = [{"step": s, "step_ms": d, "prefill_tokens": p} for s, d, p in ((0, 30, [0, 0]), (1, 280, [512, 0]), (2, 290, [512, 512]))]


@pytest.mark.parametrize(
    ("name", "text"),
    [("s.csv", WIDE), ("s.csv", LONG), ("s.jsonl", "\n".join(map(json.dumps, LINES))), ("s.json", json.dumps({"steps": LINES}))],
    ids=["wide", "long", "json-lines", "json"],
)
def test_all_forms_give_the_same_steps(name, text):
    [batch] = read({name: text}).batches("steps")
    assert list(batch.columns["step"]) == [0, 1, 2]
    assert list(batch.columns["dur_s"]) == [0.03, 0.28, 0.29]
    assert list(batch.columns["prefill_tokens"]) == [0, 512, 1024]
    assert list(batch.columns["prefill_ranks"]) == [0, 1, 2]
    assert batch.attrs["ranks"] == 2


def test_a_phase_column_says_whether():
    [batch] = read({"s.csv": "step,step_ms,phase\n0,30,decode\n1,280,prefill\n"}).batches("steps")
    assert list(batch.columns["prefill_ranks"]) == [0, 1]


def test_iteration_statistics_of_an_engine():
    line = {"iter": 4, "iterLatencyMS": 12.5, "numActiveRequests": 8, "inflightBatchingStats": {"numCtxTokens": 700}}
    [batch] = read({"i.jsonl": "\n".join([json.dumps(line)] * 2)}).batches("steps")
    assert (batch.columns["dur_s"][0], batch.columns["prefill_tokens"][0], batch.columns["batch"][0]) == (0.0125, 700, 8)


def test_a_series_without_prefill_is_not_a_step_log():
    assert not read({"s.csv": "step,t_s,itl_ms\n0,1,30\n1,2,31\n"}).batches("steps")


OTHER = [
    "iteration,elapsed_ms,batch_type\n{0},{1},{2}\n",
    "step,latency_ms,forward_mode\n{0},{1},{2}\n",
    "step,ts_s,itl_ms,extend_tokens\n{0},{4},{1},{3}\n",
    "step,t_ms,has_prefill\n{0},{1},{5}\n",
    "step,latency,num_prefill_reqs\n{0},{1},{6}\n",
    "step,step_ms,chunk_tokens\n{0},{1},{3}\n",
]
ROWS = [(s, 160.0 - s / 100 if s % 3 == 0 else 25.0, "EXTEND" if s % 3 == 0 else "DECODE", 512 if s % 3 == 0 else 0, 5 + s / 10,
         s % 3 == 0, int(s % 3 == 0)) for s in range(12)]


@pytest.mark.parametrize("form", OTHER)
def test_other_names_of_columns(form):
    head, row = form.splitlines()
    [batch] = read({"s.csv": "\n".join([head, *(row.format(*r) for r in ROWS)]) + "\n"}).batches("steps")
    assert list(batch.columns["dur_s"]) == pytest.approx([r[1] / 1000 for r in ROWS])
    assert [r > 0 for r in batch.columns["prefill_ranks"]] == [bool(r[6]) for r in ROWS]


def test_iteration_statistics_with_nested_counts():
    lines = [{"iter": i, "iterLatencyMS": d, "gpuMemUsage": 7, "inflightBatchingStats": {"numContextRequests": n, "numCtxTokens": t}}
             for i, d, _, t, _, _, n in ROWS]
    run = read({"a.jsonl": "\n".join(map(json.dumps, lines))})
    [batch] = run.batches("steps")
    assert not run.batches("counts")
    assert list(batch.columns["prefill_tokens"]) == [r[3] for r in ROWS]
