"""Tables of nvidia-smi, -q, dmon, pmon, topo, messages, and their neighbours in a paste."""

import pytest

from smi_samples import MIB, read, rows, sample


def test_a_table_of_an_old_driver_with_a_failing_device():
    run = sample("t418.txt")
    first, second = rows(run)
    assert first["used_bytes"] == 301 * MIB
    assert first["total_bytes"] == 11178 * MIB
    assert first["util_ratio"] == 0
    assert first["temp_c"] == 38
    assert first["t_s"] == 1553887184
    assert "util_ratio" not in second
    assert set(second["errors"].split()) >= {"util_ratio", "sensors"}
    assert [(p["device"], p["pid"], p["kind"], p["used_bytes"]) for p in run.rows("gpu_process")] == [
        (0, 1337, "G", 150 * MIB),
        (0, 2222, "C", 140 * MIB),
    ]


def test_a_quoted_table_with_mig_instances():
    run = sample("mig535.txt")
    (card,) = rows(run)
    assert run.batches("gpu")[0].attrs["mig"] == {"0": True}
    assert card["missing"] == "util_ratio"
    assert [(m["instance"], m["total_bytes"], m["used_bytes"]) for m in run.rows("mig")] == [
        (3, 19968 * MIB, 12 * MIB),
        (4, 19968 * MIB, 19000 * MIB),
    ]
    assert run.rows("gpu_process")[0]["instance"] == 4


def test_a_table_with_the_new_head_and_no_process():
    run = sample("t600.txt")
    (card,) = rows(run)
    assert card["total_bytes"] == 183359 * MIB
    assert run.batches("gpu")[0].attrs["driver"] == "600.12.01"
    assert run.rows("gpu_process") == ()


def test_sizes_of_processes_that_windows_hides_are_unknown():
    run = sample("wddm.txt")
    assert rows(run)[0]["used_bytes"] == 23900 * MIB
    assert run.batches("gpu")[0].attrs["names"] == {"0": "NVIDIA GeForce RTX 4090"}
    assert [p["used_bytes"] for p in run.rows("gpu_process")] == [None, None]


def test_query_text_of_one_of_eight_devices_has_no_index():
    (card,) = rows(sample("perf.txt"))
    assert card["device"] == -1
    assert card["flags"] == "hw_slowdown hw_thermal_slowdown"


def test_query_text_with_a_german_date():
    (card,) = rows(sample("clock.txt"))
    assert card["t_s"] == 1767225600
    assert (card["sm_mhz"], card["sm_max_mhz"]) == (1980, 1980)


FULL_Q = """
==============NVSMI LOG==============

Timestamp                                 : Thu Jan  1 00:00:00 2026
Driver Version                            : 570.86.15
Attached GPUs                             : 1
GPU 00000000:19:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    MIG Mode
        Current                           : Enabled
        Pending                           : Enabled
    MIG Device
        Index                             : 0
        GPU Instance ID                   : 1
        Compute Instance ID               : 0
        FB Memory Usage
            Total                         : 40192 MiB
            Reserved                      : 0 MiB
            Used                          : 25 MiB
            Free                          : 40167 MiB
        BAR1 Memory Usage
            Total                         : 65535 MiB
            Used                          : 9 MiB
            Free                          : 65526 MiB
    Accounting Mode                       : Enabled
    FB Memory Usage
        Total                             : 81559 MiB
        Reserved                          : 551 MiB
        Used                              : 1000 MiB
        Free                              : 80008 MiB
    BAR1 Memory Usage
        Total                             : 131072 MiB
        Used                              : 3 MiB
        Free                              : 131069 MiB
    Conf Compute Protected Memory Usage
        Total                             : 7 MiB
        Used                              : 7 MiB
        Free                              : 0 MiB
    Utilization
        GPU                               : 98 %
        Memory                            : 61 %
    Temperature
        GPU Current Temp                  : 60 C
        GPU T.Limit Temp                  : 27 C
    GPU Power Readings
        Average Power Draw                : N/A
        Instantaneous Power Draw          : 512.25 W
        Current Power Limit               : 700.00 W
    Clocks
        SM                                : 1755 MHz
    Max Clocks
        SM                                : 1980 MHz
    Processes
        GPU instance ID                   : 1
        Compute instance ID               : 0
        Process ID                        : 5001
            Type                          : C
            Name                          : python3
            Used GPU Memory               : 20 MiB
        Process ID                        : 5002
            Type                          : C
            Name                          : python3
            Used GPU Memory               : N/A
"""


@pytest.mark.parametrize("indented", [True, False])
def test_query_text_keeps_blocks_apart(indented):
    text = FULL_Q if indented else "\n".join(line.strip() for line in FULL_Q.splitlines())
    run = read(text)
    (card,) = rows(run)
    assert card["total_bytes"] - card["reserved_bytes"] - card["used_bytes"] == card["free_bytes"]
    assert card["total_bytes"] == 81559 * MIB
    assert card["device"] == 0
    assert card["util_ratio"] == pytest.approx(0.98)
    assert card["power_w"] == 512.25
    assert card["power_limit_w"] == 700
    assert card["sm_max_mhz"] == 1980
    assert [(m["device"], m["total_bytes"]) for m in run.rows("mig")] == [(0, 40192 * MIB)]
    assert [(p["pid"], p["used_bytes"]) for p in run.rows("gpu_process")] == [(5001, 20 * MIB), (5002, None)]


def test_a_loop_of_query_text_gives_a_sample_each():
    again = FULL_Q.replace("00:00:00", "00:00:10").replace("1000 MiB", "1100 MiB")
    run = read(FULL_Q + again)
    assert [r["used_bytes"] for r in rows(run)] == [1000 * MIB, 1100 * MIB]
    assert [r["t_s"] for r in rows(run)] == [1767225600, 1767225610]


def test_dmon_with_repeated_headers():
    run = sample("dmon.txt")
    got = rows(run)
    assert len(got) == 6
    assert got[2]["flags"] == "sw_power_cap thermal_slowdown"
    assert got[2]["sm_mhz"] == 1400
    assert got[1]["device"] == 1
    assert got[5]["t_s"] - got[0]["t_s"] == 3


def test_dmon_clock_without_a_date_goes_past_midnight():
    head = "#Time        gpu    pwr     sm\n#HH:MM:SS    Idx      W      %\n"
    run = read(head + " 23:59:59      0     70     50\n 00:00:01      0     70     50\n")
    first, second = rows(run)
    assert second["t_s"] - first["t_s"] == 2


def test_pmon_leaves_devices_without_process_out():
    (process,) = sample("pmon.txt").rows("gpu_process")
    assert (process["pid"], process["used_bytes"], process["name"]) == (5001, 77000 * MIB, "VLLM::EngineCor")


def test_topology():
    links = {(r["a"], r["b"]): r["link"] for r in sample("topo.txt").rows("gpu_link")}
    assert links["GPU0", "GPU1"] == "NV18"
    assert links["GPU1", "NIC0"] == "SYS"
    assert ("GPU0", "GPU0") not in links


def test_sanitizer_record():
    record, summary = sample("san.txt").rows("sanitizer")
    assert record["what"] == "Invalid __global__ write of size 4 bytes"
    assert record["kernel"] == "moe_align_block_size(int *, int)"
    assert record["site"] == "/src/moe.cu:88"
    assert "after the nearest allocation" in record["detail"]
    assert summary["count"] == 1


def test_memory_summary_takes_the_pools_together():
    (row,) = sample("sum.txt").rows("memory_stats")
    assert row["device"] == 1
    assert row["allocated_bytes"] == 12288 * MIB
    assert row["allocated_peak_bytes"] == 15000 * MIB
    assert row["reserved_bytes"] == 20480 * MIB
    assert row["inactive_split_bytes"] == 100 * MIB
    assert (row["num_alloc_retries"], row["num_ooms"], row["segments"]) == (3, 0, 10)


def test_a_query_table_amid_a_log():
    run = read(
        "INFO 09-21 11:00:00 [gpu_worker.py:642] starting\n"
        "index, memory.used [MiB], memory.total [MiB]\n0, 77412 MiB, 81559 MiB\n1, 4 MiB, 81559 MiB\n"
        "INFO 09-21 11:00:05 [gpu_worker.py:642] go on\n"
    )
    assert [(r["device"], r["used_bytes"], r["line"]) for r in rows(run)] == [(0, 77412 * MIB, 3), (1, 4 * MIB, 4)]


def test_a_query_of_one_field():
    assert [r["used_bytes"] for r in rows(read("memory.used [MiB]\n77412 MiB\n"))] == [77412 * MIB]


def test_meminfo_of_two_times():
    run = read("MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 600 kB\nMemTotal: 1000 kB\nMemAvailable: 500 kB\n")
    assert [(r["total_bytes"], r["available_bytes"], r["free_bytes"]) for r in run.rows("meminfo")] == [
        (1024000, 614400, 10240),
        (1024000, 512000, None),
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system", "lost"),
        ("Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error", "lost"),
        ("No devices were found", "no_devices"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "no_driver"),
        ("Failed to initialize NVML: Driver/library version mismatch", "mismatch"),
        ("Failed to initialize NVML: Unknown Error", "no_driver"),
    ],
)
def test_messages(text, kind):
    (event,) = read(text + "\n").rows("gpu_event")
    assert event["kind"] == kind


def test_a_sentence_about_lost_gpus_is_no_message():
    assert read("If the driver prints that the GPU is lost, reboot the node. INFO\n").rows("gpu_event") == ()
