"""Lifetimes per layer, expert and scope, worked by hand."""

from dataclasses import asdict

import pytest

from memory_log_samples import KIB, alloc, free, tensors_of, two_experts
from moexray.analyse.lifetimes import groups, unattributed


def test_groups_by_hand(tmp_path):
    [one] = tensors_of(tmp_path, two_experts())
    found = groups(one)
    # most bytes at the common peak (the hidden state and expert 1, 7 KiB) first
    assert [(g.layer, g.expert, g.scope, g.at_peak_bytes) for g in found] == [
        (0, None, "layer", 4 * KIB), (0, 1, "expert", 3 * KIB), (0, 0, "expert", 0), (0, None, "router", 0),
    ]  # fmt: skip
    assert [g.peak_bytes for g in found] == [4 * KIB, 3 * KIB, 2 * KIB, KIB]
    assert [g.max_events for g in found] == [7, 1, 1, 1]
    assert [g.max_ns for g in found] == [110_000, 40_000, 20_000, 10_000]


def test_mean_median_and_longest_count_what_ended(tmp_path):
    records = [alloc(f"t{i}", 8, 0, 1) for i in range(4)]
    records += [free("t0", 1), free("t1", 2), free("t2", 6)]
    [one] = tensors_of(tmp_path, records)
    [group] = groups(one)
    assert asdict(group) == {
        "layer": 1, "expert": None, "scope": "layer", "count": 4, "open": 1, "bytes": 32, "mean_ns": 3000.0,
        "median_ns": 2000.0, "max_ns": 6000, "mean_events": 4.0, "median_events": 4.0, "max_events": 4,
        "peak_bytes": 32, "at_peak_bytes": 32,
    }  # fmt: skip


def test_without_times_and_without_ends_there_are_none(tmp_path):
    [one] = tensors_of(tmp_path, [{k: v for k, v in alloc("a", 8, 0, 1).items() if k != "timestamp_us"}])
    [group] = groups(one)
    assert (group.mean_ns, group.max_ns, group.mean_events, group.max_events) == (None, None, None, None)


def test_what_nothing_names_is_told_as_a_share(tmp_path):
    [one] = tensors_of(tmp_path, [alloc("a", 30, 0, 1), alloc("b", 10, 1), free("a", 2), free("b", 3)])
    assert unattributed(one) == pytest.approx(0.25)
    assert [(g.layer, g.scope, g.bytes) for g in groups(one)] == [(1, "layer", 30), (None, None, 10)]
