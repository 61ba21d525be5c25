"""Routing rules: for each a run that has the fault, and one that nearly has it."""

import io
import json

import numpy as np
import pytest

from moexray.core.source import Source
from moexray.diagnose.engine import diagnose
from moexray.readers.read_any import read_sources

EVEN, HOT = np.full(16, 1 / 16), np.r_[np.full(2, 5), np.ones(14)] / 24


def saved(**arrays):
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def say(**files):
    sources = [
        Source(n.replace("__", "."), content=c if isinstance(c, bytes) else c.encode()) for n, c in files.items()
    ]
    return diagnose(read_sources(sources))


def ids(result):
    return [f.id for f in result.findings]


def finding(result, id):
    (found,) = [f for f in result.findings if f.id == id]
    return found


def draw(mixes, n=4000, seed=0):
    rng = np.random.default_rng(seed)
    return np.array([[rng.multinomial(n, m)] for m in mixes])


def test_skew_names_layer_rank_and_share():
    cube = np.concatenate([draw([EVEN] * 6), draw([HOT] * 6, seed=1)], axis=1)
    found = finding(say(a__npz=saved(logical_count=cube, ep_size=8)), "ep.skew")
    assert found.severity == "warn"
    assert (found.subject.layer, found.subject.rank) == (1, 0)
    assert found.value == pytest.approx(0.3, abs=0.02)
    assert "1 of 2 layers" in found.claim
    assert "assumed" in found.claim
    assert [r.id for r in found.remedies] == ["re-place-experts", "redundant-experts", "router-policy"]
    assert "predicted balancedness" in found.remedies[0].action


@pytest.mark.parametrize(
    ("mixes", "n"),
    [([EVEN] * 12, 4000), ([HOT], 40), ([EVEN] * 11 + [HOT], 4000), ([EVEN] * 12, 30)],
)
def test_no_skew_in_even_few_or_single_windows(mixes, n):
    assert ids(say(a__npz=saved(logical_count=draw(mixes, n), ep_size=8))) == []


def test_a_hot_rank_that_moves_is_seen_in_the_windows():
    rng = np.random.default_rng(0)
    mixes = [np.roll(HOT, 2 * rng.integers(0, 8)) for _ in range(60)]
    found = finding(say(a__npz=saved(logical_count=draw(mixes), ep_size=8)), "ep.skew")
    assert found.subject.rank is None
    assert "busiest EP rank changes" in found.claim


def test_uneven_experts_without_an_ep_size_cannot_tell():
    found = finding(say(a__npz=saved(expert_counts=draw([HOT], 16000)[0])), "ep.skew")
    assert found.cannot_tell
    assert found.settle_with


def test_few_tokens_per_layer_but_a_hot_rank_in_all():
    cube = np.tile(np.array([70, 10, 10, 10, 10, 10, 10, 10]), (1, 100, 1))
    found = finding(say(t__csv="layer," + ",".join(f"rank{i}" for i in range(8)) + "\n" + "\n".join(
        f"{y}," + ",".join(map(str, row)) for y, row in enumerate(cube[0]))), "ep.skew")
    assert found.subject.layer is None
    assert "all layers together" in found.claim


def test_drift_and_the_skew_after_it():
    result = say(a__npz=saved(logical_count=draw([EVEN] * 12 + [HOT] * 12), ep_size=8, steps=np.arange(24) * 10 + 9))
    assert ids(result) == ["ep.drift", "ep.skew"]
    drift, skew = result.findings
    assert drift.subject.step_from == 120
    assert skew.implied_by == ("ep.drift",)
    assert skew.subject.step_from == 120


def test_uneven_from_the_start_is_no_drift():
    worse = np.r_[np.full(2, 9), np.ones(14)] / 32
    result = say(a__npz=saved(logical_count=draw([HOT] * 12 + [worse] * 12), ep_size=8, steps=np.arange(24)))
    assert ids(result) == ["ep.skew"]


def test_a_change_without_an_ep_size_cannot_tell():
    rng = np.random.default_rng(0)
    weights = [np.r_[np.full(8, 2.0), np.ones(8)], np.r_[np.ones(8), np.full(8, 2.0)]]
    chosen = [np.argsort(-(np.log(weights[t >= 4000]) + rng.gumbel(size=16)))[:2] for t in range(8000)]
    found = finding(say(a__npz=saved(topk_ids=np.array(chosen), num_experts=16)), "ep.drift")
    assert found.cannot_tell
    assert abs(found.subject.step_from - 4000) <= 250


LINE = (
    "INFO 03-07 10:00:0{i} [eplb_state.py:549] EPLB step: {step} for model M: avg_tokens={avg:.2f}, "
    "max_tokens={top:.0f}, balancedness={value:.4f}, steps until the next rearrangement: {left}"
)


def table(cube):
    head = "layer," + ",".join(f"rank{i}" for i in range(cube.shape[1]))
    return head + "\n" + "\n".join(f"{y}," + ",".join(map(str, row)) for y, row in enumerate(cube))


def logged(value, step=400):
    return LINE.format(i=0, step=step, avg=1000.0, top=1000 / value, value=value, left=100)


def test_a_balance_over_layers_is_told_both_ways():
    hot = np.tile([3000, 1000, 1000, 1000], (5, 1))
    result = say(t__csv=table(hot), s__log=logged(1.0))
    assert ids(result) == ["ep.skew", "ep.metric_wrong_axis"]
    assert "better than it is" in finding(result, "ep.metric_wrong_axis").claim
    uneven_layers = np.outer([1, 1, 1, 5], np.full(4, 1000))
    result = say(t__csv=table(uneven_layers), s__log=logged(0.4))
    assert ids(result) == ["ep.metric_wrong_axis"]
    assert "worse than it is" in result.findings[0].claim


@pytest.mark.parametrize("value", [0.5, 0.7])
def test_a_right_or_foreign_value_is_not_accused(value):
    hot = np.tile([3000, 1000, 1000, 1000], (5, 1))
    assert "ep.metric_wrong_axis" not in ids(say(t__csv=table(hot), s__log=logged(value)))


def test_the_version_alone_is_a_hypothesis():
    log = "INFO 03-07 09:00:00 [api_server.py:1] vLLM API server version 0.15.0\n" + logged(0.9)
    result = say(s__log=log)
    if "ep.metric_wrong_axis" in ids(result):  # the version line is another parser's
        assert finding(result, "ep.metric_wrong_axis").cannot_tell
    assert ids(say(s__log=logged(0.9))) == []


@pytest.mark.parametrize(
    ("factor", "config", "said"),
    [
        (4, {"tokens": 1000, "top_k": 4, "dp_size": 4}, "DP size 4"),
        (2, {"tokens": 1000, "top_k": 4, "tp_size": 8}, "no parallel size"),
        (1, {"tokens": 1000, "top_k": 4, "dp_size": 4}, None),
        (4, {"tokens": 1000, "dp_size": 4, "num_experts": 16}, None),
        (4, {"top_k": 4, "dp_size": 4}, None),
    ],
)
def test_multiplied_counts(factor, config, said):
    cube = np.concatenate([draw([EVEN], 4000, seed=i) for i in range(3)], axis=1) * factor
    result = say(a__npz=saved(logical_count=cube, ep_size=8), config__json=json.dumps(config))
    if said is None:
        assert ids(result) == []
    else:
        assert said in finding(result, "ep.counts_multiplied").claim
        assert finding(result, "ep.counts_multiplied").value == factor


def test_a_factor_that_varies_over_layers_is_no_multiple():
    cube = np.concatenate([draw([EVEN], 8000), draw([EVEN], 12000)], axis=1)
    config = json.dumps({"tokens": 1000, "top_k": 4})
    assert ids(say(a__npz=saved(logical_count=cube, ep_size=8), config__json=config)) == []


def test_tokens_per_step_count_once_per_step():
    config = json.dumps({"tokens_per_step": 1000, "top_k": 4})
    assert ids(say(a__npz=saved(logical_count=draw([EVEN] * 5), ep_size=8), config__json=config)) == []


def test_a_duplicate_replica_and_its_swap():
    slots = [0, 0, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3]
    placement = {"num_gpus": 4, "physical_to_logical": slots}
    loads = {"expert_tokens": [9000, 900, 1000, 1000, 1000, 900, 800, 1000]}
    result = say(placement__json=json.dumps(placement), load__json=json.dumps(loads))
    found = finding(result, "ep.duplicate_replica")
    assert result.findings[0] is found
    assert (found.subject.rank, found.subject.expert) == (0, 0)
    assert "balancedness from" in found.claim
    alone = finding(say(placement__json=json.dumps(placement)), "ep.duplicate_replica")
    assert alone.settle_with


@pytest.mark.parametrize(
    "document",
    [
        {"num_gpus": 4, "physical_to_logical": [0, 1, 2, 0, 3, 4, 5, 6, 7, 1, 2, 3]},
        {"num_gpus": 2, "physical_to_logical": [[0, 1, 2, 3], [3, 2, 1, 0]]},
        {"num_gpus": 2, "physical_to_logical": [0, 1, -1, -1, 2, 3, -1, -1]},
        {"physical_to_logical": [0, 0, 1, 2]},
    ],
)
def test_replicas_on_other_ranks_layers_or_empty_slots_are_fine(document):
    assert ids(say(placement__json=json.dumps(document))) == []


OOM = (
    "(Worker_EP{rank} pid=1) ERROR 05-13 17:02:10 [core.py:710] torch.OutOfMemoryError: CUDA out of memory. Tried to "
    "allocate 772.00 MiB. GPU {rank} has a total capacity of 79.11 GiB of which 482.00 MiB is free. Including "
    "non-PyTorch memory, this process has 78.62 GiB memory in use. Of the allocated memory 77.35 GiB is allocated by "
    "PyTorch, and 120.00 MiB is reserved by PyTorch but unallocated."
)
CHUNK = "(Worker_EP3 pid=1) INFO 05-13 17:02:09 [fused_moe.py:88] moe chunk: tokens=21944, buffer ({size} per token)"
TOKENS = "layer,rank0,rank1,rank2,rank3\n0,8120,7990,8201,21944\n"


def test_the_hot_rank_runs_out_of_memory():
    result = say(t__csv=TOKENS, s__log=f"{CHUNK.format(size='36864 bytes')}\n{OOM.format(rank=3)}")
    found = finding(result, "ep.skew_to_oom")
    assert result.findings[0] is found
    assert found.subject.rank == 3
    assert "365 MiB covers the missing 290 MiB" in found.claim
    assert finding(result, "mem.true_exhaustion").implied_by == ("ep.skew_to_oom",)


@pytest.mark.parametrize(
    "log",
    [
        f"{CHUNK.format(size='2 KiB')}\n{OOM.format(rank=3)}",
        f"{CHUNK.format(size='36864 bytes')}\n{OOM.format(rank=1)}",
        f"{CHUNK.format(size='36864 bytes')}\n{OOM.format(rank=3)}\n{OOM.format(rank=0)}",
    ],
)
def test_other_failures_are_not_the_skew(log):
    assert "ep.skew_to_oom" not in ids(say(t__csv=TOKENS, s__log=log))


def test_without_bytes_per_token_it_cannot_tell():
    assert finding(say(t__csv=TOKENS, s__log=OOM.format(rank=3)), "ep.skew_to_oom").cannot_tell


def test_files_of_ranks_that_do_not_fit():
    files = {f"c_rank{i}__json": json.dumps({"rank": i, "expert_counts": [[1 + i, 2, 3, 4]]}) for i in range(3)}
    files["c_rank2__json"] = json.dumps({"rank": 2, "expert_counts": [[1, 2, 3, 4, 5]]})
    found = finding(say(**files), "input.shape_mismatch")
    assert found.severity == "error"
    assert "c_rank2.json" in found.claim


@pytest.mark.parametrize("name", ["layers x ranks", "experts"])
def test_the_heat_map(name):
    size = {"ep_size": 4} if name == "layers x ranks" else {}
    (chart,) = say(a__npz=saved(logical_count=draw([EVEN]), **size)).exhibits["balance"]
    assert chart["axis"] == ("rank" if size else "expert")
    assert len(chart["values"][0]) == (4 if size else 16)
    assert 0 < chart["balancedness"][0] <= 1


def page(per_rank, layers=2):
    lines = ["# TYPE sglang:eplb_gpu_physical_count histogram"]
    for y in range(layers):
        total = 0
        for rank, tokens in enumerate(per_rank):
            total += tokens
            lines.append(f'sglang:eplb_gpu_physical_count_bucket{{layer="{y}",le="{rank}.0"}} {total}.0')
        lines.append(f'sglang:eplb_gpu_physical_count_bucket{{layer="{y}",le="+Inf"}} {total}.0')
        lines += [f'sglang:eplb_gpu_physical_count_sum{{layer="{y}"}} 1.0',
                  f'sglang:eplb_gpu_physical_count_count{{layer="{y}"}} {total}.0']
    return "\n".join(lines) + "\n"


def test_bucket_bounds_that_are_ranks():
    found = finding(say(m__prom=page([3000, 3000, 9000, 3000])), "ep.skew")
    assert found.subject.rank == 2
    assert found.value == pytest.approx(0.5)
    assert ids(say(m__prom=page([3000, 3100, 2900, 3000]))) == []


def test_counters_per_expert_on_a_page():
    names = [f'vllm:eplb_tokens_routed_to_expert_total{{layer_idx="0",logical_expert_id="{e}"}} {v}'
             for e, v in enumerate([9000, 1000, 1000, 1000])]
    text = "# TYPE vllm:eplb_tokens_routed_to_expert counter\n" + "\n".join(names) + "\n"
    found = finding(say(m__prom=text, config__json='{"ep_size": 2, "top_k": 1}'), "ep.skew")
    assert found.subject.rank == 0


@pytest.mark.parametrize(("value", "lines", "said"), [(0.45, 20, True), (0.92, 20, False), (0.45, 3, False)])
def test_a_low_figure_of_an_engine_that_takes_it_over_ranks(value, lines, said):
    log = "\n".join(
        f"[2026-05-23 06:00:{i:02d} TP0] [Expert Balancedness] forward_pass_id={i} current_pass_balancedness={value}"
        f" last_10_average_balancedness={value} last_100_average_balancedness={value}"
        f" last_1000_average_balancedness={value} gpu_physical_count_sum=1179648"
        for i in range(lines)
    )
    result = say(s__log=log)
    assert ("ep.skew" in ids(result)) == said
    if said:
        assert finding(result, "ep.skew").cannot_tell


def csv_of(header, rows):
    return header + "\n" + "".join(",".join(map(str, r)) + "\n" for r in rows)


def ranks_of_steps(rng, steps=30, hot=1.7):
    return np.rint(rng.normal([31_000, 31_100, 30_900, 31_000 * hot], 300, size=(steps, 4))).astype(int)


def test_bare_ranks_may_hold_times_and_are_no_verdict():
    values = ranks_of_steps(np.random.default_rng(1))
    rows = [(s, *map(int, v)) for s, v in enumerate(values)]
    finding = say(t__csv=csv_of("step,rank0,rank1,rank2,rank3", rows)).findings[0]
    assert (finding.id, finding.severity, finding.confidence < 0.5) == ("ep.skew", "info", True)
    assert finding.settle_with
    assert say(t__csv=csv_of("step,gpu0,gpu1,gpu2,gpu3", rows)).findings == ()


@pytest.mark.parametrize("header", ["step,rank0,rank1,rank2,rank3", "step,ep0_tokens,ep1_tokens,ep2_tokens,ep3_tokens"])
def test_sums_of_choices_or_a_word_make_ranks_tokens(header):
    rng = np.random.default_rng(2)
    rows = [(s, *rng.multinomial(4000, [0.2, 0.2, 0.2, 0.4])) for s in range(20)]
    assert say(t__csv=csv_of(header, rows)).findings[0].severity == "warn"


def test_rows_with_a_clock_are_moments_and_no_layers():
    rng = np.random.default_rng(3)
    parts = [[1 / 8] * 8] * 35 + [[0.1] * 6 + [0.2] * 2] * 25
    rows = [(f"2026-11-29 10:00:{s:02d}", *rng.multinomial(6000, p)) for s, p in enumerate(parts)]
    found = ids(say(t__csv=csv_of("timestamp," + ",".join(f"ep_rank{i}_tokens" for i in range(8)), rows)))
    assert found[:2] == ["ep.drift", "ep.skew"]


YAML = """num_slots: 10
moe_expert_parallel_size: 2
moe_config:
  load_balancer:
    layer_updates_per_iter: 0  # offline
    initial_global_assignments:
      3: [0, 1, 2, 3, {a},
          4, 5, 6, 7, 0]
      4:
      - 0
{rest}
"""


def test_a_placement_of_tensorrt_llm():
    rest = "\n".join(f"      - {e}" for e in [1, 2, 3, 8, 4, 5, 6, 7, 9])
    (finding,) = say(x__yaml=YAML.format(a=3, rest=rest)).findings
    assert finding.id == "ep.duplicate_replica"
    assert (finding.subject.layer, finding.subject.rank, finding.subject.expert) == (3, 0, 3)
    sound = YAML.format(a=8, rest=rest)
    assert say(x__yaml=sound).findings == ()
    assert read_sources([Source("x", content=sound.encode())]).inputs[0].rows == 2
    quoted = "Use this file:\n```yaml\n" + YAML.format(a=3, rest=rest) + "```\nand start it.\n"
    assert say(readme__md=quoted).findings == ()


def test_a_placement_whose_ranks_stand_in_the_launch_line():
    place = json.dumps({"physical_to_logical_map": [[3, 1, 3, 2, 0, 4, 5, 6, 7, 0, 1, 2]]})
    assert ids(say(p__json=place, c__txt="python3 -m sglang.launch_server --model m --tp 3 --ep 3\n")) == [
        "ep.duplicate_replica"
    ]
    assert say(p__json=place).findings == ()


def test_a_table_of_slots():
    slots = [0, 1, 2, 3, 6, 4, 6, 7, 5, 0]
    rows = [(3, i // 5, i, e) for i, e in enumerate(slots)]
    assert say(p__csv=csv_of("layer,rank,slot,expert", rows)).findings == ()
    rows[1] = (3, 0, 1, 0)
    assert ids(say(p__csv=csv_of("layer,rank,slot,expert", rows))) == ["ep.duplicate_replica"]


def test_multiplied_counts_where_steps_share_a_divisor_with_the_factor():
    rng = np.random.default_rng(4)
    counts = rng.multinomial(2048, EVEN, size=(4, 3)) * 4
    facts = {"total_tokens": 4 * 512, "top_k": 4, "ep_size": 8}
    said = say(c__json=json.dumps({**facts, "dp_size": 4, "expert_counts": counts.tolist()}))
    assert ids(said) == ["ep.counts_multiplied"]
    one = {**facts, "num_tokens": 512, "expert_counts": (counts // 4).tolist()}
    del one["total_tokens"]
    assert say(c__json=json.dumps(one)).findings == ()  # the tokens are those of a step


def test_the_worker_names_give_the_ranks():
    log = "".join(
        f"(Worker_EP{r} pid=10{r}) INFO 11-29 10:00:0{r} [gpu_worker.py:300] Available KV cache memory: 30.1{r} GiB\n"
        for r in range(8)
    )
    counts = np.random.default_rng(5).multinomial(90_000, HOT, size=(3, 2))
    finding = say(x__npz=saved(expert_load=counts), s__log=log).findings[0]
    assert (finding.id, finding.severity) == ("ep.skew", "warn")
