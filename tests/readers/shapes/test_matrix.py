"""Matrices over pairs of ranks: headers, axes, keys, edge lists; what is none."""

import json

import numpy as np
import pytest

from comm_samples import read
from moexray.analyse.comm_matrix import dense

SQUARE = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def csv(head, label="{}", rows=SQUARE):
    return head + "\n" + "\n".join(f"{label.format(i)},{','.join(map(str, r))}" for i, r in enumerate(rows)) + "\n"


def first(content, name="m.csv"):
    return read({name: content}).batches("a2a_matrix")[0]


@pytest.mark.parametrize(("head", "label", "rows_are", "quantity"), [
    ("src_rank,dst0,dst1,dst2", "{}", "sender", None),
    ("dst_rank,src0,src1,src2", "{}", "receiver", None),
    ("rank,to0,to1,to2", "{}", "sender", None),
    ("rank,from_0,from_1,from_2", "rank{}", "receiver", None),
    ("receiver,sender0,sender1,sender2", "{}", "receiver", None),
    ("src\\dst,0,1,2", "{}", "sender", None),
    ("to/from,0,1,2", "{}", "receiver", None),
    ("rank,0,1,2", "{}", None, None),
    ("rank,send_to_0,send_to_1,send_to_2", "{}", "sender", "sent"),
    ("rank,recv_from_0,recv_from_1,recv_from_2", "{}", "receiver", "received"),
    ("rank,wait_from0,wait_from1,wait_from2", "{}", "receiver", "wait"),
    ("recv_rank,src_0_wait_us,src_1_wait_us,src_2_wait_us", "{}", "receiver", "wait"),
    ("send_rank,rank0,rank1,rank2", "{}", "sender", "sent"),
])  # fmt: skip
def test_headers_say_who_is_who(head, label, rows_are, quantity):
    b = first(csv(head, label), "table.csv")
    assert (b.attrs["rows_are"], b.attrs["quantity"]) == (rows_are, quantity)
    ranks, matrix = dense(b)
    assert ranks == [0, 1, 2]
    assert np.array_equal(matrix, SQUARE)


def test_comments_and_names_label_the_quantity():
    b = first("# dispatch wait cost, us\n" + csv("rank,from0,from1,from2"), "x.csv")
    assert (b.attrs["quantity"], b.attrs["quantity_from"], b.attrs["unit"]) == ("wait", "content", "us")
    b = first(csv("rank,from0,from1,from2"), "wait_recv_cost_us.csv")
    assert (b.attrs["quantity"], b.attrs["quantity_from"], b.attrs["unit"]) == ("wait", "name", "us")


def test_steps_are_slices():
    text = "step,rank,to0,to1\n0,0,1,2\n0,1,3,4\n1,0,5,6\n1,1,7,8\n"
    batches = read({"m.csv": text}).batches("a2a_matrix")
    assert [(b.attrs["slice"], list(b.columns["value"])) for b in batches] == [("step 0", [1, 2, 3, 4]), ("step 1", [5, 6, 7, 8])]


def test_edge_lists_hold_both_sides():
    text = "src,dst,sent,received\n0,0,1,1\n0,1,2,2\n1,0,3,4\n1,1,5,5\n"
    batches = read({"edges.csv": text}).batches("a2a_matrix")
    assert [(b.attrs["quantity"], b.attrs["rows_are"], list(b.columns["value"])) for b in batches] == [
        ("sent", "sender", [1, 2, 3, 5]),
        ("received", "sender", [1, 2, 4, 5]),
    ]


@pytest.mark.parametrize(("document", "want"), [
    ({"send_counts": SQUARE, "recv_counts": SQUARE}, [("sent", None), ("received", None)]),
    ({"axes": ["src", "dst"], "sent": SQUARE}, [("sent", "sender")]),
    ({"axes": {"sent": "src,dst", "received": "dst,src"}, "sent": SQUARE, "received": SQUARE}, [("sent", "sender"), ("received", "receiver")]),
    ({"layout": "sent[src][dst], recv[dst][src]", "sent": SQUARE, "recv": SQUARE}, [("sent", "sender"), ("received", "receiver")]),
    ({"src0": {"dst0": 1, "dst1": 2}, "src1": {"dst0": 3, "dst1": 4}}, [(None, "sender")]),
    ([{"rank": 0, "send": [1, 2], "recv": [1, 3]}, {"rank": 1, "send": [3, 4], "recv": [2, 4]}], [("sent", "sender"), ("received", "receiver")]),
    ([{"src": 0, "dst": 1, "sent": 5, "received": 5}, {"src": 1, "dst": 0, "sent": 6, "received": 6}], [("sent", "sender"), ("received", "sender")]),
    ({"step": 3, "dispatch": {"wait_cost_us": SQUARE}}, [("wait", None)]),
])  # fmt: skip
def test_json(document, want):
    batches = read({"m.json": json.dumps(document)}).batches("a2a_matrix")
    assert [(b.attrs["quantity"], b.attrs["rows_are"]) for b in batches] == want


def test_bare_numbers_need_a_word():
    bare = "1,2,3\n4,5,6\n7,8,9\n"
    assert len(read({"alltoall_send.csv": bare}).batches("a2a_matrix")) == 1
    assert read({"table.csv": bare}).batches("a2a_matrix") == ()


@pytest.mark.parametrize("text", [
    "layer,expert0,expert1\n0,5,6\n1,7,8\n",
    "rank,expert0,expert1\n0,5,6\n1,7,8\n",
    "rank,to0,to1,to2\n0,1,2,3\n1,4,5,6\n",
    "time,latency\n0,1\n1,2\n",
    "dp,tp,result\n2,1,ok\n1,2,ok\n",
    "rank,gpu0_temp,gpu1_temp\n0,50,60\n1,70,80\n",
])  # fmt: skip
def test_other_tables_are_left_alone(text):
    assert read({"m.csv": text}).batches("a2a_matrix") == ()


def test_dirty_cells_are_named_and_left_out():
    run = read({"m.csv": "src,dst0,dst1\n0,1,nan\n1,-3,4\n"})
    assert np.isnan(run.batches("a2a_matrix")[0].columns["value"]).tolist() == [False, True, True, False]
    assert {p.id for _, p in run.problems} == {"input.dirty_table"}


def test_groups_json():
    run = read({"g.json": json.dumps({"groups": {"ep": [0, 1, 2, 3], "dp": [0, 4]}})})
    assert [(r["desc"], r["members"]) for r in run.rows("comm_group")] == [("ep", [0, 1, 2, 3]), ("dp", [0, 4])]
    run = read({"g.json": json.dumps([{"name": "ep_group", "ranks": [3, 2]}])})
    assert [(r["desc"], r["members"]) for r in run.rows("comm_group")] == [("ep_group", [2, 3])]
    assert read({"g.json": json.dumps({"latencies": [1, 2, 3]})}).rows("comm_group") == ()
    assert read({"g.json": json.dumps({"group_a": [1, 1]})}).rows("comm_group") == ()


def test_comments_tell_the_rows_and_totals_are_no_ranks():
    text = "# rows = receivers\nrank,0,1,total\n0,1,2,3\n1,3,4,7\ntotal,4,6,10\n"
    b = first(text)
    assert (b.attrs["rows_are"], list(b.columns["value"])) == ("receiver", [1, 2, 3, 4])
