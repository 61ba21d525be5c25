import json

import pytest

from load_samples import read

BLOCK = """INFO 01-01 10:00:00 [cli.py:1] starting
============ Serving Benchmark Result ============
Backend:                                 vllm
Traffic request rate:                    16.0
Max request concurrency:                 64
Successful requests:                     1000
Benchmark duration (s):                  556.38
Output token throughput (tok/s):         1,338.57
---------------Time to First Token----------------
Mean TTFT (ms):                          85.72
P99 TTFT (ms):                           154.51
---------------Inter-token Latency----------------
Median ITL (ms):                         13.0
Concurrency:                             31.9
==================================================
Mean TTFT (ms):                          1.0
"""


def figures(run, *more):
    return [tuple(r[k] for k in ("figure", "value", *more)) for r in run.rows("bench")]


def test_a_printed_block():
    assert figures(read({"b.txt": BLOCK}), "run", "level") == [
        ("requests", 1000.0, "vllm", 64.0),
        ("duration_s", 556.38, "vllm", 64.0),
        ("output_tokens_per_s", 1338.57, "vllm", 64.0),
        ("mean_ttft_s", 0.08572, "vllm", 64.0),
        ("p99_ttft_s", 0.15451, "vllm", 64.0),
        ("p50_itl_s", 0.013, "vllm", 64.0),
    ]


def test_two_blocks_are_two_runs():
    assert {r["order"] for r in read({"b.txt": BLOCK + BLOCK}).rows("bench")} == {0, 1}


def test_windows_have_times_and_an_order():
    text = "arm,window,t_from_s,t_to_s,output_tok_s,p99_itl_ms\nA,1,10,40,1475,26\nB,1,50,80,1400,30\n"
    run = read({"w.csv": text})
    rows = [r for r in run.rows("bench") if r["figure"] == "p99_itl_s"]
    assert [(r["run"], r["order"], r["t_from_s"], r["t_to_s"], r["value"]) for r in rows] == [
        ("A", 0, 10.0, 40.0, 0.026),
        ("B", 1, 50.0, 80.0, 0.03),
    ]
    assert run.inputs[0].rows == 2


def test_further_parameters_are_the_setting():
    text = "backend,concurrency,input_len,mean_ttft_ms\na,1,1024,20\na,1,2048,40\n"
    assert [r["setting"] for r in read({"s.csv": text}).rows("bench")] == ["input_len=1024", "input_len=2048"]


def test_repeated_runs():
    assert figures(read({"r.csv": "run,total_tok_s\n1,1187\n2,7653\n"}), "run") == [
        ("total_tokens_per_s", 1187.0, "1"),
        ("total_tokens_per_s", 7653.0, "2"),
    ]


@pytest.mark.parametrize(
    "text",
    ["Metric,avg,p99\nTime to First Token (ms),20.1,39\n", "metric,unit,avg,p99\ntime_to_first_token,ms,20.1,39\n",
     "stat,ttft_ms\nmean,20.1\np99,39\n", "percentile,ttft_ms\nmean,20.1\n99,39\n"],
)
def test_rows_of_metrics_or_of_percentiles(text):
    assert figures(read({"m.csv": text})) == [("mean_ttft_s", 0.0201), ("p99_ttft_s", 0.039)]


def test_columns_may_be_arms():
    run = read({"m.csv": "metric,baseline,new\nmean_ttft_ms,210,315\np99_itl_ms,30,31\n"})
    assert [(r["run"], r["figure"], r["value"]) for r in run.rows("bench")][:2] == [
        ("baseline", "mean_ttft_s", 0.21),
        ("new", "mean_ttft_s", 0.315),
    ]


def test_arms_in_json():
    body = {"baseline": {"p50_itl_ms": 274.9, "req_s": 22.4}, "new": {"p50_itl_ms": 32.1, "req_s": 22.6}}
    assert figures(read({"b.json": json.dumps(body)}), "run") == [
        ("p50_itl_s", 0.2749, "baseline"),
        ("requests_per_s", 22.4, "baseline"),
        ("p50_itl_s", 0.0321, "new"),
        ("requests_per_s", 22.6, "new"),
    ]


def test_a_serving_benchmark_with_its_levels_as_json_lines():
    lines = [{"backend": "sglang", "max_concurrency": c, "duration": 30.0, "mean_ttft_ms": 30, "p99_itl_ms": 9} for c in (1, 8)]
    rows = read({"r.jsonl": "\n".join(map(json.dumps, lines))}).rows("bench")
    assert {(r["run"], r["level"]) for r in rows} == {("sglang", 1.0), ("sglang", 8.0)}


def test_stats_with_a_unit_beside_them():
    body = {"time_to_first_token": {"unit": "ms", "avg": 20, "p99": 45, "std": 3},
            "output_token_throughput": {"unit": "tokens/sec", "avg": 300.5}, "input_config": {"concurrency": 8}}
    assert figures(read({"p.json": json.dumps(body)}), "level") == [
        ("mean_ttft_s", 0.02, 8.0),
        ("p99_ttft_s", 0.045, 8.0),
        ("output_tokens_per_s", 300.5, 8.0),
    ]


def test_benchmarks_of_a_sweep_with_nested_statistics():
    def one(streams, mean):
        stats = {"successful": {"mean": mean, "percentiles": {"p99": 2 * mean}}, "errored": {"mean": 1e9}}
        return {"args": {"strategy": {"type_": "concurrent", "streams": streams}},
                "metrics": {"time_to_first_token_ms": stats}}

    body = {"benchmarks": [one(8, 20.0), one(16, 30.0)]}
    assert figures(read({"g.json": json.dumps(body)}), "level", "run") == [
        ("mean_ttft_s", 0.02, 8.0, None),
        ("p99_ttft_s", 0.04, 8.0, None),
        ("mean_ttft_s", 0.03, 16.0, None),
        ("p99_ttft_s", 0.06, 16.0, None),
    ]


def test_a_document_without_figures_is_not_ours():
    run = read({"x.json": json.dumps({"torch_total_memory_bytes": 1, "note": "x"})})
    assert not run.rows("bench")
    assert run.skipped
