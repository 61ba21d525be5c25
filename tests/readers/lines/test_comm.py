"""Watchdog lines of all torch versions, wrapped, coloured and interleaved; groups in text."""

import pytest

from comm_samples import STAMP, read, watchdog

OLD = [
    # torch 1.x: no number, a shape
    (
        ("[E ProcessGroupNCCL.cpp:566] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, "
        "TensorShape=[4, 16], Timeout(ms)=1800000) ran for 1800116 milliseconds before timing out."),
        {"rank": None, "group_rank": 1, "seq": None, "numel_in": 64, "timeout_s": 1800.0, "op": "ALLREDUCE"},
    ),
    # 2.0
    (
        ("[E ProcessGroupNCCL.cpp:828] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15173, "
        "OpType=ALLREDUCE, TensorShape=[1], Timeout(ms)=1800000) ran for 1802710 milliseconds before timing out."),
        {"rank": None, "group_rank": 0, "seq": 15173, "numel_out": 1, "ran_s": 1802.71},
    ),
    # 2.2: global rank, no group
    (
        ("[rank5]:[E ProcessGroupNCCL.cpp:523] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
        "OpType=BROADCAST, NumelIn=7, NumelOut=7, Timeout(ms)=600000) ran for 600001 milliseconds before timing out.\n"
        "[rank5]:[E ProcessGroupNCCL.cpp:537] [Rank 5] Timeout at NCCL work: 9, last enqueued NCCL work: 12, last completed NCCL work: 8."),
        {"rank": 5, "group_rank": 5, "seq": 9, "group": None, "enqueued": 12, "completed": 8},
    ),
    # 2.3 and 2.4
    (
        (f"[rank2]:[{STAMP}] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLTOALL_BASE, "
        "NumelIn=10, NumelOut=12, Timeout(ms)=600000) ran for 600045 milliseconds before timing out.\n"
        f"[rank2]:[{STAMP}] [PG 1 (default_pg) Rank 2] Exception (either an error or timeout) detected by watchdog at work: 2, "
        "last enqueued NCCL work: 3, last completed NCCL work: 1."),
        {"rank": 2, "group": "1", "desc": "default_pg", "seq": 2, "numel_in": 10, "numel_out": 12, "completed": 1},
    ),
    # 2.5 on, the group's rank is another than the global one
    (
        watchdog(13, 216, group_rank=1, op="ALLTOALL_BASE", group="11", guid="119", desc="ep_group", enqueued=220),
        {"rank": 13, "group_rank": 1, "group": "119", "group_id": "11", "desc": "ep_group", "seq": 216, "enqueued": 220},
    ),
]


def reports(text, kind="timeout"):
    return [r for r in read({"w.log": text}).rows("comm_report") if r["kind"] == kind]


@pytest.mark.parametrize(("text", "want"), OLD, ids=["1.x", "2.0", "2.2", "2.4", "2.5"])
def test_every_torch_version_gives_one_report(text, want):
    rows = reports(text)
    assert len(rows) == 1
    assert {k: rows[0][k] for k in want} == want
    assert rows[0]["stale"] is False


WRAPS = {
    "colour": lambda t: "\n".join(f"\x1b[36m(RayWorkerWrapper pid=4000)\x1b[0m {line}" for line in t.splitlines()),
    "hard wrap": lambda t: t.replace("Watchdog caught", "Watchdog\ncaught"),
    "wrap before the work": lambda t: t.replace("timeout: Work", "timeout:\nWork").replace(") ran for", ")\nran for"),
    "quoted chat": lambda t: "".join(f"> {line}\n" for line in t.splitlines()),
    "kubernetes": lambda t: "".join(f"2026-03-11T07:12:30.114Z stderr F {line}\n" for line in t.splitlines()),
    "one line": lambda t: t.replace("\n", " "),
    "CRLF": lambda t: t.replace("\n", "\r\n"),
    "torchrun": lambda t: "".join(f"[default2]:{line}\n" for line in t.splitlines()),
    "printed twice": lambda t: t + "terminate called after throwing an instance\n  what():  " + t.splitlines()[0][t.index("[Rank"):],
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS.keys())
def test_wrapping_does_not_change_the_report(wrap):
    text = watchdog(2, 77, op="ALLTOALL_BASE") + watchdog(3, 76, op="ALLTOALL_BASE")
    rows = reports(wrap(text))
    assert [(r["rank"], r["seq"], r["op"], r["group"]) for r in rows] in (
        [(2, 77, "ALLTOALL_BASE", "21"), (3, 76, "ALLTOALL_BASE", "21")],
        [(2, 77, "ALLTOALL_BASE", "21"), (3, 76, "ALLTOALL_BASE", "21"), (None, 77, "ALLTOALL_BASE", None)],
    )


@pytest.mark.parametrize("sentence", [
    "INFO On 'Watchdog caught collective operation timeout' the process group is torn down.",
    "see 'if you ever see Watchdog caught collective operation timeout, look for the dumps'",
    "# " + watchdog(0, 1).splitlines()[0],
    "the line is `" + watchdog(0, 1).splitlines()[0] + "`",
    "For example: " + watchdog(0, 1).splitlines()[0],
    "If you see\n\n```\n" + watchdog(0, 1) + watchdog(1, 1) + "```\nthen raise the limit",
    "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=X, ...) ran for 600000 milliseconds",
])  # fmt: skip
def test_a_quoted_sentence_is_no_report(sentence):
    assert reports("INFO 03-11 11:00:00 [a.py:1] hello\n" + sentence + "\n") == []


def test_lines_before_a_restart_are_of_an_earlier_process():
    text = watchdog(0, 5) + "INFO 03-12 11:00:00 [a.py:1] Application startup complete.\n" + watchdog(1, 9)
    assert [(r["rank"], r["stale"]) for r in reports(text)] == [(0, True), (1, False)]


def test_dump_signals_lost_peers_and_exceptions():
    text = (
        f"[rank4]:[{STAMP}] [PG ID 3 PG GUID 21 Rank 4] Received a dump signal due to a collective timeout from rank 0 and we "
        "will try our best to dump the debug info. Last enqueued NCCL work: 8, last completed NCCL work: -1.\n"
        "[rank1]: RuntimeError: NCCL error: remote process exited or there was a network error\n"
        "(Worker_EP2 pid=7) ERROR 03-11 07:00:00 [w.py:1] ValueError: shapes do not match\n"
        "(Worker_EP2 pid=7) ERROR 03-11 07:00:01 [w.py:1] RuntimeError: NCCL communicator was aborted\n"
    )
    run = read({"w.log": text})
    rows = {r["kind"]: r for r in run.rows("comm_report")}
    assert (rows["dump_signal"]["rank"], rows["dump_signal"]["enqueued"], rows["dump_signal"]["completed"]) == (4, 8, None)
    assert rows["lost_peer"]["rank"] == 1
    assert rows["exception"]["rank"] == 2
    assert "shapes" in rows["exception"]["text"]
    assert len(run.rows("comm_report")) == 3


@pytest.mark.parametrize(("text", "want"), [
    ("rank 0 in world size 8 is assigned as DP rank 0", {"desc": "world", "size": 8}),
    ("world_size=16 rank=3", {"desc": "world", "size": 16}),
    ("2 nodes x 4 GPUs, expert parallel", {"desc": "world", "size": 8}),
    ("torchrun --nnodes=2 --nproc_per_node=8 serve.py", {"desc": "world", "size": 16}),
    ((f"[rank3]:[{STAMP}] [PG ID 2 PG GUID 7(ep) Rank 1] ProcessGroupNCCL initialization options: size: 2, global rank: 3, "
     "TIMEOUT(ms): 600000"), {"group": "7", "group_id": "2", "desc": "ep", "size": 2}),
    ("PG 3 (GUID 21): ranks [0, 1, 2, 3]", {"group": "21", "group_id": "3", "members": [0, 1, 2, 3]}),
    ("process group ep_group = [4,5,6,7]", {"desc": "ep_group", "members": [4, 5, 6, 7]}),
])  # fmt: skip
def test_groups_in_text(text, want):
    rows = [r for r in read({"a.log": text + "\n"}).rows("comm_group") if all(r[k] == v for k, v in want.items())]
    assert len(rows) == 1


def test_ray_swallows_lines_of_other_ranks():
    first = watchdog(1, 5).splitlines()[0]
    rows = reports(f"(RayWorker pid=4) {first} [repeated 3x across cluster]\n")
    assert rows[0]["repeats"] == 2


def test_the_same_number_after_a_restart_is_not_stale():
    text = watchdog(0, 5) + "INFO 03-12 11:00:00 [a.py:1] Application startup complete.\n" + watchdog(0, 5)
    assert [(r["rank"], r["stale"]) for r in reports(text)] == [(0, False)]
