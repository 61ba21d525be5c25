"""Slow transfers: waits per source, backed by transport lines; each alone mostly cannot tell."""

import pytest

from comm_samples import finding, ids, said

HEAD = "rank,from0,from1,from2,from3"


def waits(slow, *, head=HEAD, comment="# wait cost, us\n", factor=5):
    rows = "".join(
        f"{i}," + ",".join(str(0 if i == j else (410 + i + j) * (factor if (i, j) in slow else 1)) for j in range(4)) + "\n" for i in range(4)
    )
    return comment + head + "\n" + rows


def init(rank, size=4, comm="0xabc"):
    return (
        f"node{rank // 2}:{100 + rank}:9 [{rank % 2}] NCCL INFO ncclCommInitRank comm 0x5{rank} rank {rank} nranks {size} cudaDev 0 nvmlDev 0 "
        f"busId 18000 commId {comm} - Init COMPLETE\n"
    )


def channel(src, dst, via):
    return f"node{src // 2}:{100 + src}:9 [{src % 2}] NCCL INFO Channel 00/0 : {src}[0] -> {dst}[0] [send] via {via}\n"


HEALTHY = "".join(init(r) for r in range(4)) + channel(0, 1, "P2P/CUMEM") + channel(1, 2, "NET/IB/0/GDRDMA") + channel(3, 0, "NET/IB/0/GDRDMA")
FALLEN = HEALTHY.replace("3[0] -> 0[0] [send] via NET/IB/0/GDRDMA", "3[0] -> 0[0] [send] via NET/Socket/0")


def test_one_slow_pair_is_a_slow_link():
    f = finding(said({"w.csv": waits({(2, 1)})}), "comm.slow_transfer")
    assert f.severity == "warn"
    assert "rank 2 from rank 1" in f.claim


def test_slow_in_both_directions_is_the_rank_s_link():
    both = {(i, 3) for i in range(3)} | {(3, j) for j in range(3)}
    assert finding(said({"w.csv": waits(both)}), "comm.slow_transfer").subject.rank == 3


def test_a_source_that_all_wait_for_may_just_be_late():
    f = finding(said({"w.csv": waits({(i, 3) for i in range(3)})}), "comm.slow_transfer")
    assert (f.severity, f.subject.rank) == ("info", 3)
    assert f.settle_with


def test_its_transport_line_decides():
    d = said({"w.csv": waits({(i, 3) for i in range(3)}), "n.log": FALLEN})
    f = finding(d, "comm.slow_transfer")
    assert f.severity == "warn"
    assert any("NET/Socket" in e.text for e in f.evidence)


def test_a_name_alone_does_not_make_waits():
    f = finding(said({"wait_cost_us.csv": waits({(2, 1)}, comment="")}), "comm.slow_transfer")
    assert f.severity == "info"


@pytest.mark.parametrize("slow", [set(), {(i, 3) for i in range(3)}])
def test_waits_below_the_limit_are_silent(slow):
    assert ids(said({"w.csv": waits(slow, factor=1.9)})) == []


def test_a_fallen_rank_alone_cannot_tell():
    f = finding(said({"n.log": FALLEN}), "comm.slow_transfer")
    assert (f.severity, f.subject.rank) == ("info", 3)


@pytest.mark.parametrize("text", [
    HEALTHY,
    FALLEN.replace("NET/IB/0/GDRDMA", "NET/Socket/0"),
    init(0, 2, "0xdef") + channel(0, 1, "NET/Socket/0") + "node0:100:9 [0] NCCL INFO comm 0x50 rank 0 nranks 2 cudaDev 0 busId 1 - Destroy COMPLETE\n" + HEALTHY,
])  # fmt: skip
def test_healthy_uniform_or_torn_down_transports_are_silent(text):
    assert ids(said({"n.log": text})) == []


def test_the_network_between_ranks_of_one_host():
    text = HEALTHY.replace("0[0] -> 1[0] [send] via P2P/CUMEM", "0[0] -> 1[0] [send] via NET/IB/0")
    assert finding(said({"n.log": text}), "comm.slow_transfer").subject.rank == 0
