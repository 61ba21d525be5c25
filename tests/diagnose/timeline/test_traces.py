import json

import pytest

from moexray.core.limits import Limits
from moexray.core.source import Source
from moexray.diagnose.engine import diagnose
from moexray.readers.read_any import read_sources
from trace_samples import BASE_NS, COMPUTE, Machine, Trace, pair_of_ranks


def say(*traces, names=None, more=()):
    """The diagnosis of traces (and further files: name, text)."""
    names = names or [f"t{i}.json" for i in range(len(traces))]
    sources = [Source(n, content=t.text().encode()) for n, t in zip(names, traces, strict=True)]
    sources += [Source(n, content=t.encode()) for n, t in more]
    return diagnose(read_sources(sources), Limits())


def ids(result, least="warn"):
    order = ("info", "warn", "error")
    return [f.id for f in result.findings if order.index(f.severity) >= order.index(least)]


def only(result, id):
    (found,) = [f for f in result.findings if f.id == id]
    return found


def one_rank(steps=10, calls=(), cleared=(), length=40_000.0):
    """One rank, steps of 40 ms; `calls`: steps that release (9 ms) and allocate (3 ms)."""
    trace, now = Trace(), 0.0
    for i in range(steps):
        extra = 12_000.0 if i in calls else 0.0
        trace.step(i, now, length + extra).kernel(now + 500, length - 2_000)
        if i in calls:
            trace.call("cudaFree", now + length - 1_000, 9_000).call("cudaMalloc", now + length + 8_000, 3_000)
        if i in cleared:
            trace.slice("python_function", "torch/cuda/memory.py(170): empty_cache", now + length - 1_200, 12_400)
        now += length + extra + 200
    return trace


def test_allocator_stall_by_hand():
    found = only(say(one_rank(calls=(3, 5, 8))), "mem.alloc_stall")
    text = found.evidence[0].text
    # 9 + 3 = 12 ms of 52 ms = 23 %; the last kernel ends 0.5 ms into the first call
    for part in ("stall_steps=3", "steps=10", "stall_ms_per_step=12", "normal_step_ms=40", "stall_step_ms=52"):
        assert part in text, part
    assert found.value == pytest.approx(12 / 52, rel=0.02)
    assert (found.subject.step_from, found.subject.step_to) == (3, 8)


def test_calls_between_steps_are_no_stall():
    trace = one_rank()
    for i in range(1, 10):
        trace.call("cudaFree", i * 40_200 - 190, 180)
    assert ids(say(trace), "info") == []


def test_short_calls_are_no_stall():
    trace = one_rank()
    for i in range(10):
        trace.call("cudaMalloc", i * 40_200 + 38_600, 900)
    assert ids(say(trace), "info") == []


def test_empty_cache_in_most_steps_is_the_cause():
    result = say(one_rank(calls=range(2, 10), cleared=range(2, 10)))
    assert ids(result) == ["mem.empty_cache_in_hot_path", "mem.alloc_stall"]
    assert only(result, "mem.alloc_stall").implied_by == ("mem.empty_cache_in_hot_path",)


def test_empty_cache_in_few_steps_is_not():
    assert ids(say(one_rank(calls=(3, 5, 8), cleared=(3, 5)))) == ["mem.alloc_stall"]


def test_empty_cache_without_device_calls_is_not():
    assert ids(say(one_rank(cleared=range(10))), "info") == []


def test_a_late_rank_is_named_and_the_transfer_told_apart():
    result = say(*pair_of_ranks(late_us=4000))
    found = only(result, "comm.straggler_wait")
    assert found.subject.rank == 1
    assert found.value == pytest.approx(0.004)
    assert "late_rank=1" in found.evidence[0].text
    assert "transfer_ms=2" in found.evidence[0].text
    assert ids(result) == ["comm.straggler_wait"]


def test_a_little_lateness_is_none():
    assert ids(say(*pair_of_ranks(late_us=400)), "info") == []


def test_slow_transfer():
    result = say(*pair_of_ranks(steps=20, slow=range(14, 20)))
    found = only(result, "comm.slow_transfer")
    assert (found.value, found.subject.step_from, found.subject.step_to) == (pytest.approx(3), 14, 19)
    assert ids(result) == ["comm.slow_transfer"]


def test_slow_transfer_needs_the_whole_group():
    traces = pair_of_ranks(steps=20, slow=range(14, 20), ranks=3)
    assert "comm.slow_transfer" not in ids(say(*traces[:2]), "info")


def test_what_the_profiler_notes_counts_more_than_names_and_numbers():
    """Kernels with names of no library, collectives without sequence numbers: sizes and groups are noted."""
    traces = pair_of_ranks(steps=20, slow=range(14, 20))
    for trace in traces:
        for event in trace.events:
            if event["args"].pop("Seq", None) is not None:
                event["name"] = "vendor_exchange_kernel"
    assert only(say(*traces), "comm.slow_transfer").value == pytest.approx(3)


@pytest.mark.parametrize(("before", "said"), [(1.0, ["comm.slow_transfer"]), (0.5, [])])
def test_without_sizes_the_compute_of_the_step_tells_whether_the_batch_grew(before, said):
    """Steps 14-19 transfer for 6 ms, the others for 2 ms; these compute as long, or half as long."""
    traces = pair_of_ranks(steps=20, slow=range(14, 20))
    for trace in traces:
        for event in trace.events:
            event["args"] = {k: v for k, v in event["args"].items() if k in ("device", "stream", "correlation")}
            if event["name"] == COMPUTE and event["ts"] < 14 * 12_200:
                event["dur"] *= before
    assert ids(say(*traces), "info") == said


@pytest.mark.parametrize(("noted", "slow"), [(True, 113), (False, 112)])  # sizes tell of the last one, too
def test_many_places_that_are_each_a_little_slow_are_a_slow_link(noted, slow):
    m = Machine(4, noted=noted)
    for i in range(24):
        m.step(i)
        for _ in range(8):  # each 0.3 ms slower, 3 % of a step, all of them a quarter
            m.work(1_000)
            m.meet((0, 1, 2, 3), 450 if i >= 10 else 150)
    m.step(24)
    m.meet((0, 1, 2, 3), 450)  # the trace ends inside a step
    found = only(say(*m.traces), "comm.slow_transfer")
    assert found.severity == "warn"
    assert f"in {slow} of {slow + 80} cases in steps 10-23" in found.claim
    assert found.value == pytest.approx(3, rel=0.01)
    assert found.cost == pytest.approx(slow * 0.3e-3, rel=0.01)


def test_the_rank_of_a_folder_is_the_last_resort():
    traces = pair_of_ranks(late_us=3000)
    for trace in traces:
        trace.rank = None
    found = only(say(*traces, names=["a/rank0/trace.json", "a/rank1/trace.json"]), "comm.straggler_wait")
    assert found.subject.rank == 1


def test_growing_sizes_are_no_slow_transfer():
    traces = pair_of_ranks(steps=20, slow=range(14, 20))
    for trace in traces:
        for event in trace.events:
            if event["args"].get("Seq", 0) >= 14:
                event["args"].update({"In msg nelems": 12288, "Out msg nelems": 12288})
    assert ids(say(*traces), "info") == []


def test_a_collector_annotation_over_the_gap():
    result = say(*pair_of_ranks(steps=20, gap=(6, 11, 15), record=("user_annotation", "gc.collect(2)")))
    assert ids(result) == ["host.gc_pause", "comm.straggler_wait"]
    found = only(result, "host.gc_pause")
    assert (found.subject.rank, found.subject.step_from, found.subject.step_to) == (1, 6, 15)
    assert only(result, "comm.straggler_wait").implied_by == ("host.gc_pause",)


def test_a_gap_without_a_record():
    result = say(*pair_of_ranks(steps=20, gap=(6, 11, 15)))
    assert ids(result) == ["host.stall", "comm.straggler_wait"]
    found = only(result, "host.stall")
    assert found.confidence <= 0.6
    assert found.settle_with


@pytest.mark.parametrize("name", ["eplb_rearrange", "triton/compiler/compiler.py(200): compile"])
def test_a_gap_with_another_explanation(name):
    result = say(*pair_of_ranks(steps=20, gap=(6, 11, 15), record=("python_function", name)))
    assert not {"host.stall", "host.gc_pause"} & set(ids(result))


def test_compilation_inside_steps():
    record = ("python_function", "triton/compiler/compiler.py(200): compile")
    result = say(*pair_of_ranks(steps=20, gap=(6, 11, 15), record=record))
    assert only(result, "jit.compile_in_hot_path").subject.rank == 1
    assert only(result, "comm.straggler_wait").implied_by == ("jit.compile_in_hot_path",)


def test_a_gap_between_the_steps_of_a_single_rank_is_idle_time():
    trace = one_rank()
    for event in trace.events:
        if event["ts"] > 200_000:
            event["ts"] += 3_000_000
    assert ids(say(trace), "info") == []


@pytest.mark.parametrize(("lead", "said"), [(100, ["host.stall"]), (-400_000, [])])
def test_a_gap_of_a_single_rank_counts_as_far_as_it_lies_in_a_step(lead, said):
    """The step begins 0.1 ms after the last call before a gap of 400 ms, or where the gap ends."""
    trace, now = Trace(), 0.0
    for i in range(10):
        gap = 400_000.0 if i == 6 else 0.0
        trace.step(i, now + (min(gap, max(0.0, -lead)) if gap else 0.0), 40_000 + (gap if lead > 0 else 0.0))
        trace.kernel(now + gap + 500, 38_000)
        trace.call("cudaStreamSynchronize", now + gap + 600, 38_300)
        now += gap + 40_200
    assert ids(say(trace)) == said


def log_line(rank, second, seconds):
    clock = f"2026-09-21 14:13:{20 + second:06.3f}"  # BASE_NS is 14:13:20 UTC
    return f"[{clock} DP{rank} TP{rank} EP{rank}] LONG GARBAGE COLLECTION DETECTED | Generation 2 | Duration: {seconds}s | # Objects: 9"


def test_log_lines_of_the_late_rank_are_collector_evidence():
    traces = pair_of_ranks(steps=20, gap=(6, 11, 15))
    ends = [next(e["ts"] for e in traces[1].events if e["name"] == COMPUTE and e["ts"] > s["ts"]) / 1e6
            for s in traces[1].events if s["name"] in ("ProfilerStep#6", "ProfilerStep#11", "ProfilerStep#15")]
    own = "\n".join(log_line(1, t, 0.09) for t in ends)
    other = "\n".join(log_line(0, t, 0.09) for t in ends)
    away = "\n".join(log_line(1, t + 20, 0.09) for t in ends)
    assert ids(say(*traces, more=[("server.log", own)]))[0] == "host.gc_pause"
    assert ids(say(*traces, more=[("server.log", other)]))[0] == "host.stall"
    assert ids(say(*traces, more=[("server.log", away)]))[0] == "host.stall"


def test_an_allocator_that_makes_a_rank_late_is_the_cause():
    traces = pair_of_ranks(steps=20, gap=(6, 11, 15))
    for event in list(traces[1].events):
        if event["name"] in ("ProfilerStep#6", "ProfilerStep#11", "ProfilerStep#15"):
            traces[1].call("cudaFree", event["ts"] + 60, 70_000).call("cudaMalloc", event["ts"] + 70_100, 29_000)
    result = say(*traces)
    assert ids(result) == ["mem.alloc_stall", "comm.straggler_wait"]
    assert only(result, "comm.straggler_wait").implied_by == ("mem.alloc_stall",)


def test_calls_of_a_rank_that_waits_for_another_cost_nothing():
    traces = pair_of_ranks(gap=(3, 6, 9))
    waits = [e for e in traces[0].events if "nccl" in e["name"] and e["dur"] > 50_000]
    for e in waits:  # the device is given back while the collective waits for rank 1
        traces[0].call("cudaFree", e["ts"] + 1_000, 60_000).call("cudaMalloc", e["ts"] + 62_000, 5_000)
    assert len(waits) == 3
    assert ids(say(*traces)) == ["host.stall", "comm.straggler_wait"]


def test_clock_skew_is_told_and_lateness_survives_it():
    result = say(*pair_of_ranks(late_us=4000, shift_us=-30_000))
    assert ids(result) == ["comm.straggler_wait", "trace.clock_skew"]
    assert only(result, "trace.clock_skew").value == pytest.approx(0.03)
    assert only(result, "comm.straggler_wait").value == pytest.approx(0.004)


def test_a_small_offset_is_no_skew():
    assert ids(say(*pair_of_ranks(shift_us=30)), "info") == []


def test_missing_and_double_ranks():
    traces = pair_of_ranks(steps=3, ranks=4)
    copy = Trace(1, 4)
    copy.events = [{**e, "dur": e["dur"] + 1} for e in traces[1].events]
    result = say(traces[0], traces[1], copy, traces[3])
    found = only(result, "input.rank_set")
    assert "rank 1 occurs more than once" in found.claim
    assert "rank 2 is missing" in found.claim


def test_a_single_rank_is_a_choice():
    assert ids(say(pair_of_ranks(steps=3, ranks=4)[0]), "info") == []


def test_one_rank_with_long_collectives_is_a_question():
    trace = Trace()
    for i in range(8):
        trace.step(i, i * 50_000, 49_000).kernel(i * 50_000 + 100, 9_000).collective(i, i * 50_000 + 10_000, 38_000)
    result = say(trace)
    found = only(result, "comm.straggler_wait")
    assert (found.severity, found.confidence < 0.5, bool(found.settle_with)) == ("info", True, True)
    assert ids(result) == []


def test_all_present_wait_for_one_that_is_not_there():
    traces = pair_of_ranks(steps=20, gap=(9,), ranks=3, late_rank=2)
    found = only(say(*traces[:2]), "comm.straggler_wait")
    assert found.severity == "info"
    assert found.settle_with == ("trace of rank 2",)


@pytest.mark.parametrize(("seconds", "near"), [(299, False), (310, True), (601, False)])
def test_a_wait_near_the_default_limit(seconds, near):
    trace = Trace(0, 2)
    trace.collective(0, 0, seconds * 1e6)
    assert ("comm.timeout_near" in ids(say(trace))) == near


def test_the_limit_of_the_launch_line_counts():
    trace = Trace(0, 2)
    trace.collective(0, 0, 20e6)
    launch = "vllm serve MODEL --tensor-parallel-size 2 --distributed-timeout-seconds 30"
    assert "comm.timeout_near" in ids(say(trace, more=[("launch.txt", launch)]))


def test_exhibits_have_the_shapes_of_the_report():
    document = json.loads(json.dumps(say(*pair_of_ranks(steps=20, gap=(6,))).to_json()))
    waits = {w["rank"]: w for w in document["waits"]}
    assert waits[1]["late_s"] == pytest.approx(0.1, rel=0.02)
    assert waits[0]["waited_s"] == pytest.approx(0.1, rel=0.02)
    assert {s["kind"] for s in document["spans"]} <= {"compute", "comm", "alloc", "host", "wait"}
    assert all(s["start_s"] >= BASE_NS / 1e9 - 1 for s in document["spans"])
    (first, *_) = document["series"]
    assert len(first["x"]) == len(first["y"]) == 20


def test_healthy_ranks_say_nothing():
    result = say(*pair_of_ranks(steps=20, ranks=4))
    assert ids(result, "info") == []
    assert result.verdict == "none"


def test_members_of_a_group_stand_for_an_unknown_world():
    traces = pair_of_ranks(steps=3, ranks=3)
    for trace in traces:
        trace.world = None
        for event in trace.events:
            if "Seq" in event["args"]:
                event["args"]["Process Group Ranks"] = "[0, 1, 2]"
    assert "rank 1 is missing" in only(say(traces[0], traces[2]), "input.rank_set").claim
    assert "input.rank_set" not in ids(say(*traces), "info")
