"""Idle gaps: hand-made traces with known causes, conservation on random and real ones."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moexray.analyse.gaps import DEVICE, HOST, attribute, streams
from moexray.analyse.timeline import profiles
from moexray.core.source import Source
from moexray.readers.read_any import read_any, read_sources
from trace_samples import NCCL, Trace

KINETO = Path(__file__).parents[3] / "shared" / "data" / "timeline"
US = 1000


def profile(trace):
    [found] = profiles(read_sources([Source("t.json", content=trace.text().encode())]))
    return found


def gap(trace, stream=7):
    """{cause: us} of all gaps of a stream."""
    [found] = [g for g in attribute(profile(trace)) if g.of.stream == stream]
    named = zip([*HOST, *DEVICE], [*found.host.sum(axis=0), *found.device.sum(axis=0)], strict=True)
    out = {name: ns / US for name, ns in named if ns}
    return out | ({"unexplained": found.unexplained.sum() / US} if found.unexplained.any() else {})


def test_a_host_that_allocates_is_named_instant_by_instant():
    # kernel 0..100; host: 100..130 nothing, 130..160 cudaMalloc, 160..180 aten::add, launch 180..184;
    # next kernel at 190: 6 us after the launch returned
    trace = Trace().kernel(0, 100).call("cudaMalloc", 130, 30)
    trace.slice("cpu_op", "aten::add", 160, 30)
    trace.kernel(190, 10, launch=180)
    assert gap(trace) == {"none": 30, "allocator": 30, "operator": 20, "launch": 4, "launch_latency": 6}


def test_an_allocator_call_owns_what_runs_inside_it():
    trace = Trace().kernel(0, 100).call("cudaFree", 100, 80).call("cudaStreamSynchronize", 110, 50)
    trace.kernel(190, 10, launch=180)
    assert gap(trace) == {"allocator": 80, "launch": 4, "launch_latency": 6}


def test_a_kernel_of_another_stream_that_ends_just_before_released_it():
    trace = Trace().kernel(0, 100)
    trace.kernel(50, 450, NCCL, stream=20)  # communication until 500
    trace.kernel(503, 10, launch=20)
    assert gap(trace) == {"released_by_comm": 403}


def test_only_the_time_in_which_the_releasing_kernel_ran_is_its_own():
    trace = Trace().kernel(0, 100)
    trace.kernel(300, 200, stream=9, launch=10)  # a side stream computes from 300 to 500
    trace.kernel(502, 10, launch=20)
    assert gap(trace) == {"released_by_compute": 202, "unexplained": 200}


def test_overlap_is_weaker_than_release():
    trace = Trace().kernel(0, 100)
    trace.kernel(150, 50, NCCL, stream=20, launch=10)
    trace.kernel(300, 10, launch=20)
    assert gap(trace) == {"overlapped_by_comm": 50, "unexplained": 150}


def test_kernels_of_a_graph_wait_for_the_graph():
    trace = Trace().call("cudaGraphLaunch", 0, 10, correlation=900)
    for at in (20, 80):
        trace.slice("kernel", "k", at, 10, pid=0, tid=7, device=0, stream=7, correlation=900)
    trace.slice("kernel", "before", -50, 10, pid=0, tid=7, device=0, stream=7, correlation=-1)
    assert gap(trace) == {"none": 40, "launch": 10, "launch_latency": 10, "in_graph": 50}


def test_without_a_launch_nothing_is_said_of_the_host():
    trace = Trace()
    for at in (0, 100):
        trace.slice("kernel", "k", at, 10, pid=0, tid=7, device=0, stream=7)
    assert gap(trace) == {"unexplained": 90}


def test_a_wrapper_of_compiled_code_is_no_compilation():
    frame = "torch/_dynamo/eval_frame.py(600): _fn"
    trace = Trace().kernel(0, 100).slice("python_function", frame, 90, 200)
    trace.slice("python_function", "triton/runtime/jit.py(700): _do_compile", 120, 40)
    trace.kernel(190, 10, launch=180)
    assert gap(trace) == {"python": 40, "jit": 40, "launch": 4, "launch_latency": 6}


def test_gaps_are_cut_at_the_edges_of_steps():
    trace = Trace().step(0, 0, 200).step(1, 200, 200).kernel(0, 100, launch=-20)
    trace.kernel(300, 10, launch=290)
    [found] = attribute(profile(trace))
    assert [(int(n) // US, int(s)) for n, s in zip(found.duration, found.step, strict=True)] == [(100, 0), (100, 1)]


def conserved(one):
    steps = one.steps
    for gaps in attribute(one):
        first, last = gaps.of.span
        parts = gaps.host.sum() + gaps.device.sum() + gaps.unexplained.sum()
        assert gaps.of.busy.total[-1] + parts == last - first
        assert (gaps.host >= 0).all()
        assert (gaps.device >= 0).all()
        assert (gaps.unexplained >= 0).all()
        parts = gaps.host.sum(axis=1) + gaps.device.sum(axis=1) + gaps.unexplained
        assert np.array_equal(parts, gaps.duration)
        inside = gaps.step >= 0
        idle = np.bincount(gaps.step[inside], parts[inside], minlength=len(steps))
        covered = np.minimum(steps.end, last) - np.maximum(steps.start, first)  # of a step by the stream's span
        assert np.array_equal(gaps.of.busy.within(steps.start, steps.end) + idle, np.maximum(covered, 0))


events = st.lists(
    st.tuples(st.sampled_from(["kernel", "comm", "side", "call", "op", "step"]), st.integers(0, 500), st.integers(0, 90)),
    min_size=1, max_size=25,
)  # fmt: skip


@given(events, st.integers(-40, 40))
def test_busy_attributed_and_unexplained_add_up(found, lead):
    trace = Trace().kernel(0, 5)
    for i, (kind, at, length) in enumerate(found):
        if kind == "kernel":
            trace.kernel(at, length, launch=at - lead)
        elif kind == "comm":
            trace.kernel(at, length, NCCL, stream=20, launch=at - lead)
        elif kind == "side":
            trace.kernel(at, length, stream=9, launch=at - 5)
        elif kind == "call":
            trace.call(("cudaMalloc", "cudaEventQuery", "cudaFree")[i % 3], at, length)
        elif kind == "op":
            trace.slice("cpu_op", "aten::add", at, length)
        else:
            trace.step(i, at, length + 1)
    conserved(profile(trace))


@pytest.mark.skipif(not KINETO.is_dir(), reason="the shared data are not here")
@pytest.mark.parametrize("path", sorted([*KINETO.glob("kineto/**/*.json.gz"), *KINETO.glob("nsys/*.gz")]), ids=lambda p: p.name)
def test_real_traces_add_up(path):
    for one in profiles(read_any([str(path)])):
        conserved(one)


@pytest.mark.skipif(not KINETO.is_dir(), reason="the shared data are not here")
def test_a_few_cudamalloc_are_not_the_cause():
    """13 cudaMalloc of one real trace are 0.4 % of its idle time (timeline spec, section 10)."""
    [one] = profiles(read_any([str(next(KINETO.glob("kineto/*cudamalloc*")))]))
    gaps = next(attribute(one))
    assert 0.003 < gaps.host[:, HOST.index("allocator")].sum() / gaps.duration.sum() < 0.005


@pytest.mark.skipif(not KINETO.is_dir(), reason="the shared data are not here")
def test_a_third_of_one_rank_waits_for_communication():
    """Rank 3 of the 8-rank trace: 32.5 % of its idle time was released by communication (same place)."""
    [one] = profiles(read_any([str(next(KINETO.glob("kineto/**/rank3.json.gz")))]))
    gaps = next(attribute(one))
    assert gaps.device[:, 0].sum() / gaps.duration.sum() == pytest.approx(0.325, abs=0.01)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40), st.integers(0, 12)), min_size=2, max_size=30))
def test_who_released_a_kernel_agrees_with_a_look_at_each_pair_of_streams(kernels):
    trace = Trace()
    for stream, at, length in kernels:
        trace.kernel(100 + at, length, stream=stream, launch=10)
    one = profile(trace)
    every = streams(one)
    for found in attribute(one):
        others = [s.rows for s in every if s.stream != found.of.stream]
        for row, begin, released in zip(found.before, found.start, found.released_by, strict=True):
            rows = [r for mine in others for r in mine if begin < one.end[r] <= one.start[row]]
            latest = max((int(one.end[r]) for r in rows), default=-1)
            near = one.start[row] - latest <= 10 * US
            assert (released >= 0) == (latest >= 0 and bool(near))
            assert released < 0 or (one.end[released] == latest and released in rows)


def test_streams_of_communication_come_last():
    trace = Trace().kernel(0, 10).kernel(5, 900, NCCL, stream=20).kernel(20, 5, stream=9)
    assert [(s.stream, s.is_comm) for s in streams(profile(trace))] == [(7, False), (9, False), (20, True)]


def test_gaps_are_held_one_stream_at_a_time():
    """Memory stays that of one stream (and the trace), however many streams cross the steps."""
    streams_of, steps = 40, 400
    trace = Trace()
    for step in range(steps):
        trace.step(step, 1000 * step, 1000)
    for stream in range(streams_of):
        trace.kernel(10 + stream, 1, stream=stream, launch=stream)
        trace.kernel(1000 * steps - 100 + stream, 1, stream=stream, launch=stream)
    one = profile(trace)
    one.steps  # noqa: B018  # computed once, kept by the profile
    tracemalloc.start()
    try:
        pieces = sum(len(found) for found in attribute(one))
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert pieces == streams_of * steps
    assert held < pieces * (len(HOST) + len(DEVICE)) * 8 / 2
