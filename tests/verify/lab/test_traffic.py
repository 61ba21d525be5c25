from __future__ import annotations

import numpy as np
import pytest

from moexray.core.errors import UsageError
from moexray.verify.lab.corpus import DOMAINS, documents
from moexray.verify.lab.model import Prompts
from moexray.verify.lab.traffic import HOT, LENGTH, PROMPTS, Traffic, arrivals, fitted, stale


def share_of_rank_0(slots: np.ndarray, load: np.ndarray) -> np.ndarray:
    half = slots.shape[1] // 2
    return np.take_along_axis(load, slots, axis=1)[:, :half].sum(axis=1) / load.sum(axis=1)


def test_a_stale_placement_fits_the_usual_mix_and_not_the_hot_one():
    rng = np.random.default_rng(0)
    usual, hot = rng.gamma(1.0, 100.0, (3, 16)), rng.gamma(0.5, 100.0, (3, 16))
    slots = stale(usual, hot)
    assert (np.sort(slots, axis=1) == np.arange(16)).all()
    assert np.abs(share_of_rank_0(slots, usual) - 0.5).max() < 0.05
    assert np.abs(share_of_rank_0(slots, hot) - HOT).max() < 0.05


def test_a_fitted_placement_is_even():
    load = np.random.default_rng(1).gamma(0.7, 100.0, (4, 16))
    slots = fitted(load, 2)
    assert (np.sort(slots, axis=1) == np.arange(16)).all()
    top = load.max(axis=1) / load.sum(axis=1)
    assert (np.abs(share_of_rank_0(slots, load) - 0.5) <= np.maximum(0.02, top - 0.5)).all()


def test_seeds_go_through_the_domains():
    assert {Traffic.of(seed).hot for seed in range(4)} == set(DOMAINS)


def test_usual_and_hot_prompts_are_of_different_domains():
    traffic = Traffic("chinese", identical=False, seed=0)
    rng = np.random.default_rng(0)
    hot = {tuple(row) for row in Prompts.of(["chinese"], LENGTH).tokens.tolist()}
    usual = traffic.usual(rng, 5).reshape(-1, LENGTH)
    flood = traffic.flood(rng, 5)
    assert flood.shape == (5, PROMPTS, LENGTH)
    assert not any(tuple(row) in hot for row in usual.tolist())
    assert all(tuple(row) in hot for row in flood.reshape(-1, LENGTH).tolist())


def test_most_identical_prompts_are_one_prompt():
    flood = Traffic("tables", identical=True, seed=2).flood(np.random.default_rng(0), 4)
    _, times = np.unique(flood.reshape(-1, LENGTH), axis=0, return_counts=True)
    assert times.max() >= 4 * (PROMPTS - 3)
    assert len(times) > 4


def test_arrivals_are_poisson_and_depend_on_the_seed_alone():
    due = arrivals(np.random.default_rng(7), 20_000, 0.01)
    gaps = np.diff(due, prepend=0.0)
    assert gaps.mean() == pytest.approx(0.01, rel=0.05)
    assert gaps.std() == pytest.approx(0.01, rel=0.05)
    assert (due == arrivals(np.random.default_rng(7), 20_000, 0.01)).all()


def test_there_are_prompts_of_each_domain():
    for domain in DOMAINS:
        tokens = Prompts.of([domain], LENGTH).tokens
        assert len(tokens) >= 300
        assert tokens.max() < 1024


def test_an_unknown_domain_is_refused():
    with pytest.raises(UsageError, match="no prompts of the domain"):
        Prompts.of(["latin"], LENGTH)


def test_made_text_is_the_same_each_time():
    for domain in ("chinese", "tables"):
        assert documents(domain) == documents(domain)
    assert documents("chinese")[0].endswith("。")
