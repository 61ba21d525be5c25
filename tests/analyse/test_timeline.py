import json

import numpy as np
import pytest

from moexray.analyse.timeline import COMM_KERNELS, Cover, captures, profiles
from moexray.analyse.timeline_comm import match, op_name
from moexray.analyse.timeline_host import COLLECT, DEVICE_MEMORY, alloc_calls, silences
from moexray.analyse.timeline_late import late_ranks, slow_columns
from moexray.core.source import Source
from moexray.readers.read_any import read_sources
from trace_samples import NCCL, Machine, Trace, pair_of_ranks

MS = 1e6


def run_of(*traces, names=None):
    names = names or [f"t{i}.json" for i in range(len(traces))]
    texts = [t.text() if isinstance(t, Trace) else json.dumps(t) for t in traces]
    return read_sources(Source(n, content=t.encode()) for n, t in zip(names, texts, strict=True))


def group(traces):
    return profiles(run_of(*traces))


def test_cover_by_hand():
    cover = Cover(np.array([10, 0, 30, 12]), np.array([20, 5, 40, 15]))
    assert cover.within(np.array([0, 4, 11, 41]), np.array([40, 12, 14, 50])).tolist() == [25, 3, 3, 0]
    begin, end = cover.gaps()
    assert list(zip(begin.tolist(), end.tolist(), strict=True)) == [(5, 10), (20, 30)]


def test_an_empty_cover_covers_nothing():
    cover = Cover(np.empty(0, np.int64), np.empty(0, np.int64))
    assert cover.within(np.array([0]), np.array([9])).tolist() == [0]


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)",
        "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*)",
        "void vendor::ep::intranode::combine<false>(int)",
        "void nvshmem_barrier_kernel()",
        "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "multimem_all_reduce_kernel",
        "two_shot_all_reduce_kernel<float>",
        "ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymkDevWorkArgs4K)",
        "void tensorrt_llm::kernels::moe::moeA2ADispatchKernel<8>(Params)",
        "void uccl::intranode::combine<7168>(void*)",
    ],
)
def test_kernels_that_communicate(name):
    assert COMM_KERNELS.search(name)


@pytest.mark.parametrize("name", ["fused_moe_kernel", "void reduce_kernel<512>(Op)", "step::combined_gemm", "topk_gating"])
def test_kernels_that_do_not(name):
    assert not COMM_KERNELS.search(name)


@pytest.mark.parametrize(
    "name", ["cudaMalloc", "cudaFree", "hipMalloc", "hipFree", "cuMemUnmap", "cuMemCreate", "cudaMallocAsync", "cudaMalloc_v3020"]
)
def test_device_allocator_calls(name):
    assert DEVICE_MEMORY.search(name)


@pytest.mark.parametrize("name", ["cudaMallocHost", "cudaHostAlloc", "cudaFreeHost", "cudaMemcpyAsync", "cudaLaunchKernel"])
def test_other_calls(name):
    assert not DEVICE_MEMORY.search(name)


def test_collector_names():
    assert all(COLLECT.search(n) for n in ("Python GC", "gc.collect(generation=2)", "garbage_collection", "GC"))
    assert not any(COLLECT.search(n) for n in ("ggc_kernel", "logcat", "agcd"))


def test_operation_names():
    assert op_name("void deep_ep::internode_ll::dispatch<true>(void*)") == "deep_ep::internode_ll::dispatch"
    assert op_name(NCCL) == "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def test_steps_by_annotation_and_by_graph_launches():
    steps = group(pair_of_ranks(steps=5))[0].steps
    assert (len(steps), steps.derived, steps.label.tolist()) == (5, "annotation", [0, 1, 2, 3, 4])
    trace = Trace()
    for i in range(10):
        trace.call("cudaGraphLaunch", i * 1000, 20, correlation=i)
    assert (len(group([trace])[0].steps), group([trace])[0].steps.derived) == (9, "launch")


def test_steps_by_a_kernel_that_comes_back():
    trace = Trace()
    for i in range(20):
        trace.kernel(i * 1000, 300, "often").kernel(i * 1000 + 400, 300, "often").kernel(i * 1000 + 800, 50, "once")
    steps = group([trace])[0].steps
    assert (steps.derived, len(steps), steps.median_ns) == ("period", 19, 1e6)


def test_steps_of_any_length_by_kernels_that_take_turns():
    trace, now, starts = Trace(), 0.0, []
    for i, layers in enumerate((4, 9, 6, 4, 4, 9, 6, 9, 4, 6)):
        now += 60_000 if i % 2 else 0  # every other step stalls
        starts.append(now)
        for name in ("embed", *["layer"] * layers, "sample"):
            trace.kernel(now, 900, f"void {name}(float*)")
            now += 1_000
    steps = group([trace])[0].steps
    assert steps.derived == "period"
    assert ((steps.start - steps.start[0]) / 1e3).tolist() == starts[:-1]


def test_a_kernel_that_follows_itself_is_no_step():
    trace = Trace()
    for i in range(40):
        trace.kernel(i * 1_000, 900)
    assert len(group([trace])[0].steps) == 0


def test_no_steps_is_none():
    steps = group([Trace().kernel(0, 5)])[0].steps
    assert len(steps) == 0
    assert steps.of(np.array([3])).tolist() == [-1]


def test_nested_annotations_are_one_step():
    trace = Trace()
    trace.slice("user_annotation", "execute_context_0(0)_generation_8(8)", 0, 100)
    trace.slice("user_annotation", "execute_context_0(0)_generation_8(8)", 10, 50)
    trace.slice("user_annotation", "execute_context_0(0)_generation_8(8)", 100, 100)
    assert group([trace])[0].steps.duration.tolist() == [100_000, 100_000]


def test_allocator_calls_inside_steps_only():
    trace = Trace().call("cudaMalloc", 0, 50)
    for i in range(6):
        trace.step(i, 1000 + i * 1000, 1000).kernel(1100 + i * 1000, 500)
    trace.call("cudaFree", 5700, 200).call("cudaMalloc", 5900, 50)
    trace.slice("cuda_runtime", "cudaMalloc", 5650, 300, tid=999)
    calls = alloc_calls(group([trace])[0])
    assert (calls.steps.tolist(), calls.total.tolist(), calls.exposed.tolist(), calls.outside) == ([4], [250_000], [250_000], 1)
    assert calls.release.tolist() == [True, False]


def test_first_steps_that_only_allocate_are_start_up():
    trace = Trace()
    for i in range(6):
        trace.step(i, i * 1000, 1000).kernel(100 + i * 1000, 500)
    trace.call("cudaMalloc", 700, 200).call("cudaMalloc", 1700, 200)
    assert len(alloc_calls(group([trace])[0]).steps) == 0


def test_allocator_time_under_computing_kernels_is_not_exposed():
    trace = Trace()
    for i in range(4):
        trace.step(i, i * 1000, 1000).kernel(100 + i * 1000, 800)
    trace.call("cudaFree", 3200, 300)
    calls = alloc_calls(group([trace])[0])
    assert (calls.total.tolist(), calls.exposed.tolist()) == ([300_000], [0])


def test_silences_need_an_idle_device_and_a_quiet_host():
    traces = pair_of_ranks(gap=(5,))
    quiet, waiting = silences(group(traces)[1], 50 * MS), silences(group(traces)[0], 50 * MS)
    assert len(quiet) == 1
    assert quiet.end[0] - quiet.start[0] == pytest.approx(100 * MS, rel=0.01)
    assert len(waiting) == 0


def test_lateness_and_transfer_by_hand():
    c = match(group(pair_of_ranks(late_us=4000)))
    assert len(c) == 12
    assert set((c.lateness / MS).round(3)) == {4.0}
    assert set((c.transfer / MS).round(3)) == {2.0}
    assert set(c.late.tolist()) == {1}
    (late,) = late_ranks(c, 0.05, 5)
    assert late.rank == 1
    assert late.did == {"compute": 1.0}
    assert late.total_ns == pytest.approx(48 * MS)


def test_lateness_from_half_way_on_is_told_of_the_last_third():
    m = Machine(2)
    for i in range(30):
        m.step(i)
        m.work(2_000, late=1, by=600 if i >= 16 else 0)
        m.meet((0, 1), 300)
    m.step(30)
    (late,) = late_ranks(match(group(m.traces)), 0.05, 5)
    (place,) = late.places
    assert (late.rank, place.part, place.lateness_ns / MS) == (1, "last third", pytest.approx(0.6))


def test_collectives_without_numbers_match_by_order_though_traces_start_apart():
    traces = pair_of_ranks(steps=20, late_us=3000)
    for trace in traces:
        for event in trace.events:
            event["args"] = {k: v for k, v in event["args"].items() if k in ("device", "stream", "correlation")}
    cut = traces[1].events.index(next(e for e in traces[1].events if e["name"] == "ProfilerStep#3"))
    del traces[1].events[:cut]
    c = match(group(traces))
    assert len(c) == 17
    assert set((c.lateness / MS).round(3)) == {3.0}


@pytest.mark.parametrize("clock_us", [0.0, 30_000.0])
def test_alike_steps_are_matched_by_what_tells_them_apart(clock_us):
    rng = np.random.default_rng(1)
    m = Machine(2, noted=False, shift_us=[0.0, clock_us])
    for i in range(30):
        m.step(i)
        m.work(2_000 + float(rng.normal(0, 8)))
        m.meet((0, 1), 300)
    m.step(30)
    second = m.traces[1].events
    del second[: second.index(next(e for e in second if e["name"] == "ProfilerStep#7"))]
    c = match(group(m.traces))
    assert len(c) == 22
    assert abs(c.offsets[0].offset_ns - clock_us * 1e3) < 1_000


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_few_collectives_are_matched_whole(count):
    m = Machine(4, noted=False)
    for i in range(count):
        m.work(1_000 + 700 * i, late=i % 4, by=400)
        m.meet((0, 1, 2, 3), 30)
    c = match(group(m.traces))
    assert c.present.all()
    assert len(c) == count


def test_a_stall_early_in_a_segment_is_what_made_a_rank_late():
    m = Machine(2)
    for i in range(20):
        m.step(i)
        m.traces[1].call("cudaFree", m.now[1] + 5, 500).call("cudaMalloc", m.now[1] + 505, 300)
        m.work(3_000, late=1, pause=800)  # both compute as long
        m.meet((0, 1), 200)
    m.step(20)
    (late,) = late_ranks(match(group(m.traces)), 0.05, 5)
    assert (late.rank, late.did) == (1, {"alloc": 1.0})


def test_rooted_and_point_to_point_operations_are_left_out():
    traces = [Trace(r, 2) for r in range(2)]
    for i in range(6):
        for r, trace in enumerate(traces):
            trace.collective(i, 100 + i * 1000, 10 + 500 * r, op=("send", "recv")[r], name="ncclDevKernel_SendRecv(x)")
            trace.collective(100 + i, 700 + i * 1000, 10, op="broadcast", name="ncclDevKernel_Broadcast_RING_LL(x)")
    assert len(match(group(traces))) == 0


def test_clock_offset_by_hand():
    (offset,) = match(group(pair_of_ranks(shift_us=-7000))).offsets
    assert offset.offset_ns == pytest.approx(-7 * MS)
    assert offset.residual_ns < 2
    assert offset.matches == 12


def test_clocks_of_groups_are_linked_over_a_rank_that_is_in_both():
    traces = [Trace(r, 4) for r in range(4)]
    shift = (0, 500, -300, 900)
    for i in range(12):
        for members, name, at in (((0, 1), "a", 100), ((1, 2), "b", 400)):
            for r in members:
                traces[r].collective(i, at + i * 1000 + shift[r], 50, group=name)
    offsets = {o.rank: o for o in match(group(traces[:3])).offsets}
    assert offsets[1].offset_ns == pytest.approx(500e3)
    assert offsets[2].offset_ns == pytest.approx(-300e3)
    assert offsets[2].residual_ns >= offsets[1].residual_ns


def test_slow_transfer_is_told_from_lateness():
    slow = slow_columns(match(group(pair_of_ranks(steps=20, slow=(12, 13, 14, 15)))), 0.05, 2, 3)
    assert slow is not None
    assert (len(slow.columns), slow.normal, slow.usual_ns / MS) == (4, 16, 2.0)
    assert slow_columns(match(group(pair_of_ranks(steps=20, late_us=4000))), 0.05, 2, 3) is None


def exchanges(lengths_us):
    """Two ranks that are never late; each collective takes its time."""
    m = Machine(2)
    for i, us in enumerate(lengths_us):
        m.step(i)
        m.work(1_000)
        m.meet((0, 1), us)
    m.step(len(lengths_us))
    return match(group(m.traces))


@pytest.mark.parametrize("spread", [0.45, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_transfers_that_scatter_are_no_slow_link(spread, seed):
    lengths = 300 * np.random.default_rng(seed).lognormal(0, spread, 160)
    assert slow_columns(exchanges(lengths), 0.05, 2, 3) is None


@pytest.mark.parametrize("factor", [2.5, 4, 12])
@pytest.mark.parametrize("slow", [3, 20, 80])
@pytest.mark.parametrize("spread", [0.02, 0.12])
def test_slow_transfers_are_found_though_they_scatter_a_little(factor, slow, spread):
    lengths = 300 * np.random.default_rng(slow).lognormal(0, spread, 160)
    lengths[40 : 40 + slow] *= factor
    found = slow_columns(exchanges(lengths), 0.05, 2, 3)
    assert found is not None
    assert abs(len(found.columns) - slow) <= 0.1 * slow


def test_captures_by_folder_by_time_and_doubles():
    a, b = pair_of_ranks(steps=3), pair_of_ranks(steps=3)
    found = profiles(run_of(*a, *b, names=["x/0.json", "x/1.json", "y/0.json", "y/1.json"]))
    assert [len(g) for g in captures(found)] == [2, 2]
    later = [Trace(t.rank, 2, 9e7) for t in b]
    for new, old in zip(later, b, strict=True):
        new.events = [{**e, "ts": e["ts"] + 9e7} for e in old.events]
    assert [len(g) for g in captures(profiles(run_of(*a, *later)))] == [2, 2]
    assert [len(g) for g in captures(profiles(run_of(*a, b[0])))] == [3]
    alone = [Trace(0, 1).kernel(0, 5), Trace(0, 1).kernel(0, 5)]
    assert [len(g) for g in captures(profiles(run_of(*alone)))] == [1, 1]
