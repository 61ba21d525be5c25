"""Laws of placement: nothing is lost, nothing lies twice on a GPU, names do not matter, twins agree."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moexray.algorithms import packing, replication
from moexray.algorithms.placement import PLAIN, Shape, Tools, least, place, top, trivial
from moexray.algorithms.replication import active_costs, replicate_active, token_costs
from moexray.kernels import packing as kernel

COMPILED = Tools(kernel.replicate, kernel.pack)


@st.composite
def shapes(draw):
    nodes = draw(st.sampled_from([1, 1, 2, 3]))
    gpus = nodes * draw(st.integers(1, 4))
    groups = draw(st.sampled_from([0, 0, nodes, 2 * nodes]))
    experts = draw(st.integers(1, 6)) * max(groups, 1)
    room = draw(st.integers(-(-experts // gpus), experts // nodes if groups else experts))
    if groups and (room * gpus // nodes) < experts // nodes:
        room = -(-experts // gpus)
    return Shape(experts, room * gpus, gpus, nodes, groups)


@st.composite
def cases(draw):
    shape = draw(shapes())
    kind = draw(st.sampled_from(["few", "many", "ties"]))
    high = {"few": 3, "many": 1000, "ties": 1}[kind]
    load = draw(st.lists(st.integers(0, high), min_size=shape.experts, max_size=shape.experts))
    return shape, np.array(load, float)


def costs_of(load, shape):
    return token_costs(load, shape.most)


@given(cases())
@settings(max_examples=300, deadline=None)
def test_every_plan_is_whole_and_within_its_bounds(case):
    shape, load = case
    costs = costs_of(load, shape)
    slots = place(costs, shape)
    counts = np.bincount(slots, minlength=shape.experts)
    assert len(slots) == shape.slots
    assert len(counts) == shape.experts
    assert counts.min() >= 1
    rows = np.sort(slots.reshape(shape.gpus, -1), axis=1)
    assert not (rows[:, 1:] == rows[:, :-1]).any()
    per_gpu = packing.rank_loads(load, slots, shape.gpus)
    assert per_gpu.sum() == pytest.approx(load.sum())
    assert top(costs, slots, shape.gpus) == pytest.approx(per_gpu.max())
    assert per_gpu.max() <= top(costs, trivial(shape), shape.gpus) * (1 + 1e-12)
    assert per_gpu.max() >= least(costs, shape) * (1 - 1e-12)
    if shape.groups:
        groups = slots.reshape(shape.nodes, -1) // (shape.experts // shape.groups)
        assert sum(len(set(row)) for row in groups.tolist()) == shape.groups


@given(cases(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_the_twins_agree_ties_included(case, dice):
    shape, load = case
    costs = costs_of(load, shape)
    plain, compiled = place(costs, shape), place(costs, shape, COMPILED)
    assert plain.tolist() == compiled.tolist()
    now = plain.copy()
    load = np.array(dice.sample(load.tolist(), len(load)))
    costs = costs_of(load, shape)
    first, second = (place(costs, shape, tools, now, 0.02) for tools in (PLAIN, COMPILED))
    assert first.tolist() == second.tolist()


@pytest.mark.parametrize("nodes", [1, 4])
def test_the_twins_agree_on_larger_layers(nodes):
    rng = np.random.default_rng(nodes)
    shape = Shape(64, 80, 16, nodes)
    for sigma in (0.0, 0.5, 1.0, 2.0):
        costs = costs_of(np.round(rng.lognormal(0, sigma, 64) * 50), shape)
        assert replication.replicate(costs, 80).tolist() == kernel.replicate(costs, 80).tolist()
        assert place(costs, shape).tolist() == place(costs, shape, COMPILED).tolist()


@given(shapes(), st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_names_of_experts_do_not_matter(shape, seed):
    """Experts with other numbers (groups as wholes) give a plan of the same cost and bound; no ties here."""
    rng = np.random.default_rng(seed)
    load = rng.lognormal(0, 1, shape.experts)
    size = shape.experts // shape.groups if shape.groups else 1
    other = load.reshape(-1, size)[rng.permutation(shape.experts // size)].ravel()
    here, there = costs_of(load, shape), costs_of(other, shape)
    assert least(here, shape) == pytest.approx(least(there, shape))
    first = top(here, place(here, shape), shape.gpus)
    second = top(there, place(there, shape), shape.gpus)
    # only the trivial plan depends on numbers: it is taken where it happens to be better
    if min(first, second) < max(first, second) * (1 - 1e-9):
        plain = min(top(here, trivial(shape), shape.gpus), top(there, trivial(shape), shape.gpus))
        assert plain == pytest.approx(min(first, second))


@given(shapes(), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_decode_plans_are_bounded_too(shape, seed):
    steps = np.random.default_rng(seed).poisson(1.0, (5, shape.experts))
    costs = active_costs(steps, shape.most)
    for tools in (PLAIN, Tools(PLAIN.replicate, PLAIN.pack, replicate_active)):
        slots = place(costs, shape, tools)
        carried = top(costs, slots, shape.gpus)
        assert np.bincount(slots, minlength=shape.experts).min() >= 1
        assert least(costs, shape) * (1 - 1e-9) <= carried
        assert carried <= top(costs, trivial(shape), shape.gpus) * (1 + 1e-9)
