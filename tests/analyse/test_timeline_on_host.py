"""Traces of a model that runs on the CPU, as torch's profiler writes them beside gloo."""

from __future__ import annotations

from moexray.diagnose.engine import diagnose
from moexray.readers.read_any import read_any
from trace_samples import Trace

STEPS, STEP_US = 30, 10_000


def ranks(tmp_path, *, busy_us=(4_000, 4_000), moves=(), move_us=40_000, slow=()):
    """Two ranks that compute and meet in a collective of 300 us; the first moves an arena in some steps.

    Args:
        slow: Steps in which the collective takes 3 ms.
    """
    traces = [Trace(rank, 2) for rank in range(2)]
    at = 0
    for step in range(STEPS):
        stall = move_us if step in moves else 0
        arrive = [at + busy + (stall if rank == 0 else 0) for rank, busy in enumerate(busy_us)]
        meet = max(arrive) + (3_000 if step in slow else 300)
        for rank, trace in enumerate(traces):
            if rank == 0 and stall:
                trace.slice("user_annotation", "arena.compact", at + 1, stall)
            work = at + (stall if rank == 0 else 0)
            trace.slice("cpu_op", "aten::mm", work + 2, busy_us[rank] - 4)
            trace.slice("cpu_op", "c10d::alltoall_base_", arrive[rank] - 2, 2)
            trace.slice("user_annotation", "gloo:all_to_all", arrive[rank], meet - arrive[rank], tid=200)
            trace.slice("user_annotation", f"step {step}", at, meet + 50 - at)
        at = max(meet + 100, at + STEP_US)
    for rank, trace in enumerate(traces):
        document = trace.document()
        document["distributedInfo"]["backend"] = "gloo"
        trace.write(tmp_path / f"rank{rank}.pt.trace.json")
    return diagnose(read_any([str(tmp_path)])).findings


def ids(findings):
    return [f.id for f in findings if f.severity != "info"]


def test_even_ranks_have_no_fault(tmp_path):
    assert not ids(ranks(tmp_path))


def test_a_rank_that_computes_longer_is_waited_for(tmp_path):
    findings = ranks(tmp_path, busy_us=(4_000, 6_000))
    assert ids(findings) == ["comm.straggler_wait"]
    assert findings[0].subject.rank == 1
    assert "computing longer than the others" in findings[0].claim


def test_moves_inside_an_arena_are_stalls_of_the_allocator(tmp_path):
    findings = ranks(tmp_path, moves=(5, 12, 20, 26))
    assert ids(findings) == ["mem.alloc_stall", "comm.straggler_wait"]
    assert findings[0].subject.rank == findings[1].subject.rank == 0
    assert "4 of 30 steps move the blocks of an arena" in findings[0].claim
    assert "GPU" not in findings[0].claim
    assert findings[1].implied_by == ("mem.alloc_stall",)


def test_slow_transfers_of_the_host_may_be_its_load(tmp_path):
    (found,) = ranks(tmp_path, slow=range(12, 20))
    assert (found.id, found.cannot_tell) == ("comm.slow_transfer", True)
    assert found.settle_with[0].startswith("load of the hosts")


def test_a_cpu_trace_without_ranks_that_talk_is_left_alone(tmp_path):
    trace = Trace()
    for step in range(10):
        trace.slice("user_annotation", f"step {step}", step * 1000, 900)
        trace.slice("cpu_op", "aten::mm", step * 1000, 300 if step != 5 else 890)
    trace.write(tmp_path / "one.pt.trace.json")
    assert not ids(diagnose(read_any([str(tmp_path)])).findings)
