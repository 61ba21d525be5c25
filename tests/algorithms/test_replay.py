"""Replays of hand-made histories: what agrees, what does not, and what cannot be known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moexray.algorithms.blocks import ContradictionError, Settings
from moexray.algorithms.replay import Action, Ambiguous, Event, History, SegmentState, replay, start_state

MIB = 1 << 20
A = 0x7F0000000000
POOL = (0, 0)


def events(*rows):
    return tuple(Event(Action[what.upper()], address, size) for what, address, size in rows)


def freed(address, size):
    return (("free_requested", address, size), ("free_completed", address, size))


def test_growth_and_hits_agree():
    history = History(
        events(
            ("segment_alloc", A, 40 * MIB), ("alloc", A, 38 * MIB + 5), *freed(A, 38 * MIB + 5), ("alloc", A, 12 * MIB),
        ),
        (SegmentState(A, 40 * MIB, 0, blocks=((A, 12 * MIB, 12 * MIB, True), (A + 12 * MIB, 28 * MIB, 0, False))),),
    )  # fmt: skip
    # 38 MiB + 5: rounded 38 MiB + 512, segment 40 MiB.
    check = replay(history)
    assert check.exact
    assert (check.placements, check.segment_allocs, check.final_blocks) == ((2, 2), (1, 1), (2, 2))


def test_a_segment_of_another_size_a_growth_without_need_and_a_wrong_address_are_told():
    whole = SegmentState(A, 40 * MIB, 0, blocks=((A, 40 * MIB, 38 * MIB, True),))
    grow = ("segment_alloc", A, 40 * MIB)
    assert replay(History(events(grow, ("alloc", A, 30 * MIB)), (whole,))).segment_allocs == (0, 1)
    # 40 MiB are free, yet the recording asks the driver again.
    two = (
        SegmentState(A, 40 * MIB, 0, blocks=((A, 40 * MIB, 0, False),)),
        SegmentState(A + 64 * MIB, 12 * MIB, 0, blocks=((A + 64 * MIB, 12 * MIB, 12 * MIB, True),)),
    )
    check = replay(History(events(("segment_alloc", A + 64 * MIB, 12 * MIB), ("alloc", A + 64 * MIB, 12 * MIB)), two))
    assert check.placements == (0, 1)
    assert check.final_blocks == (2, 2)  # it goes on as recorded
    # A hit in the middle of a free segment: best fit begins at its front.
    middle = (A, 8 * MIB, 0, False), (A + 8 * MIB, 12 * MIB, 12 * MIB, True), (A + 20 * MIB, 20 * MIB, 0, False)
    check = replay(History(events(("alloc", A + 8 * MIB, 12 * MIB)), (SegmentState(A, 40 * MIB, 0, blocks=middle),)))
    assert check.placements == (0, 1)
    assert check.final_blocks == (3, 3)


def test_a_block_of_unknown_size_is_listed_with_its_range():
    # At the start 25 MiB are in use in 40; they are freed before anybody moves in behind: 25 to 26 MiB.
    rows = events(*freed(A, 25 * MIB))
    history = History(rows, (SegmentState(A, 40 * MIB, 0, blocks=((A, 40 * MIB, 0, False),)),))
    check = replay(history)
    assert check.exact
    assert check.ambiguous == (Ambiguous(A, 25 * MIB, 26 * MIB),)
    assert check.ambiguous_blocks == 1


def test_who_moves_in_behind_tells_the_size():
    # 13 MiB move in at 25.5 MiB: the block before was 25.5 MiB long, half a MiB of slack.
    at = A + 25 * MIB + MIB // 2
    rows = events(("alloc", at, 13 * MIB), *freed(A, 25 * MIB))
    end = ((A, at - A, 0, False), (at, 14 * MIB + MIB // 2, 13 * MIB, True))
    # 14.5 MiB are left for 13: the rest is above 1 MiB and split off.
    end = (end[0], (at, 13 * MIB, 13 * MIB, True), (at + 13 * MIB, 40 * MIB - (at - A) - 13 * MIB, 0, False))
    check = replay(History(rows, (SegmentState(A, 40 * MIB, 0, blocks=end),)))
    assert check.exact
    assert check.ambiguous == ()


def test_an_oversize_block_is_its_whole_segment():
    # With a split limit of 100 MiB a block for 102 MiB in a segment of 110 is not split.
    rows = events(*freed(A, 102 * MIB))
    end = (SegmentState(A, 110 * MIB, 0, blocks=((A, 110 * MIB, 0, False),)),)
    start, ambiguous = start_state(History(rows, end, Settings(max_split=100 * MIB)))
    assert start[0].blocks == ((A, 110 * MIB, 102 * MIB, True),)
    assert ambiguous == ()


# ---- expandable segments

GROWN = Settings(expandable=True)
RUN = (A, 20 * MIB)  # one page of the large pool


def expandable(address, size, *blocks, small=False):
    return SegmentState(address, size, 0, small, blocks=blocks, expandable=True)


def test_mapped_pages_agree_and_their_address_space_is_found():
    # 16 MiB in one page; 24 more need one page and begin at 16: 0 MiB are left of 40.
    rows = events(
        ("segment_map", A, 20 * MIB), ("alloc", A, 16 * MIB),
        ("segment_map", A + 20 * MIB, 20 * MIB), ("alloc", A + 16 * MIB, 24 * MIB),
    )  # fmt: skip
    end = expandable(A, 40 * MIB, (A, 16 * MIB, 16 * MIB, True), (A + 16 * MIB, 24 * MIB, 24 * MIB, True))
    history = History(rows, (end,), GROWN)
    check = replay(history)
    assert check.exact
    assert check.segment_allocs == (2, 2)
    later = replace(history, events=rows[2:])
    [start], _ = start_state(later)
    assert (start.address, start.page) == RUN
    assert start.blocks == ((A, 16 * MIB, 16 * MIB, True), (A + 16 * MIB, 4 * MIB, 0, False))
    assert replay(later).exact


def test_a_page_mapped_elsewhere_or_for_nothing_is_told():
    end = expandable(A, 60 * MIB, (A, 16 * MIB, 16 * MIB, True), (A + 16 * MIB, 44 * MIB, 0, False))
    rows = events(("segment_map", A, 60 * MIB), ("alloc", A, 16 * MIB))
    assert replay(History(rows, (end,), GROWN)).segment_allocs == (0, 1)  # one page would do


def test_pages_given_back_are_mapped_at_the_start():
    """A hole that empty_cache() left, then filled again: three states of the same pages."""
    full = ((A, 30 * MIB, 30 * MIB, True), (A + 30 * MIB, 30 * MIB, 0, False))
    rows = events(
        *freed(A + 30 * MIB, 30 * MIB), ("segment_unmap", A + 40 * MIB, 20 * MIB),
        ("segment_map", A + 40 * MIB, 20 * MIB), ("alloc", A + 30 * MIB, 30 * MIB), *freed(A + 30 * MIB, 30 * MIB),
    )  # fmt: skip
    check = replay(History(rows, (expandable(A, 60 * MIB, *full),), GROWN))
    assert check.exact
    assert (check.segment_allocs, check.segment_frees) == ((1, 1), (1, 1))
    wrong = tuple(e._replace(address=A + 30 * MIB) if e.action == Action.SEGMENT_UNMAP else e for e in rows)
    assert replay(History(wrong, (expandable(A, 60 * MIB, *full),), GROWN)).segment_frees == (0, 1)


def test_a_second_address_space_begins_where_the_first_one_ends():
    other = A + 1024 * MIB
    rows = events(
        ("segment_map", A, 100 * MIB), ("alloc", A, 90 * MIB), ("segment_map", other, 20 * MIB), ("alloc", other, 15 * MIB),
    )  # fmt: skip
    end = (
        expandable(A, 100 * MIB, (A, 90 * MIB, 90 * MIB, True), (A + 90 * MIB, 10 * MIB, 0, False)),
        expandable(other, 20 * MIB, (other, 15 * MIB, 15 * MIB, True), (other + 15 * MIB, 5 * MIB, 0, False)),
    )
    history = History(rows, end, GROWN, va_bytes=100 * MIB)
    assert replay(history).exact
    assert replay(replace(history, events=rows[3:])).exact
    # Of unknown size, the first one is taken to go on: 15 MiB would have grown from 90 MiB on.
    assert replay(replace(history, va_bytes=None)).segment_allocs == (1, 2)


# ---- waiting


def test_a_retry_that_waited_for_another_stream_agrees():
    """30 MiB deferred in a full device: the request waits, gives the segment back and gets one of its size."""
    rows = events(
        ("segment_alloc", A, 30 * MIB), ("alloc", A, 30 * MIB), ("free_requested", A, 30 * MIB),
        ("segment_alloc", A + 64 * MIB, 12 * MIB), ("alloc", A + 64 * MIB, 12 * MIB),
        ("free_completed", A, 30 * MIB), ("segment_free", A, 30 * MIB), ("segment_alloc", A, 20 * MIB), ("alloc", A, 20 * MIB),
    )  # fmt: skip
    end = (
        SegmentState(A, 20 * MIB, 0, blocks=((A, 20 * MIB, 20 * MIB, True),)),
        SegmentState(A + 64 * MIB, 12 * MIB, 0, blocks=((A + 64 * MIB, 12 * MIB, 12 * MIB, True),)),
    )
    assert replay(History(rows, end)).exact


def test_growth_right_after_an_ordinary_free_that_would_have_served_is_told():
    rows = events(
        ("segment_alloc", A, 30 * MIB), ("alloc", A, 30 * MIB), *freed(A, 30 * MIB),
        ("segment_alloc", A + 64 * MIB, 30 * MIB), ("alloc", A + 64 * MIB, 30 * MIB),
    )  # fmt: skip
    end = (
        SegmentState(A, 30 * MIB, 0, blocks=((A, 30 * MIB, 0, False),)),
        SegmentState(A + 64 * MIB, 30 * MIB, 0, blocks=((A + 64 * MIB, 30 * MIB, 30 * MIB, True),)),
    )
    assert replay(History(rows, end)).placements == (1, 2)


# ---- nonsense


@pytest.mark.parametrize(
    "segments",
    [
        (SegmentState(A, 20 * MIB, 0), SegmentState(A + MIB, 20 * MIB, 0)),
        (SegmentState(A, 20 * MIB, 0, blocks=((A, 21 * MIB, 1, True),)),),
        (SegmentState(A, 20 * MIB, 0, blocks=((A, 2 * MIB, 1, True), (A + MIB, 2 * MIB, 1, True))),),
        (SegmentState(A, 0, 0),),
    ],
)
def test_a_snapshot_that_contradicts_itself_is_no_traceback(segments):
    history = History(events(("alloc", A, 5)), segments)
    check = replay(history)
    assert not check.exact
    assert check.contradiction
    with pytest.raises(ContradictionError):
        start_state(history)


def test_impossible_events_are_counted_not_obeyed():
    rows = events(
        ("segment_alloc", A, 20 * MIB), ("alloc", A, 12 * MIB), ("segment_alloc", A, 20 * MIB), ("alloc", A, 12 * MIB),
        ("segment_free", A, 20 * MIB), ("segment_map", A, 0), ("free_completed", 7, 7),
        ("segment_alloc", A, -5), ("snapshot", 0, 5), ("oom", 0, 5),
    )  # fmt: skip
    check = replay(History(rows, ()))
    assert not check.exact
    assert check.segment_frees == (0, 1)
    both = replay(History((*rows, *events(("segment_unmap", A, 20 * MIB))), ()))
    assert "two blocks" in both.contradiction  # mapped pages and a segment at one place
