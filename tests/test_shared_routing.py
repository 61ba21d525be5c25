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
