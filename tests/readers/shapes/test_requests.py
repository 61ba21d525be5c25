import json
import math

import pytest

from load_samples import read

TIMES = {"r0": [1.0, 1.02, 1.04], "r1": [1.5, 1.52, 2.5]}


def gaps(run):
    [batch] = run.batches("gaps")
    return [(int(r), round(float(g), 6)) for r, g in zip(batch.columns["request"], batch.columns["gap_s"], strict=True)]


def test_one_row_per_request():
    text = "request_id,arrival_s,ttft_ms,e2e_ms,output_tokens,itl_p50_ms,itl_max_ms,status\n"
    text += "r0,0.5,20,900,60,11,76,ok\nr1,0.6,N/A,800,50,11,12,timeout\n"
    run = read({"requests.csv": text})
    [batch] = run.batches("requests")
    assert list(batch.columns["arrival_s"]) == [0.5, 0.6]
    assert batch.columns["ttft_s"][0] == 0.02
    assert math.isnan(batch.columns["ttft_s"][1])
    assert list(batch.columns["itl_max_s"]) == [0.076, 0.012]
    assert batch.attrs["statuses"] == {"timeout": 1}
    assert run.inputs[0].rows == 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.json", json.dumps(TIMES)),
        ("t.json", json.dumps({"token_times_s": TIMES})),
        ("t.json", json.dumps({"token_times_ms": {k: [t * 1000 for t in v] for k, v in TIMES.items()}})),
        ("t.jsonl", "\n".join(json.dumps({"id": k, "token_times": v}) for k, v in TIMES.items())),
        ("t.csv", "request,token,t_s\n" + "".join(f"{k},{i},{t}\n" for k, v in TIMES.items() for i, t in enumerate(v))),
    ],
    ids=["bare", "named", "milliseconds", "json-lines", "csv"],
)
def test_token_times_become_gaps(name, text):
    assert gaps(read({name: text})) == [(0, 0.02), (0, 0.02), (1, 0.02), (1, 0.98)]


def test_gaps_of_a_detailed_benchmark_beside_its_summary():
    body = {"mean_ttft_ms": 30, "p99_tpot_ms": 21, "ttfts": [0.1, 0.2], "itls": [[0.02, 0.02], [0.02, 0.98]]}
    run = read({"b.json": json.dumps(body)})
    assert gaps(run) == [(0, 0.02), (0, 0.02), (1, 0.02), (1, 0.98)]
    assert {r["figure"] for r in run.rows("bench")} == {"mean_ttft_s", "p99_tpot_s"}


def test_start_times_give_the_gaps_a_clock():
    body = {"start_times": [10.0], "ttfts": [0.5], "itls": [[0.25, 0.25]]}
    [batch] = read({"b.json": json.dumps(body)}).batches("gaps")
    assert list(batch.columns["t_s"]) == [10.75, 11.0]


def test_a_row_per_token_with_its_gap():
    text = "request_id,t_s,itl_ms\n" + "".join(f"r{i % 2},{i},{20 + i}\n" for i in range(6))
    run = read({"t.csv": text})
    assert [g for _, g in gaps(run)] == [0.02, 0.022, 0.024, 0.021, 0.023, 0.025]


STAMPS = [[1_764_000_000_000_000_000 + int(1e7 * t) for t in range(4)] for _ in range(2)]
FORMS = [
    "\n".join(json.dumps({"metadata": {}, "metrics": {"inter_chunk_latency": {"value": [10.0] * 3, "unit": "ms"}}}) for _ in STAMPS),
    json.dumps({"experiments": [{"requests": [{"timestamp": 1, "response_timestamps": t} for t in STAMPS]}]}),
    json.dumps({"requests": [{"token_timestamps": [x / 1e9 for x in t]} for t in STAMPS]}),
    json.dumps({"token_times": {f"r{i}": [x / 1e6 for x in t] for i, t in enumerate(STAMPS)}}),
]


@pytest.mark.parametrize("text", FORMS)
def test_gaps_of_load_generators(text):
    [batch] = read({"a.json": text}).batches("gaps")
    assert list(batch.columns["gap_s"]) == pytest.approx([0.01] * 6, rel=1e-4)


def test_detailed_results_have_the_requests_too():
    body = {
        "mean_ttft_ms": 300, "p99_tpot_ms": 21, "start_times": [1.0, 2.0, 3.0], "ttfts": [0.1, 0.0, 0.5],
        "itls": [[0.02, 0.02], [], [0.25]], "output_lens": [3, 0, 2],
    }  # fmt: skip
    [batch] = read({"bench.json": json.dumps(body)}).batches("requests")
    assert batch.columns["arrival_s"] == [1.0, 2.0, 3.0]
    assert batch.columns["ttft_s"][::2] == [0.1, 0.5]
    assert math.isnan(batch.columns["ttft_s"][1])
    assert batch.columns["e2e_s"][::2] == [0.14, 0.75]
    assert batch.columns["output_tokens"] == [3.0, 0.0, 2.0]
