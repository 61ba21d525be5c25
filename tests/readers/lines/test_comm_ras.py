"""Text of the status report: sets, their lists, several polls, ranks that cannot be reached."""

from comm_samples import read

HEAD = """NCCL version 2.26.2 compiled with CUDA 12.6
Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8   RUNNING  {status}

Warnings
========
"""
BODY = """
#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  5 ranks have launched up to operation 64
  2 ranks have launched up to operation 63
  Rank 2 -- GPU 2 managed by process 10 on node node1
  Rank 5 -- GPU 1 managed by process 11 on node node2
  Rank 7 has not launched any operations -- GPU 3 managed by process 12 on node node2
"""


def rows(text):
    return [r for r in read({"ras.txt": text}).rows("comm_ras") if r["count"] is not None]


def test_sets_with_and_without_lists():
    got = [(r["op"], r["count"], r["ranks"], r["listed"], r["size"], r["comm"]) for r in rows(HEAD.format(status="MISMATCH") + BODY)]
    comm = "27a079b828ff1a75"
    assert got == [
        ("AllReduce", 64, 5, [], 8, comm),
        ("AllReduce", 63, 2, [2, 5], 8, comm),
        ("AllReduce", 0, 1, [7], 8, comm),
    ]


def test_polls_are_counted_by_their_heads():
    text = HEAD.format(status="MISMATCH") + BODY + HEAD.format(status="MISMATCH") + BODY.replace("63", "70")
    assert [r["report"] for r in rows(text)] == [0, 0, 0, 1, 1, 1]


def test_a_fragment_without_head_is_read_and_its_repetition_is_the_next_poll():
    assert [(r["report"], r["size"]) for r in rows(BODY + BODY)] == [(0, None)] * 3 + [(1, None)] * 3


def test_a_healthy_report_is_a_record_without_counts():
    run = read({"ras.txt": HEAD.format(status="OK")})
    assert [r["count"] for r in run.rows("comm_ras")] == [None]
    assert run.inputs[0].rows == 1


def test_missing_ranks():
    text = HEAD.format(status="INCOMPLETE") + "#0-0 (27a0) INCOMPLETE\n  Missing communicator data from 2 ranks\n  The missing ranks: 3, 6\n"
    found = [r for r in read({"ras.txt": text}).rows("comm_ras") if r["gone"]]
    assert [r["gone"] for r in found] == [[3, 6]]
