"""kernel.tail_shapes and mem.oversubscription from benchmark tables."""

import json

import pytest

from load_samples import said

HEAD = "backend,concurrency,mean_itl_ms,median_itl_ms,p99_itl_ms\n"


def test_medians_agree_and_tails_do_not():
    found = said({"b.csv": HEAD + "triton,32,21,20.1,31\ndeepgemm,32,24,20.9,140\n"})
    assert list(found) == ["kernel.tail_shapes"]
    assert found["kernel.tail_shapes"].value == pytest.approx(140 / 31)
    assert "slow in deepgemm" in found["kernel.tail_shapes"].claim


def test_the_mean_gives_it_away_without_percentiles():
    runs = {"a": {"mean_itl_ms": 22.0, "median_itl_ms": 20.0}, "b": {"mean_itl_ms": 62.0, "median_itl_ms": 21.0}}
    assert said({"b.json": json.dumps(runs)})["kernel.tail_shapes"].value == pytest.approx(62 / 21)


@pytest.mark.parametrize(
    "rows",
    ["triton,32,21,20,31\ndeepgemm,32,22,21,80\n", "triton,32,21,20,31\ndeepgemm,32,41,40,200\n",
     "triton,32,21,20,31\ndeepgemm,64,24,21,200\n", "triton,32,50,20,310\ndeepgemm,32,52,21,320\n"],
    ids=["less-than-3x", "medians-differ", "other-load", "both-tails"],
)
def test_no_tail(rows):
    assert "kernel.tail_shapes" not in said({"b.csv": HEAD + rows})


def test_a_compilation_explains_the_spikes():
    log = "INFO:     Application startup complete.\n[2025-04-16 08:13:14 TP0] DeepGEMM JIT code generation <gemm>: M=7843, N=576, K=7168.\n"
    files = {"b.csv": HEAD + "triton,32,21,20.1,31\ndeepgemm,32,24,20.9,140\n", "server.log": log}
    assert "kernel.tail_shapes" not in said(files)


def table(last, head="batch,peak_mem_gib,card_gib,tok_s"):
    rows = ("1,10.5,24,100", "2,14,24,190", "4,20,24,370", last)
    return {"b.csv": head + "\n" + "\n".join(rows) + "\n"}


def test_throughput_falls_where_the_peak_passes_the_card():
    finding = said(table("8,26.4,24,41"))["mem.oversubscription"]
    assert (finding.severity, finding.value) == ("warn", pytest.approx(1.1))
    assert "at level 8" in finding.claim


def test_steps_get_slow_instead():
    rows = "batch,peak_mem_gib,card_gib,step_ms\n1,10,24,50\n2,14,24,55\n4,20,24,60\n8,26.4,24,490\n"
    assert "mem.oversubscription" in said({"b.csv": rows})


def test_an_unknown_card_lowers_the_confidence():
    runs = [{"batch": b, "peak_mem_gib": m, "tok_s": s} for b, m, s in ((1, 10, 100), (2, 14, 190), (4, 20, 370), (8, 26.4, 41))]
    finding = said({"b.json": json.dumps(runs)})["mem.oversubscription"]
    assert finding.confidence <= 0.6
    assert finding.settle_with


@pytest.mark.parametrize("last", ["8,23.5,24,41", "8,24.0,24,41"], ids=["below-the-card", "just-full"])
def test_no_oversubscription(last):
    assert said(table(last)) == {}


def test_unlike_models_are_no_cliff():
    rows = "model,peak_mem_gib,tok_s\nsmall,10,400\nlarge,40,50\n"
    assert said({"b.csv": rows}) == {}


def result(p50, p99, mean, **more):
    return json.dumps({"backend": "vllm", "max_concurrency": 64, "mean_itl_ms": mean, "median_itl_ms": p50, "p99_itl_ms": p99, **more})


def test_files_of_one_backend_are_compared_and_told_apart():
    finding = said({"a.json": result(30, 40, 31), "b.json": result(31, 205, 39)})["kernel.tail_shapes"]
    assert "slow in b.json" in finding.claim
    assert said({"a.json": result(30, 40, 31), "b.json": result(31, 115, 39)}) == {}
    assert said({"a.json": result(30, 40, 31), "b.json": result(31, 205, 39, max_concurrency=8)}) == {}


BOX = """                NVIDIA GenAI-Perf | LLM Metrics
\u2503                Statistic \u2503    avg \u2503    p99 \u2503    p50 \u2503
\u2502 Inter Token Latency (ms) \u2502  26.00 \u2502 {p99} \u2502  22.00 \u2502
\u2502     Request Latency (ms) \u2502 3,000.00 \u2502 3,500.00 \u2502 2,900.00 \u2502
"""
CONSOLE = """Benchmarks Stats:
====================================================
Metadata     | Request Stats         || ITL (ms)           |||
    Benchmark| Per Second| Concurrency| mean| median|     p99
-------------|-----------|------------|-----|-------|--------
 synchronous |       0.37|        1.00| 24.1|   24.0| {p99}
"""


@pytest.mark.parametrize("form", [BOX, CONSOLE, "| backend | p50 ITL (ms) | p99 ITL (ms) |\n|---|---|---|\n| x | 20 | {p99} |\n"])
def test_drawn_tables(form):
    assert "kernel.tail_shapes" in said({"a.txt": form.format(p99="30.00"), "b.txt": form.format(p99="140.0")})
    assert "kernel.tail_shapes" not in said({"a.txt": form.format(p99="30.00"), "b.txt": form.format(p99="40.0")})


def test_percentiles_of_a_kernel_without_a_quantity():
    assert "kernel.tail_shapes" in said({"a.csv": "kernel,median_us,p99_us,mean_us\nA,12.5,13.9,12.6\nB,12.9,61.0,15.4\n"})


def test_a_peak_above_the_card_is_enough():
    rows = "batch_size,tok_s,peak_mem_gib,total_mem_gib\n8,800,10.1,24\n24,2100,20.7,24\n32,{s},{p},24\n"
    finding = said({"a.csv": rows.format(s=1900, p=26.3)})["mem.oversubscription"]
    assert (finding.severity, finding.value) == ("warn", pytest.approx(26.3 / 24))
    assert said({"a.csv": rows.format(s=400, p=23.9)}) == {}
