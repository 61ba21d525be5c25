"""Routers on scores: hand-worked examples, laws, and their compiled twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moexray.algorithms.routers import (
    MODES,
    biased,
    capacity,
    grouped,
    noise,
    plain,
    rounded,
    salted,
    soft_mask,
    sticky,
    temperature,
)

# few distinct values: ties are common
tied = hnp.arrays(np.float32, st.tuples(st.integers(1, 40), st.just(8)), elements=st.sampled_from([-1, 0, 0.5, 1, 2]))
scores = st.one_of(tied, hnp.arrays(np.float32, st.tuples(st.integers(1, 40), st.just(8)),
                                    elements=st.floats(-4, 4, width=32)))  # fmt: skip


def sets(choice):
    return np.sort(choice.ids, axis=1)


def test_plain_by_hand():
    logits = np.log(np.array([[1, 4, 2, 4]], np.float32))
    choice = plain(logits, 3)
    assert choice.ids.tolist() == [[1, 3, 2]]  # ties to the lowest index
    assert choice.weights[0] == pytest.approx([0.4, 0.4, 0.2])


def test_capacity_by_hand():
    # three tokens want expert 0 first, then 1; capacity ceil(1.0 * 1 * 3 / 3) = 1 each
    logits = np.array([[3, 2, 1], [3, 2, 1], [3, 1, 2]], np.float32)
    assert capacity(logits, 1, factor=1.0, mode="drop").ids.ravel().tolist() == [0, -1, -1]
    assert capacity(logits, 1, factor=1.0, mode="spill").ids.ravel().tolist() == [0, 1, 2]
    assert capacity(logits, 1, factor=2.0, mode="reroute").ids.ravel().tolist() == [0, 0, 1]


def test_a_dropped_choice_loses_its_part_of_the_output():
    logits = np.log(np.array([[3, 1, 1], [3, 1, 1]], np.float32))
    dropped = capacity(logits, 2, factor=0.7, mode="drop")  # ceil(0.7 * 2 * 2 / 3) = 1 each
    assert dropped.ids.tolist() == [[0, 1], [-1, -1]]
    assert dropped.weights.sum(axis=1) == pytest.approx([1, 0])


def test_groups_by_hand():
    # groups (0,1), (2,3), (4,5): sums of the best two 5, 6, 3; one group may be used
    logits = np.array([[5, 0, 3, 3, 2, 1]], np.float32)
    assert plain(grouped(logits, 2, 3, 1), 2).ids.tolist() == [[2, 3]]
    assert plain(grouped(logits, 2, 3, 1, best=1), 2).ids.tolist() == [[0, 1]]
    with pytest.raises(ValueError, match="4 groups"):
        grouped(logits, 2, 4, 1)


def test_sticky_by_hand():
    logits = np.array([[1, 0], [0.95, 1.0], [0.5, 1.0]], np.float32)
    assert sticky(logits, 1, margin=0.1).ids.ravel().tolist() == [0, 0, 1]


def test_precisions_by_hand():
    assert rounded(np.array([1.0625, 1.1, 500.0, 2**-9]), "e4m3").tolist() == [1.0, 1.125, 448.0, 2**-9]
    assert rounded(np.array([1.1, 1e6]), "e5m2").tolist() == [1.0, 57344.0]
    assert rounded(np.array([1.00390625]), "bf16").tolist() == [1.0]
    assert rounded(np.array([[2.0, 1.0]]), "int8")[0].tolist() == pytest.approx([2.0, 64 * 2 / 127])
    x = np.random.default_rng(0).normal(0, 2, 1000).astype(np.float32)
    assert np.array_equal(rounded(x, "fp16"), x.astype(np.float16).astype(np.float32))


@given(scores)
def test_every_token_gets_k_different_experts(logits):
    for choice in (plain(logits, 3), salted(logits, 3), salted(logits, 3, ties_only=True), sticky(logits, 3),
                   soft_mask(logits, 3), biased(logits, 3, batch=8), temperature(logits, 3)):  # fmt: skip
        ordered = sets(choice)
        assert (ordered >= 0).all()
        assert (np.diff(ordered, axis=1) > 0).all()
        assert choice.weights.sum(axis=1) == pytest.approx(np.ones(len(logits)), abs=1e-5)


@given(scores, st.integers(0, 2**40))
def test_ties_only_never_changes_a_strict_winner(logits, seed):
    kth = -np.sort(-logits, axis=1)[:, 2, None]
    won = np.zeros(logits.shape, bool)
    np.put_along_axis(won, salted(logits, 3, seed=seed, ties_only=True).ids.astype(np.int64), values=True, axis=1)
    assert (won[logits > kth]).all()
    assert not (won[logits < kth]).any()


@given(scores)
def test_a_temperature_never_changes_the_experts(logits):
    assert np.array_equal(temperature(logits, 3, value=4.0).ids, plain(logits, 3).ids)


@given(scores, st.sampled_from(MODES), st.floats(0.3, 3))
def test_capacity_is_kept_and_spilling_loses_nothing_while_there_is_room(logits, mode, factor):
    choice = capacity(logits, 3, factor=factor, mode=mode, batch=16)
    for i in range(0, len(logits), 16):
        part = choice.ids[i : i + 16]
        most = np.ceil(factor * 3 * len(part) / 8)
        load = np.bincount(part[part >= 0], minlength=8)
        assert load.max(initial=0) <= most
        if mode != "drop" and (8 - (load >= most).sum()) >= 3:
            assert (part >= 0).all()
        for row in part:
            given_ids = row[row >= 0]
            assert len(set(given_ids.tolist())) == len(given_ids)


@given(scores)
def test_ample_capacity_and_no_margin_change_nothing(logits):
    exact = plain(logits, 3)
    for mode in MODES:
        assert np.array_equal(capacity(logits, 3, factor=9, mode=mode).ids, exact.ids)
    assert np.array_equal(sticky(logits, 3, margin=0).ids, exact.ids)
    assert np.array_equal(biased(logits, 3, rate=0).ids, exact.ids)


@given(scores, st.sampled_from(MODES), st.floats(0.3, 3))
def test_the_twins_agree_ties_included(logits, mode, factor):
    from moexray.kernels.routers import fill_batch, hold_rows

    slow = capacity(logits, 3, factor=factor, mode=mode, batch=16)
    fast = capacity(logits, 3, factor=factor, mode=mode, batch=16, fill=fill_batch)
    assert np.array_equal(slow.ids, fast.ids)
    assert np.array_equal(sticky(logits, 3, margin=0.5).ids, sticky(logits, 3, margin=0.5, hold=hold_rows).ids)


def test_noise_depends_on_seed_batch_and_row_only():
    one = noise(7, np.array([0, 0, 1]), np.array([0, 1, 0]), 4)
    assert np.array_equal(one[2], noise(7, np.array([1]), np.array([0]), 4)[0])
    assert len(np.unique(one)) == 12
    assert not np.array_equal(one, noise(8, np.array([0, 0, 1]), np.array([0, 1, 0]), 4))


def test_salt_is_normal_noise_of_the_stated_size():
    logits = np.zeros((4000, 8), np.float32)
    logits[:, 0] = 1.0  # beaten only by noise of the size of the gap
    flipped = 1 - (salted(logits, 1, salt=1.0, scale=0.5).ids == 0).mean()
    rng = np.random.default_rng(1)
    drawn = rng.normal(0, 0.5, logits.shape) + logits
    assert flipped == pytest.approx((drawn.argmax(axis=1) != 0).mean(), abs=0.03)
    assert np.array_equal(salted(logits, 1, seed=3).ids, salted(logits, 1, seed=3).ids)


def test_bias_evens_the_load():
    rng = np.random.default_rng(2)
    logits = rng.normal(0, 1, (8000, 16)).astype(np.float32) + np.linspace(0, 2, 16, dtype=np.float32)
    before, after = (np.bincount(c.ids[4000:].ravel(), minlength=16).std() for c in (plain(logits, 2), biased(logits, 2, rate=0.1)))
    assert after < 0.5 * before
