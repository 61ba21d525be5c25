"""sched.*: each rule on a server that has the fault and on servers that nearly have it."""

import json

import pytest

from load_samples import SGLANG, page, ruled_out, said


def pair(before, after, names=None, label="engine"):
    more = (names, label) if names else ()
    return {"b.prom": page({0: after}, *more), "a.prom": page({0: before}, *more)}


BEFORE = {"running": 100, "waiting": 5, "kv": 0.97, "preempted": 10, "tokens": 1000, "itl": (10.0, 300)}
AFTER = {"running": 90, "waiting": 9, "kv": 0.99, "preempted": 60, "tokens": 5000, "itl": (50.0, 1300)}


@pytest.mark.parametrize("names", [None, SGLANG])
def test_preemptions_while_the_cache_is_full(names):
    found = said(pair(BEFORE, AFTER, names))
    assert list(found) == ["sched.preemption"]
    finding = found["sched.preemption"]
    assert (finding.severity, finding.value) == ("warn", 50)
    assert "preemptions_delta=50" in finding.evidence[0].text
    assert "between the scrapes" in finding.claim  # no time stamps: no rate


def test_time_stamps_give_a_rate():
    text = page({None: BEFORE}, stamp=1790000000000) + page({None: AFTER}, stamp=1790000025000)
    assert "50 preemptions in 25 s (2.0 per s)" in said({"all.prom": text})["sched.preemption"].claim


@pytest.mark.parametrize(
    "after",
    [
        {**AFTER, "preempted": 10},
        {**AFTER, "kv": 0.9, "preempted": 10},
        {**AFTER, "preempted": 60, "tokens": 900},
    ],
    ids=["counter-stands", "not-full", "restarted"],
)
def test_no_preemption(after):
    assert said(pair(BEFORE, after)) == {}


def test_preemptions_with_room_in_the_cache_have_another_cause():
    assert said(pair({**BEFORE, "kv": 0.6}, {**AFTER, "kv": 0.7})) == {}


def test_a_standing_counter_is_ruled_out_by_name():
    assert ruled_out(pair(BEFORE, {**AFTER, "preempted": 10})) == ["sched.preemption"]


def test_without_the_cache_use_it_cannot_be_told():
    blind = [{k: v for k, v in x.items() if k != "kv"} for x in (BEFORE, AFTER)]
    finding = said(pair(*blind))["sched.preemption"]
    assert finding.cannot_tell
    assert finding.settle_with


def test_even_experts_are_the_counter_check():
    log = "INFO 08-20 10:18:40 [eplb_state.py:549] EPLB step: 400 for model M: avg_tokens=4096.00, max_tokens=4311, "
    log += "balancedness=0.9501, steps until the next rearrangement: 600\n"
    finding = said({**pair(BEFORE, AFTER), "server.log": log})["sched.preemption"]
    assert "balancedness 0.95" in finding.claim
    assert not any("eplb" in r.action.lower() for r in finding.remedies)


RETRACT = "[2025-01-01 10:01:0{i} TP0] KV cache pool is full. Retract requests. #retracted_reqs: {i}, #new_token_ratio: 0.6 -> 0.8\n"


def test_retractions_in_a_log():
    log = "[2025-01-01 10:00:00] The server is fired up and ready to roll!\n"
    assert said({"s.log": log + "".join(RETRACT.format(i=i) for i in range(1, 6))})["sched.preemption"].severity == "warn"
    assert said({"s.log": log + RETRACT.format(i=1)})["sched.preemption"].cannot_tell


def queue(waiting, itl=0.03, running=64, kv=0.6, preempted=0):
    steps = itl if isinstance(itl, list) else [itl] * len(waiting)
    total, files = 0.0, {}
    for i, w in enumerate(waiting):
        total += steps[i] * 100
        state = {"running": running, "waiting": w, "kv": kv, "preempted": preempted * i, "tokens": 1000 * i,
                 "itl": (round(total, 6), 100 * (i + 1))}
        files[f"{'qwertz'[i]}.prom"] = page({0: state})
    return files


def test_a_queue_that_grows_at_full_load():
    found = said({**queue([4, 14, 30, 55, 80]), "launch.txt": "vllm serve M --max-num-seqs 64\n"})
    assert list(found) == ["sched.saturated"]
    assert "waiting 4, 14, 30, 55, 80 over 4 windows" in found["sched.saturated"].claim
    assert "waiting_last=80" in found["sched.saturated"].evidence[0].text
    assert "max_num_seqs=64" in found["sched.saturated"].evidence[0].text


@pytest.mark.parametrize(
    ("files", "launch"),
    [
        (queue([4, 14, 30]), "--max-num-seqs 64"),
        (queue([4, 14, 12, 15, 11]), "--max-num-seqs 64"),
        (queue([4, 14, 30, 55, 80]), "--max-num-seqs 128"),
        (queue([0, 0, 30, 55, 80], itl=[0.03, 0.03, 0.036, 0.044, 0.044]), "--max-num-seqs 64"),
    ],
    ids=["two-windows", "up-and-down", "not-at-maximum", "slower-steps"],
)
def test_no_saturation(files, launch):
    assert said({**files, "launch.txt": f"vllm serve M {launch}\n"}) == {}


def test_a_full_cache_with_preemptions_is_not_saturation():
    assert list(said(queue([4, 14, 30, 55, 80], kv=0.99, preempted=9))) == ["sched.preemption"]


def test_a_queue_in_the_log_of_an_engine():
    log = "INFO:     Application startup complete.\n"
    for i in range(8):
        log += f"INFO 01-01 10:01:{i * 7:02d} [loggers.py:123] Engine 000: Avg prompt throughput: 3000.0 tokens/s, "
        log += f"Avg generation throughput: 2000.{i} tokens/s, Running: 64 reqs, Waiting: {10 + 12 * i} reqs, "
        log += "GPU KV cache usage: 55.1%, Prefix cache hit rate: 0.0%\n"
    assert list(said({"server.log": log})) == ["sched.saturated"]


def engines(running, waiting=None):
    return {e: {"running": r, "waiting": (waiting or [0] * 9)[e], "kv": 0.5} for e, r in enumerate(running)}


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        (page(engines([24, 25, 96, 24])), "2"),
        (page(engines([96, 24, 25, 24]), SGLANG, "dp_rank"), "0"),
        (page(engines([20, 60])), "1"),
        (page(engines([32, 32, 32, 32], [0, 50, 1, 0])), "1"),
    ],
    ids=["engine", "dp-rank", "two-engines", "waiting"],
)
def test_one_engine_has_far_more_requests(text, engine):
    found = said({"m.prom": text})
    assert list(found) == ["sched.dp_imbalance"]
    assert f"Engine {engine} " in found["sched.dp_imbalance"].claim
    assert f"engine={engine}" in found["sched.dp_imbalance"].evidence[0].text


@pytest.mark.parametrize(
    "text",
    [
        page(engines([24, 25, 45, 24])),
        page(engines([0, 1, 3, 0])),
        page({None: {"running": 90, "waiting": 4}}),
        page(engines([20, 20, 90, 20])).replace("engine=", "tp_rank="),
    ],
    ids=["less-than-twice", "a-handful", "one-engine", "tensor-parallel-ranks"],
)
def test_no_imbalance(text):
    assert said({"m.prom": text}) == {}


def test_an_imbalance_that_passes_is_none():
    even = {e: {**s, "tokens": 9} for e, s in engines([24, 25, 26, 24]).items()}
    once = {e: {**s, "tokens": 5} for e, s in engines([24, 25, 96, 24]).items()}
    assert said({"a.prom": page(once), "b.prom": page(even)}) == {}


def test_engines_scraped_one_by_one():
    files = {f"e{e}.prom": page({e: {"running": r}}) for e, r in enumerate((20, 22, 80, 21))}
    assert list(said(files)) == ["sched.dp_imbalance"]


def test_figures_per_engine_in_a_log():
    log = "INFO:     Application startup complete.\n"
    for i in range(3):
        for e, running in enumerate((20, 22, 90)):
            log += f"INFO 01-01 10:01:{i * 7:02d} [loggers.py:123] Engine 00{e}: Avg prompt throughput: 3000.0 tokens/s, "
            log += f"Avg generation throughput: 2000.0 tokens/s, Running: {running} reqs, Waiting: 0 reqs, "
            log += "GPU KV cache usage: 55.1%, Prefix cache hit rate: 0.0%\n"
    assert list(said({"server.log": log})) == ["sched.dp_imbalance"]


def steps(slow, every, tokens=512, n=60):
    rows = [(i, slow if i % every == 0 else 30, tokens if i % every == 0 else 0) for i in range(n)]
    return {"steps.csv": "step,step_ms,prefill_tokens_dp0,prefill_tokens_dp1\n" + "".join(f"{i},{d},0,{p}\n" for i, d, p in rows)}


def test_steps_with_prefill_are_long_and_many():
    bench = json.dumps({"base": {"p50_itl_ms": 240.0, "mean_itl_ms": 200}, "aligned": {"p50_itl_ms": 31.0, "mean_itl_ms": 90}})
    found = said({**steps(280, 2), "bench.json": bench})
    assert list(found) == ["sched.prefill_interference"]
    finding = found["sched.prefill_interference"]
    assert "30 of 60 steps" in finding.claim
    assert "8.0x the decode floor" in finding.claim
    assert "floor_ms=30" in finding.evidence[0].text


@pytest.mark.parametrize("files", [steps(55, 2), steps(280, 10), steps(280, 2, tokens=0), steps(280, 1)],
                         ids=["not-twice", "few", "no-prefill", "every-step"])
def test_no_interference(files):
    assert said(files) == {}
