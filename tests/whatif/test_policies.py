"""One stream under all policies: figures worked by hand, and what a capacity does."""

from __future__ import annotations

import pytest

from moexray.algorithms.blocks import Settings
from moexray.algorithms.replay import Action, Event, History, SegmentState
from moexray.whatif.policies import Stream, compare, names, stream_of
from moexray.whatif.recordings import Recording

MIB = 1 << 20
BASE = 1 << 40


def stream(*steps):
    live = now = 0
    sizes = {}
    for ident, size in steps:
        now += size or -sizes[ident]
        sizes[ident] = size
        live = max(live, now)
    return Stream(steps, ((0, (0, 0)),) * len(steps), Settings(), live, None)


# Two blocks of 64 MiB with one of 1 MiB behind each; the large ones die, one of 128 MiB follows.
HOLES = stream((0, 64 * MIB), (1, MIB), (2, 64 * MIB), (3, MIB), (0, 0), (2, 0), (4, 128 * MIB))


def by_name(trials):
    return {t.name: t for t in trials}


def test_holes_that_do_not_add_up():
    assert HOLES.live_peak == 130 * MIB
    t = by_name(compare(HOLES))
    assert sorted(t) == sorted(names())
    for name in ("first-fit", "best-fit", "next-fit", "worst-fit", "tlsf", "first-fit-naive"):
        assert t[name].peak == 258 * MIB
        assert t[name].ratio_at_peak == t[name].ratio_at_end == 0.5  # two holes of 64 MiB
        assert t[name].live_at_peak == 130 * MIB
    assert t["buddy"].peak == 256 * MIB  # 64, 1 and 1 in the second, 64 in the third; 128 behind
    assert t["pytorch"].peak == (64 + 2 + 64 + 128) * MIB  # segments of their own; both of 1 MiB share one
    assert t["pytorch"].ratio_at_end == 0.5
    assert t["pytorch-expandable"].peak == 142 * MIB  # the two of 64 lie side by side: 7 pages of 20, and 2
    assert all(x.events == 7 and x.served_bytes == 258 * MIB for x in t.values())


def test_a_capacity_makes_requests_fail_and_leaves_out_their_frees():
    steps = (*HOLES.steps, (4, 0), (5, MIB))
    t = by_name(compare(stream(*steps), capacity=200 * MIB))
    assert (t["first-fit"].failures, t["first-fit"].failed_bytes) == (1, 128 * MIB)
    assert t["first-fit"].peak == 130 * MIB
    assert t["pytorch"].failures == 0  # it gives the two cached segments back
    assert compare(stream(*steps), capacity=200 * MIB)[-1].failures == 1  # the failing ones come last


def test_waste_is_what_blocks_have_beyond_the_request():
    t = by_name(compare(stream((0, 3 * MIB), (1, 5 * MIB), (0, 0))))
    assert t["buddy"].waste_at_peak == (1 + 3) * MIB
    assert t["buddy"].waste_share == pytest.approx(12 / 8 - 1)
    assert t["first-fit"].waste_share == 0.0
    assert t["segregated"].waste_at_peak == 0  # both are classes


def test_steps_suit_the_scope_arena():
    steps = []
    for step in range(40):
        ids = [step * 8 + i for i in range(8)]
        steps += [(i, (1 + i % 3) * MIB) for i in ids]
        steps += [(i, 0) for i in reversed(ids)]
    trial = by_name(compare(stream(*steps)))["scope"]
    assert trial.fallbacks == 0
    assert trial.ratio_at_end < 0.5


def test_a_stream_begins_with_what_lived_before_the_first_event():
    segment = SegmentState(BASE, 8 * MIB, 3, blocks=((BASE, 2 * MIB, 2 * MIB - 100, True), (BASE + 2 * MIB, 6 * MIB, 0, False)))
    events = (
        Event(Action.ALLOC, BASE + 2 * MIB, 3 * MIB, 3),
        Event(Action.FREE_COMPLETED, BASE + 2 * MIB, 3 * MIB, 3),
    )
    made = stream_of(Recording("a.pickle", 0, 0, History(events, (segment,)), ""))
    assert made.steps == ((0, 2 * MIB - 100), (1, 3 * MIB), (1, 0))
    assert made.homes[0] == (3, (0, 0))
    assert made.live_peak == 5 * MIB - 100
    assert made.recorded_peak == 8 * MIB
    assert stream_of(Recording("a", 0, 0, History(events, (segment,)), ""), most=1).steps == made.steps[:1]
