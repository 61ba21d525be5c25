"""Drift on real routing, read in place."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from moexray.algorithms.drift import changes, page_hinkley

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
    from moexray.readers.read_any import read_any

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
    for domain, figure in (("c4", 2.7), ("book", 3.5), ("github", 5.2), ("wikipedia", 5.9), ("arxiv", 7.2)):
        [found] = [v for n, v in olmoe.items() if domain in n]
        assert found == pytest.approx(figure, abs=0.06)


def test_drift_between_the_tasks_is_far_above_its_floor():
    doc = layers_of(*(f"dsv2lite_esft_{t}.npz" for t in ("intent", "summary_ids", "translation_ids")))
    between = [r for r in doc["drift"] if r["from_source"] != r["to_source"]]
    pairs = [np.mean([r["kl"] for r in between if "summary" in r["to_source"]]),
             np.mean([r["kl"] for r in between if "translation" in r["to_source"]])]  # fmt: skip
    assert pairs == pytest.approx([0.40, 0.64], abs=0.06)
    assert all(r["changed"] for r in between)
    assert not any(r["changed"] for r in doc["drift"] if r["from_source"] == r["to_source"])


@pytest.mark.parametrize("name", ["expert_distribution_recorder_1764400000.3.pt", "trtllm_expert_statistic"])
def test_generated_layouts_are_read(name):
    assert layers_of(f"generated/{name}")["layers"]


def test_planted_truths_of_the_generated_files():
    full = layers_of("generated/expert_distribution_recorder_1764400000.3.pt")
    assert "not in time order" in full["sources"][0]["drift_unknown"]
    half = layers_of("generated/expert_distribution_recorder_1764400500.3.pt")
    assert half["sources"][0]["steps"] == 40
    assert half["set_aside"][0]["rows"] == 24 * 6
    warm = layers_of("generated/routes_with_warmup_rows.jsonl.gz")
    assert warm["set_aside"][0]["rows"] == 2392
    drift = layers_of("generated/tinymoe_drift_stream.npz")
    [change] = [c for c in drift["change_points"] if c["lasts"]]
    assert abs(change["step"] - 6000) <= 4 * WINDOW
    assert len(change["layers"]) == 6
