"""Loads, their ranks, their balance and their changes: worked by hand, and as laws."""

import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moexray.algorithms.drift import js, js_floor
from moexray.analyse.routing import loads
from moexray.analyse.routing_drift import Stretch, effect, moved
from moexray.analyse.routing_figures import figures
from moexray.analyse.routing_ranks import ep_size, layer_balance, logical_tokens, to_ranks, whole_model
from moexray.analyse.routing_stats import by_chance, cv, entropy, gini, top_share
from moexray.analyse.routing_windows import drift
from moexray.core.source import Source
from moexray.readers.read_any import read_sources

cubes = hnp.arrays(np.int64, st.tuples(st.integers(1, 4), st.integers(1, 3), st.just(12)), elements=st.integers(1, 500))


def saved(**arrays):
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def run_of(**files):
    return read_sources([Source(n.replace("__", "."), content=c) for n, c in files.items()])


def ranks_of(run, count=None):
    (load,) = loads(run, 32)[0]
    return to_ranks(run, load, count or ep_size(run, load)[0])


def test_measures_by_hand():
    assert gini(np.array([5, 5, 5, 5])) == 0
    assert gini(np.array([0, 0, 0, 8])) == pytest.approx(0.75)
    assert cv(np.array([2, 4])) == pytest.approx(1 / 3)
    assert top_share(np.array([1, 2, 3, 4]), 2) == pytest.approx(0.7)
    assert js(np.array([1, 0]), np.array([0, 1])) == pytest.approx(np.log(2))
    assert js(np.array([3, 1]), np.array([6, 2])) == pytest.approx(0)
    assert str(entropy(np.array([0, 9, 0]))) == "0.0"
    assert np.isnan(gini(np.zeros(3)))
    assert np.isnan(cv(np.zeros(3)))


@pytest.mark.parametrize(("mean", "ranks"), [(36, 8), (144, 8), (1000, 4), (5000, 64)])
def test_chance_agrees_with_drawing(mean, ranks):
    rng = np.random.default_rng(0)
    drawn = rng.poisson(mean, (4000, ranks))
    assert by_chance(mean, ranks) == pytest.approx(mean / drawn.max(axis=1).mean(), rel=0.01)
    assert by_chance(0, ranks) == 0
    assert by_chance(1e9, ranks) == 1


def test_the_floor_agrees_with_drawing():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(64))
    drawn = [js(rng.multinomial(2000, p), rng.multinomial(6000, p)) for _ in range(200)]
    assert js_floor(64, 2000, 6000) == pytest.approx(np.mean(drawn), rel=0.15)


@given(cubes)
def test_tokens_in_are_tokens_out(cube):
    ranks = ranks_of(run_of(a__npz=saved(logical_count=cube, ep_size=4)))
    if not ranks.load.set_aside and "grow" not in " ".join(ranks.load.notes):
        assert ranks.tokens.sum() == cube.sum()


@given(cubes, st.permutations(range(4)), st.integers(2, 9))
def test_permuting_ranks_permutes_and_scaling_leaves_ratios(cube, order, factor):
    cube = cube[:2]
    moved = cube.reshape(*cube.shape[:2], 4, 3)[:, :, list(order)].reshape(cube.shape)
    first = ranks_of(run_of(a__npz=saved(logical_count=cube, ep_size=4)))
    second = ranks_of(run_of(a__npz=saved(logical_count=moved, ep_size=4)))
    assert np.array_equal(second.tokens, first.tokens[:, :, list(order)])
    scaled = ranks_of(run_of(a__npz=saved(logical_count=cube * factor, ep_size=4)))
    for a, b in zip(layer_balance(first, 0.95), layer_balance(scaled, 0.95), strict=True):
        assert a.balancedness == pytest.approx(b.balancedness)


def test_equal_loads_are_balanced_and_replicas_share():
    ranks = ranks_of(run_of(a__npz=saved(logical_count=np.full((1, 2, 8), 50), ep_size=4)))
    assert [b.balancedness for b in layer_balance(ranks, 0.95)] == [1, 1]
    assert whole_model(ranks, 0.95).balancedness == 1
    placement = {"ep_size": 2, "physical_to_logical_map": [0, 1, 0, 2]}
    run = run_of(load__json=json.dumps({"expert_counts": [[100, 10, 30]]}).encode(), map__json=json.dumps(placement).encode())
    assert ranks_of(run).tokens.tolist() == [[[60, 80]]]


def test_physical_counts_and_uneven_division():
    ranks = ranks_of(run_of(a__npz=saved(physical_count=[[1, 2, 3, 4]], ep_size=2, phy2log=[[0, 1, 0, 1]])))
    assert ranks.tokens.tolist() == [[[3, 7]]]
    ranks = ranks_of(run_of(a__npz=saved(expert_counts=[[1, 2, 3, 4, 5]], ep_size=2)))
    assert ranks.tokens.tolist() == [[[6, 9]]]
    assert "assumed" in ranks.mapping


@pytest.mark.parametrize(
    ("more", "size"),
    [
        ({"config__json": b'{"top_k": 2, "ep_size": 4}'}, 4),
        ({"launch__txt": b"vllm serve M --tensor-parallel-size 2 --data-parallel-size 2 --enable-expert-parallel"}, 4),
        ({"launch__txt": b"python -m sglang.launch_server --model-path M --tp-size 8 --ep-size 4"}, 4),
        ({"launch__txt": b"vllm serve M --tensor-parallel-size 2"}, None),
        ({}, None),
    ],
)
def test_the_ep_size_comes_from_elsewhere(more, size):
    run = run_of(load__json=b'{"expert_counts": [[1, 2, 3, 4, 5, 6, 7, 8]]}', **more)
    assert ep_size(run, loads(run, 32)[0][0])[0] == size


def test_warm_up_steps_and_growing_counters():
    rng = np.random.default_rng(0)
    real = rng.poisson(50, (6, 1, 8))
    dummy = np.tile(np.array([[[400, 0, 0, 0, 0, 0, 0, 0]]]), (3, 1, 1))
    (load,), _ = loads(run_of(a__npz=saved(expert_counts=np.concatenate([dummy, real]), steps=np.arange(9))), 32)
    assert load.set_aside == 3
    assert np.array_equal(load.tokens, real)
    (load,), _ = loads(run_of(a__npz=saved(expert_counts=real.cumsum(axis=0), steps=np.arange(6))), 32)
    assert np.array_equal(load.tokens, real[1:])


def test_warm_up_tokens_of_choices():
    rng = np.random.default_rng(0)
    ids = np.argsort(rng.random((300, 16)), axis=1)[:, :2]
    ids[:100] = [3, 4]
    (load,), _ = loads(run_of(a__npz=saved(topk_ids=ids, num_experts=16)), 32)
    assert load.set_aside == 100
    assert load.tokens.sum() == 400
    assert load.steps[0] == 100


def ranked(rank, table):
    return json.dumps({"rank": rank, "expert_counts": table}).encode()


def test_files_of_ranks_are_summed_once():
    tables = [[[1, 2, 3, 4]], [[5, 6, 7, 8]]]
    run = run_of(counts_rank0__json=ranked(0, tables[0]), counts_rank1__json=ranked(1, tables[1]))
    (load,), wrong = loads(run, 32)
    assert load.tokens.tolist() == [[[6, 8, 10, 12]]]
    assert not wrong
    run = run_of(counts_rank0__json=ranked(0, tables[0]), counts_rank1__json=ranked(1, tables[0]))
    assert loads(run, 32)[0][0].tokens.tolist() == [[[1, 2, 3, 4]]]  # all-reduced: the same everywhere


@pytest.mark.parametrize("odd", [[[1, 2, 3]], [[1, 2, 3, 4], [5, 6, 7, 8]], [[0.5, 1.5, 2, 3]]])
def test_files_that_do_not_fit_are_refused(odd):
    good = [[1, 2, 3, 4]]
    run = run_of(r_rank0__json=ranked(0, good), r_rank1__json=ranked(1, [[2, 2, 3, 4]]), r_rank2__json=ranked(2, odd))
    found, (wrong,) = loads(run, 32)
    assert not found
    assert wrong.id == "input.shape_mismatch"
    assert wrong.odd == ("r_rank2.json",)


def test_missing_ranks_are_told():
    files = {f"r_rank{i}__json": ranked(i, [[1 + i, 2, 3, 4]]) for i in (0, 1, 3)}
    found, (wrong,) = loads(run_of(**files), 32)
    assert len(found) == 1
    assert wrong.id == "input.rank_set"
    assert "rank 2 is missing" in wrong.text


def stream(rng, mixes, n=4000):
    return np.array([[rng.multinomial(n, m)] for m in mixes])


def figures_of(cube, ep, **more):
    run = run_of(a__npz=saved(logical_count=cube, steps=np.arange(len(cube)), **more))
    return figures(run, loads(run, 32)[0][0], ep)


def changes(cube, ep):
    seen = figures_of(cube, ep)
    return moved(seen, drift(seen))


EVEN, HOT = np.full(16, 1 / 16), np.r_[np.full(2, 5), np.ones(14)] / 24


def test_a_change_is_found_where_it_is_and_what_it_does():
    (change,) = changes(stream(np.random.default_rng(0), [EVEN] * 12 + [HOT] * 12), 8)
    assert (change.at, change.until, change.layers) == (12, 24, 1)
    assert change.before > 0.9
    assert change.after == pytest.approx(1 / 8 / (10 / 24), abs=0.02)
    assert change.distance > 10 * change.quiet


def test_small_steps_are_put_together():
    (change,) = changes(stream(np.random.default_rng(0), [EVEN] * 333 + [HOT] * 400, n=60), 4)
    assert abs(change.at - 333) <= 2 * change.window


@pytest.mark.parametrize("case", ["quiet", "one window", "three windows", "short"])
def test_no_lasting_change_is_found(case):
    mixes = {"quiet": [EVEN] * 24, "one window": [EVEN] * 12 + [HOT] + [EVEN] * 11, "short": [EVEN] * 12 + [HOT] * 12,
             "three windows": [EVEN] * 12 + [HOT] * 3 + [EVEN] * 9}[case]
    assert not changes(stream(np.random.default_rng(3), mixes, n=8 if case == "short" else 4000), 8)


def effect_of(before, after, ep=4, windows=12, n=40_000):
    seen = figures_of(stream(np.random.default_rng(5), [before] * windows + [after] * windows, n=n), ep)
    whole = Stretch.of(seen)
    return effect(whole.part(0, windows), whole.part(windows, 2 * windows), [0])


def test_a_change_that_no_rank_feels_has_no_effect():
    """One choice in a thousand goes elsewhere: chance cannot do that, and no rank carries more."""
    seen = effect_of(EVEN, EVEN + np.r_[np.full(8, 1e-3), np.full(8, -1e-3)] / 16)
    assert seen.size == "none"
    assert seen.before == pytest.approx(seen.after, abs=0.01)


def test_a_hot_expert_has_an_effect_on_the_placement_and_on_the_plan():
    seen = effect_of(EVEN, HOT)
    assert seen.size == "clear"
    assert seen.after == pytest.approx(1 / 4 / (12 / 24), abs=0.02)  # two hot experts and two others on one rank
    assert seen.plan_after < 0.9 < seen.plan_before


def test_the_placement_may_not_feel_what_breaks_a_plan():
    """Experts swap loads inside each rank of the placement in force; a plan that paired them is broken."""
    even_ranks = np.tile([9.0, 1.0, 1.0, 1.0], 4) / 48
    seen = effect_of(even_ranks, np.tile([1.0, 1.0, 1.0, 9.0], 4) / 48)
    assert seen.before == pytest.approx(seen.after, abs=0.02)
    assert seen.size == ("none" if seen.plan_after > 0.95 else "clear")


def test_without_an_ep_size_ranks_are_assumed_and_none_is_in_force():
    seen = effect_of(EVEN, HOT, ep=None)
    assert (seen.before, seen.after, seen.gpus) == (None, None, 8)
    assert seen.plan_after < seen.plan_before


def test_one_window_on_each_side_is_enough():
    assert effect_of(EVEN, HOT, windows=1).size == "clear"
    assert effect_of(EVEN, EVEN, windows=1).size == "none"


def test_few_tokens_are_no_effect():
    """What chance does to short stretches is taken out of both sides."""
    sizes = [effect_of(EVEN, EVEN, n=n).growth for n in (64, 400, 4000)]
    assert max(sizes) < 0.1


def test_slots_are_folded_by_the_map_of_their_step():
    """Two maps, the second in force from step 10 on: the same experts, other slots."""
    tokens = np.random.default_rng(0).integers(50, 150, (20, 1, 4))
    maps = np.array([[[0, 1, 2, 3]], [[3, 2, 1, 0]]])
    counted = tokens.copy()
    counted[10:] = tokens[10:, :, ::-1]
    counts = saved(physical_count=counted, steps=np.arange(20), ep_size=2)
    run = run_of(a__npz=counts, b__npz=saved(physical_to_logical_map=maps, steps=np.array([0, 10]), ep_size=2))
    seen = ranks_of(run, 2)
    assert np.array_equal(logical_tokens(seen), tokens)
    assert np.array_equal(seen.tokens, counted.reshape(20, 1, 2, 2).sum(axis=3))


def test_a_map_without_a_row_for_a_layer_leaves_only_that_one_open():
    run = run_of(
        a__npz=saved(physical_count=np.full((1, 3, 4), 7), layer_ids=[3, 4, 5], ep_size=2),
        b__npz=saved(physical_to_logical_map=[[0, 1, 2, 3], [3, 2, 1, 0]], layer_ids=[3, 5], ep_size=2),
    )
    seen = ranks_of(run, 2)
    assert seen.tokens.tolist() == [[[14, 14]] * 3]
    assert logical_tokens(seen).sum(axis=2).tolist() == [[28, 0, 28]]
    assert "none for layer 4" in seen.mapping


def test_experts_of_a_layer_that_the_map_lacks_are_compared_alone():
    run = run_of(
        a__npz=saved(logical_count=[[[6, 2, 2, 2], [5, 5, 1, 1]]], layer_ids=[3, 4], ep_size=2),
        b__npz=saved(physical_to_logical_map=[[0, 1, 2, 3]], layer_ids=[3], ep_size=2),
    )
    (load,) = loads(run, 32)[0]
    with np.errstate(all="raise"):
        third, fourth = figures(run, load).layers
    assert (third.balancedness, fourth.balancedness) == (6 / 8, 3 / 5)


def cube_of(*steps):
    rows = [{"step": s, "layer": 0, "expert": e, "tokens": t} for s, row in enumerate(steps) for e, t in enumerate(row)]
    text = "step,layer,expert,tokens\n" + "".join(f"{r['step']},0,{r['expert']},{r['tokens']}\n" for r in rows)
    (load,) = loads(read_sources([Source("counts.csv", content=text.encode())]), dummy_run=32)[0]
    return load


USUAL = [[90, 30, 20, 60], [80, 40, 25, 55], [85, 35, 15, 65], [95, 25, 22, 58]]
FLOOD = [[190, 2, 3, 5]] * 6


def test_the_same_prompt_again_and_again_is_traffic_not_warm_up():
    load = cube_of(*USUAL, *FLOOD, *USUAL)
    assert (load.set_aside, len(load.tokens)) == (0, 14)


def test_equal_steps_at_the_start_and_idle_ones_later_are_set_aside():
    load = cube_of([50, 50, 50, 50], [50, 50, 50, 50], *USUAL, [1, 1, 1, 1], [1, 1, 1, 1], *USUAL)
    assert (load.set_aside, len(load.tokens)) == (4, 8)
