"""Statistics of PyTorch's allocator in JSON, JSON lines and CSV."""

import json

import pytest

from smi_samples import GIB, read

FLAT = {"allocated_bytes.all.current": 5, "reserved_bytes.all.current": 9, "num_alloc_retries": 0, "num_ooms": 0}
NESTED = {
    "allocated_bytes": {"all": {"current": 5, "peak": 7}, "large_pool": {"current": 4}},
    "reserved_bytes": {"all": {"current": 9, "peak": 11}},
    "num_ooms": 0,
}


def stats(document, name="a.json"):
    return read(json.dumps(document), names=(name,)).rows("memory_stats")


@pytest.mark.parametrize(
    "document",
    [
        FLAT,
        NESTED,
        {"rank": 1, "stats": FLAT},
        [FLAT],
        {"samples": [FLAT]},
        {"memory_allocated": 5, "memory_reserved": 9},
        {"cuda:0": FLAT},
        {"allocated": {"current": 5}, "reserved": {"current": 9}},
    ],
)
def test_forms(document):
    (row,) = stats(document)
    assert (row["allocated_bytes"], row["reserved_bytes"]) == (5, 9)


def test_peaks_and_places():
    (row,) = stats({"rank3": {"1": NESTED}})
    assert (row["allocated_peak_bytes"], row["reserved_peak_bytes"]) == (7, 11)
    assert (row["rank"], row["device"]) == (3, 1)


def test_rank_of_a_dump_name_only_where_the_content_has_none():
    assert stats(FLAT, "memory_stats_rank5.json")[0]["rank"] == 5
    assert stats({**FLAT, "rank": 2}, "memory_stats_rank5.json")[0]["rank"] == 2


def test_lines_with_time_load_and_step():
    lines = "\n".join(
        json.dumps({**FLAT, "t_s": 10 * i, "num_requests_running": 8, "step_ms": 31.0}) for i in range(3)
    )
    got = read(lines, names=("m.jsonl",)).rows("memory_stats")
    assert [(r["t_s"], r["running"], r["step_s"]) for r in got] == [(0, 8, 0.031), (10, 8, 0.031), (20, 8, 0.031)]


def test_csv_with_units():
    text = "time,allocated_gib,reserved_gib,step_ms\n0,1.5,2,30\n10,1.5,2,31\n"
    got = read(text, names=("m.csv",)).rows("memory_stats")
    assert [r["reserved_bytes"] for r in got] == [2 * GIB, 2 * GIB]
    assert got[1]["step_s"] == pytest.approx(0.031)


def test_load_alone():
    got = read("t_s,num_requests_running\n0,31\n900,32\n").rows("memory_stats")
    assert [(r["t_s"], r["running"], r["reserved_bytes"]) for r in got] == [(0, 31, None), (900, 32, None)]


@pytest.mark.parametrize("document", [{"reserved": 3}, {"a": [1, 2]}, {"allocated_bytes": "x"}, [[FLAT]] * 2, {"segments": []}])
def test_other_objects_are_left_alone(document):
    assert stats(document) == ()
