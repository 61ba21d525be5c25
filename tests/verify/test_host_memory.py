"""The host's counters, and the lines between healthy and critical."""

from __future__ import annotations

import pytest

from moexray.core.limits.host_memory import HostMemoryLimits
from moexray.verify.host_memory import HostMemory, Zone, judge, read_host_memory, since

BUDDY = """\
Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3
Node 0, zone   Normal  11659   6845   7103   4484   3888    564    225    109     56     48    201
"""
VMSTAT = "nr_free_pages 9\ncompact_stall 200\ncompact_fail 4\ncompact_success 196\n"


def proc(tmp_path, buddy=BUDDY, vmstat=VMSTAT):
    (tmp_path / "buddyinfo").write_text(buddy)
    (tmp_path / "vmstat").write_text(vmstat)
    return tmp_path


def host(order, stalls, successes, node=0):
    return HostMemory((Zone(node, "Normal", (5,) * (order + 1)),), stalls, successes)


def test_the_files_are_read(tmp_path):
    read = read_host_memory(proc(tmp_path))
    assert [z.name for z in read.zones] == ["DMA", "Normal"]
    assert read.zones[0].pages == 256 + 512 + 3 * 1024
    assert (read.order, read.stalls, read.successes) == (10, 200, 196)
    assert judge(read) == ("healthy", "the largest free block has order 10; 196 of 200 compactions succeeded (98%)")


def test_a_small_zone_does_not_hide_the_large_one(tmp_path):
    cut = "Node 0, zone DMA 0 0 0 0 0 0 0 0 1 1 0\nNode 0, zone Normal 90000 20000 3000 100 7 0 0 0 0 0 0\n"
    assert read_host_memory(proc(tmp_path, cut)).order == 4


def test_the_worst_node_decides():
    zones = (Zone(0, "Normal", (1,) * 11), Zone(1, "Normal", (9, 9, 9)))
    assert HostMemory(zones).order == 2


@pytest.mark.parametrize(
    ("order", "successes", "verdict"),
    [
        (9, 96, "healthy"), (9, 95, "strained"), (8, 99, "strained"),
        (4, 69, "critical"), (4, 70, "strained"), (5, 10, "strained"), (10, 0, "strained"),
    ],
)  # fmt: skip
def test_the_lines(order, successes, verdict):
    assert judge(host(order, 100, successes))[0] == verdict


def test_the_lines_can_be_moved():
    limits = HostMemoryLimits(healthy_order=6, healthy_success_ratio=0.5)
    assert judge(host(6, 100, 60), limits)[0] == "healthy"


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (HostMemory(), "buddyinfo is not there"),
        (host(10, 0, 0), "was never needed"),
        (host(3, None, None), "is not counted here"),
    ],
)
def test_what_is_not_known_is_said(memory, words):
    verdict, reason = judge(memory)
    assert verdict == "cannot tell"
    assert words in reason


def test_absent_and_damaged_files(tmp_path):
    assert read_host_memory(tmp_path / "none") == HostMemory()
    damaged = proc(tmp_path, "Node x, zone\n\x00\nNode 0, zone Normal 1 2 -3\n", "compact_stall\ncompact_success many\n")
    assert read_host_memory(damaged) == HostMemory()


def test_what_happened_between_two_readings():
    assert since(host(9, 10, 5), host(8, 30, 20)).success_ratio == 0.75
    assert since(HostMemory(), host(8, 30, 20)).stalls == 30
