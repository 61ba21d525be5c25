import numpy as np
import pytest

from moexray.algorithms.placement import Shape, top
from moexray.algorithms.replication import active_costs
from moexray.core.errors import UsageError
from moexray.whatif import placement
from moexray.whatif.placement import Options, payback, plan
from moexray.whatif.traffic import Traffic


def traffic(cube, ordered=True):
    return Traffic(tuple(range(cube.shape[1])), cube.shape[2], (cube,), ordered, ("a",))


def skewed(steps=8, layers=3, experts=16, seed=0):
    rng = np.random.default_rng(seed)
    return rng.poisson(rng.lognormal(3, 1, (layers, experts)), (steps, layers, experts))


def test_scores_by_hand():
    # 12 tokens; trivial: {0, 1}, {2, 3} with 7 and 5; best: 6 and 6 impossible without replicas: {0, 2}, {1, 3}
    cube = np.array([[[6, 1, 1, 4]]])
    made = plan(traffic(cube), Shape(4, 4, 2), Options())
    [layer] = made.layers
    assert layer.trivial == pytest.approx(6 / 7)
    assert layer.balancedness == layer.bound == pytest.approx(6 / 7)  # 6 alone brings 1 with it
    made = plan(traffic(cube), Shape(4, 6, 2), Options())
    assert made.layers[0].balancedness == 1
    assert made.later is None
    assert made.moved_slots is None


def test_later_traffic_scores_lower_than_that_planned_on():
    cube = skewed()
    cube[4:] = cube[4:, :, ::-1]  # the second half is another mix
    made = plan(traffic(cube), Shape(16, 24, 8), Options())
    assert made.later.balancedness < 0.9 < made.mean("balancedness")
    assert made.later.ordered
    assert not plan(traffic(cube, ordered=False), Shape(16, 24, 8), Options()).later.ordered


def test_a_layer_without_tokens_is_trivial():
    cube = skewed()
    cube[:, 1] = 0
    made = plan(traffic(cube), Shape(16, 24, 8), Options())
    assert made.layers[1].balancedness is None
    assert made.layers[1].slots.tolist() == (np.arange(24) % 16).tolist()
    assert made.mean("balancedness") > 0.95


def test_the_baseline_is_what_engines_start_with_in_both_modes():
    seen = traffic(skewed())
    everywhere = plan(seen, Shape(16, 24, 8, 2), Options())
    limited = plan(seen, Shape(16, 24, 8, 2, 4), Options())
    assert [y.trivial for y in limited.layers] == [y.trivial for y in everywhere.layers]
    assert limited.later.trivial == everywhere.later.trivial
    start = np.arange(24) % 16
    for y, layer in enumerate(limited.layers):
        total = seen.steps(y).sum(axis=0)
        loads = (total / np.bincount(start))[start].reshape(8, -1).sum(axis=1)
        assert layer.trivial == pytest.approx(total.sum() / 8 / loads.max())
    # without redundant slots that placement keeps the groups together, and no plan is worse
    assert all(y.balancedness >= y.trivial for y in plan(seen, Shape(16, 16, 8, 2, 4), Options()).layers)


def test_unequal_parts_help_where_the_load_has_moved():
    cube = skewed()
    shape = Shape(16, 24, 8)
    now = np.stack([y.slots for y in plan(traffic(cube), shape, Options()).layers])
    moved = traffic(cube + 40 * np.eye(16, dtype=int)[3])
    equal = plan(moved, shape, Options(current=now, slack=1.0))
    unequal = plan(moved, shape, Options(current=now, slack=1.0, unequal=True))
    assert equal.moved_slots == unequal.moved_slots == 0
    assert unequal.mean("balancedness") >= equal.mean("balancedness")
    for y in unequal.layers:
        assert np.bincount(y.slots, y.parts) == pytest.approx(np.ones(16))
        assert y.balancedness <= y.bound + 1e-9


def test_decode_balances_active_experts():
    rng = np.random.default_rng(1)
    rates = np.concatenate([np.full(8, 9.0), np.full(8, 0.1)])
    cube = rng.poisson(rates, (40, 2, 16))
    shape = Shape(16, 24, 8)
    made = plan(traffic(cube), shape, Options(decode=True))
    for y in made.layers:
        counts = np.bincount(y.slots, minlength=16)
        assert counts[:8].max() == 1  # always active: a second replica would be active, too
        assert y.trivial < y.balancedness <= y.bound + 1e-9
    tokens = plan(traffic(cube), shape, Options())
    costs = active_costs(cube[:, 0], shape.most)
    assert top(costs, made.layers[0].slots, 8) < top(costs, tokens.layers[0].slots, 8)


def test_decode_and_unequal_split_exclude_each_other():
    with pytest.raises(UsageError, match="active experts"):
        Options(decode=True, unequal=True)


def test_few_move_and_the_payback_counts_the_busiest():
    cube = skewed()
    shape = Shape(16, 24, 8)
    trivial = np.tile(np.arange(24) % 16, (3, 1))
    made = plan(traffic(cube), shape, Options(current=trivial))
    assert made.layers[0].before == pytest.approx(made.layers[0].trivial)
    assert 0 < made.fetched < made.moved_slots < 3 * 24
    paid = payback(made, step_s=0.01, stall_s=0.5)
    assert paid.gain_s == pytest.approx(0.01 * made.later.time_saved)
    assert paid.steps == pytest.approx(0.5 / paid.gain_s)
    kept = plan(traffic(cube), shape, Options(current=np.stack([y.slots for y in made.layers])))
    assert kept.moved_slots == 0


def test_no_gain_never_pays():
    cube = np.full((2, 1, 8), 5)
    made = plan(traffic(cube), Shape(8, 8, 4), Options())
    assert made.time_saved == 0
    assert payback(made, 1.0, 1.0).steps is None


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (np.array([[0, 1, 2, 9]]), "expert 9"),
        (np.array([[0, 1, 2, 2]]), "lacks expert 3"),
        (np.array([[0, 1, 2, 3, 0]]), "5 slots are no multiple of 2 GPUs"),
    ],
)
def test_a_current_placement_that_does_not_fit_is_refused(now, words):
    with pytest.raises(UsageError, match=words):
        plan(traffic(np.ones((1, 1, 4), int)), Shape(4, 4, 2), Options(current=now))


def test_large_work_is_compiled_and_the_same(monkeypatch):
    cube = skewed(layers=2)
    shape = Shape(16, 24, 8)
    plain = plan(traffic(cube), shape, Options())
    monkeypatch.setattr(placement, "PLAIN_WORK", 0)
    compiled = plan(traffic(cube), shape, Options())
    assert [y.slots.tolist() for y in plain.layers] == [y.slots.tolist() for y in compiled.layers]
    assert compiled.seconds > 0
