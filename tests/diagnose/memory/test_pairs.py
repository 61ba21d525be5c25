"""mem.* from allocator statistics beside nvidia-smi, and the ledger."""

import json

import pytest

from moexray.diagnose.engine import diagnose
from smi_samples import GIB, MIB, findings, read


def smi(used, total=81920, extra=""):
    more = ", memory.reserved [MiB], memory.free [MiB]" if extra else ""
    return f"index, memory.used [MiB], memory.total [MiB]{more}\n0, {used} MiB, {total} MiB{extra}\n"


def stats(allocated, reserved, **more):
    return json.dumps({
        "allocated_bytes.all.current": allocated, "reserved_bytes.all.current": reserved, "num_alloc_retries": 0,
        "num_ooms": 0, **more,
    })  # fmt: skip


def apps(*sizes):
    return "".join(f"GPU-00000000-0000, {5000 + i}, python3, {s}\n" for i, s in enumerate(sizes))


def table(used, *sizes, total=81920):
    rows = "".join(f"|    0   N/A  N/A  {5000 + i}      C   python3     {s}MiB |\n" for i, s in enumerate(sizes))
    return (
        "| NVIDIA-SMI 550.54.15   Driver Version: 550.54.15   CUDA Version: 12.4     |\n"
        "|   0  NVIDIA A800 80GB PCIe       On  |   00000000:10:00.0 Off |                    0 |\n"
        f"| N/A   37C    P0           70W /  300W |  {used}MiB /  {total}MiB  |       0%      Default |\n"
        "|                                         |                        |             Disabled |\n" + rows
    )


def test_cached_memory_is_no_loss():
    f = findings(stats(0, 12000 * MIB), smi(12433))["mem.cached_not_leaked"]
    assert (f.severity, f.value) == ("info", 12000 * MIB)
    assert "non_torch_mib=433" in f.evidence[0].text
    assert "leak" not in f.claim


@pytest.mark.parametrize(
    ("allocated", "reserved", "used"),
    [
        (9000, 12000, 12433),  # mostly allocated
        (0, 12000, 16000),  # too much outside
        (10, 100, 500),  # little at all
    ],
)
def test_not_cached(allocated, reserved, used):
    assert "mem.cached_not_leaked" not in findings(stats(allocated * MIB, reserved * MIB), smi(used))


def test_not_cached_while_allocated_grows():
    lines = "\n".join(stats(i * GIB, 30 * GIB, t_s=60 * i) for i in range(8))
    assert "mem.cached_not_leaked" not in findings(lines, smi(31000))


def test_much_outside_pytorch():
    f = findings(stats(40 * GIB, 41 * GIB), table(60000, 59900))["mem.non_torch"]
    assert f.severity == "warn"
    assert f.value == (60000 - 41 * 1024) * MIB


@pytest.mark.parametrize("used", [42000, 43500, 45000])
def test_a_normal_context_is_not_the_lever(used):
    assert findings(stats(40 * GIB, 41 * GIB), table(used, used - 10)) == {}


def test_fragments_that_are_larger_are_the_lever():
    assert "mem.non_torch" not in findings(stats(20 * GIB, 41 * GIB), table(60000, 59900))


def test_other_processes_are_told_apart():
    got = findings(stats(40 * GIB, 41 * GIB), table(75000, 42900, 32000))
    assert got["mem.other_process"].value == 32000 * MIB
    assert "pid 5001" in got["mem.other_process"].claim
    assert "mem.non_torch" not in got


def test_a_small_other_process_is_not_worth_a_word():
    assert findings(stats(40 * GIB, 41 * GIB), table(43500, 42900, 500)) == {}


def test_peak_beyond_the_card():
    peak = {"reserved_bytes.all.peak": 30 * GIB}
    f = findings(stats(20 * GIB, 21 * GIB, **peak), smi(23000, total=24564))["mem.oversubscription"]
    assert f.severity == "warn"
    assert f.value == pytest.approx(30 * 1024 / 24564)


@pytest.mark.parametrize(
    "more", [{"reserved_bytes.all.peak": 23 * GIB}, {"reserved_bytes.all.peak": 30 * GIB, "num_ooms": 1}]
)
def test_no_oversubscription(more):
    text = json.dumps({**json.loads(stats(20 * GIB, 21 * GIB)), **more})
    assert "mem.oversubscription" not in findings(text, smi(23000, total=24564))


def test_ranks_are_paired_with_the_devices_of_one_node():
    nodes = "index, memory.used [MiB], memory.total [MiB]\n0, 50000 MiB, 81920 MiB\n1, 12433 MiB, 81920 MiB\n"
    got = findings(stats(0, 12000 * MIB, rank=1), nodes)["mem.cached_not_leaked"]
    assert (got.subject.rank, got.subject.device) == (1, 1)


def test_pairs_by_order_over_nodes_decide_nothing():
    nodes = "index, memory.used [MiB], memory.total [MiB]\n0, 12433 MiB, 81920 MiB\n"
    run = read(stats(0, 12000 * MIB, rank=1), nodes, nodes.replace("12433", "12434"))
    diagnosis = diagnose(run)
    assert diagnosis.findings == ()
    assert any("by order" in r["note"] for r in diagnosis.exhibits["ledger"])


def test_the_ledger_adds_up_to_the_total():
    text = smi(75000, extra=", 600 MiB, 6320 MiB")
    found = diagnose(read(stats(40 * GIB, 41 * GIB), text)).exhibits["ledger"]
    owners = {r["owner"]: r["bytes"] // MIB for r in found}
    assert owners == {
        "torch allocated": 40 * 1024,
        "torch cached": 1024,
        "non-torch": 75000 - 41 * 1024,
        "driver reserved": 600,
        "free": 6320,
    }
    assert sum(owners.values()) == 81920


def test_the_ledger_of_a_list_of_processes():
    found = diagnose(read(table(43500, 42900, 500))).exhibits["ledger"]
    assert {r["owner"]: r["bytes"] // MIB for r in found} == {
        "process 5000": 42900, "process 5001": 500, "unknown": 100, "free": 81920 - 43500,
    }  # fmt: skip


def test_retries_name_their_rank():
    f = findings(stats(40 * GIB, 41 * GIB, rank=3, num_alloc_retries=14))["mem.alloc_retry_recovered"]
    assert f.subject.rank == 3


def test_a_table_and_a_query_of_one_node_are_one_device():
    got = findings(stats(0, 12000 * MIB), smi(12433), table(12400, 12390))
    assert got["mem.cached_not_leaked"].confidence > 0.9


def test_without_an_index_the_only_device_that_can_hold_it():
    nodes = "index, memory.used [MiB], memory.total [MiB]\n0, 4 MiB, 81920 MiB\n1, 12433 MiB, 81920 MiB\n"
    assert findings(stats(0, 12000 * MIB), nodes)["mem.cached_not_leaked"].subject.device == 1
    assert findings(stats(0, 12000 * MIB), nodes.replace("0, 4 ", "0, 12500 ")) == {}


SWEEP = "batch_size,peak_gib,tokens_per_s\n" + "".join(
    f"{b},{p},{t}\n" for b, p, t in [(1, 10, 100), (2, 14, 190), (4, 20, 350), (8, 26, 40), (16, 40, 20)]
)


def test_speed_that_collapses_past_the_card():
    f = findings(SWEEP, smi(20000, total=24564))["mem.oversubscription"]
    assert f.confidence > 0.8
    unknown = findings(SWEEP)["mem.oversubscription"]
    assert unknown.confidence <= 0.6
    assert unknown.settle_with


def test_speed_that_falls_elsewhere_is_no_oversubscription():
    assert "mem.oversubscription" not in findings(SWEEP, smi(20000, total=81920))
    assert "mem.oversubscription" not in findings(SWEEP.replace(",40\n", ",300\n").replace(",20\n", ",280\n"))
