"""Hangs in logs: who is behind, who does not report, and when nobody may be named."""

import json

import pytest

from comm_samples import STAMP, dump, entry, finding, ids, said, watchdog

GROUPS = json.dumps({"PG 3 (GUID 21)": [0, 1, 2, 3]})
STARTED = "INFO 03-12 11:00:00 [a.py:1] Application startup complete.\n"


def lines(*ranks, seq=1310, **more):
    return "".join(watchdog(r, seq, **more) for r in ranks)


def test_different_numbers_are_a_desync_and_the_lowest_is_behind():
    d = said({"w.log": lines(0, 1, seq=772, op="ALLTOALL_BASE") + lines(2, seq=771), "g.json": GROUPS})
    f = finding(d, "comm.desync")
    assert d.verdict == "comm.desync"
    assert (f.severity, f.value, f.limit, f.subject.rank) == ("error", 772, 771, 2)
    assert "rank 2 in number 771" in f.claim
    assert "comm.missing_rank" not in ids(d)
    assert not any("timeout" in r.action.lower() and "longer" in r.action.lower() for r in f.remedies)


def test_one_number_but_two_operations_are_a_desync():
    d = said({"w.log": lines(0, 1, 2, op="ALLREDUCE") + lines(3, op="_ALLGATHER_BASE"), "g.json": GROUPS})
    assert finding(d, "comm.desync").subject.rank == 3


def test_two_spellings_of_one_operation_are_one():
    d = said({"w.log": lines(0, 1, op="ALLGATHER") + lines(2, op="_ALLGATHER_BASE"), "g.json": GROUPS})
    assert ids(d, strong=True) == ["comm.missing_rank"]


def test_the_first_unfinished_number_counts_when_a_rank_reports_several():
    text = lines(0, 1, 2, 3, seq=50) + lines(0, 2, seq=51)
    assert "comm.desync" not in ids(said({"w.log": text, "g.json": GROUPS}))


@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_the_member_that_does_not_report_is_the_suspect(missing):
    d = said({"w.log": lines(*(r for r in range(4) if r != missing)), "g.json": GROUPS})
    f = finding(d, "comm.missing_rank")
    assert (d.verdict, f.severity, f.subject.rank) == ("comm.missing_rank", "error", missing)
    assert f"rank {missing} is the only member" in f.claim


def test_membership_from_what_comes_out_of_an_all_gather():
    d = said({"w.log": lines(1, 2, 3, op="_ALLGATHER_BASE", numel=(10, 40))})
    assert finding(d, "comm.missing_rank").subject.rank == 0
    d = said({"w.log": lines(0, 1, 2, op="_REDUCE_SCATTER_BASE", numel=(40, 10))})
    assert finding(d, "comm.missing_rank").subject.rank == 3


def test_membership_from_the_order_of_ranks():
    d = said({"w.log": lines(0, 1, 3)})  # rank 3 is the fourth of its group: 2 is in it
    assert finding(d, "comm.missing_rank").subject.rank == 2


def test_membership_of_a_strided_group():
    sized = f"[rank1]:[{STAMP}] [PG ID 3 PG GUID 21 Rank 0] ProcessGroupNCCL initialization options: size: 4, global rank: 1\n"
    text = watchdog(1, 9, group_rank=0) + watchdog(3, 9, group_rank=1) + watchdog(7, 9, group_rank=3)
    assert finding(said({"w.log": sized + text}), "comm.missing_rank").subject.rank == 5


@pytest.mark.parametrize("extra", ["", "rank 0 in world size 8 is assigned as DP rank 0\n"])
def test_unknown_membership_names_nobody(extra):
    text = extra + watchdog(4, 9, group_rank=0) + watchdog(5, 9, group_rank=1)
    f = finding(said({"w.log": text}), "comm.missing_rank")
    assert (f.severity, f.subject.rank) == ("info", None)
    assert f.confidence < 0.5
    assert f.settle_with


def test_a_lone_reporter_accuses_nobody():
    f = finding(said({"w.log": lines(2), "g.json": GROUPS}), "comm.missing_rank")
    assert f.severity == "info"


def test_all_report_the_same_so_nobody_is_missing():
    d = said({"w.log": lines(0, 1, 2, 3, op="ALLTOALL_BASE"), "g.json": GROUPS})
    assert ids(d, strong=True) == []
    assert "all members report" in finding(d, "comm.missing_rank").claim


def test_an_exception_of_the_suspect_raises_the_confidence():
    plain = finding(said({"w.log": lines(0, 1, 3), "g.json": GROUPS}), "comm.missing_rank")
    trouble = "(Worker_EP2 pid=7) ERROR 03-11 07:00:00 [w.py:1] ValueError: shapes do not match\n"
    failed = finding(said({"w.log": trouble + lines(0, 1, 3), "g.json": GROUPS}), "comm.missing_rank")
    assert failed.confidence > plain.confidence
    assert "shapes do not match" in failed.claim


def test_a_suspect_out_of_memory_is_the_cause():
    oom = (
        "(Worker_EP2 pid=7) ERROR 03-11 07:00:00 [w.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 2 has a "
        "total capacity of 79.11 GiB of which 1.00 GiB is free. Process 7 has 78.00 GiB memory in use. Of the allocated memory 77.00 GiB is "
        "allocated by PyTorch, and 0.20 GiB is reserved by PyTorch but unallocated.\n"
    )
    d = said({"w.log": oom + lines(0, 1, 3), "g.json": GROUPS})
    f = finding(d, "comm.missing_rank")
    if f.implied_by:  # the memory rules have spoken, too
        assert d.verdict.startswith("mem.")
        assert f.implied_by[0].startswith("mem.")


def test_a_rank_that_answered_the_dump_signal_and_waits_is_no_suspect():
    signal = (
        f"[rank2]:[{STAMP}] [PG ID 3 PG GUID 21 Rank 2] Received a dump signal due to a collective timeout from rank 0 and we will try "
        "our best to dump the debug info. Last enqueued NCCL work: {}, last completed NCCL work: 1309.\n"
    )
    assert ids(said({"w.log": lines(0, 1, 3) + signal.format(1311), "g.json": GROUPS}), strong=True) == []
    f = finding(said({"w.log": lines(0, 1, 3) + signal.format(1309), "g.json": GROUPS}), "comm.missing_rank")
    assert f.subject.rank == 2


def test_lines_that_ray_swallowed_may_be_the_suspect_s():
    text = lines(0, 1, 3).replace("before timing out.", "before timing out. [repeated 2x across cluster]", 1)
    assert finding(said({"w.log": text, "g.json": GROUPS}), "comm.missing_rank").severity == "info"


def test_sizes_of_a_symmetric_operation():
    d = said({"w.log": lines(0, 1, 3) + watchdog(2, 1310, numel=(65, 65)), "g.json": GROUPS})
    f = finding(d, "comm.size_mismatch")
    assert (f.subject.rank, f.value, f.limit) == (2, 65, 64)
    d = said({"w.log": lines(0, 1) + lines(2, 3, numel=(65, 65)), "g.json": GROUPS})
    assert "no side is in the minority" in finding(d, "comm.size_mismatch").claim
    d = said({"w.log": lines(0, 1, 3, op="ALLTOALL_BASE") + watchdog(2, 1310, op="ALLTOALL_BASE", numel=(65, 60)), "g.json": GROUPS})
    assert "comm.size_mismatch" not in ids(d)


def test_an_earlier_process_is_ruled_out():
    d = said({"w.log": lines(0, 1, 3) + STARTED, "g.json": GROUPS})
    assert d.findings == ()
    assert [f.id for f in d.ruled_out] == ["comm.missing_rank"]


def test_a_suspect_that_waits_in_another_group_passes_the_blame_on():
    groups = json.dumps({"PG 3 (GUID 21)": [0, 1, 2, 3], "PG 4 (GUID 22)": [2, 3, 6]})
    other = watchdog(2, 7, group="4", guid="22", group_rank=0) + watchdog(3, 7, group="4", guid="22", group_rank=1)
    d = said({"w.log": lines(0, 1) + other, "g.json": groups})
    assert finding(d, "comm.missing_rank").subject.rank == 6


def test_two_groups_that_wait_for_each_other():
    groups = json.dumps({"PG 3 (GUID 21)": [0, 1, 2], "PG 4 (GUID 22)": [1, 2]})
    d = said({"w.log": lines(0, 1) + watchdog(2, 7, group="4", guid="22", group_rank=1), "g.json": groups})
    f = finding(d, "comm.desync")
    assert (f.severity, f.subject.rank) == ("error", 2)
    assert "different order" in f.claim


def test_several_groups_of_unknown_members_cannot_tell():
    text = watchdog(13, 216, group_rank=1, group="11", guid="119") + watchdog(15, 57, group_rank=0, group="11", guid="112")
    d = said({"w.log": text})
    assert [(f.id, f.severity) for f in d.findings] == [("comm.desync", "info")]


def test_lost_peers_point_at_the_one_that_does_not_complain():
    world = "rank 0 in world size 4 is assigned as DP rank 0\n"
    text = "".join(f"[rank{r}]: RuntimeError: NCCL error: remote process exited or there was a network error\n" for r in (0, 1, 3))
    assert finding(said({"w.log": world + text}), "comm.missing_rank").subject.rank == 2
    assert ids(said({"w.log": text})) == []


def test_peer_to_peer_numbers_are_not_compared():
    d = said({"w.log": watchdog(0, 5, op="SEND") + watchdog(1, 9, op="RECV"), "g.json": GROUPS})
    assert "comm.desync" not in ids(d)


def test_old_lines_know_the_group_rank_only():
    def old(r, seq):
        return (
            f"[E ProcessGroupNCCL.cpp:828] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, "
            "TensorShape=[1], Timeout(ms)=1800000) ran for 1802710 milliseconds before timing out.\n"
        )

    assert "group rank 1 in number 8" in finding(said({"w.log": old(0, 9) + old(1, 8)}), "comm.desync").claim
    d = said({"w.log": "world size 3\n" + old(0, 9) + old(1, 9)})
    assert "group rank 2" in finding(d, "comm.missing_rank").claim


def test_two_jobs_that_use_the_same_names_are_kept_apart():
    d = said({"prefill.log": lines(0, 1, 3), "decode.log": lines(0, 1, 2, seq=44), "g.json": GROUPS})
    assert "comm.desync" not in ids(d)
    assert "comm.missing_rank" in ids(d, strong=True)


def test_ids_that_every_rank_counts_for_itself_are_several_groups():
    def old(rank, local, seq, op):
        return (
            f"[rank{rank}]:[{STAMP}] [Rank {local}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, "
            "NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds before timing out.\n"
            f"[rank{rank}]:[{STAMP}] [PG 1 Rank {local}] Exception (either an error or timeout) detected by watchdog at work: {seq}, "
            f"last enqueued NCCL work: {seq}, last completed NCCL work: {seq - 1}.\n"
        )

    d = said({"w.log": old(0, 0, 5, "ALLREDUCE") + old(1, 0, 9, "ALLREDUCE")})
    assert ids(d, strong=True) == []


def test_a_monitored_barrier_names_the_absent():
    line = "[Rank 0]: Ranks 2, 5 failed to pass monitoredBarrier in 30000 ms\n"
    f = finding(said({"w.log": line}), "comm.missing_rank")
    assert "ranks 2 and 5 did not pass" in f.claim


def test_a_frozen_process_is_evidence_against_the_suspect():
    frozen = f"[rank2]:[{STAMP}] [PG ID 0 PG GUID 0(default_pg) Rank 2] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress\n"
    f = finding(said({"w.log": frozen + lines(0, 1, 3), "g.json": GROUPS}), "comm.missing_rank")
    assert any("got stuck" in e.text for e in f.evidence)


def test_dumps_decide_before_lines():
    files = {f"trace_rank_{r}": dump([entry(s) for s in range(1, 9)] + [entry(9, state="started", op="all_gather" if r == 3 else "all_reduce")])
             for r in range(4)}  # fmt: skip
    d = said(files | {"w.log": lines(0, 1, 2), "g.json": GROUPS})
    assert ids(d) == ["comm.desync"]


def test_a_gap_in_the_logs_of_single_ranks():
    def log(rank):
        return (
            f"(Worker_TP{rank} pid=7) INFO 03-11 07:00:00 [p.py:1] rank {rank} in world size 5 is assigned as DP rank 0, PP rank 0, TP rank "
            f"{rank}, EP rank {rank}\n(Worker_TP{rank} pid=7) ERROR 03-11 07:00:00 [w.py:1] ValueError: shapes do not match\n"
        )

    d = said({f"r{r}.log": log(r) for r in (0, 1, 2, 4)})
    assert "rank 3 is missing" in finding(d, "input.rank_set").claim
    assert "input.rank_set" not in ids(said({f"r{r}.log": log(r) for r in (0, 4)}))
    assert "input.rank_set" not in ids(said({f"r{r}.log": log(r) for r in range(5)}))
