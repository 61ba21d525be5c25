"""Histories under other settings: steps, capacity, failures, orders of addresses."""

from __future__ import annotations

import pytest

from moexray.algorithms.blocks import Settings
from moexray.algorithms.device import ORDERS, Device
from moexray.algorithms.replay import Action, Event, History, SegmentState
from moexray.algorithms.simulate import prepare, simulate

MIB = 1 << 20
A = 0x7F0000000000
PRIVATE = (0, 1)


def events(*rows):
    return tuple(Event(Action[what.upper()], address, size) for what, address, size in rows)


def freed(address, size):
    return (("free_requested", address, size), ("free_completed", address, size))


def kinds(plan):
    return [(step[0], step[2] // MIB) for step in plan.steps]


def test_freed_segments_before_a_quiet_event_are_an_empty_cache():
    rows = events(("segment_alloc", A, 40 * MIB), ("alloc", A, 40 * MIB), *freed(A, 40 * MIB), ("segment_free", A, 40 * MIB))
    plan = prepare(History(rows, ()))
    assert kinds(plan) == [(0, 40), (2, 40), (-1, 0)]
    assert plan.capacity == (40 * MIB, None)
    assert simulate(plan, Settings()).end_reserved == 0


def test_freed_segments_before_growth_past_the_peak_are_a_retry():
    """Free the old buffer, ask for a larger one, in a device of 60 MiB: an ordinary free, then a retry."""
    rows = events(
        ("segment_alloc", A, 40 * MIB), ("alloc", A, 40 * MIB), *freed(A, 40 * MIB),
        ("segment_free", A, 40 * MIB), ("segment_alloc", A, 44 * MIB), ("alloc", A, 44 * MIB),
    )  # fmt: skip
    plan = prepare(History(rows, (SegmentState(A, 44 * MIB, 0, blocks=((A, 44 * MIB, 44 * MIB, True),)),)))
    assert kinds(plan) == [(0, 40), (2, 40), (0, 44)]
    assert plan.capacity == (44 * MIB, 84 * MIB)  # it gave 44; 40 + 44 it could not give
    assert simulate(plan, Settings(), capacity=60 * MIB).retries == 1
    assert plan.recorded_reserved == simulate(plan, Settings(), capacity=60 * MIB).reserved == (40 * MIB, 44 * MIB)


def test_a_free_that_a_request_waited_for_is_deferred():
    """30 MiB in a split segment would have served 25: the recorded growth shows that it was still in use."""
    rows = events(
        ("segment_alloc", A, 40 * MIB), ("alloc", A, 10 * MIB), ("alloc", A + 10 * MIB, 30 * MIB),
        ("segment_alloc", A + 64 * MIB, 12 * MIB), ("alloc", A + 64 * MIB, 12 * MIB),
        ("free_requested", A + 64 * MIB, 12 * MIB), ("alloc", A + 65 * MIB, 0), ("free_completed", A + 64 * MIB, 12 * MIB),
        *freed(A + 10 * MIB, 30 * MIB), ("segment_free", A + 64 * MIB, 12 * MIB),
        ("segment_alloc", A + 64 * MIB, 26 * MIB), ("alloc", A + 64 * MIB, 25 * MIB),
    )  # fmt: skip
    steps = kinds(prepare(History(rows, (), Settings())))
    assert steps[-3:] == [(1, 30), (0, 25), (2, 30)]


def test_a_failed_request_is_tried_and_tells_the_capacity():
    """Device 80 MiB: 40 in use, 30 cached and given back, 50 fail. With pages of 20 MiB nothing changes: 40 + 60."""
    rows = events(
        ("segment_alloc", A, 40 * MIB), ("alloc", A, 40 * MIB), ("segment_alloc", A + 64 * MIB, 30 * MIB),
        ("alloc", A + 64 * MIB, 30 * MIB), *freed(A + 64 * MIB, 30 * MIB),
        ("segment_free", A + 64 * MIB, 30 * MIB), ("oom", 0, 50 * MIB),
    )  # fmt: skip
    plan = prepare(History(rows, (SegmentState(A, 40 * MIB, 0, blocks=((A, 40 * MIB, 40 * MIB, True),)),)))
    assert kinds(plan) == [(0, 40), (0, 30), (2, 30), (3, 50)]
    assert plan.capacity == (70 * MIB, 90 * MIB)
    assert simulate(plan, Settings(), capacity=80 * MIB).ooms == 1
    roomy = simulate(plan, Settings(), capacity=90 * MIB)
    assert (roomy.ooms, roomy.peak_reserved) == (0, 90 * MIB)
    assert len(roomy.reserved) == 2  # only what was recorded as served


def test_a_private_pool_becomes_freeable_when_the_recording_gives_it_back():
    rows = (
        Event(Action.SEGMENT_ALLOC, A, 40 * MIB, 0, PRIVATE), Event(Action.ALLOC, A, 40 * MIB, 0, PRIVATE),
        Event(Action.FREE_REQUESTED, A, 40 * MIB, 0, PRIVATE), Event(Action.FREE_COMPLETED, A, 40 * MIB, 0, PRIVATE),
        Event(Action.SEGMENT_FREE, A, 40 * MIB, 0, PRIVATE),
    )  # fmt: skip
    plan = prepare(History(rows, ()))
    assert [s[0] for s in plan.steps] == [0, -2, 2, -1]
    assert simulate(plan, Settings()).end_reserved == 0


def test_garbage_collection_is_the_simulations_own():
    """Limit 100, threshold 0.5: 60 MiB cached are collected before 20 more are asked for."""
    settings = Settings(gc_threshold=0.5, limit=100 * MIB)
    rows = events(
        ("segment_alloc", A, 60 * MIB), ("alloc", A, 60 * MIB), *freed(A, 60 * MIB),
        ("segment_free", A, 60 * MIB), ("segment_alloc", A, 70 * MIB), ("alloc", A, 70 * MIB),
    )  # fmt: skip
    plan = prepare(History(rows, (SegmentState(A, 70 * MIB, 0, blocks=((A, 70 * MIB, 70 * MIB, True),)),), settings))
    assert kinds(plan) == [(0, 60), (2, 60), (0, 70)]
    outcome = simulate(plan, settings)
    assert outcome.reserved == plan.recorded_reserved
    assert outcome.retries == 0


def test_a_start_with_mapped_pages_is_taken_over():
    rows = events(("segment_map", A + 20 * MIB, 20 * MIB), ("alloc", A + 16 * MIB, 24 * MIB))
    blocks = ((A, 16 * MIB, 16 * MIB, True), (A + 16 * MIB, 24 * MIB, 24 * MIB, True))
    settings = Settings(expandable=True)
    plan = prepare(History(rows, (SegmentState(A, 40 * MIB, 0, blocks=blocks, expandable=True),), settings))
    outcome = simulate(plan, settings)
    assert outcome.reserved == plan.recorded_reserved == (40 * MIB,)
    assert simulate(plan, Settings()).reserved == (44 * MIB,)  # switched off: 20 mapped, and 24 of cudaMalloc


@pytest.mark.parametrize("order", ORDERS)
def test_the_order_of_addresses_decides_ties(order):
    """Two free blocks of one size: the lower address is taken."""
    device = Device(order=order, places=[(A, 2 * MIB), (A - 64 * MIB, 2 * MIB)])
    first, second = device.allocate(2 * MIB), device.allocate(2 * MIB)
    assert (first < second) is (order == "ascending")
    if order == "recorded":
        assert (first, second) == (A, A - 64 * MIB)
        device.release(A, 2 * MIB)
        assert device.allocate(2 * MIB) == A
        assert device.allocate(2 * MIB) > A  # all places are taken


def test_own_addresses_keep_off_what_exists():
    for order in ORDERS:
        device = Device(order=order)
        device.keep(1 << 48, 10 * MIB)
        device.keep((1 << 46) - 10 * MIB, 10 * MIB)
        device.keep(1 << 52, MIB)
        at = device.allocate(4 * MIB)
        assert at >= (1 << 48) + 10 * MIB or at + 4 * MIB <= (1 << 46) - 10 * MIB
        space = device.reserve(4 * MIB)
        assert space >= (1 << 52) + MIB or space + 4 * MIB <= 1 << 52
