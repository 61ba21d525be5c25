"""DeepEP lines: who waits for whom, the low-latency assertion, limits of launch lines."""

import pytest

from comm_samples import read

TIMEOUTS = [
    ("DeepEP dispatch NVL receiver timeout, channel: 9, RDMA: 0, nvl: 5, src RDMA: 2, src nvl: 6, start: 0, end: 0",
     {"phase": "dispatch", "role": "receiver", "receiver": "node 0 gpu 5", "src_node": 2, "src_gpu": 6}),
    ("DeepEP combine RDMA receiver timeout, channel: 1, RDMA: 3, nvl: 1, src RDMA: 0, tail: 4, waiting: 7, expect: 0",
     {"phase": "combine", "receiver": "node 3 gpu 1", "src_node": 0, "src_gpu": None}),
    ("DeepEP dispatch forwarder timeout (RDMA meta), channel: 2, RDMA: 1, nvl: 4, src RDMA lane: 3, dst NVL: 4, meta: 0, 0, 0, 0",
     {"role": "forwarder", "receiver": "node 1 gpu 4", "src_node": 3}),
    ("DeepEP timeout for dispatch receivers, rank 3, responsible_channel = 4, tokens remained: 12",
     {"receiver": "rank 3", "src_node": None, "src_rank": None, "rank": 3}),
    ("Warning: DeepEP timeout for combine receive, rank 5, local_expert_idx 1, src_rank 2",
     {"phase": "combine", "receiver": "rank 5", "src_rank": 2}),
]  # fmt: skip
ASSERTION = "RuntimeError: Failed: Assertion error /x/deep_ep.cpp:1025 'x.size(0) == topk_idx.size(0) and x.size(0) <= num_max_dispatch_tokens_per_rank'"


def events(text, kind):
    return [r for r in read({"s.log": text}).rows("a2a_event") if r["kind"] == kind]


@pytest.mark.parametrize(("line", "want"), TIMEOUTS, ids=[str(i) for i in range(len(TIMEOUTS))])
def test_timeouts_of_the_kernels(line, want):
    rows = events(f"(W pid=3) {line}\n", "timeout")
    assert len(rows) == 1
    assert {k: rows[0][k] for k in want} == want


def test_the_host_s_timeout_is_another_kind():
    rows = events("[2026-04-19 08:05:13 DP1 TP3 EP3] RuntimeError: DeepEP error: timeout (dispatch CPU)\n", "cpu_timeout")
    assert [(r["phase"], r["rank"]) for r in rows] == [("dispatch", 3)]


def test_an_assertion_carries_the_batch_that_its_worker_logged_before():
    text = (
        "[2025-05-14 03:58:30 DP0 TP0] Prefill batch. #new-seq: 4, #new-token: 4096, #cached-token: 0\n"
        "[2025-05-14 03:58:31 DP1 TP1] Prefill batch. #new-seq: 1, #new-token: 64, #cached-token: 0\n"
        f"[2025-05-14 03:58:33 DP0 TP0] {ASSERTION}\n"
    )
    rows = events(text, "assertion")
    assert [r["batch"] for r in rows] == [4096]
    assert "#new-token: 4096" in rows[0]["batch_text"]


@pytest.mark.parametrize("text", [
    "    EP_HOST_ASSERT(x.size(0) == topk_idx.size(0) and x.size(0) <= num_max_dispatch_tokens_per_rank);\n",
    "The server dies when x.size(0) <= num_max_dispatch_tokens_per_rank does not hold.\n",
    "if you see 'Failed: Assertion error deep_ep.cpp:1025 x.size(0) <= num_max_dispatch_tokens_per_rank', use auto mode\n",
])  # fmt: skip
def test_source_and_sentences_are_no_assertion(text):
    assert events("INFO 03-11 11:00:00 [a.py:1] hello\n" + text, "assertion") == []


@pytest.mark.parametrize(("line", "want"), [
    ("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=256 python -m sglang.launch_server --model-path M --node-rank 1",
     {"limit": 256, "node": "node 1", "scope": "M"}),
    ("export SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK='64'", {"limit": 64, "node": None}),
    ('  - name: SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK: "512"', {"limit": 512}),
    ("[2025-05-14 03:58:30 DP0 TP0 EP0] buffer: num_max_dispatch_tokens_per_rank=128", {"limit": 128, "rank": 0}),
    ("VAR=1 SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=32 sglang serve --disaggregation-mode decode", {"limit": 32, "scope": "decode"}),
])  # fmt: skip
def test_limits(line, want):
    rows = events(line + "\n", "limit")
    assert len(rows) == 1
    assert {k: rows[0][k] for k in want} == want


def test_a_limit_in_a_manifest_and_beside_a_rank():
    manifest = '      - name: SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK\n        value: "512"\n'
    assert [r["limit"] for r in events(manifest, "limit")] == [512]
    rows = events("rank 3: SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=64\n", "limit")
    assert [(r["limit"], r["node"]) for r in rows] == [(64, "node 3")]
