"""Recorded routing and fixtures of every layout, read in place: figures and planted truths of their README."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from moexray.algorithms.drift import changes, page_hinkley
from moexray.analyse.routing import loads
from moexray.analyse.routing_figures import figures
from moexray.analyse.routing_windows import compare
from moexray.diagnose.engine import diagnose
from moexray.readers.read_any import read_any
from moexray.whatif.router import parse_policy, recorded_scores, try_policy

ROUTING = Path(__file__).parents[2] / "shared" / "data" / "routing"
pytestmark = pytest.mark.skipif(not ROUTING.is_dir(), reason="the shared data are not here")
WINDOW = 64  # tokens
TASKS = ("intent", "summary", "translation")


@pytest.fixture(scope="module")
def tasks():
    files = {t: next(ROUTING.glob(f"dsv2lite_esft_{t}*.npz")) for t in TASKS}
    return {t: counts(np.load(path)["topk_ids"]) for t, path in files.items()}


def counts(ids, experts=64):
    """[windows, layers, experts] of ids [layers, tokens, k]."""
    layers, tokens, k = ids.shape
    n = tokens // WINDOW
    flat = ids[:, : n * WINDOW].reshape(layers, n, WINDOW * k).astype(np.int64)
    at = np.arange(n)[None, :, None] * layers + np.arange(layers)[:, None, None]
    return np.bincount((at * experts + flat).ravel(), minlength=n * layers * experts).reshape(n, layers, experts)


@pytest.mark.parametrize("task", TASKS)
def test_one_task_stays_silent(tasks, task):
    assert changes(tasks[task]) == []


@pytest.mark.parametrize("task", TASKS)
def test_shuffled_halves_stay_silent(tasks, task):
    alarms = 0
    for seed in range(10):
        order = np.random.default_rng(seed).permutation(len(tasks[task]))
        alarms += bool(changes(tasks[task][order]))
    assert alarms <= 1


@pytest.mark.parametrize(("a", "b"), list(itertools.permutations(TASKS, 2)))
def test_every_change_of_task_is_found_within_four_windows(tasks, a, b):
    for at in (24, 40, 64, 100):
        [change] = changes(np.concatenate([tasks[a][:at], tasks[b][:30]]))
        assert change.found - at < 4
        assert abs(change.start - at) <= 2
        assert change.layers.mean() > 0.5


@pytest.mark.parametrize(("a", "b"), list(itertools.permutations(TASKS, 2)))
def test_page_hinkley_agrees(tasks, a, b):
    found = page_hinkley(np.concatenate([tasks[a][:64], tasks[b][:30]]))
    assert len(found) >= 1
    assert 0 <= found[0] - 64 < 6


def layers_of(*names, ep=None):
    from moexray.faces.cli.routing import describe
    return describe(read_any([str(ROUTING / n) for n in names]), ep)


@pytest.mark.parametrize(
    ("task", "figures", "ep8"),
    [  # max/mean with its range, CV, Gini, top-3 with its maximum, KL to uniform, EP8: the README of the data
        ("intent", (3.81, 2.93, 4.68, 0.79, 0.41, 0.155, 0.191, 0.28), 0.701),
        ("summary_ids", (4.28, 1.98, 6.52, 0.74, 0.35, 0.156, 0.235, 0.23), 0.723),
        ("translation_ids", (5.62, 4.06, 7.69, 1.17, 0.54, 0.225, 0.285, 0.51), 0.609),
    ],
)
def test_figures_of_recorded_tasks(task, figures, ep8):
    name = f"dsv2lite_esft_{task}.npz"
    layers = layers_of(name)["layers"]
    over = [x["max_over_mean"] for x in layers]
    top3 = [x["top3_share"] for x in layers]
    kl = [(1 - x["entropy"]) * np.log(x["experts"]) for x in layers]
    mean = [np.mean(over), min(over), max(over), *(np.mean([x[k] for x in layers]) for k in ("cv", "gini"))]
    assert [*mean, np.mean(top3), max(top3), np.mean(kl)] == pytest.approx(figures, abs=0.006)
    [source] = layers_of(name, ep=8)["sources"]
    assert source["mean_balancedness"] == pytest.approx(ep8, abs=0.0006)


def test_dummy_rows_of_the_recorded_engine_log():
    run = read_any([str(ROUTING / "qwen15_moe_vllm_layer0_routes.jsonl.gz")])
    [raw], _ = loads(run, 1 << 30)
    [all_rows] = figures(run, raw).layers
    assert raw.attrs["seen_tokens"] == 18_818
    assert (all_rows.max_over_mean, all_rows.gini, all_rows.top3_share) == pytest.approx((13.2, 0.83, 0.66), abs=0.06)
    doc = layers_of("qwen15_moe_vllm_layer0_routes.jsonl.gz")
    assert doc["set_aside"][0]["rows"] == 16_384
    [layer] = doc["layers"]
    assert (layer["max_over_mean"], layer["gini"], layer["top3_share"]) == pytest.approx((1.48, 0.118, 0.071), abs=0.005)


def test_counts_per_domain_of_two_models():
    layers = layers_of("olmoe_mixtral_expert_counts.json")["layers"]

    def over(part):
        mine = [x["max_over_mean"] for x in layers if f"({part})" in x["source"]]
        assert len(mine) == 3
        return np.mean(mine)

    names = sorted({x["source"].partition("(")[2].rstrip(")") for x in layers})
    mixtral = [over(n) for n in names if n.startswith(("mistral", "mixtral"))]
    assert len(mixtral) == 5
    assert (min(mixtral), max(mixtral)) == pytest.approx((1.11, 1.29), abs=0.005)
    olmoe = {n: over(n) for n in names if n.startswith("olmoe/")}
    for domain, figure in (("c4", 2.7), ("book", 3.5), ("tulu", 3.9), ("github", 5.2), ("wikipedia", 5.9), ("arxiv", 7.2)):
        [found] = [v for n, v in olmoe.items() if domain in n]
        assert found == pytest.approx(figure, abs=0.06)
    for tuned in ("olmoe-sft/", "olmoe-dpo/"):
        assert [over(n) for n in names if n.startswith(tuned)] == [pytest.approx(3.5, abs=0.06)]

    def ends(key, part):
        of = {n: [x[key] for x in layers if f"({n})" in x["source"]] for n in names if n.startswith(part)}
        values = [np.mean(v) for v in of.values()]
        return pytest.approx((min(values), max(values)), abs=0.0051)

    assert ends("gini", "olmoe") == (0.21, 0.49)
    assert ends("top3_share", "olmoe") == (0.10, 0.23)
    assert ends("gini", "mi") == (0.05, 0.08)
    assert ends("top3_share", "mi") == (0.41, 0.43)


def test_drift_between_the_tasks_is_far_above_its_floor():
    """The README gives KL of the earlier mix from the later one; ours is new from reference: the other order."""
    files = {t: f"dsv2lite_esft_{n}.npz" for t, n in zip(TASKS, ("intent", "summary_ids", "translation_ids"), strict=True)}
    kl, js = {}, {}
    for a, b in itertools.permutations(TASKS, 2):
        [pair] = [c for c in layers_of(files[a], files[b])["comparisons"] if c["from_source"] != c["to_source"]]
        kl[b, a], js[a, b] = round(pair["mean_kl"], 2), round(pair["mean_js"], 2)
        assert (pair["layers_changed"], pair["effect"]) == (26, "clear")
        assert pair["plan_after"] < 0.75
    assert (kl["intent", "summary"], kl["summary", "translation"]) == (0.40, 0.64)
    assert (min(kl.values()), max(kl.values()), min(js.values()), max(js.values())) == (0.40, 0.64, 0.09, 0.14)


@pytest.mark.parametrize("task", TASKS)
def test_the_noise_floor_of_shuffled_halves(tasks, task):
    """About 0.002 nats at 4,100 tokens: what the floor says, and no layer is called changed."""
    windows = tasks[task]
    ids = np.load(next(ROUTING.glob(f"dsv2lite_esft_{task}*.npz")))["topk_ids"]
    order = np.random.default_rng(1).permutation(ids.shape[1])
    halves = counts(ids[:, order])
    middle = len(halves) // 2
    rows = compare(np.arange(26), halves[:middle], halves[middle:])
    assert 0.001 < np.mean([r.kl for r in rows]) < 0.003
    assert np.mean([r.kl for r in rows]) == pytest.approx(np.mean([r.noise_floor for r in rows]), rel=0.25)
    assert sum(r.changed for r in rows) == 0
    assert len(windows) == len(halves)


@pytest.mark.parametrize(("task", "share"), [("intent", 0.66), ("summary_ids", 0.65), ("translation_ids", 0.76)])
def test_tokens_that_touch_the_three_hottest_experts(task, share):
    layers = layers_of(f"dsv2lite_esft_{task}.npz")["layers"]
    assert np.mean([x["top3_touched"] for x in layers]) == pytest.approx(share, abs=0.0051)


GENERATED = ROUTING / "generated"


def truth():
    return json.loads((GENERATED / "truth.json").read_text())


def test_a_ring_that_wrapped_has_no_order():
    doc = layers_of("generated/expert_distribution_recorder_1764400000.3.pt")
    told = truth()["expert_distribution_recorder_1764400000.3.pt"]
    assert "not in time order" in doc["sources"][0]["drift_unknown"]
    assert doc["sources"][0]["steps"] == told["buffer"]
    assert sum(x["tokens"] for x in doc["layers"]) == told["total"]
    assert doc["change_points"] == []


def test_a_buffer_that_was_not_filled():
    doc = layers_of("generated/expert_distribution_recorder_1764400500.3.pt")
    told = truth()["expert_distribution_recorder_1764400500.3.pt"]
    assert doc["sources"][0]["steps"] == told["filled_rows"]
    assert doc["set_aside"][0]["rows"] == told["zero_rows"] * 6
    assert not [c for c in doc["change_points"] if c["lasts"]]


def test_passes_of_four_ranks_date_the_hot_expert():
    files = sorted(f"generated/{p.name}" for p in GENERATED.glob("expert_distribution_recorder_1764403100.5_*.pt"))
    told = truth()["per_pass"]
    assert len(files) == told["files"]
    doc = layers_of(*files)
    [source] = doc["sources"]
    assert (source["ep_size"], source["axis"], source["steps"]) == (4, "logical", 24)
    assert "4 files of ranks summed" in source["notes"]
    first = min(doc["change_points"], key=lambda c: c["step"])
    assert (first["step"], first["layers"], first["lasts"]) == (told["from_forward_pass_id"], [told["layer"]], True)
    assert first["effect"] == "clear"
    run = read_any([str(ROUTING / n) for n in files])
    [load], _ = loads(run, 32)
    tokens = figures(run, load).tokens[:, told["layer"]]
    grown = tokens[load.steps >= 115].mean(axis=0) - tokens[load.steps < 115].mean(axis=0)
    assert grown.argmax() == told["hot_logical_expert"]


def test_tokens_of_a_pass_are_padded_from_four_to_eight():
    doc = layers_of("generated/expert_distribution_recorder_1764403200.25_0.pt")
    told = truth()["per_token"]
    [source] = doc["sources"]
    assert source["steps"] == told["passes"]
    assert f"{told['padded_to'] - told['top_k']} columns of ids hold padding" in " ".join(source["notes"])
    run = read_any([str(GENERATED / "expert_distribution_recorder_1764403200.25_0.pt")])
    [batch] = run.batches("routes")
    assert batch.columns["ids"].shape[1] == told["top_k"]
    assert (batch.columns["ids"] >= 0).all()
    tokens = len(batch.columns["ids"]) // 6
    assert {x["tokens"] for x in doc["layers"]} == {tokens * told["top_k"]}


def test_statistics_of_iterations_and_ranks():
    doc = layers_of("generated/trtllm_expert_statistic")
    told = truth()["trtllm_expert_statistic"]
    run = read_any([str(GENERATED / "trtllm_expert_statistic")])
    [load], wrong = loads(run, 32)
    assert not wrong
    assert load.steps.tolist() == list(range(*told["iters"]))
    assert (load.attrs["files"], doc["sources"][0]["ep_size"]) == (told["ranks"], told["ranks"])
    assert load.tokens.shape == (10, 6, 64)


def verdicts(name):
    return diagnose(read_any([str(GENERATED / name)])).findings


def test_a_balancedness_over_layers_is_not_believed():
    """The log alone: averages that are sixths cannot be means over 8 ranks."""
    [found] = verdicts("vllm_eplb_layeraxis.log")
    assert (found.id, found.severity) == ("ep.metric_wrong_axis", "info")
    assert found.cannot_tell
    run = read_any([str(GENERATED / "vllm_eplb_layeraxis.log")])
    logged = [row["fields"]["balancedness"] for row in run.rows("log") if row["kind"] == "eplb.balance"]
    assert np.median(logged) > 0.95


def test_a_countdown_below_zero_is_stuck():
    told = truth()["vllm_eplb_stalled_async.log"]
    [found] = verdicts("vllm_eplb_stalled_async.log")
    assert found.id == "ep.async_stuck"
    assert f"counter last {told['last_remaining']}" in found.evidence[0].text.replace("=", " ").replace("_", " ")
    assert f"steps {told['interval']}" in found.evidence[0].text.replace("=", " ").replace("_", " ")


def test_warm_up_rows_are_set_aside():
    doc = layers_of("generated/routes_with_warmup_rows.jsonl.gz")
    told = truth()["routes_with_warmup_rows.jsonl.gz"]
    assert doc["set_aside"][0]["rows"] == told["dummy_rows"]
    assert doc["layers"][0]["tokens"] == told["real_rows"] * 4


def test_a_change_of_domain_is_found_at_its_token():
    doc = layers_of("generated/tinymoe_drift_stream.npz")
    [change] = [c for c in doc["change_points"] if c["lasts"]]
    assert abs(change["step"] - truth()["tinymoe_drift_stream.npz"]["changepoint_token"]) < WINDOW
    assert change["layers"] == list(range(6))
    assert change["windows_until_found"] <= 4
    assert change["effect"] == "clear"


def test_scores_in_half_precision():
    layers, tokens, experts = truth()["tinymoe_router_logits_fp16.npz"]["shape"]
    run = read_any([str(GENERATED / "tinymoe_router_logits_fp16.npz")])
    [batch] = run.batches("logits")
    assert (batch.columns["values"].shape, batch.attrs["precision"]) == ((layers * tokens, experts), "float16")
    [scores] = recorded_scores(run, 4, None)
    salted = try_policy(scores, parse_policy("salted"), None)
    assert salted.effect == "none"
    assert salted.flipped_share < 0.005
    [gates] = layers_of("generated/tinymoe_router_logits_fp16.npz")["gates"]
    assert gates["change_tokens"] == []
