"""Distances between mixes of experts, and changes of a stream."""

import math

import numpy as np
import pytest

from moexray.algorithms.drift import (
    FEWEST,
    REFERENCE,
    PageHinkley,
    changes,
    js,
    js_floor,
    kl,
    kl_floor,
    page_hinkley,
    psi,
)


def stream(rng, mixes, *, choices=384, layers=4):
    """Windows of choices: mixes is [(windows, [layers, E] shares), ...]."""
    parts = []
    for count, mix in mixes:
        parts += [np.stack([rng.multinomial(choices, mix[y]) for y in range(layers)]) for _ in range(count)]
    return np.stack(parts)


def test_distances_by_hand():
    a, b = np.array([3, 1]), np.array([1, 3])
    middle = np.array([0.5, 0.5])
    half = sum(p * math.log(p / m) for p, m in zip([0.75, 0.25], middle, strict=True))
    assert js(a, b) == pytest.approx(half)
    many = np.array([3e9, 1e9]), np.array([1e9, 3e9])
    assert kl(*many) == pytest.approx(0.75 * math.log(3) + 0.25 * math.log(1 / 3), abs=1e-6)
    assert psi(*many) == pytest.approx(2 * 0.5 * math.log(3), abs=1e-6)


def test_disjoint_mixes_are_ln_2_apart_and_equal_ones_0():
    assert js(np.array([5, 0]), np.array([0, 7])) == pytest.approx(math.log(2))
    assert js(np.array([5, 5]), np.array([7, 7])) == pytest.approx(0)
    assert np.isfinite(kl(np.array([0, 7]), np.array([5, 0])))


def test_the_floors_are_what_samples_of_one_mix_show():
    rng = np.random.default_rng(3)
    mix = rng.dirichlet(np.full(64, 5.0))
    a, b = rng.multinomial(3000, mix, 400), rng.multinomial(5000, mix, 400)
    assert float(js(a, b).mean()) == pytest.approx(js_floor(64, 3000, 5000), rel=0.1)
    assert float(kl(a, b).mean()) == pytest.approx(kl_floor(64, 3000, 5000), rel=0.15)


def test_page_hinkley_by_hand():
    watch = PageHinkley(delta=0.0, threshold=1.0, least=2)
    assert [watch.update(v) for v in (0.0, 0.0, 0.0, 1.0, 1.0)] == [False, False, False, False, True]


@pytest.mark.parametrize("experts", [8, 64, 256])
@pytest.mark.parametrize("layers", [1, 16])
def test_a_stream_of_one_mix_stays_silent(experts, layers):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        mix = rng.dirichlet(np.full(experts, 0.7), layers)
        assert changes(stream(rng, [(120, mix)], layers=layers)) == []


@pytest.mark.parametrize("experts", [16, 64, 256])
def test_a_change_is_found_within_four_windows_and_where_it_is(experts):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        before, after = rng.dirichlet(np.full(experts, 0.7), 4), rng.dirichlet(np.full(experts, 0.7), 4)
        [change] = changes(stream(rng, [(40, before), (40, after)]))
        assert change.start == 40
        assert change.found - 40 < 4
        assert change.layers.all()
        assert change.distance > 3 * change.quiet


def test_layers_that_did_not_change_are_told_apart():
    rng = np.random.default_rng(1)
    before = rng.dirichlet(np.full(64, 0.7), 4)
    after = before.copy()
    after[2] = rng.dirichlet(np.full(64, 0.7))
    [change] = changes(stream(rng, [(40, before), (40, after)]))
    assert change.layers.tolist() == [False, False, True, False]


def test_two_changes_are_two():
    rng = np.random.default_rng(4)
    mixes = rng.dirichlet(np.full(64, 0.7), (3, 4))
    found = changes(stream(rng, [(30, mixes[0]), (30, mixes[1]), (30, mixes[2])]))
    assert [c.start for c in found] == [30, 60]


def test_the_order_of_experts_does_not_matter():
    rng = np.random.default_rng(5)
    mixes = rng.dirichlet(np.full(32, 0.5), (2, 4))
    windows = stream(rng, [(40, mixes[0]), (40, mixes[1])])
    shuffled = windows[:, :, rng.permutation(32)]
    assert [(c.start, c.found) for c in changes(windows)] == [(c.start, c.found) for c in changes(shuffled)]


def test_both_detectors_see_the_same_change():
    rng = np.random.default_rng(6)
    mixes = rng.dirichlet(np.full(64, 0.7), (2, 4))
    windows = stream(rng, [(40, mixes[0]), (40, mixes[1])])
    [at] = page_hinkley(windows)
    assert 0 <= at - 40 < 4


def test_too_few_windows_say_nothing():
    assert changes(np.ones((FEWEST, 2, 8))) == []
    assert page_hinkley(np.ones((REFERENCE, 2, 8))) == []
    assert changes(np.zeros((40, 2, 8))) == []
    assert changes(np.ones((40, 2, 1))) == []


@pytest.mark.parametrize("layers", [3, 26, 58])
@pytest.mark.parametrize("at", [8, 15, 40])
def test_one_layer_that_changes_alone_is_named_and_dated(layers, at):
    """In the mean over layers it would drown."""
    rng = np.random.default_rng(layers + at)
    before = rng.dirichlet(np.full(64, 0.7), layers)
    after = before.copy()
    after[1] = rng.dirichlet(np.full(64, 0.7))
    [change] = changes(stream(rng, [(at, before), (20, after)], layers=layers))
    assert np.flatnonzero(change.layers).tolist() == [1]
    assert change.start == at
    assert change.found - at < 4
    assert change.lasts


def test_layers_that_change_one_after_another_are_dated_each():
    rng = np.random.default_rng(2)
    a = rng.dirichlet(np.full(64, 0.7), 12)
    b, c = a.copy(), a.copy()
    b[3] = c[3] = rng.dirichlet(np.full(64, 0.7))
    c[7] = rng.dirichlet(np.full(64, 0.7))
    found = changes(stream(rng, [(30, a), (30, b), (30, c)], layers=12))
    assert [(x.start, np.flatnonzero(x.layers).tolist()) for x in found] == [(30, [3]), (60, [7])]
    assert all(x.lasts for x in found)


def test_texts_that_move_all_layers_do_not_blame_one():
    """Every few windows another text: the layers move together, by different amounts."""
    rng = np.random.default_rng(8)
    base = rng.dirichlet(np.full(64, 0.7), 12)
    mixes = []
    for _ in range(30):
        text = rng.dirichlet(np.full(64, 0.7), 12)
        mixes.append((4, 0.9 * base + 0.1 * text))
    assert [c for c in changes(stream(rng, mixes, layers=12)) if c.layers.sum() < 6] == []


@pytest.mark.parametrize("length", [1, 2, 3, 8, 12])
def test_a_burst_ends_where_the_old_mix_comes_back(length):
    rng = np.random.default_rng(length)
    a, b = rng.dirichlet(np.full(32, 0.7), (2, 3))
    [change] = changes(stream(rng, [(20, a), (length, b), (30, a)], layers=3))
    assert (change.start, change.until, change.lasts) == (20, 20 + length, False)


def test_a_change_after_a_burst_is_still_seen():
    rng = np.random.default_rng(11)
    a, b, c = rng.dirichlet(np.full(32, 0.7), (3, 3))
    found = changes(stream(rng, [(20, a), (3, b), (20, a), (30, c)], layers=3))
    assert [(x.start, x.lasts) for x in found] == [(20, False), (43, True)]


def test_permuting_layers_permutes_the_answer():
    rng = np.random.default_rng(12)
    before = rng.dirichlet(np.full(64, 0.7), 8)
    after = before.copy()
    after[2] = rng.dirichlet(np.full(64, 0.7))
    windows, order = stream(rng, [(30, before), (20, after)], layers=8), rng.permutation(8)
    [a], [b] = changes(windows), changes(windows[:, order])
    assert (a.start, a.found) == (b.start, b.found)
    assert a.layers[order].tolist() == b.layers.tolist()
