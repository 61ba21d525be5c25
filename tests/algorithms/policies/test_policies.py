"""Each policy by hand-worked examples, and what all of them promise."""

from __future__ import annotations

import random

import pytest

from moexray.algorithms.policies import (
    POLICIES,
    BestFit,
    Buddy,
    FirstFit,
    NaiveFirstFit,
    NextFit,
    Scope,
    Segregated,
    Tlsf,
    WorstFit,
)
from moexray.core.errors import UsageError

SMALL = {"segregated": {"slab": 4096}, "scope": {"chunk": 4096}}


def make(name, capacity=None, granule=1, **more):
    return POLICIES[name](capacity, granule, **{**SMALL.get(name, {}), **more})


def holes(policy, *sizes):
    """Free blocks of these sizes from 0 on, one unit in use behind each."""
    places = [(policy.allocate(n), policy.allocate(1)) for n in sizes]
    for at, _ in places:
        policy.free(at)
    return [at for at, _ in places]


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [(FirstFit, 0), (BestFit, 2), (WorstFit, 1), (NextFit, 0), (NaiveFirstFit, 0)],
)
def test_which_hole_is_taken(policy, wanted):
    made = policy(None, 1)
    places = holes(made, 50, 90, 40, 60)
    assert made.allocate(40) == places[wanted]


def test_first_fit_splits_and_merges_and_the_naive_one_does_neither():
    real, naive = FirstFit(None, 1), NaiveFirstFit(None, 1)
    for policy in (real, naive):
        at = [policy.allocate(100) for _ in range(3)]
        for offset in at:
            policy.free(offset)
    assert real.allocate(250) == 0
    assert naive.allocate(250) == 300  # three free blocks of 100, none of them grows
    assert naive.allocate(10) == 0
    assert naive.given == 350  # the whole block of 100 for 10 bytes


def test_next_fit_goes_on_where_it_stopped():
    policy = NextFit(None, 1)
    first, second, third = holes(policy, 30, 30, 30)
    assert policy.allocate(10) == first
    assert policy.allocate(25) == second  # 20 are left of the first
    assert policy.allocate(25) == third
    assert policy.allocate(20) == first + 10  # round once


def test_next_fit_tries_the_merged_block_around_its_rover():
    policy = NextFit(None, 1)
    a, b, _ = policy.allocate(10), policy.allocate(10), policy.allocate(10)
    policy.free(b)
    assert policy.allocate(5) == b  # the rover stands in the middle of what merges now
    policy.free(a)
    policy.free(b)
    assert policy.allocate(20) == a


@pytest.mark.parametrize("policy", [FirstFit, NextFit, BestFit, WorstFit, Tlsf])
def test_alignment_leaves_the_front_free(policy):
    made = policy(None, 1)
    made.allocate(3)
    assert made.allocate(64, 64) == 64
    assert made.free_blocks() == [(3, 61)]
    assert made.high_water == 128


def test_growing_begins_in_a_free_block_at_the_end():
    policy = FirstFit(None, 1)
    policy.allocate(10)
    policy.free(policy.allocate(10))
    assert policy.allocate(30) == 10
    assert policy.high_water == 40


def test_buddy_addresses_and_merging():
    policy = Buddy(64, 1)
    a, b = policy.allocate(9), policy.allocate(16)
    assert (a, b, policy.given) == (0, 16, 32)
    c, d = policy.allocate(16), policy.allocate(16)
    assert policy.allocate(1) is None
    policy.free(b)
    policy.free(c)  # neighbours in memory, no buddies
    assert policy.free_blocks() == [(16, 16), (32, 16)]
    assert policy.largest_free() == 16
    policy.free(d)
    assert policy.free_blocks() == [(16, 16), (32, 32)]
    policy.free(a)
    assert policy.largest_free() == 64


def test_buddy_of_another_capacity_is_a_row_of_powers_of_two():
    policy = Buddy(80, 1)
    assert policy.allocate(16) == 64  # the smallest that is large enough
    assert policy.allocate(64) == 0
    assert policy.allocate(1) is None


def test_tlsf_rounds_the_search_up():
    policy = Tlsf(None, 1, log_classes=2)
    [place] = holes(policy, 100)  # class [96, 112)
    assert policy.allocate(97) == 101  # rounded up to 112: a block that fits is passed over
    assert policy.allocate(96) == place


def test_segregated_classes_and_slabs():
    policy = Segregated(None, 1, classes=4, slab=64)
    assert [policy.class_size(n) for n in (1, 4, 5, 8, 9, 15, 16, 17, 100)] == [1, 4, 5, 8, 10, 16, 16, 20, 112]
    a, b = policy.allocate(9), policy.allocate(10)
    assert (a, b, policy.given) == (0, 10, 20)  # one slab of six cells of 10
    other = policy.allocate(64)
    assert other == 60
    policy.free(a)
    assert policy.allocate(60) == 124  # the slab still has a cell in use
    policy.free(b)
    assert policy.free_blocks() == [(0, 60)]  # the slab came back in one piece


def test_nested_lifetimes_need_one_chunk_and_no_fallback():
    policy = Scope(None, 1, chunk=100)
    for _ in range(50):
        blocks = [policy.allocate(n) for n in (40, 30, 20)]
        assert blocks == [0, 40, 70]
        for at in reversed(blocks):
            policy.free(at)
        policy.end_scope()
    assert (policy.high_water, policy.fallbacks) == (100, 0)
    assert policy.free_blocks() == [(0, 100)]


def test_what_outlives_its_scope_falls_back():
    policy = Scope(None, 1, chunk=100)
    kept = policy.allocate(30)
    policy.end_scope()
    assert policy.fallbacks == 0
    other = policy.allocate(30)
    assert policy.fallbacks == 1
    assert other == 100  # behind the chunk
    policy.free(kept)
    assert policy.allocate(50) == 0


def test_an_order_that_is_not_nested_leaves_a_hole_until_the_top_dies():
    policy = Scope(100, 1, chunk=100)
    a, b = policy.allocate(60), policy.allocate(40)
    policy.free(a)
    assert policy.allocate(50) is None
    policy.free(b)
    assert policy.allocate(50) == 0


@pytest.mark.parametrize("name", POLICIES)
def test_misuse_is_a_clear_error(name):
    policy = make(name)
    at = policy.allocate(10)
    policy.free(at)
    with pytest.raises(UsageError, match=f"starts at offset {at}"):
        policy.free(at)
    with pytest.raises(UsageError, match="0 bytes"):
        policy.allocate(0)
    with pytest.raises(UsageError, match="no power of two"):
        policy.allocate(8, 3)
    with pytest.raises(UsageError, match="no power of two"):
        POLICIES[name](None, 100)


@pytest.mark.parametrize("name", POLICIES)
def test_a_capacity_at_the_high_water_changes_nothing(name):
    """Growing only when nothing fits makes the high water the capacity that suffices."""
    first = make(name)
    places = _run(first, seed=7)
    again = make(name, first.high_water if name != "buddy" else None)
    assert _run(again, seed=7) == places
    smaller = make(name, int(first.high_water * 0.7))
    assert None in _run(smaller, seed=7)


def _run(policy, seed, steps=800):
    dice, live, places = random.Random(seed), [], []
    for _ in range(steps):
        if live and dice.random() < 0.45:
            policy.free(live.pop(dice.randrange(len(live))))
        at = policy.allocate(dice.choice((1, 7, 20, 60, 200, 900)))
        places.append(at)
        if at is not None:
            live.append(at)
    return places


@pytest.mark.parametrize("name", POLICIES)
def test_all_memory_comes_back(name):
    policy = make(name, 1 << 16)
    _run(policy, seed=3, steps=300)
    for at in list(policy.used):
        policy.free(at)
    assert policy.given == 0
    assert sum(size for _, size in policy.free_blocks()) == policy.high_water
    if name != "first-fit-naive":
        assert policy.largest_free() == 1 << 16 or name == "scope"


def test_fragmentation_is_what_the_largest_hole_leaves():
    policy = FirstFit(None, 1)
    assert policy.fragmentation() == 0.0
    holes(policy, 10, 30)
    assert policy.fragmentation() == 0.25
    assert policy.largest_free() == 30
