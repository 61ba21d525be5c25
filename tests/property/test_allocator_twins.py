"""The allocator against a naive twin, and replay against recordings that the allocator makes itself."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from allocator_recorder import DEFAULT, MIB, PRIVATE, SIZES, program, record
from moexray.algorithms.allocator import CachingAllocator, OutOfMemoryError
from moexray.algorithms.blocks import PoolRules, Settings
from moexray.algorithms.device import ORDERS, Device
from moexray.algorithms.replay import replay
from moexray.algorithms.simulate import prepare, simulate
from naive_allocator import NaiveAllocator

SPACE = 300 * MIB  # address space of an expandable segment: small, so that it runs out
OVERFLOW, WHOLE, OWN = (0, 2), (0, 3), (0, 4)
POOLS = (DEFAULT, DEFAULT, DEFAULT, PRIVATE, OVERFLOW, WHOLE, OWN)

SETTINGS = st.builds(
    Settings,
    max_split=st.sampled_from([None, None, 20 * MIB, 40 * MIB, 100 * MIB]),
    max_non_split_rounding=st.sampled_from([20 * MIB, 40 * MIB]),
    roundup=st.sampled_from([(0,) * 16, (4,) * 16, (1, 2, 4, 8) * 4]),
    gc_threshold=st.sampled_from([0.0, 0.3, 0.8]),
    limit=st.sampled_from([None, 250 * MIB, 500 * MIB]),
    expandable=st.booleans(),
    large_segment=st.sampled_from([20 * MIB, 12 * MIB]),
    throw_on_oom=st.booleans(),
)


class Twins(RuleBasedStateMachine):
    """Both take the same steps; after each they hold the same blocks and count the same."""

    @initialize(settings=SETTINGS, capacity=st.sampled_from([None, 200 * MIB, 600 * MIB]), order=st.sampled_from(ORDERS[:2]))
    def begin(self, settings, capacity, order):
        self.fast = CachingAllocator(settings, Device(capacity, order=order), va_bytes=SPACE)
        self.slow = NaiveAllocator(settings, Device(capacity, order=order), SPACE)
        self.fast.rules = {
            OVERFLOW: PoolRules(use_on_oom=True), WHOLE: PoolRules(no_split=True), OWN: PoolRules(custom=True),
        }  # fmt: skip
        self.slow.overflow, self.slow.no_split, self.slow.custom = [OVERFLOW], {WHOLE}, {OWN}
        self.live, self.tickets, self.count = {}, {}, 0

    @rule(
        size=st.sampled_from(SIZES) | st.integers(1, 60 * MIB), times=st.integers(1, 3),
        stream=st.sampled_from([0, 0, 7]), pool=st.sampled_from(POOLS),
    )  # fmt: skip
    def malloc(self, size, times, stream, pool):
        for _ in range(times):
            self.count += 1
            want = self.slow.malloc(self.count, size, stream, pool)
            try:
                self.live[self.count] = self.fast.malloc(size, stream, pool)
            except OutOfMemoryError:
                assert want is None
            else:
                assert want == self.live[self.count].address

    @precondition(lambda self: self.live)
    @rule(at=st.integers(0, 1000), later=st.sampled_from([False, False, True]))
    def free(self, at, later):
        id = list(self.live)[at % len(self.live)]
        self.slow.free(id, later)
        if later:
            self.tickets[id] = self.fast.defer(self.live.pop(id))
        else:
            self.fast.free(self.live.pop(id))

    @precondition(lambda self: self.tickets)
    @rule(at=st.integers(0, 1000))
    def complete(self, at):
        id = list(self.tickets)[at % len(self.tickets)]
        self.slow.complete(id)
        self.fast.complete(self.tickets.pop(id))

    @rule()
    def empty_cache(self):
        self.slow.empty_cache()
        self.fast.release_cached()

    @precondition(lambda self: PRIVATE not in self.slow.freeable)
    @rule()
    def nobody_uses_the_private_pool_any_more(self):
        self.slow.freeable.append(PRIVATE)
        self.fast.rules[PRIVATE] = PoolRules(freeable=True)

    @rule(on=st.booleans())
    def capture(self, on):
        self.slow.capturing = self.fast.capturing = on

    @invariant()
    def they_hold_the_same(self):
        if not hasattr(self, "fast"):
            return
        used = [*self.live.values(), *self.fast.pending.values()]
        have = sorted([(b.address, b.size, b.used) for b in [*used, *self.fast.all_free()]])
        assert have == self.slow.everything()
        for (a, n, _), (b, _, _) in pairwise(have):
            assert a + n <= b, "blocks overlap"
        counters = self.fast.counters
        figures = self.slow.figures()
        assert {k: getattr(counters, k) for k in figures} == figures
        assert {k: getattr(counters, f"peak_{k}") for k in figures} == self.slow.peak
        assert (counters.retries, counters.ooms, counters.oom_rejections) == (self.slow.retries, self.slow.ooms, self.slow.rejections)
        assert counters.reserved >= counters.active >= counters.allocated
        small, large = self.fast.usage[True], self.fast.usage[False]
        assert {k: getattr(small, k) + getattr(large, k) for k in figures} == figures
        for free in self.fast.all_free():
            for near in (free.prev, free.next):
                assert near is None or near.used or not near.mapped, "two free blocks lie side by side"


def examine(examples, steps):
    run_state_machine_as_test(Twins, settings=hypothesis_settings(max_examples=examples, stateful_step_count=steps, deadline=None))


def test_the_allocator_equals_its_naive_twin():
    examine(60, 40)


@pytest.mark.soak
def test_the_allocator_equals_its_naive_twin_on_thousands_of_programs():
    examine(3000, 50)


KINDS = {
    "plain": Settings(),
    "divisions": Settings(roundup=(4,) * 16),
    "split limit": Settings(max_split=64 * MIB),
    "collection": Settings(gc_threshold=0.5, limit=650 * MIB),
    "expandable": Settings(expandable=True),
    "expandable, small pages": Settings(expandable=True, large_segment=12 * MIB, roundup=(2,) * 16),
}


def runs(count, settings, capacity, *, empty=0.02, late=0.15):
    """Recordings of random programs with streams, deferred frees and a private pool."""
    for seed in range(count):
        dice = random.Random(seed)
        streams, pools = ((0,), (DEFAULT,)) if seed % 2 else ((0, 0, 5), (DEFAULT, DEFAULT, PRIVATE))
        steps = program(dice, 300, streams=streams, pools=pools, late=late * (seed % 3), empty=empty)
        order = ORDERS[seed % 2]
        yield *record(settings, steps, capacity=capacity, freeable=(PRIVATE,), order=order), order


def exact(count, settings, capacity):
    for history, _, _ in runs(count, settings, capacity):
        check = replay(history)
        assert check.exact, check


def own_addresses(count, settings, capacity):
    """With the capacity known and no empty_cache(): at the peak it looks like a retry.

    Deferred frees only under settings where all that a request gives back, it gives back in a retry:
    elsewhere the recording does not tell whether it waited for them.
    """
    late = 0.15 if settings in (KINDS["plain"], KINDS["divisions"]) else 0.0
    for history, allocator, order in runs(count, settings, capacity, empty=0.0, late=late):
        plan = prepare(history)
        outcome = simulate(plan, settings, capacity=capacity, order=order)
        assert outcome.reserved == plan.recorded_reserved
        c = allocator.counters
        assert (outcome.end_reserved, outcome.peak_reserved) == (c.reserved, c.peak_reserved)
        assert (outcome.ooms, outcome.stuck) == (c.ooms, allocator.stuck())
        least, below = plan.capacity
        assert least == c.peak_reserved
        if below is not None:
            assert least <= min(x for x in (settings.limit, capacity) if x is not None) < below


@pytest.mark.parametrize("capacity", [None, 700 * MIB])
@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_what_was_recorded_replays_exactly(settings, capacity):
    exact(6, settings, capacity)
    own_addresses(6, settings, capacity)


@pytest.mark.soak
@pytest.mark.parametrize("capacity", [None, 300 * MIB, 700 * MIB])
@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_what_was_recorded_replays_exactly_on_hundreds_of_programs(settings, capacity):
    exact(300, settings, capacity)
    own_addresses(300, settings, capacity)


@pytest.mark.parametrize("cut", [0.25, 0.5, 0.9])
@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_a_history_without_its_front_replays_all_that_can_be_known(settings, cut):
    for history, _, _ in runs(6, settings, None):
        short = replace(history, events=history.events[int(cut * len(history.events)) :])
        check = replay(short)
        assert check.exact or check.ambiguous, check
