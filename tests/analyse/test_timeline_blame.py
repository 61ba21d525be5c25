"""Whom a collective waited for, where ranks are in several groups."""

import pytest

from moexray.analyse.timeline import profiles
from moexray.analyse.timeline_comm import match
from moexray.analyse.timeline_late import late_ranks, waited
from moexray.core.limits import Limits
from moexray.core.source import Source
from moexray.diagnose.engine import diagnose
from moexray.readers.read_any import read_sources
from trace_samples import Machine

MS = 1e6
A2A = {"op": "all_to_all", "name": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"}


def two_by_two(steps=12, *, late=3, by=0.0, pauses=(), **how):
    """Two tensor-parallel pairs; all four exchange tokens afterwards."""
    m = Machine(4, **how)
    for i in range(steps):
        m.step(i)
        m.work(2_000, late=late, by=by, pause=80_000 if i in pauses else 0.0)
        m.meet((0, 1), 50)
        m.meet((2, 3), 50)
        m.meet((0, 1, 2, 3), 300, **A2A)
    m.step(steps)
    return m.traces


def run_of(traces):
    return read_sources([Source(f"t{i}.json", content=t.text().encode()) for i, t in enumerate(traces)])


def strong(traces):
    said = diagnose(run_of(traces), Limits())
    assert said.failures == ()
    return [(f.id, f.subject.rank) for f in said.findings if not f.cannot_tell and f.id != "trace.clock_skew"]


@pytest.mark.parametrize("late", [0, 1, 2, 3])
def test_the_peer_that_waited_itself_passes_the_blame_on(late):
    c = match(profiles(run_of(two_by_two(late=late, by=700))))
    exchange = c.op == "all_to_all"
    assert set(c.cause[exchange].tolist()) == {late}
    assert strong(two_by_two(late=late, by=700)) == [("comm.straggler_wait", late)]


def test_one_pause_is_one_lateness_however_many_groups_wait_for_it():
    c = match(profiles(run_of(two_by_two(pauses=(4, 8)))))
    (found,) = late_ranks(c, 0.05, 5)
    assert (found.rank, len(found.bursts)) == (3, 2)
    assert found.burst_ns / MS == pytest.approx([80, 80], rel=0.01)
    assert waited(c)[3][0] == pytest.approx(0.16, rel=0.01)
    assert [id for id, rank in strong(two_by_two(pauses=(4, 8)))] == ["host.stall", "comm.straggler_wait"]
    assert {rank for _, rank in strong(two_by_two(pauses=(4, 8)))} == {3}


def test_clocks_that_differ_and_drift_change_nothing():
    how = {"shift_us": [0, 4_000, -9_000, 2e6], "drift_ppm": [0, 60, -90, 100]}
    traces = two_by_two(by=700, **how)
    c = match(profiles(run_of(traces)))
    assert c.apart.max() < 5_000
    assert not c.doubtful.any()
    assert strong(traces) == [("comm.straggler_wait", 3)]


def test_a_clock_that_is_set_meanwhile_hides_no_late_rank():
    m = Machine(2)
    for i in range(24):
        m.step(i)
        m.shift = [0.0, 50_000.0 if i >= 12 else 0.0]
        m.work(2_000, late=1, by=700)
        m.meet((0, 1), 300)
    m.step(24)
    assert strong(m.traces) == [("comm.straggler_wait", 1)]


def test_groups_that_no_trace_notes_are_told_by_their_ends():
    # The collectives of both pairs look alike: by order they are one of four ranks, which it cannot have been.
    traces = two_by_two(by=700, noted=False)
    c = match(profiles(run_of(traces)))
    assert c.doubtful[c.lateness > 0.5 * MS].any()
    assert {rank for _, rank in strong(traces)} <= {3}


@pytest.mark.parametrize("steps", [1, 2])
def test_of_few_steps_a_late_recording_is_told_without_blame(steps):
    m = Machine(4)
    m.now[2] = 400_000.0
    for i in range(steps):
        m.step(i)
        m.work(2_000)
        m.meet((0, 1, 2, 3), 300)
    m.step(steps)
    (found,) = diagnose(run_of(m.traces), Limits()).findings
    assert (found.id, found.confidence) == ("comm.straggler_wait", 0.6)
    assert "rank 2 was late, or its recording began later" in found.claim
    assert "to blame" not in found.claim


def test_a_slow_link_of_one_pair_is_compared_with_its_own_pair():
    m = Machine(4)
    for i in range(24):
        m.step(i)
        m.work(2_000)
        m.meet((0, 1), 3_000 if 10 <= i < 20 else 300)
        m.meet((2, 3), 300)
    m.step(24)
    for trace in m.traces:  # no sizes: the place in the step stands for them
        for event in trace.events:
            event.get("args", {}).pop("In msg nelems", None)
            event.get("args", {}).pop("Out msg nelems", None)
    assert [id for id, _ in strong(m.traces)] == ["comm.slow_transfer"]


def test_a_recording_that_began_later_is_no_fault():
    m = Machine(4)
    m.now[2] = 400_000.0  # its profiler starts when the others are at the first collective
    for i in range(12):
        m.step(i)
        m.work(2_000)
        m.meet((0, 1, 2, 3), 300)
    m.step(12)
    said = diagnose(run_of(m.traces), Limits())
    (found,) = said.findings
    assert (found.id, found.severity, found.cannot_tell) == ("comm.straggler_wait", "info", True)
    assert "before its trace begins" in found.claim
    assert found.settle_with == ("a trace of rank 2 that begins a step earlier",)


def behind_compute(hidden):
    """Each rank sends its tokens 1.5 ms after the one before; meanwhile all compute, for 10 ms or hardly."""
    m = Machine(4)
    for i in range(12):
        m.step(i)
        base = max(m.now) + 20
        for r, trace in enumerate(m.traces):
            begin = base + 1_500 * r
            trace.kernel(base, 10_000 if hidden else 300).collective(i, begin, base + 4_800 - begin, **A2A)
            m.now[r] = base + 10_000
    m.step(12)
    return m.traces


def test_waiting_behind_compute_costs_nothing():
    assert strong(behind_compute(hidden=True)) == []
    assert [id for id, rank in strong(behind_compute(hidden=False))] == ["comm.straggler_wait"]


def test_slices_without_length_are_no_step():
    traces = two_by_two()
    for t in traces:
        for e in t.events:
            e["dur"] = 0
    assert strong(traces) == []
