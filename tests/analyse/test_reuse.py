"""Plans worked by hand, and the laws that every plan obeys."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_log_samples import KIB, alloc, free, tensors_of, two_experts
from moexray.analyse import reuse
from moexray.analyse.reuse import plans
from moexray.analyse.tensors import Tensors
from moexray.core.scopes import SCOPES


def by_name(one):
    return {p.plan: p for p in plans(one)}


def figures(plan):
    return (plan.tensors, plan.peak_bytes, plan.lower_bound_bytes, plan.rest_bytes, plan.saved_bytes, plan.saved_calls)


def test_two_experts_by_hand(tmp_path):
    [one] = tensors_of(tmp_path, two_experts())
    found = by_name(one)
    # hidden [0, 4K), then the others in turn at 4K
    assert figures(found["as allocated"]) == (4, 7 * KIB, 7 * KIB, 0, 0, 0)
    # one buffer of 2 and one of 3 KiB; hidden and router keep their 5
    assert figures(found["expert-wise"]) == (2, 5 * KIB, 3 * KIB, 5 * KIB, -3 * KIB, 2)
    # every size is its own class: 4 + 1 + 2 + 3
    assert figures(found["token-wise"]) == (4, 10 * KIB, 7 * KIB, 0, -3 * KIB, 7)
    assert figures(found["interval packing"]) == (4, 7 * KIB, 7 * KIB, 0, 0, 7)
    assert found["interval packing"].over_bound == 0
    assert found["expert-wise"].over_bound == pytest.approx(2 / 3)


def test_padding_lets_experts_share_a_buffer(tmp_path):
    sizes = (2560, 3072, 2800)
    records = [r for i, n in enumerate(sizes) for r in (alloc(f"e{i}", n, 2 * i, 0, i), free(f"e{i}", 2 * i + 1))]
    [one] = tensors_of(tmp_path, records)
    plan = by_name(one)["expert-wise"]
    assert plan.peak_bytes == 3072  # two classes per doubling: 2 KiB, 3 KiB, 4 KiB
    assert plan.calls == 1
    assert "2 classes per doubling" in plan.how


def test_layers_share_where_that_takes_less(tmp_path):
    records = [r for i in range(4) for r in (alloc(f"e{i}", 1024, 2 * i, i, 0), free(f"e{i}", 2 * i + 1))]
    [one] = tensors_of(tmp_path, records)
    found = by_name(one)
    assert found["expert-wise"].peak_bytes == 4 * KIB  # each layer keeps its buffer
    assert found["expert-wise, layers share"].peak_bytes == KIB


def test_an_arena_is_reset_at_the_end_of_a_step(tmp_path):
    def step(number, at):
        return [
            alloc(f"{at}a", 2 * KIB, at, 0, step=number), free(f"{at}a", at + 1) | {"step": number},
            alloc(f"{at}b", 4 * KIB, at + 2, 1, step=number), free(f"{at}b", at + 3) | {"step": number},
        ]  # fmt: skip

    [one] = tensors_of(tmp_path, [alloc("kept", KIB, 0, step=1), *step(1, 10), *step(2, 20)])
    plan = by_name(one)["token-wise"]
    assert plan.tensors == 4  # what is never freed outlives its step
    assert plan.peak_bytes == 6 * KIB  # 2 + 4 in either step, not twice
    assert plan.rest_bytes == KIB


def test_steps_that_run_side_by_side_have_an_arena_each(tmp_path):
    records = [
        alloc("a", KIB, 0, step=1), alloc("b", KIB, 1, step=2),
        free("a", 2) | {"step": 1}, free("b", 3) | {"step": 2},
    ]  # fmt: skip
    [one] = tensors_of(tmp_path, records)
    assert by_name(one)["token-wise"].peak_bytes == 2 * KIB


def test_recorded_addresses_tell_what_was_taken(tmp_path):
    records = [
        alloc("a", KIB, 0, address=0), free("a", 1), alloc("b", KIB, 2, address=8 * KIB), free("b", 3),
    ]  # fmt: skip
    [one] = tensors_of(tmp_path, records)
    found = by_name(one)
    assert found["as allocated"].peak_bytes == 2 * KIB
    assert found["interval packing"].saved_bytes == KIB


def test_nothing_to_plan(tmp_path):
    [one] = tensors_of(tmp_path, [alloc("a", 0, 0), free("a", 1)])
    assert plans(one) == []


def test_plans_for_experts_need_experts(tmp_path):
    [one] = tensors_of(tmp_path, [alloc("a", 8, 0, 1), free("a", 1)])
    assert [p.plan for p in plans(one)] == ["as allocated", "token-wise", "interval packing"]


LIFE = st.tuples(st.integers(1, 12), st.integers(0, 5000), st.integers(-1, 2), st.integers(-1, 2), st.integers(0, 4))


def made(rows):
    """Tensors whose events take one position each, in a random order of frees."""
    length, size, layer, expert, scope = np.array(rows, np.int64).T.copy()
    count = len(rows)
    time = np.concatenate([np.arange(count) * 10, np.arange(count) * 10 + length * 7 + 1])
    position = np.empty(2 * count, np.int64)
    position[np.argsort(time, kind="stable")] = np.arange(2 * count)
    unknown, none = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    return Tensors(
        source="x", rank=None, device=None, kind="log", size=size, start=position[:count], end=position[count:],
        is_open=size % 7 == 3, start_ns=None, end_ns=None, layer=layer, expert=expert, scope=scope, step=unknown,
        last_step=unknown, site=none, sites=("",),
    )  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(st.lists(LIFE, min_size=1, max_size=30))
def test_no_plan_beats_its_bound_and_packing_covers_all(rows):
    one = made(rows)
    found = plans(one)
    if not one.size.any():
        assert found == []
        return
    names = [p.plan for p in found]
    assert names[0] == "as allocated"
    assert names[-1] == "interval packing"
    assert ("expert-wise" in names) == bool((one.size[one.scope == SCOPES.index("expert")] > 0).any())
    for plan in found:
        assert plan.peak_bytes >= plan.lower_bound_bytes > 0
        assert plan.as_allocated_bytes == found[0].peak_bytes
        assert 0 < plan.covered <= 1
        assert plan.saved_bytes + plan.peak_bytes + plan.rest_bytes == plan.as_allocated_bytes
    assert found[-1].covered == 1
    assert found[-1].lower_bound_bytes == found[0].lower_bound_bytes


def test_orders_that_would_take_too_long_are_left_out(tmp_path, monkeypatch):
    [one] = tensors_of(tmp_path, two_experts())  # three pairs meet: the hidden state and each other
    monkeypatch.setattr("moexray.analyse.reuse.MOST_MEETINGS", 2)
    assert by_name(one)["interval packing"].how.endswith("in the order of time (too many tensors for other orders)")
    monkeypatch.setattr("moexray.analyse.reuse.MOST_MEETINGS", 3)
    assert by_name(one)["interval packing"].how.endswith("in the order of time")


def test_of_too_many_tensors_those_that_stay_are_packed_first(monkeypatch):
    # two stay, four temporaries of which two meet: 9 + 9 + (1 + 2)
    rows = [(1, 9, 0, 99), (2, 9, 1, 99), (3, 1, 2, 4), (3, 2, 3, 5), (3, 2, 6, 7), (3, 1, 8, 9)]
    start, end, size = (np.array([row[i] for row in rows], np.int64) for i in (2, 3, 1))
    monkeypatch.setattr("moexray.analyse.reuse.MOST_MEETINGS", 0)
    assert reuse._packed(start, end, size)[0] == 21
    monkeypatch.setattr("moexray.analyse.reuse.MOST_IN_TIME", 1)
    taken, how = reuse._packed(start, end, size)
    assert (taken, how.partition(" (")[0]) == (21, "what stays first, then in the order of time")


def test_many_tensors_are_packed_by_the_compiled_twin_alike(monkeypatch):
    rng = np.random.default_rng(5)
    count = 700
    rows = np.stack([rng.integers(1, 12, count), rng.integers(1, 9000, count), *rng.integers(-1, 3, (2, count)), rng.integers(0, 5, count)], axis=1)
    one = made(rows.tolist())
    compiled = plans(one)
    monkeypatch.setattr("moexray.analyse.reuse.FEW", 1000)
    assert plans(one) == compiled
