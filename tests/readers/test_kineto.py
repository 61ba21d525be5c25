import gzip
import json

import numpy as np
import pytest

from moexray.core.run import Reading
from moexray.core.source import Source
from moexray.core.tables.timeline import CATEGORIES
from moexray.readers import kineto, kineto_events, kineto_finish
from moexray.readers.read_any import read_one
from trace_samples import BASE_NS, COMPUTE, Trace, pair_of_ranks


def read(content, name="trace.json"):
    reading, reason = read_one(Source(name, content=content if isinstance(content, bytes) else content.encode()))
    return reading, reason


def batch(reading, table="trace"):
    return next(b for b in reading.batches if b.table == table)


def ids(reading):
    return [p.id for p in reading.problems]


def sample():
    trace = Trace(3, 8)
    trace.step(0, 0, 900).kernel(100, 500.25).collective(4, 650, 120)
    trace.slice("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 20, 5, pid=0, tid=7, device=0, stream=7, bytes=4096)
    trace.events.append({"ph": "M", "name": "thread_name", "pid": 100, "tid": 100, "args": {"name": "main"}})
    trace.events.append(
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 100, "tid": 100, "ts": 30,
         "args": {"Device Type": 1, "Device Id": 0, "Addr": 99, "Bytes": -512, "Total Allocated": 1024,
                  "Total Reserved": 4096}}
    )
    return trace


def test_columns_of_a_sound_trace():
    reading, reason = read(sample().text())
    assert (reason, reading.reader, reading.problems) == ("", "kineto", [])
    b = batch(reading)
    names = [b.attrs["names"][i] for i in b.columns["name"]]
    assert names[0] == "ProfilerStep#0"
    assert COMPUTE in names
    at = names.index(COMPUTE)
    assert int(b.columns["ts_ns"][at]) == BASE_NS + 100_000
    assert int(b.columns["dur_ns"][at]) == 500_250
    assert CATEGORIES[b.columns["category"][at]] == "kernel"
    assert (int(b.columns["device"][at]), int(b.columns["stream"][at])) == (0, 7)
    assert (b.attrs["rank"], b.attrs["world_size"], b.attrs["base_ns"]) == (3, 8, BASE_NS)
    assert (100, 100, "main") in b.attrs["lanes"]
    copy = names.index("Memcpy HtoD (Pinned -> Device)")
    assert int(b.columns["bytes"][copy]) == 4096
    assert reading.rows == len(json.loads(sample().text())["traceEvents"])


def test_collective_metadata_points_to_its_kernel():
    reading, _ = read(sample().text())
    comm, b = batch(reading, "trace_comm"), batch(reading)
    row = int(comm.columns["row"][0])
    assert b.attrs["names"][b.columns["name"][row]].startswith("ncclDevKernel")
    assert comm.columns["collective"][0] == "allreduce"
    assert (int(comm.columns["seq"][0]), int(comm.columns["in_elements"][0])) == (4, 4096)


def test_memory_marks():
    memory = batch(read(sample().text())[0], "trace_memory").columns
    assert [int(memory[k][0]) for k in ("bytes", "allocated_bytes", "reserved_bytes", "device")] == [-512, 1024, 4096, 0]


@pytest.mark.parametrize(("kind", "device"), [(0, -1), (1, 0), (6, 0), (12, 0), (None, -1)])
def test_memory_of_other_kinds_of_device(kind, device):
    """CPU 0, CUDA 1, HIP 6, XPU 12 (c10/core/DeviceType.h); without a kind it cannot be told."""
    text = sample().text().replace('"Device Type": 1', f'"Device Type": {json.dumps(kind)}')
    assert batch(read(text)[0], "trace_memory").columns["device"].tolist() == [device]


def test_slices_are_in_order_of_time():
    trace = Trace()
    trace.kernel(500, 10).kernel(100, 10)
    starts = batch(read(trace.text())[0]).columns["ts_ns"]
    assert (np.diff(starts) >= 0).all()


def test_many_chunks_give_the_same_columns(monkeypatch):
    document = json.dumps(pair_of_ranks(steps=40)[0].document())
    whole = batch(read(document)[0])
    monkeypatch.setattr(kineto_events, "CHUNK_BYTES", 2048)
    parts = batch(read(document)[0])
    for key in whole.columns:
        assert (whole.columns[key] == parts.columns[key]).all(), key
    assert whole.attrs["names"] == parts.attrs["names"]


def test_a_damaged_chunk_costs_its_damaged_event_only(monkeypatch):
    text = json.dumps(pair_of_ranks(steps=40)[0].document())
    monkeypatch.setattr(kineto_events, "CHUNK_BYTES", 2048)
    whole = read(text)[0]
    place = text.index("ProfilerStep#20")
    broken = text[:place] + 'Profiler"Step#20' + text[place + 15 :]
    reading, _ = read(broken)
    assert ids(reading) == ["input.json_repaired"]
    assert reading.problems[0].lost == 1
    assert reading.rows == whole.rows - 1


def test_bare_words_name_their_events():
    text = sample().text().replace("4096, ", "inf, ", 1).replace('"bytes": 4096', '"bytes": -nan')
    reading, _ = read(text)
    problem = reading.problems[0]
    assert (problem.id, problem.lost) == ("input.json_repaired", 0)
    assert "event " in problem.text
    assert "Memcpy" in problem.text


def test_a_cut_gzip_keeps_the_whole_events():
    packed = gzip.compress(json.dumps(pair_of_ranks(steps=60)[0].document()).encode())
    reading, reason = read(packed[: len(packed) // 2], "trace.json.gz")
    assert reason == ""
    assert set(ids(reading)) == {"input.truncated"}
    assert reading.rows > 10


def test_an_array_may_lack_its_end_mark():
    text = json.dumps(sample().events)
    for form in (text, text[:-1], text[:-1] + ",\n"):
        reading, _ = read(form)
        assert ids(reading) == ["input.dialect"], form[-5:]
        assert reading.rows == len(sample().events)


def test_begin_and_end_pairs_become_slices():
    events = [
        {"ph": "B", "name": "outer", "pid": 1, "tid": 1, "ts": 10},
        {"ph": "B", "name": "inner", "pid": 1, "tid": 1, "ts": 20},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 30},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 50},
        {"ph": "E", "pid": 1, "tid": 2, "ts": 50},
    ]
    reading, _ = read(json.dumps({"traceEvents": events}))
    b = batch(reading)
    slices = dict(zip([b.attrs["names"][i] for i in b.columns["name"]], b.columns["dur_ns"].tolist(), strict=True))
    assert slices == {"outer": 40_000, "inner": 10_000}
    assert ids(reading) == ["input.dialect"]


def test_times_as_text_are_read_and_told():
    document = sample().document()
    for event in document["traceEvents"]:
        event["ts"] = str(event.get("ts", 0))
    reading, _ = read(json.dumps(document))
    assert ids(reading) == ["input.dialect"]
    assert int(batch(reading).columns["ts_ns"][0]) == BASE_NS


def test_whole_microseconds_of_the_epoch_stay_exact():
    trace = Trace()
    trace.kernel(1_690_000_000_000_001.0, 3)
    document = trace.document()
    del document["baseTimeNanoseconds"]
    b = batch(read(json.dumps(document))[0])
    assert int(b.columns["ts_ns"][-1]) == 1_690_000_000_000_001_000
    assert b.attrs["resolution_ns"] == 1000


@pytest.mark.parametrize("dur", [-5, None, 1e13])
def test_impossible_times_are_dropped_and_counted(dur):
    trace = sample()
    trace.slice("kernel", "broken", 200, dur, pid=0, tid=7, stream=7, device=0)
    reading, _ = read(trace.text())
    assert ids(reading) == ["input.negative_duration"]
    assert reading.problems[0].lost == 1
    assert "broken" not in [batch(reading).attrs["names"][i] for i in batch(reading).columns["name"]]


def test_zero_length_is_legal():
    trace = sample()
    trace.slice("kernel", "empty", 200, 0, pid=0, tid=7, stream=7, device=0)
    assert ids(read(trace.text())[0]) == []


@pytest.mark.parametrize(
    ("name", "rank"), [("trace_rank12.json", 12), ("run.rank_3.pt.trace.json.gz", 3), ("frank.json", None), ("x-TP-5.json", 5)]
)
def test_rank_from_the_name_where_the_content_has_none(name, rank):
    assert batch(read(Trace().kernel(1, 1).text(), name)[0]).attrs["rank"] == rank


def test_the_content_wins_over_the_name():
    assert batch(read(sample().text(), "trace_rank9.json")[0]).attrs["rank"] == 3


def test_old_casing_and_hip_names():
    events = [
        {"ph": "X", "cat": "Kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {"stream": "7", "device": 0}},
        {"ph": "X", "cat": "Runtime", "name": "hipMalloc", "pid": 1, "tid": 1, "ts": 1, "dur": 2},
    ]
    b = batch(read(json.dumps({"traceEvents": events}))[0])
    assert sorted(CATEGORIES[c] for c in b.columns["category"]) == ["kernel", "runtime"]
    assert 7 in b.columns["stream"].tolist()


def test_odd_events_do_not_stop_the_reader():
    events = [
        {"ph": "X", "cat": "kernel", "name": 5, "pid": [1], "tid": {}, "ts": 1, "dur": 2, "args": "none"},
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": [1]},
        "no event",
        {"ph": "X", "cat": None, "name": None, "ts": "x", "dur": 1, "args": None},
    ]
    reading, reason = read(json.dumps({"traceEvents": events}))
    assert reason == ""
    assert len(batch(reading).columns["ts_ns"]) == 2


def test_events_as_json_lines():
    text = "\n".join(json.dumps(e) for e in sample().events)
    reading, reason = read(text)
    assert (reason, reading.rows) == ("", len(sample().events))


def test_utf16_traces_are_traces():
    reading, reason = read(sample().text().encode("utf-16"))
    assert (reason, ids(reading)) == ("", ["input.encoding"])


def test_huge_traces_are_streamed_and_told(monkeypatch):
    monkeypatch.setattr(kineto, "HUGE_BYTES", 1000)
    monkeypatch.setattr(kineto, "STREAM_BYTES", 500)
    trace = sample()
    trace.slice("python_function", "short.py(1): f", 40, 3).slice("python_function", "long.py(1): g", 40, 500)
    trace.slice("python_function", "torch/cuda/memory.py(1): empty_cache", 40, 3)
    reading, _ = read(gzip.compress(trace.text().encode()), "trace.json.gz")
    assert ids(reading) == ["input.huge"]
    b = batch(reading)
    kept = {b.attrs["names"][i] for i in b.columns["name"]}
    assert {"long.py(1): g", "torch/cuda/memory.py(1): empty_cache"} <= kept
    assert "short.py(1): f" not in kept
    assert b.attrs["left_out"] == 1


def test_a_trace_without_events_is_no_input():
    _, reason = read('{"schemaVersion": 1, "traceEvents": []}')
    assert "without any event" in reason


def test_events_that_are_no_slices_still_count():
    reading, reason = read('{"traceEvents": [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "p"}}]}')
    assert (reason, reading.rows) == ("", 1)


def test_a_list_that_is_no_trace_is_left_to_others():
    assert not kineto.from_document([{"a": 1}], Source("x", content=b"[]"), Reading("json"))
    assert not kineto.looks_like_trace(b'[{"a": 1}]')


def test_a_base_beside_epoch_times_is_ignored():
    assert kineto_finish._base({"baseTimeNanoseconds": 5}, np.array([1.7e15])) == 0
    assert kineto_finish._base({"baseTimeNanoseconds": "x"}, np.array([1.0])) == 0


@pytest.mark.parametrize("odd", [[], [1], {}, "x"])
@pytest.mark.parametrize("key", ["ts", "dur", "correlation", "device", "stream"])
def test_values_that_are_no_numbers_in_every_event(key, odd):
    events = [{"ph": "X", "cat": "kernel", "name": "k", "ts": i, "dur": 1, "args": {"device": 0}} for i in range(3)]
    for event in events:
        (event if key in event else event["args"])[key] = odd
    reading, reason = read(json.dumps({"traceEvents": events}))
    assert reason is None or "report" not in reason
    assert reading.rows == 3


@pytest.mark.parametrize("between", ["", "\n"])
def test_traces_of_two_ranks_in_one_file_are_never_merged(between):
    first, second = (t.text() for t in pair_of_ranks(steps=4))
    reading, reason = read(first + between + second, "all.json")
    assert reason == ""
    assert reading.rows == len(json.loads(first)["traceEvents"])
    assert batch(reading).attrs["rank"] == 0
    assert ids(reading).count("input.rank_set") == 1


def test_large_traces_of_two_ranks_in_one_file_are_never_merged(monkeypatch):
    monkeypatch.setattr("moexray.readers.kineto_events.CHUNK_BYTES", 4096)
    first, second = (t.text() for t in pair_of_ranks(steps=60))
    assert len(first) > 5 * 4096
    reading, _ = read(first + second, "all.json")
    assert reading.rows == len(json.loads(first)["traceEvents"])
    assert batch(reading).attrs["rank"] == 0
    assert ids(reading).count("input.rank_set") == 1
    assert "input.truncated" not in ids(reading)


def test_two_documents_of_one_rank_are_one_trace():
    first, _ = (t.text() for t in pair_of_ranks(steps=4))
    reading, _ = read(first + first, "all.json")
    assert reading.rows == 2 * len(json.loads(first)["traceEvents"])
    assert "input.rank_set" not in ids(reading)
