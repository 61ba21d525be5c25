"""Lives of tensors from logs, profiles and snapshots, in one form."""

import json

import numpy as np

from memory_log_samples import KIB, alloc, free, tensors_of, two_experts
from moexray.analyse.tensors import NEVER, tensors
from moexray.core.run import Reading, build_run
from moexray.core.scopes import SCOPES
from moexray.core.source import Source
from moexray.readers.read_any import read_any
from moexray.readers.shapes import snapshot as shape
from snapshot_samples import BASE, MIB, document, event, frames, segment, step_marks


def test_a_log_by_hand(tmp_path):
    [one] = tensors_of(tmp_path, two_experts())
    assert one.kind == "log"
    assert one.size.tolist() == [4 * KIB, KIB, 2 * KIB, 3 * KIB]
    assert list(zip(one.start.tolist(), one.end.tolist(), strict=True)) == [(0, 7), (1, 2), (3, 4), (5, 6)]
    assert (one.end_ns - one.start_ns).tolist() == [110_000, 10_000, 20_000, 40_000]
    assert one.layer.tolist() == [0, 0, 0, 0]
    assert one.expert.tolist() == [-1, -1, 0, 1]
    assert [SCOPES[s] for s in one.scope] == ["layer", "router", "expert", "expert"]
    assert not one.is_open.any()


def test_what_is_not_freed_lives_to_the_end_and_older_frees_are_told(tmp_path):
    [one] = tensors_of(tmp_path, [alloc("a", 8, 1), alloc("b", 8, 2), free("b", 3), free("old", 4)])
    assert one.is_open.tolist() == [True, False]
    assert one.end.tolist() == [4, 2]
    assert any("1 frees of tensors older" in n for n in one.notes)


def test_frees_without_ids_end_the_oldest_of_their_kind(tmp_path):
    events = [("alloc", 0), ("alloc", 1), ("free", 2), ("free", 3)]
    [one] = tensors_of(tmp_path, [{"event": e, "layer": 1, "size_bytes": 8, "timestamp_us": t} for e, t in events])
    assert one.end.tolist() == [2, 3]
    assert any("oldest living" in n for n in one.notes)


def test_files_that_follow_each_other_are_one_log_and_those_that_overlap_are_not(tmp_path):
    whole = two_experts()
    [one] = tensors_of(tmp_path, whole[4:], whole[:4])
    assert one.end.tolist() == [7, 2, 4, 6]
    assert any("2 files were joined" in n for n in one.notes)
    assert len(tensors_of(tmp_path, whole, whole)) == 2


def test_ranks_are_told_apart(tmp_path):
    records = [r | {"rank": rank} for rank in (0, 1) for r in two_experts()]
    both = tensors_of(tmp_path, records)
    assert [one.rank for one in both] == [0, 1]
    assert [one.end.tolist() for one in both] == [[7, 2, 4, 6]] * 2


def test_passes_begin_where_the_layers_start_again(tmp_path):
    records = []
    for i in range(6):  # two passes over three layers; a layer's tensor lives until the next one is there
        records.append(alloc(f"t{i}", 8, 2 * i, i % 3))
        if i:
            records.append(free(f"t{i - 1}", 2 * i + 1))
    [one] = tensors_of(tmp_path, records)
    assert one.steps == "passes over the layers"
    assert one.step.tolist() == [0, 0, 0, 1, 1, 1]
    assert one.last_step.tolist() == [0, 0, 1, 1, 1, -1]


def test_steps_of_the_log_come_first(tmp_path):
    records = [alloc("a", 8, 0, 3, step=7), free("a", 1), alloc("b", 8, 2, 0, step=8), free("b", 3)]
    records[1]["step"], records[3]["step"] = 7, 9
    [one] = tensors_of(tmp_path, records)
    assert one.steps == "steps of the log"
    assert (one.step.tolist(), one.last_step.tolist()) == ([7, 8], [7, 9])


# --- profiles


def slices(*rows, tid=1):
    return [{"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur} for cat, name, ts, dur in rows]


def mark(ts, size, address=64, tid=1, device=0):
    args = {"Addr": address, "Bytes": size, "Device Type": device, "Device Id": device - 1}
    return {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": tid, "ts": ts, "args": args}


def profile(tmp_path, events):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": 0}))
    return tensors(read_any([str(path)]))


def test_a_profile_by_hand(tmp_path):
    events = slices(
        ("user_annotation", "layer_3", 0, 100),
        ("user_annotation", "expert_5", 10, 20),
        ("cpu_op", "aten::linear", 12, 15),
        ("cpu_op", "aten::mm", 14, 4),
        ("cpu_op", "aten::add", 40, 4),
        ("cpu_op", "aten::relu", 200, 4),
    )
    events += slices(("user_annotation", "layer_9", 0, 500), tid=2)
    events += [mark(15, 512), mark(16, -512), mark(20, 256), mark(41, 128, 99), mark(42, -256), mark(201, 64, 7)]
    [one] = profile(tmp_path, events)
    assert one.kind == "profile"
    assert one.device == -1
    assert one.address is None  # malloc's addresses say nothing about the device
    assert one.layer.tolist() == [3, 3, 3, -1]
    assert one.expert.tolist() == [5, 5, -1, -1]
    assert [SCOPES[s] for s in one.scope] == ["expert", "expert", "layer", "unknown"]
    assert [one.sites[s] for s in one.site] == ["aten::mm", "aten::linear", "aten::add", "aten::relu"]
    assert one.end.tolist() == [1, 4, 6, 6]


def test_an_address_that_is_taken_again_ends_the_older_tensor(tmp_path):
    [one] = profile(tmp_path, [*slices(("cpu_op", "aten::mm", 0, 9)), mark(1, 8), mark(2, 16), mark(3, -16)])
    assert one.end.tolist() == [1, 2]
    assert one.is_open.tolist() == [False, False]
    assert any("1 frees are missing" in n for n in one.notes)


def test_devices_are_told_apart(tmp_path):
    events = [*slices(("cpu_op", "aten::mm", 0, 9)), mark(1, 8), mark(2, 512, device=1), mark(3, -8), mark(4, -512, device=1)]
    both = profile(tmp_path, events)
    assert [(one.device, one.size.tolist()) for one in both] == [(-1, [8]), (0, [512])]
    assert both[1].address.tolist() == [64]


# --- snapshots


def snapshot(trace, marks=()):
    out = Reading("pickle")
    doc = document([segment(BASE, [(8 * MIB, "f")])], trace, marks=marks)
    assert shape.shape(doc, Source("s.pickle", content=b"x"), out)
    [one] = tensors(build_run([("s.pickle", out)], []))
    return one


def life(addr, size, time_us, **more):
    events = [event(a, addr, size, time_us + i) for i, a in enumerate(("alloc", "free_requested", "free_completed"))]
    events[0].update(more)
    return events


def test_a_snapshot_by_hand():
    marks = [
        {"name": "layer_2", "stage": "START", "time_us": 100, "device": 0},
        {"name": "layer_2", "stage": "END", "time_us": 200, "device": 0},
    ]
    trace = [
        *life(BASE, 512, 10),  # nothing names it
        *life(BASE, 1024, 20, user_metadata="layer_idx=7"),
        *life(BASE, 2048, 110),  # in the marked range
        *life(BASE, 4096, 120, frames=frames(5, "forward_experts", "/srv/moe.py")),
        *life(BASE, 8192, 130, user_metadata="layer_idx=7"),  # metadata before the range
        *life(BASE, 512, 300, frames=[*frames(5, "mm", "/srv/a.py"), *frames(9, "expert_4", "/srv/b.py"), *frames(9, "layer_6", "/srv/b.py")]),
    ]
    one = snapshot(trace, marks)
    assert one.layer.tolist() == [-1, 7, 2, 2, 7, 6]
    assert one.expert.tolist() == [-1, -1, -1, -1, -1, 4]
    assert [SCOPES[s] for s in one.scope] == ["unknown", "layer", "layer", "expert", "layer", "expert"]
    assert (one.end - one.start).tolist() == [1] * 6  # free_requested is no end and counts for nothing
    assert (one.end_ns - one.start_ns).tolist() == [2000] * 6


def test_tensors_older_than_the_history_are_not_covered():
    one = snapshot([event("free_completed", BASE, 512, 5), *life(BASE, 1024, 6)])
    assert one.size.tolist() == [1024]
    assert any("1 frees of tensors older" in n for n in one.notes)


def test_a_freed_segment_is_gone():
    trace = [*life(BASE, 512, 1), event("segment_free", BASE, 2 * MIB, 9), *life(BASE, 512, 10)]
    assert snapshot(trace).gone.tolist() == [2, NEVER]


def test_marked_steps():
    trace = [t for i in range(3) for t in life(BASE, 512, 1_000_000 + 1000 * i + 5)]
    trace.insert(1, event("alloc", BASE + MIB, 512, 1_000_006))
    trace.append(event("free_completed", BASE + MIB, 512, 1_002_900))
    one = snapshot(trace, step_marks(3))
    assert one.steps == "steps marked by annotations"
    assert one.step.tolist() == [0, 0, 1, 2]
    assert one.last_step.tolist() == [0, 2, 1, 2]


def test_a_snapshot_without_times_counts_events():
    trace = [{k: v for k, v in e.items() if k != "time_us"} for e in life(BASE, 512, 1)]
    one = snapshot(trace)
    assert one.start_ns is None
    assert np.array_equal(one.end, [1])
