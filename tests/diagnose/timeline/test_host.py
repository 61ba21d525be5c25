"""Hosts that stand still: whose, and which record of them is believed."""

import time

import pytest

from moexray.core.limits import Limits
from moexray.core.source import Source
from moexray.diagnose.engine import diagnose
from moexray.readers.read_any import read_sources
from trace_samples import BASE_NS, Trace, pair_of_ranks

STEP = 12_250.0  # us of a step of pair_of_ranks


def say(traces, log=""):
    sources = [Source(f"t{i}.json", content=t.text().encode()) for i, t in enumerate(traces)]
    sources += [Source("server.log", content=log.encode())] if log else []
    return diagnose(read_sources(sources), Limits())


def ids(result):
    return [f.id for f in result.findings if f.severity != "info"]


def line(at_us, text, rank=1):
    """A line of a worker, `at_us` after the base of the traces."""
    seconds = BASE_NS / 1e9 + at_us / 1e6
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}"
    return f"[{stamp} DP{rank} TP{rank} EP{rank}] {text}\n"


def ready():
    return line(-5e6, "Application startup complete.", 0)


COMPILES = "WARNING Triton kernel JIT compilation during inference: _moe (M=96). This causes a latency spike."


def test_a_compile_line_in_each_silence_names_the_compiler():
    gaps = (4, 7)
    starts = [4 * STEP, 7 * STEP + 100_000]
    log = ready() + "".join(line(at + 500, COMPILES) for at in starts)
    result = say(pair_of_ranks(gap=gaps), log)
    assert ids(result) == ["jit.compile_in_hot_path", "comm.straggler_wait"]
    assert result.findings[0].subject.rank == 1
    assert result.findings[1].implied_by == ("jit.compile_in_hot_path",)


@pytest.mark.parametrize("log", [
    ready() + "".join(line(at + 500, COMPILES, rank=0) for at in (4 * STEP, 7 * STEP + 100_000)),
    ready() + line(900_000, COMPILES) + line(1_900_000, COMPILES),
    line(7 * STEP + 500_000, "Application startup complete.", 0),
])  # fmt: skip
def test_a_compile_line_of_another_rank_or_time_does_not(log):
    assert ids(say(pair_of_ranks(gap=(4, 7)), log)) == ["host.stall", "comm.straggler_wait"]


def test_compiler_frames_between_two_steps_count():
    traces = pair_of_ranks(gap=(4, 7), record=("python_function", "triton/compiler/compiler.py(245): compile"))
    for e in traces[1].events:
        if e["name"] in ("ProfilerStep#4", "ProfilerStep#7"):  # the pause comes before the step
            e["ts"], e["dur"] = e["ts"] + 100_050, e["dur"] - 100_050
    assert ids(say(traces)) == ["jit.compile_in_hot_path", "comm.straggler_wait"]


def all_stop(steps=14, at=(5, 9), length=300_000.0, lane=100, record="eplb_rearrange"):
    """Two ranks that both stand still before some steps."""
    traces, now = [Trace(r, 2) for r in range(2)], 0.0
    for step in range(steps):
        if step in at:
            for trace in traces:
                if record:
                    trace.slice("user_annotation", record, now + 10, length - 20, tid=lane)
            now += length
        for trace in traces:
            trace.step(step, now, 12_150).kernel(now + 100, 10_000).collective(step, now + 10_100, 2_000)
            trace.call("cudaStreamSynchronize", now + 150, 11_900)
        now += 12_250
    return traces


def test_a_move_of_experts_stops_all_ranks():
    result = say(all_stop())
    assert ids(result) == ["ep.rearrange_stall"]
    (found,) = [f for f in result.findings if f.id == "ep.rearrange_stall"]
    assert found.subject.rank is None
    assert "all ranks: serving stood still 2 times for 300" in found.claim


def test_a_move_in_the_background_or_no_move_is_not_said():
    assert ids(say(all_stop(lane=777))) == []
    assert ids(say(all_stop(record=""))) == []  # no requests: all ranks wait for work


def moves(ends, seconds=0.3):
    return ready() + "".join(line(e, f"Rearranged experts in {seconds:.2f} seconds.", 0) for e in ends)


def test_lines_of_moves_that_fill_the_silences():
    ends = [5 * STEP + 300_000, 9 * STEP + 600_000]
    assert ids(say(all_stop(record=""), moves(ends))) == ["ep.rearrange_stall"]
    assert ids(say(all_stop(record=""), moves([e + 150_000 for e in ends]))) == []
    assert ids(say(all_stop(record=""), moves(ends, seconds=1.4))) == []  # went on in the background
    many = ends + [12_000.0 * i for i in range(3)]
    assert ids(say(all_stop(record=""), moves(many))) == []  # most moves stopped nothing


def test_a_line_of_a_move_says_nothing_of_one_rank_that_stands_still():
    log = moves([4 * STEP + 100_000, 7 * STEP + 200_000], seconds=0.1)
    assert ids(say(pair_of_ranks(gap=(4, 7)), log)) == ["host.stall", "comm.straggler_wait"]


def test_the_frame_of_a_dump_names_it():
    result = say(pair_of_ranks(gap=(4, 7), record=("python_function", "torch/cuda/memory.py(980): _dump_snapshot")))
    assert ids(result) == ["mem.snapshot_overhead", "comm.straggler_wait"]


def device_only(traces):
    for trace in traces:
        trace.events = [e for e in trace.events if e["cat"] == "kernel"]
    return traces


def test_a_collection_in_the_log_explains_an_idle_device():
    text = "WARNING LONG GARBAGE COLLECTION DETECTED | Generation 2 | Duration: 0.0990s | # Objects: 9"
    log = ready() + line(4 * STEP + 100_000, text) + line(7 * STEP + 200_000, text)
    result = say(device_only(pair_of_ranks(steps=14, gap=(4, 7))), log)
    assert ids(result) == ["host.gc_pause", "comm.straggler_wait"]
    assert result.findings[0].confidence <= 0.7


def test_an_idle_device_alone_is_no_host_that_stood_still():
    assert ids(say(device_only(pair_of_ranks(steps=14, gap=(4, 7))))) == ["comm.straggler_wait"]


def test_what_lies_among_the_files_is_not_asked_for():
    traces = pair_of_ranks(steps=24, slow=range(12, 24))
    asked = [s for f in say(traces).findings for s in f.settle_with]
    assert any(s.startswith("NCCL_DEBUG") for s in asked)
    lines = "".join(
        f"n0:2{r}:3 [0] NCCL INFO Channel 00/0 : {r}[0] -> {1 - r}[0] [send] via P2P/CUMEM\n" for r in (0, 1)
    )
    asked = [s for f in say(traces, lines).findings for s in f.settle_with]
    assert not any(s.startswith("NCCL_DEBUG") for s in asked)
