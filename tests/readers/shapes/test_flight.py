"""Recorder dumps of all schema versions, as pickle and as JSON; whose dump it is."""

import json
import math
import pickle

import pytest

from comm_samples import T0, dump, entry, read


def batch(content, name="trace_rank_1"):
    return read({name: content}).batches("comm_flight")[0]


def test_pickle_of_today():
    b = batch(dump([entry(1), entry(2, state="started", op="all_to_all", sizes=((3, 8), (5, 8)))]))
    assert b.attrs["rank"] == 1
    assert b.attrs["rank_from"] == "name"
    assert (b.attrs["version"], b.attrs["library"], b.attrs["timing"]) == ("2.10", "nccl", True)
    c = b.columns
    assert list(c["seq"]) == [1, 2]
    assert c["op"] == ["all_reduce", "all_to_all"]
    assert (c["numel_in"][1], c["numel_out"][1], c["sizes_in"][1]) == (24, 40, "[[3, 8]]")
    assert c["created_ns"][0] == T0 + 1_000_000_000
    assert math.isnan(c["completed_ns"][1])
    assert c["timeout_s"][0] == 600


def test_json_dump_has_zero_for_missing_times_and_texts_for_numbers():
    d = dump([entry(1), entry(2, state="started")])
    d["entries"][1]["time_discovered_completed_ns"] = 0
    d["pg_status"]["0"] = {k: str(v) for k, v in d["pg_status"]["0"].items()}
    run = read({"trace_rank_0.json": json.dumps(d)})
    assert math.isnan(run.batches("comm_flight")[0].columns["completed_ns"][1])
    assert [(r["enqueued"], r["completed"], r["members"]) for r in run.rows("comm_group")] == [(2, 1, [0, 1, 2, 3])]


def test_bare_list_of_the_first_version():
    old = [{k: v for k, v in entry(3).items() if k not in ("process_group", "collective_seq_id", "timeout_ms")} | {"seq_id": 3, "pg_id": 0}]
    b = batch(old, "nccl_trace_rank_7")
    assert (b.attrs["version"], b.attrs["rank"], list(b.columns["seq"]), b.columns["group"]) == ("1", 7, [3], ["0"])
    assert math.isnan(b.columns["timeout_s"][0])


def test_gloo_names_its_group_by_the_entries():
    e = entry(1, state="scheduled") | {"profiling_name": "gloo:all_to_all"}
    d = dump([e]) | {"pg_config": {"": {"name": "", "desc": "", "ranks": "[0, 1]"}}}
    run = read({"dump_rank_0": d})
    assert run.batches("comm_flight")[0].attrs["timing"] is False
    assert [(r["group"], r["members"]) for r in run.rows("comm_group")] == [("0", [0, 1])]


def test_split_sizes_of_new_dumps():
    b = batch(dump([entry(1, op="all_to_all", input_split_sizes=[1, 3], output_split_sizes=[2, 2])], version="2.11"))
    assert b.columns["splits_in"] == [(1, 3)]
    assert b.columns["splits_out"] == [(2, 2)]


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_any_protocol(protocol):
    assert batch(pickle.dumps(dump([entry(1)]), protocol)).attrs["rank"] == 1


def test_the_rank_follows_from_the_groups_before_the_name():
    tp, dp = ("4", "tp"), ("9", "dp")
    d = dump([entry(1, group=tp), entry(1, group=dp)], {"4": ("tp", [4, 5, 6, 7]), "9": ("dp", [2, 6])})
    b = batch(d, "renamed_rank_0")
    assert (b.attrs["rank"], b.attrs["rank_from"]) == (6, "content")


def test_a_name_that_contradicts_the_only_group_is_not_believed():
    assert batch(dump([entry(1)]), "node_12").attrs["rank"] is None


@pytest.mark.parametrize(("name", "rank"), [
    ("nccl_trace_rank_1.json.gz", 1), ("a/rank0/dump.pickle", 0), ("trace_1", 1), ("rank0/trace_rank_1", 1), ("dump", None),
])  # fmt: skip
def test_the_rank_of_the_name_where_the_content_has_none(name, rank):
    assert batch(dump([entry(1)]), name).attrs["rank"] == rank


def test_p2p_entries_are_marked():
    sends = [entry(1, op="send 0->1"), entry(2) | {"is_p2p": True}, entry(3, op="coalesced"), entry(4)]
    assert batch(dump(sends)).columns["p2p"] == [True, True, True, False]


def test_entries_without_a_number_are_counted():
    bad = {k: v for k, v in entry(2).items() if k != "collective_seq_id"}
    run = read({"t_rank_0": dump([entry(1), bad], status=False)})
    assert run.inputs[0].rows == 1
    assert [p.lost for _, p in run.problems] == [1]


def test_an_empty_recorder_is_still_a_dump():
    run = read({"t_rank_0": dump([], status=False) | {"pg_status": {"0": {"last_enqueued_collective": 4, "last_completed_collective": 4}}}})
    assert run.inputs[0].rows >= 1


@pytest.mark.parametrize("other", [{"entries": [1, 2]}, [{"a": 1}], {"entries": {}}, [], {"segments": []}])
def test_other_documents_are_left_alone(other):
    assert read({"x_rank_0": other}).batches("comm_flight") == ()
