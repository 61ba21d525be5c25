"""NCCL_DEBUG lines: communicators, transports, warnings, counts per peer of an all-to-all."""

from comm_samples import read

INIT = "{host}:{pid}:9 [{dev}] NCCL INFO ncclCommInitRank comm 0x5{pid} rank {rank} nranks 2 cudaDev {dev} nvmlDev {dev} busId 18000 commId 0xabc - Init COMPLETE\n"


def init(rank, host="node0"):
    return INIT.format(host=host, pid=100 + rank, dev=rank, rank=rank)


def counts(rank, what, values, number="1f"):
    return "".join(
        f"(W pid=1) node0:{100 + rank}:{100 + rank} [{rank}] NCCL INFO {what}: opCount {number} sendbuff (nil) recvbuff 0x7 count {n} "
        f"datatype 9 op 0 root {peer} comm 0x5{100 + rank} [nranks=2] stream 0x5\n"
        for peer, n in enumerate(values)
    )


def test_links_of_the_communicator_they_belong_to():
    text = (
        "host prefix | " + init(0)
        + "node0:100:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0\n"
        + "node0:100:9 [0] NCCL INFO comm 0x5100 rank 0 nranks 2 cudaDev 0 busId 18000 - Destroy COMPLETE\n"
        + "node0:100:9 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.1<5> with status=12 opcode=1 vendor err 129\n"
        + "node0:100:9 [0] NCCL INFO Channel 01 : 0[0] -> 1[1] via SHM/direct/direct\n"
    )  # fmt: skip
    rows = read({"n.log": text}).rows("comm_link")
    assert [(r["kind"], r["via"], r["destroyed"]) for r in rows] == [
        ("init", None, True), ("channel", "NET/Socket", True), ("warn", None, None), ("channel", "SHM", None),
    ]  # fmt: skip
    assert rows[0]["comm"] == "0xabc"


def test_send_and_receive_lines_are_two_matrices():
    text = init(0) + init(1) + counts(0, "Send", (3, 5)) + counts(1, "Send", (7, 1)) + counts(0, "Recv", (3, 7)) + counts(1, "Recv", (5, 1))
    batches = read({"n.log": text}).batches("a2a_matrix")
    assert [(b.attrs["quantity"], b.attrs["rows_are"], list(b.columns["value"]), b.source) for b in batches] == [
        ("sent", "sender", [3, 5, 7, 1], "n.log"),
        ("received", "receiver", [3, 7, 5, 1], "n.log"),
    ]


def test_without_init_lines_the_device_is_the_rank_on_one_host_only():
    text = counts(0, "Send", (3, 5)) + counts(1, "Send", (7, 1))
    assert len(read({"n.log": text}).batches("a2a_matrix")) == 1
    assert read({"n.log": text.replace("node0:101", "node1:101")}).batches("a2a_matrix") == ()


def test_an_exchange_of_which_lines_are_missing_is_no_matrix():
    assert read({"n.log": init(0) + init(1) + counts(0, "Send", (3, 5))}).batches("a2a_matrix") == ()
