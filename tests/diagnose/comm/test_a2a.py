"""Buffer limits, silent sources, and matrices of what was sent and received."""

import json

import pytest

from comm_samples import finding, ids, said

ASSERTION = "RuntimeError: Failed: Assertion error /x/deep_ep.cpp:1025 'x.size(0) <= num_max_dispatch_tokens_per_rank'\n"
LAUNCH = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK={} python -m sglang.launch_server --model-path M --deepep-mode low_latency {}\n"
BATCH = "[2025-05-14 03:58:30 DP0 TP0] Prefill batch. #new-seq: 4, #new-token: {}, #cached-token: 0\n"


def test_batch_against_limit():
    f = finding(said({"l.txt": LAUNCH.format(128, ""), "s.log": BATCH.format(4096) + ASSERTION}), "a2a.buffer_limit")
    assert (f.severity, f.value, f.limit, f.unit) == ("error", 4096, 128, "tokens")
    assert {r.id for r in f.remedies} == {"a2a-normal-mode-for-prefill", "a2a-raise-limit"}
    assert "ALL ranks" in f.remedies[1].action
    assert "linearly" in f.remedies[1].caveats


def test_the_assertion_is_enough_where_numbers_are_missing():
    f = finding(said({"s.log": ASSERTION}), "a2a.buffer_limit")
    assert (f.value, f.limit) == (None, None)
    assert f.settle_with


def test_a_batch_below_the_limit_is_not_the_one_that_failed():
    f = finding(said({"l.txt": LAUNCH.format(256, ""), "s.log": BATCH.format(64) + ASSERTION}), "a2a.buffer_limit")
    assert (f.value, f.limit) == (None, 256)


def test_limits_that_differ_between_the_nodes_of_one_server():
    d = said({"n0.txt": LAUNCH.format(128, "--nnodes 2 --node-rank 0"), "n1.txt": LAUNCH.format(256, "--nnodes 2 --node-rank 1")})
    f = finding(d, "a2a.buffer_limit")
    assert (f.value, f.limit) == (256, 128)
    assert "128 (node 0)" in f.claim


@pytest.mark.parametrize("second", [
    LAUNCH.format(128, "--nnodes 2 --node-rank 1"),
    LAUNCH.format(256, "--nnodes 2 --node-rank 1 --disaggregation-mode decode"),
])  # fmt: skip
def test_equal_limits_and_separate_servers_are_fine(second):
    first = LAUNCH.format(128, "--nnodes 2 --node-rank 0" + (" --disaggregation-mode prefill" if "decode" in second else ""))
    assert "a2a.buffer_limit" not in ids(said({"n0.txt": first, "n1.txt": second}))


def test_a_timeout_without_the_assertion_is_no_limit():
    line = "[2026-04-19 08:05:13 DP1 TP3 EP3] RuntimeError: DeepEP error: timeout (dispatch CPU)\n"
    assert ids(said({"l.txt": LAUNCH.format(128, ""), "s.log": BATCH.format(4096) + line})) == []


def timeouts(sources, receivers=((0, 5), (1, 2), (3, 7))):
    return "".join(
        f"DeepEP dispatch NVL receiver timeout, channel: {i % 10}, RDMA: {receivers[i % len(receivers)][0]}, "
        f"nvl: {receivers[i % len(receivers)][1]}, src RDMA: {s}, src nvl: {i % 8}, start: 0, end: 0\n"
        for i, s in enumerate(sources)
    )


def test_one_common_source():
    f = finding(said({"w.log": timeouts([2] * 38 + [0, 3])}), "a2a.silent_source")
    assert (f.severity, f.value, f.limit) == ("error", 0.95, 0.9)
    assert "node 2" in f.claim
    assert any("common_src_rdma=2" in e.text and "lines=40" in e.text for e in f.evidence)


@pytest.mark.parametrize("text", [
    timeouts([0, 1, 2, 3] * 12),
    timeouts([2] * 35 + [0] * 5),
    timeouts([2] * 40, receivers=((0, 5),)),
    "DeepEP timeout for dispatch receivers, rank 3, responsible_channel = 4, tokens remained: 12\n" * 3,
])  # fmt: skip
def test_spread_sources_one_receiver_or_no_source_name_nobody(text):
    d = said({"w.log": text})
    f = finding(d, "a2a.silent_source")
    assert (f.severity, ids(d)) == ("info", ["a2a.silent_source"])
    assert f.confidence < 0.5
    assert f.settle_with
    assert "node 2" not in f.claim


def test_a_common_rank_of_the_low_latency_path():
    text = "".join(f"Warning: DeepEP timeout for dispatch receive, rank {r}, local_expert_idx 1, src_rank 6\n" for r in range(5))
    assert finding(said({"w.log": text}), "a2a.silent_source").subject.rank == 6


SENT = [[412, 96, 733], [188, 305, 64], [271, 640, 118]]


def csv(head, rows):
    return head + "\n" + "\n".join(f"{i},{','.join(map(str, r))}" for i, r in enumerate(rows)) + "\n"


def transpose(rows):
    return [list(c) for c in zip(*rows, strict=True)]


def broken(rows):
    """Rank 1 received 29 fewer from rank 2; rows are receivers."""
    out = transpose(rows)
    out[1][2] -= 29
    return out


LAYOUTS = {
    "by receiver": ("dst_rank,src0,src1,src2", lambda r: r),
    "by sender": ("src_rank,dst0,dst1,dst2", transpose),
    "with from": ("rank,from0,from1,from2", lambda r: r),
    "corner": ("src\\dst,0,1,2", transpose),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_every_layout_of_a_legal_exchange_is_legal(layout):
    head, store = layout
    d = said({"sent.csv": csv("src_rank,dst0,dst1,dst2", SENT), "received.csv": csv(head, store(transpose(SENT)))})
    assert [(f.id, f.severity) for f in d.findings] == [("a2a.uneven_is_legal", "info")]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_every_layout_names_the_broken_pair(layout):
    head, store = layout
    d = said({"sent.csv": csv("src_rank,dst0,dst1,dst2", SENT), "received.csv": csv(head, store(broken(SENT)))})
    f = finding(d, "a2a.count_mismatch")
    assert (d.verdict, f.value, f.limit) == ("a2a.count_mismatch", 611, 640)
    assert "Rank 2 sent 640 to rank 1, but rank 1 received 611" in f.claim


@pytest.mark.parametrize("stored", [lambda r: r, transpose])
def test_without_labels_the_order_in_which_all_agree_is_taken(stored):
    files = {"sent.csv": csv("rank,0,1,2", SENT), "received.csv": csv("rank,0,1,2", stored(SENT))}
    assert ids(said(files), strong=True) == []


def test_without_labels_a_broken_pair_is_less_certain():
    f = finding(said({"sent.csv": csv("rank,0,1,2", SENT), "received.csv": csv("rank,0,1,2", broken(SENT))}), "a2a.count_mismatch")
    assert f.confidence < 0.9


def test_matrices_of_different_exchanges_are_not_compared():
    other = [[7 * v + 3 for v in r] for r in SENT]
    assert said({"sent.csv": csv("src_rank,dst0,dst1,dst2", SENT), "received.csv": csv("src_rank,dst0,dst1,dst2", other)}).verdict == "none"


def test_a_single_matrix_is_silent():
    assert said({"sent.csv": csv("src_rank,dst0,dst1,dst2", SENT)}).verdict == "none"


def test_edge_list_with_both_sides_in_one_file():
    rows = "".join(f"{i},{j},{v},{v - 5 * (i == 2 and j == 0)}\n" for i, r in enumerate(SENT) for j, v in enumerate(r))
    f = finding(said({"edges.csv": "src,dst,sent,received\n" + rows}), "a2a.count_mismatch")
    assert "Rank 2 sent 271 to rank 0" in f.claim


def test_json_of_both_sides():
    good = {"axes": {"sent": ["src", "dst"], "received": ["dst", "src"]}, "sent": SENT, "received": transpose(SENT)}
    assert ids(said({"m.json": json.dumps(good)})) == ["a2a.uneven_is_legal"]
    bad = good | {"received": broken(SENT)}
    assert ids(said({"m.json": json.dumps(bad)})) == ["a2a.count_mismatch"]


def test_even_amounts_need_no_word():
    even = [[5, 5, 5]] * 3
    assert said({"sent.csv": csv("src_rank,dst0,dst1,dst2", even), "received.csv": csv("dst_rank,src0,src1,src2", even)}).verdict == "none"
