"""Logs of allocations and frees per layer, expert, router, token."""

import json

import numpy as np
import pytest

from moexray.core.scopes import SCOPES
from moexray.readers.read_any import read_any

NAMES = ("is_alloc", "size_bytes", "layer", "expert", "scope", "step", "time_ns")


def read(tmp_path, records, name="memory.jsonl"):
    text = records if isinstance(records, str) else "\n".join(map(json.dumps, records)) + "\n"
    path = tmp_path / name
    path.write_text(text)
    return read_any([str(path)])


def batch(tmp_path, records):
    [found] = read(tmp_path, records).batches("memory_log")
    return found


def rows(found):
    columns = {n: np.asarray(found.columns[n]).tolist() for n in NAMES if n in found.columns}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def same(found):
    """The keys as numbers in the order in which they come."""
    keys = found.columns["key"].tolist()
    return [list(dict.fromkeys(keys)).index(k) for k in keys]


ALLOC = {"event": "alloc", "layer": 3, "scope": "expert", "expert": 5, "size_bytes": 4096, "timestamp_us": 12.5, "tensor": "x1"}
FREE = {**ALLOC, "event": "free", "timestamp_us": 20}
WANTED = {"is_alloc": True, "size_bytes": 4096, "layer": 3, "expert": 5, "scope": SCOPES.index("expert"), "step": -1, "time_ns": 12_500}


def test_the_form_asked_for(tmp_path):
    found = batch(tmp_path, [ALLOC, FREE])
    assert rows(found) == [WANTED, {**WANTED, "is_alloc": False, "time_ns": 20_000}]
    assert found.columns["key"][0] == found.columns["key"][1]
    assert found.attrs["by_id"]
    assert found.attrs["notes"] == ()


@pytest.mark.parametrize(
    "record",
    [
        {"action": "ALLOC", "layer": "3", "expert": "5", "scope": "Expert", "bytes": 4096, "ts_ns": 12_500, "id": 1},
        {"op": "malloc", "layer_idx": 3, "expert_id": 5, "nbytes": "4096", "time_ms": 0.0125, "ptr": "0x10"},
        {"type": "tensor_alloc", "module": "model.layers.3.mlp.experts.5", "size_kb": 4, "timestamp_us": 12.5, "uid": "a"},
        {"event": "Allocate", "layer": "layer_3", "expert": "expert 5", "size": "4 KiB", "t_us": "12.5", "handle": 7},
        {"event": "memory.alloc", "name": "layer_3.expert_5.up", "size_bytes": 4096, "timestamp_s": 12.5e-6, "buffer": "b"},
    ],
)  # fmt: skip
def test_usual_variations(tmp_path, record):
    free = {**record, next(iter(record)): "free"}
    assert rows(batch(tmp_path, [record, free]))[0] == WANTED


@pytest.mark.parametrize(
    ("times", "ns"),
    [
        ([5, 9], [5_000, 9_000]),  # whole numbers: microseconds
        ([0.5, 0.75], [500_000_000, 750_000_000]),  # fractions: seconds
        ([1_760_000_000.5, 1_760_000_001.0], [1_760_000_000_500_000_000, 1_760_000_001_000_000_000]),
        ([1_760_000_000_000, 1_760_000_000_001], [1_760_000_000_000_000_000, 1_760_000_000_001_000_000]),
        ([1_760_000_000_000_000, 1_760_000_000_000_001], [1_760_000_000_000_000_000, 1_760_000_000_000_001_000]),
        ([1_760_000_000_000_000_000, 1_760_000_000_000_000_001], [1_760_000_000_000_000_000, 1_760_000_000_000_000_001]),
        (["2025-10-09T08:53:20Z", "2025-10-09T08:53:21Z"], [1_760_000_000_000_000_000, 1_760_000_001_000_000_000]),
    ],
)  # fmt: skip
def test_times_without_a_unit(tmp_path, times, ns):
    records = [{"event": e, "size_bytes": 8, "layer": 0, "timestamp": t} for e, t in zip(("alloc", "free"), times, strict=True)]
    assert batch(tmp_path, records).columns["time_ns"].tolist() == ns


def test_events_come_in_the_order_of_time(tmp_path):
    assert [r["is_alloc"] for r in rows(batch(tmp_path, [FREE, ALLOC]))] == [True, False]


def test_without_times_there_is_no_column(tmp_path):
    records = [{k: v for k, v in r.items() if k != "timestamp_us"} for r in (ALLOC, FREE)]
    found = batch(tmp_path, records)
    assert "time_ns" not in found.columns
    assert "no time" in found.attrs["notes"][0]


def test_missing_ids_are_told_by_what_is_known(tmp_path):
    records = [{k: v for k, v in r.items() if k != "tensor"} for r in (ALLOC, {**ALLOC, "expert": 6}, FREE)]
    found = batch(tmp_path, records)
    assert same(found) == [0, 1, 0]
    assert not found.attrs["by_id"]
    assert "oldest living" in found.attrs["notes"][0]


def test_a_serial_number_is_no_id(tmp_path):
    records = [{k: v for k, v in r.items() if k != "tensor"} | {"id": i} for i, r in enumerate((ALLOC, FREE))]
    found = batch(tmp_path, records)
    assert same(found) == [0, 0]
    assert not found.attrs["by_id"]


def test_a_free_with_an_id_needs_no_size(tmp_path):
    records = [ALLOC, {"event": "free", "tensor": "x1", "timestamp_us": 20}]
    assert same(batch(tmp_path, records)) == [0, 0]


def test_a_shared_expert_a_router_and_a_token(tmp_path):
    base = {"event": "alloc", "size_bytes": 8, "timestamp_us": 1}
    found = rows(
        batch(
            tmp_path,
            [
                {**base, "layer": 1, "scope": "router"},
                {**base, "layer": 1, "scope": "gate"},
                {**base, "scope": "token", "token": 7},
                {**base, "layer": 2},
                {**base, "layer": None, "scope": None},
            ],
        )
    )
    assert [(r["layer"], SCOPES[r["scope"]], r["step"]) for r in found] == [
        (1, "router", -1), (1, "router", -1), (-1, "token", 7), (2, "layer", -1), (-1, "unknown", -1),
    ]  # fmt: skip


def test_addresses_ranks_and_devices(tmp_path):
    records = [{**ALLOC, "ptr": "0x7f00", "rank": 2, "device": "cuda:1"}, {**ALLOC, "address": 4, "rank": 2, "device": "cuda:1"}]
    found = batch(tmp_path, records)
    assert found.columns["address"].tolist() == [0x7F00, 4]
    assert found.columns["rank"].tolist() == [2, 2]
    assert found.columns["device"].tolist() == [1, 1]


def test_records_that_are_no_allocations_are_counted(tmp_path):
    marks = [{"event": "step_begin", "step": 1}, {"event": "alloc", "layer": 1}, {"event": "segment_alloc", "size": 9}]
    found = batch(tmp_path, [ALLOC, FREE, ALLOC, FREE, *marks])
    assert len(found.columns["key"]) == 4
    assert found.attrs["notes"] == ("1 records without a size left out", "2 other records left out")


def test_damaged_lines_cost_themselves_only(tmp_path):
    lines = [json.dumps(ALLOC), '{"event": "al', json.dumps(FREE), "", "}{", json.dumps(ALLOC)]
    run = read(tmp_path, "\n".join(lines) + "\n")
    [found] = run.batches("memory_log")
    assert len(found.columns["key"]) == 3
    [(_, problem)] = [p for p in run.problems if p[1].id == "input.json_repaired"]
    assert problem.lost == 2


def test_a_document_with_a_list_of_events(tmp_path):
    assert len(batch(tmp_path, json.dumps({"model": "m", "events": [ALLOC, FREE]})).columns["key"]) == 2


@pytest.mark.parametrize(
    "record",
    [
        {"event": "request finished", "ts": 1, "level": "info"},
        {"event": "alloc", "msg": "no size"},
        {"type": "free", "text": "free lunch"},
        {"allocated_bytes": 5, "reserved_bytes": 9, "t": 1},
    ],
)
def test_other_logs_are_left_alone(tmp_path, record):
    assert not read(tmp_path, [record] * 3).batches("memory_log")


def test_odd_values_give_no_traceback(tmp_path):
    odd = [None, True, [], {}, "x" * 5000, "9" * 400, 1e400, -1e308, 10**40, "NaN", -5]
    keys = ("size_bytes", "layer", "expert", "scope", "timestamp_us", "tensor", "address", "step", "device")
    records = [{**ALLOC, key: value} for key in keys for value in odd]
    text = "\n".join(json.dumps(r).replace("Infinity", "1e999") for r in [*[ALLOC] * 200, *records])
    [found] = read(tmp_path, text).batches("memory_log")
    assert (found.columns["size_bytes"] >= 0).all()


def test_another_reader_is_not_asked_for_it(tmp_path):
    run = read(tmp_path, [ALLOC, FREE])
    assert run.inputs[0].reader == "memory_log"
    assert run.inputs[0].rows == 2
