"""Seen, not judged: told beside the findings with figures, never a finding, never for a word alone."""

import json

import pytest
from click.testing import CliRunner

from moexray.core.source import Source
from moexray.diagnose.engine import diagnose
from moexray.faces.cli.main import main
from moexray.readers.read_any import read_sources

STAMP = "INFO 11-28 10:{:02d}:{:02d} [loggers.py:118]"


def seen(files):
    run = read_sources([Source(name, content=text.encode()) for name, text in files.items()])
    answer = diagnose(run)
    assert not answer.findings
    assert not answer.failures
    return {entry["what"]: entry for entry in answer.exhibits.get("seen", [])}


def stats(rates, *, running=8):
    return "\n".join(
        f"{STAMP.format(i // 6, i % 6 * 10)} Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 90.0 tokens/s, "
        f"Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: 40.1%, Prefix cache hit rate: {rate:.1f}%"
        for i, rate in enumerate(rates)
    )


def spec(pairs):
    return "\n".join(
        f"{STAMP.format(i // 6, i % 6 * 10)} SpecDecoding metrics: Mean acceptance length: 2.77, Accepted throughput: 5.50 tokens/s, "
        f"Drafted throughput: 6.20 tokens/s, Accepted: {a} tokens, Drafted: {d} tokens, Per-position acceptance rate: 0.9, 0.8, "
        f"Avg Draft acceptance rate: {100 * a / d:.1f}%"
        for i, (a, d) in enumerate(pairs)
    )


def test_a_fall_of_the_prefix_cache():
    entry = seen({"s.log": stats([62.0] * 6 + [50.0] * 6 + [20.0] * 6)})["prefix-cache hits"]
    assert "falls from 62% to 20%" in entry["text"]
    assert entry["evidence"][0]["where"].startswith("line")


@pytest.mark.parametrize(
    "rates", [[62.0] * 18, [20.0] * 6 + [62.0] * 12, [62.0] * 9 + [48.0] * 9, [62.0, 20.0, 10.0]], ids=["level", "rise", "small", "few"]
)
def test_no_fall_is_told_where_there_is_none(rates):
    assert not seen({"s.log": stats(rates)})


def test_two_servers_are_not_one_that_falls():
    assert not seen({"a.log": stats([62.0] * 9), "b.log": stats([20.0] * 9)})


def test_an_idle_server_has_no_rate():
    assert not seen({"s.log": stats([62.0] * 9 + [0.0] * 9, running=0)})


def test_a_fall_of_acceptance_by_counts():
    entry = seen({"s.log": spec([(88, 100)] * 8 + [(30, 100)] * 8)})["speculative acceptance"]
    assert "from 88% to 30%" in entry["text"]


def page(hits, queries, seconds=0.0, count=0):
    return (
        f'vllm:prefix_cache_queries_total{{engine="0",model_name="m"}} {queries}\nvllm:prefix_cache_hits_total{{engine="0",model_name="m"}} {hits}\n'
        f'vllm:nixl_xfer_time_seconds_count{{engine="0",model_name="m"}} {count}\nvllm:nixl_xfer_time_seconds_sum{{engine="0",model_name="m"}} {seconds}\n'
        'vllm:num_requests_running{engine="0",model_name="m"} 4\n'
    )


def test_a_fall_by_counters_of_scrapes():
    hits, files = 0, {}
    for i in range(12):
        hits += 60 if i < 6 else 10
        files[f"m{i:02d}.prom"] = page(hits, 100 * (i + 1))
    assert "from 60% to 10%" in seen(files)["prefix-cache hits"]["text"]


def test_transfers_of_scrapes_are_totals_not_sums_over_scrapes():
    entry = seen({"a.prom": page(1, 10, 0.5, 10), "b.prom": page(2, 20, 1.0, 20)})["KV-transfer waits"]
    assert entry["text"] == "20 transfers of KV cache took 50 ms each on average, 1 s in sum"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("KV Transfer metrics: Num successful transfers=12, Avg xfer time (ms)=18.5, P90 xfer time (ms)=40.1, Throughput (MB/s)=94.1",
         "12 transfers of KV cache took 18.5 ms each on average, 0.222 s in sum"),
        ("LMCache INFO: [req_id=cmpl-1] Retrieved 6035 out of 6035 required tokens (from 6035 total tokens). size: 0.2344 gb, cost 13.304 ms, throughput: 17.6 GB/s;",
         "1 transfer of KV cache took 13.3 ms each on average, 0.0133 s in sum"),
        ("Decode batch, #running-req: 18, #token: 16384, token usage: 0.71, pre-allocated usage: 0.28, #prealloc-req: 5, #transfer-req: 3, #retracted-req: 0, cuda graph: True, gen throughput (token/s): 2520.18, #queue-req: 0",
         "up to 3 requests wait for a transfer of KV cache, in 1 of the logged batches"),
    ],
    ids=["nixl", "lmcache", "sglang"],
)  # fmt: skip
def test_waits_for_kv_cache_in_logs(line, text):
    assert seen({"s.log": f"{STAMP.format(0, 0)} {line}\n"})["KV-transfer waits"]["text"] == text


@pytest.mark.parametrize(
    "line",
    [
        "NIXL is available", "Using NixlConnector for KV transfer", "Mooncake KV transfer backend loaded", "P2pNcclEngine.__init__ START",
        "KV Transfer metrics: Num successful transfers=0",
        "Decode batch, #running-req: 18, #token: 16384, token usage: 0.71, #transfer-req: 0, gen throughput (token/s): 2520.18, #queue-req: 0",
    ],
)  # fmt: skip
def test_a_word_is_no_evidence(line):
    assert not seen({"s.log": f"{STAMP.format(0, 0)} {line}\n"})


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("python -m sglang.launch_server --model m --disaggregation-mode decode", "this server does decode only"),
        ("""vllm serve m --kv-transfer-config '{"kv_connector":"P2pNcclConnector","kv_role":"kv_producer"}'""", "this server is its kv_producer, by P2pNcclConnector"),
        ("""vllm serve m --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'""", "KV cache goes to other servers or tiers, by LMCacheConnectorV1"),
    ],
    ids=["sglang", "vllm", "lmcache"],
)  # fmt: skip
def test_a_deployment_by_its_settings(line, text):
    assert seen({"run.sh": line + "\n"})["disaggregation"]["text"].endswith(text)


def test_transfers_of_iteration_statistics():
    rows = [{"iter": i, "iterLatencyMS": 20.0, "requestStats": [{"id": i, "disServingStats": {"kvCacheTransferMS": 5.0, "kvCacheSize": 9}}]} for i in range(4)]
    assert seen({"i.json": json.dumps(rows)})["KV-transfer waits"]["text"].startswith("4 transfers of KV cache took 5 ms each")


def test_the_screen_says_it_is_not_judged_and_quotes_no_secrets(tmp_path):
    line = """HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789 vllm serve m --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}'\n"""
    (tmp_path / "run.sh").write_text(line + stats([62.0] * 9 + [20.0] * 9))
    result = CliRunner().invoke(main, ["diagnose", str(tmp_path)])
    assert result.exit_code == 0
    assert "verdict: none" in result.stdout
    assert "seen, not judged: disaggregation: a disaggregated deployment" in result.stdout
    assert "hf_abcdef" not in result.stdout


SANITIZER = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at scale_rows+0x10 in /src/a.cu:3
=========     by thread (1,0,0) in block (0,0,0)
=========     Address 0x7f0 is out of bounds
=========
========= ERROR SUMMARY: {} errors
"""


def test_errors_of_a_sanitizer_are_told():
    entry = seen({"san.txt": SANITIZER.format(1)})["memory errors"]
    assert "wrong access to GPU memory, in scale_rows" in entry["text"]
    assert "Invalid __global__ read" in entry["evidence"][0]["text"]


def test_a_clean_sanitizer_is_silent():
    clean = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
    assert seen({"san.txt": clean}) == {}
