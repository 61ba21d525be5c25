"""Routing metrics against their definitions, written out plainly."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from moexray.live.feed import RoutingFeed, Shape, collisions, observe_steps, remedy_actions
from moexray.live.metrics import LEAST_TOKENS, WINDOW_S
from moexray.live.page import Page

counts = arrays(np.int64, st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 9)), elements=st.integers(0, 50))


@given(counts)
def test_collisions_are_what_passes_even_capacity(tokens):
    experts = tokens.shape[-1]
    for row, beyond in zip(tokens.reshape(-1, experts), collisions(tokens, experts).ravel(), strict=True):
        capacity = math.ceil(row.sum() / experts)
        assert beyond == sum(max(0, n - capacity) for n in row.tolist())


def feed_of(page=None, layers=(3,), experts=4, **more):
    return RoutingFeed((page or Page()).scope(), Shape(layers, (experts,) * len(layers), **more))


def put(feed, tokens, now_s, **more):
    tokens = np.asarray(tokens)
    feed.add(tokens, collisions(tokens, tokens.shape[-1]), now_s=now_s, **more)


def value(feed, name, *labels):
    return feed.scope.page.value(name, "", "", "", *labels)


def test_skew_is_the_gini_coefficient_of_the_window():
    feed = feed_of()
    put(feed, [[100, 0, 0, 0]], 0.0)
    assert value(feed, "moex_expert_skew_index", 3) == pytest.approx(0.75)  # 1 - 1/E: all on one
    put(feed, [[0, 100, 100, 100]], 1.0)
    assert value(feed, "moex_expert_skew_index", 3) == pytest.approx(0)


def test_layers_with_fewer_experts_are_judged_by_their_own():
    feed = RoutingFeed(Page().scope(), Shape((0, 1), (4, 2), ep_size=2))
    put(feed, [[50, 50, 50, 50], [100, 100, 0, 0]], 0.0)
    assert [value(feed, "moex_expert_skew_index", y) for y in (0, 1)] == pytest.approx([0, 0])
    assert value(feed, "moex_expert_balancedness_ratio", 0) is None


def test_the_window_forgets():
    feed = feed_of()
    put(feed, [[1000, 0, 0, 0]], 0.0)
    put(feed, [[50, 50, 50, 50]], WINDOW_S)
    assert value(feed, "moex_expert_skew_index", 3) == pytest.approx(0)
    assert value(feed, "moex_routed_choices_total", 3) == 1200


def test_too_few_tokens_say_nothing():
    feed = feed_of(ep_size=2)
    put(feed, [[4 * LEAST_TOKENS - 1, 0, 0, 0]], 0.0)
    assert value(feed, "moex_expert_skew_index", 3) is None
    assert value(feed, "moex_expert_balancedness_ratio", 3) is None
    put(feed, [[1, 0, 0, 0]], 1.0)
    assert value(feed, "moex_expert_skew_index", 3) is not None
    put(feed, [[1, 0, 0, 0]], WINDOW_S + 5)  # the window has little again: the value goes
    assert value(feed, "moex_expert_skew_index", 3) is None


def test_balancedness_of_contiguous_experts_and_of_a_placement():
    tokens = [[60, 20, 10, 10]]
    feed = feed_of(ep_size=2)
    put(feed, tokens, 0.0)
    assert value(feed, "moex_expert_balancedness_ratio", 3) == pytest.approx(50 / 80)
    # experts 0 and 1 on both ranks in turn: rank 0 has half of 0, half of 0 and 3; rank 1 has 1, 2 and none
    feed = feed_of(ep_size=2, slots=np.array([[0, 0, 3, 1, 2, 1]]))
    put(feed, tokens, 0.0)
    assert value(feed, "moex_expert_balancedness_ratio", 3) == pytest.approx(50 / 70)
    feed = feed_of(ep_size=3)
    put(feed, tokens, 0.0)
    assert value(feed, "moex_expert_balancedness_ratio", 3) is None


def test_drift_is_told_against_the_first_full_window():
    feed = feed_of(experts=2)
    put(feed, [[100, 100]], 0.0)
    assert value(feed, "moex_routing_drift_ratio", 3) is None
    put(feed, [[100, 100]], WINDOW_S)  # the reference
    assert value(feed, "moex_routing_drift_ratio", 3) == pytest.approx(0)
    put(feed, [[200, 0]], 3 * WINDOW_S)
    mixed = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25)) - 0.5 * 1.0
    assert value(feed, "moex_routing_drift_ratio", 3) == pytest.approx(mixed)


def test_only_the_busiest_experts_are_shown_and_return_at_their_true_count():
    feed = feed_of(top=1)
    put(feed, [[9, 1, 0, 0]], 0.0)
    assert value(feed, "moex_expert_tokens_total", 3, 0) == 9
    assert value(feed, "moex_expert_tokens_total", 3, 1) is None
    put(feed, [[0, 50, 0, 0]], WINDOW_S)
    assert value(feed, "moex_expert_tokens_total", 3, 0) is None
    assert value(feed, "moex_expert_tokens_total", 3, 1) == 51
    put(feed, [[70, 0, 0, 0]], 2 * WINDOW_S)
    assert value(feed, "moex_expert_tokens_total", 3, 0) == 79


def test_in_the_first_minute_the_busiest_are_chosen_oftener():
    feed = feed_of(top=1)
    for now, tokens, shown in ((0.0, [5, 0, 0, 0], 0), (1.0, [0, 9, 0, 0], 0), (10.0, [0, 0, 1, 0], 1), (15.0, [99, 0, 0, 0], 1)):
        put(feed, [tokens], now)
        assert [e for e in range(4) if value(feed, "moex_expert_tokens_total", 3, e) is not None] == [shown]


def test_all_experts_add_up_to_the_choices():
    feed = feed_of(layers=(0, 1), experts=8, top=0)
    rng = np.random.default_rng(0)
    for now in range(5):
        put(feed, rng.poisson(20, (2, 8)), float(now))
    for layer in (0, 1):
        shown = sum(value(feed, "moex_expert_tokens_total", layer, e) for e in range(8))
        assert shown == value(feed, "moex_routed_choices_total", layer)


def test_unnamed_choices_are_counted_where_they_are_known():
    feed = feed_of()
    put(feed, [[1, 1, 1, 1]], 0.0)
    assert value(feed, "moex_expert_tokens_total", 3, 2) == 1
    assert value(feed, "moex_expert_capacity_dropped_tokens_total", 3) is None
    put(feed, [[1, 1, 1, 1]], 0.0, unnamed=np.array([5]))
    assert value(feed, "moex_expert_capacity_dropped_tokens_total", 3) == 5


def test_steps_and_their_traces():
    page = Page()
    observe_steps(page.scope(), [0.01, 0.2], ["", "ab" * 16])
    marks = [s.exemplar.trace_id for s in page.samples() if s.exemplar]
    assert marks == ["ab" * 16]


def test_remedies_by_outcome():
    page, seen = Page(), {}
    for applied in (5, 7, 6):  # the last one from a ring that tells less
        remedy_actions(page.scope(), seen, {"router": {"applied": applied, "fallback": 2, "skipped": 3}})
    got = {o: page.value("moex_remedy_actions_total", "", "", "", "router", o) for o in ("applied", "fallback", "skipped")}
    assert got == {"applied": 7, "fallback": 2, "skipped": 3}
