"""Rules about the router's choices and the results of experts."""

import io
import json

import numpy as np
import pytest

from moexray.algorithms.routers import bf16, top_k
from moexray.analyse.router_choice import rounding
from moexray.core.source import Source
from moexray.diagnose.engine import diagnose
from moexray.readers.read_any import read_sources


def saved(**arrays):
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def say(**files):
    sources = [
        Source(n.replace("__", "."), content=c if isinstance(c, bytes) else c.encode()) for n, c in files.items()
    ]
    return diagnose(read_sources(sources))


def only(result):
    (found,) = [f for f in result.findings if f.id.startswith("num.")]
    return found


def logits(tokens=600, experts=32, seed=0):
    return np.random.default_rng(seed).normal(size=(tokens, experts)).astype(np.float32)


def choose(scores, k=4):
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def test_rounding_by_hand():
    assert bf16(np.array([1.0, 1.00390625, 1.01171875, -3.0], np.float32)).tolist() == [1.0, 1.0, 1.015625, -3.0]
    assert top_k(np.array([[0.2, 0.5, 0.5, 0.1]]), 2).tolist() == [[1, 2]]
    close = np.array([[0.25, 0.2501, 0.4, 0.1]], np.float32)
    found = rounding(close, 2)
    assert (found.changed, found.ties) == (1, 1)
    assert found.margin < 1


def test_ties_by_rounding():
    found = only(say(a__npz=saved(router_logits=logits(3000), top_k=4)))
    assert found.id == "num.router_ties"
    assert found.severity == "warn"
    expected = (top_k(np.exp(logits(3000)) / np.exp(logits(3000)).sum(1, keepdims=True), 4)
                != top_k(bf16(np.exp(logits(3000)) / np.exp(logits(3000)).sum(1, keepdims=True)), 4)).any(1).sum()
    assert abs(found.value - expected) <= 3


def test_large_margins_and_half_precision():
    apart = np.tile(np.arange(16, dtype=np.float32), (50, 1))
    assert say(a__npz=saved(router_logits=apart, top_k=4)).findings == ()
    found = only(say(a__npz=saved(router_logits=logits(3000).astype(np.float16), top_k=4)))
    assert found.cannot_tell


def record(engine, ids, scores=None, **more):
    head = {"type": "meta", "engine": engine, "num_experts": 32, **more}
    rows = [{"layer": 0, "token_idx": i, "topk_ids": row.tolist()} for i, row in enumerate(ids)]
    for i, row in enumerate(rows):
        if scores is not None:
            row["topk_weights"] = [float(x) for x in scores[i]]
    return "\n".join(json.dumps(r) for r in [head, *rows])


def test_two_engines_that_differ_at_small_margins():
    a = logits()
    b = a + np.random.default_rng(1).normal(size=a.shape).astype(np.float32) * 0.01
    ids = choose(a), choose(b)
    files = {f"{n}__npz": saved(topk_ids=i, router_logits=x) for n, i, x in (("x", ids[0], a), ("y", ids[1], b))}
    result = say(**files)
    (found,) = [f for f in result.findings if f.id == "num.router_divergence"]
    assert found.severity == "warn"
    assert found.value == pytest.approx((np.sort(ids[0], 1) != np.sort(ids[1], 1)).any(1).mean())
    assert "small margins" in found.claim


def test_named_engines_without_scores_and_unnamed_ones():
    a = logits()
    b = a + np.random.default_rng(1).normal(size=a.shape).astype(np.float32) * 0.05
    named = only(say(x__jsonl=record("vllm", choose(a)), y__jsonl=record("hf", choose(b))))
    assert named.id == "num.router_divergence"
    assert named.severity == "warn"
    assert "vllm and hf" in named.claim
    open_case = only(say(x__npz=saved(topk_ids=choose(a)), y__npz=saved(topk_ids=choose(b))))
    assert open_case.cannot_tell


def test_noise_at_large_margins():
    a = logits()
    noisy = a + np.random.default_rng(1).normal(size=a.shape).astype(np.float32) * 0.7
    result = say(a__npz=saved(router_logits=a, topk_ids_run1=choose(a), topk_ids_run2=choose(noisy), top_k=4))
    assert "num.router_noise" in [f.id for f in result.findings]


def test_the_same_engine_or_other_inputs_say_nothing():
    a = logits()
    b = a + np.random.default_rng(1).normal(size=a.shape).astype(np.float32) * 0.01
    same = say(x__jsonl=record("vllm", choose(a)), y__jsonl=record("vllm", choose(b)))
    assert not [f for f in same.findings if f.id.startswith("num.")]
    other = say(x__jsonl=record("vllm", choose(a)), y__jsonl=record("hf", choose(logits(seed=9))))
    assert not [f for f in other.findings if f.id.startswith("num.")]
    equal = say(x__jsonl=record("vllm", choose(a)), y__jsonl=record("hf", choose(a)))
    assert not [f for f in equal.findings if f.id.startswith("num.")]


def test_results_that_never_arrive():
    found = only(say(t__csv="rank,expert,routed,combined\n0,0,10,10\n0,1,20,0\n1,0,11,11\n1,1,22,0\n1,2,0,0\n0,2,0,0\n"))
    assert found.id == "num.expert_output_dropped"
    assert found.subject.expert == 1
    assert found.value == 42
    cube = np.array([[5, 6, 7], [8, 9, 4]])
    back = cube.copy()
    back[1, 2] = 0
    found = only(say(a__npz=saved(routed_counts=cube, combined_counts=back)))
    assert (found.subject.layer, found.subject.expert) == (1, 2)


def test_cold_experts_are_no_loss():
    result = say(t__csv="expert,routed,combined\n0,10,10\n1,0,0\n2,7,7\n")
    assert not [f for f in result.findings if f.id.startswith("num.")]
    cube = np.array([[5, 6, 7], [8, 9, 4]])
    back = cube.copy()
    back[1, 2] = 0  # lost on one rank only
    result = say(a__npz=saved(routed_counts=cube, combined_counts=back, ep_size=2))
    assert not [f for f in result.findings if f.id.startswith("num.")]


def test_recorded_choices_decide_whether_rounding_came_first():
    rng = np.random.default_rng(6)
    logits = (rng.normal(size=(4000, 64)) * 0.15).astype(np.float32)
    scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert [f.id for f in say(a__npz=saved(router_logits=logits, top_k=6)).findings] == ["num.router_ties"]
    full = saved(router_logits=logits, topk_ids=top_k(scores.astype(np.float32), 6))
    assert say(a__npz=full).findings == ()
    low = saved(router_logits=logits, topk_ids=top_k(bf16(scores.astype(np.float32)), 6))
    assert [f.id for f in say(a__npz=low).findings] == ["num.router_ties"]


def test_a_record_of_bf16_in_a_wider_array_is_bf16():
    logits = bf16((np.random.default_rng(7).normal(size=(2000, 64)) * 0.15).astype(np.float32))
    (finding,) = say(a__npz=saved(router_logits=logits, top_k=6)).findings
    assert (finding.id, finding.severity) == ("num.router_ties", "info")


def test_engines_side_by_side_in_one_file_and_in_tables():
    rng = np.random.default_rng(8)
    a = rng.normal(size=(600, 32)).astype(np.float32)
    b = a + rng.normal(size=a.shape).astype(np.float32) * 0.01
    both = {"vllm": top_k(a, 4), "sglang": top_k(b, 4)}
    lines = "".join(
        json.dumps({"engine": n, "layer": 0, "token_idx": t, "topk_ids": row.tolist()}) + "\n"
        for n, ids in both.items() for t, row in enumerate(ids)
    )
    assert [f.id for f in say(x__jsonl=lines).findings] == ["num.router_divergence"]
    tables = {
        f"{n[0]}__csv": "engine,token,layer,k0,k1,k2,k3\n"
        + "".join(f"{n},{t},0,{','.join(map(str, row))}\n" for t, row in enumerate(ids))
        for n, ids in both.items()
    }
    assert [f.id for f in say(**tables).findings] == ["num.router_divergence"]


def test_strong_noise_is_seen_where_nearly_every_set_differs():
    rng = np.random.default_rng(9)
    a = rng.normal(size=(1000, 32)).astype(np.float32)
    runs = {f"r{i}__npz": saved(router_logits=a, topk_ids=top_k(a + rng.normal(size=a.shape), 8), seed=i) for i in (1, 2)}
    assert [f.id for f in say(**runs).findings] == ["num.router_noise"]


@pytest.mark.parametrize("lost", [(0, 1, 2), (1,)])
def test_an_expert_is_dropped_only_if_no_rank_gets_it_back(lost):
    rows = [(r, e, 500 + 10 * r + e, 0 if e == 3 and r in lost else 500 + 10 * r + e) for r in range(3) for e in range(8)]
    text = "rank,expert_id,tokens_dispatched,tokens_returned\n" + "".join(f"{','.join(map(str, r))}\n" for r in rows)
    assert [f.id for f in say(a__csv=text).findings] == (["num.expert_output_dropped"] if len(lost) == 3 else [])
