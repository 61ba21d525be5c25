"""Iteration statistics of TensorRT-LLM: what they become, and what the rules make of them."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moexray.core.source import Source
from moexray.diagnose.engine import diagnose
from moexray.readers.read_any import read_sources


def iteration(number, ms=20.0, *, running=8, waiting=0, context=0, tokens=0, used=600, paused=0, **more):
    return {
        "iter": number, "iterLatencyMS": ms, "timestamp": f"11-28-2026 10:00:{number % 60:02d}.500000",
        "numActiveRequests": running, "numQueuedRequests": waiting, "gpuMemUsage": 58_941_767_680,
        "kvCacheStats": {"maxNumBlocks": 1000, "usedNumBlocks": used, "freeNumBlocks": 1000 - used, "cacheHitRate": 0.25,
                         "reusedBlocks": 10, "missedBlocks": 30, "tokensPerBlock": 32},
        "inflightBatchingStats": {"numScheduledRequests": running, "numContextRequests": context, "numGenRequests": running - context,
                                  "numPausedRequests": paused, "numCtxTokens": tokens, "microBatchId": 0},
        **more,
    }  # fmt: skip


def read(records, text=None):
    text = json.dumps(records) if text is None else text
    return read_sources([Source("iterations.json", content=text.encode())])


def table(run):
    [batch] = run.batches("iterations")
    return batch.columns


@pytest.mark.parametrize("form", ["poll", "lines", "polls", "one", "gzip"])
def test_every_way_to_store_them(form):
    records = [iteration(i) for i in range(1 if form == "one" else 4)]
    text = {
        "poll": json.dumps(records), "lines": "\n".join(map(json.dumps, records)), "one": json.dumps(records[0]),
        "polls": "\n".join(json.dumps(records[i : i + 2]) for i in (0, 2)), "gzip": json.dumps(records),
    }[form]  # fmt: skip
    content = gzip.compress(text.encode()) if form == "gzip" else text.encode()
    run = read_sources([Source("iterations.json.gz" if form == "gzip" else "iterations.json", content=content)])
    columns = table(run)
    assert columns["iteration"] == [float(i) for i in range(len(records))]
    assert (columns["dur_s"][0], columns["kv_usage"][0], columns["running"][0]) == (0.02, 0.6, 8.0)
    assert columns["gpu_bytes"][0] == 58_941_767_680
    assert not run.problems
    assert not diagnose(run).findings


def test_polls_that_overlap_count_once():
    assert len(table(read([[iteration(1), iteration(2)], [iteration(2), iteration(3)]]))["iteration"]) == 3


def test_time_stamps_and_what_is_missing():
    columns = table(read([{"iterLatencyMS": 5.0, "iter": 1}, iteration(2)]))
    assert columns["t_s"][0] != columns["t_s"][0]
    assert columns["running"][0] != columns["running"][0]
    assert columns["t_s"][1] == 1_795_860_002.5  # 2026-11-28 10:00:02.5 UTC


def test_full_cache_and_paused_requests():
    records = [iteration(i, used=990, paused=3 if 10 <= i < 20 else 0) for i in range(40)]
    [finding] = diagnose(read(records)).findings
    assert (finding.id, finding.severity, finding.value) == ("sched.preemption", "warn", 10.0)
    assert "paused in 10 of 40 iterations" in finding.claim


def test_near_miss_paused_with_room_in_the_cache():
    records = [iteration(i, used=500, paused=3 if 10 <= i < 20 else 0) for i in range(40)]
    assert not diagnose(read(records)).findings


def test_a_queue_that_grows_at_full_batch():
    records = [iteration(i, running=64, waiting=5 * i) for i in range(48)]
    [finding] = diagnose(read(records)).findings
    assert (finding.id, finding.severity) == ("sched.saturated", "warn")


def test_near_miss_a_queue_that_grows_while_steps_get_slower():
    assert not diagnose(read([iteration(i, 20 + i, running=64, waiting=5 * i) for i in range(48)])).findings


def test_prefill_among_decodes():
    records = [iteration(i, 90.0 if i % 3 == 0 else 20.0, context=i % 3 == 0, tokens=2048 * (i % 3 == 0)) for i in range(60)]
    [finding] = diagnose(read(records)).findings
    assert finding.id == "sched.prefill_interference"


def test_one_rank_of_attention_data_parallelism_has_the_requests():
    records = [iteration(i, running=90 if r == 2 else 10, attentionDpRank=r) for i in range(20) for r in range(4)]
    [finding] = diagnose(read(records)).findings
    assert finding.id == "sched.dp_imbalance"
    assert "Engine 2" in finding.claim


def test_bad_records_are_left_out_and_counted():
    run = read([iteration(1), iteration(2) | {"iterLatencyMS": "x"}, iteration(3) | {"iterLatencyMS": -1}, iteration(4) | {"iterLatencyMS": 10**400}])
    assert table(run)["iteration"] == [1.0]
    assert [(p.id, p.lost) for _, p in run.problems] == [("input.dirty_table", 3)]


def test_a_file_that_is_cut():
    text = "\n".join(json.dumps(iteration(i)) for i in range(5))[:-30]
    run = read(None, text)
    assert len(table(run)["iteration"]) >= 4
    assert "input.truncated" in [p.id for _, p in run.problems]


odd = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=3) | st.just([]) | st.just({})


@given(st.lists(st.dictionaries(st.sampled_from(["iter", "iterLatencyMS", "timestamp", "kvCacheStats", "inflightBatchingStats", "requestStats", "numActiveRequests", "attentionDpRank"]), odd), max_size=4))
def test_odd_values_never_fail(records):
    read([iteration(1), *records], json.dumps([iteration(1), *records]))
