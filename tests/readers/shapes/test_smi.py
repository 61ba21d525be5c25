"""CSV of nvidia-smi's queries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moexray.readers.gpu_samples import Sample, fault_of, flags_of, when
from smi_samples import MIB, query, read, rows


def problems(run):
    return {p.id: p for _, p in run.problems}


def test_placeholders_are_missing_and_never_zero():
    run = read(
        "timestamp, index, memory.used [MiB], memory.total [MiB], utilization.gpu [%], fan.speed [%]\n"
        "2026/01/01 00:00:00.000, 0, 70000 MiB, 81559 MiB, 99 %, [N/A]\n"
        "2026/01/01 00:00:00.000, 1, [Insufficient Permissions], 81559 MiB, [Not Supported], [N/A]\n"
        "\n"
        "timestamp, index, memory.used [MiB], memory.total [MiB], utilization.gpu [%], fan.speed [%]\n"
        "2026/01/01 00:00:01.000, 0, 70001 MiB, 81559 MiB, 98 %, [N/A]\n"
    )
    got = rows(run)
    assert len(got) == 3
    assert "used_bytes" not in got[1]
    assert "util_ratio" not in got[1]
    assert got[1]["missing"] == "used(denied) util_ratio"
    assert problems(run)["input.missing_values"].values["placeholders"] == 5


def test_a_sound_table_has_no_problem():
    assert problems(read(query([(0, "70000 MiB", "81559 MiB", "99 %")] * 3))) == {}


def test_reasons_that_are_not_active_are_no_placeholders():
    header = "timestamp, index, utilization.gpu [%], clocks_throttle_reasons.hw_slowdown"
    run = read(query([(0, "99 %", "Not Active"), (0, "99 %", "Active")], header=header))
    assert [r["flags"] for r in rows(run)] == ["", "hw_slowdown"]
    assert problems(run) == {}


def test_any_order_bare_numbers_and_bit_masks():
    run = read(
        "clocks_event_reasons.active, memory.total [MiB], uuid, memory.used [MiB], pstate, utilization.gpu [%]\n"
        "0x0000000000000044, 81559, GPU-1111aaaa, 70000, P0, 97\n"
    )
    (row,) = rows(run)
    assert row["flags"] == "sw_power_cap hw_thermal_slowdown"
    assert row["used_bytes"] == 70000 * MIB
    assert row["util_ratio"] == pytest.approx(0.97)
    assert (row["key"], row["device"]) == ("GPU-1111aaaa", -1)


def test_without_header_units_and_sums_tell_the_columns():
    run = read(
        "2026/01/12 09:40:00.009, 0, 89 %, 81559 MiB, 70000 MiB, 11008 MiB, 482.95 W\n"
        "2026/01/12 09:40:01.009, 0, 90 %, 81559 MiB, 70010 MiB, 10998 MiB, 482.95 W\n"
    )
    first, _ = rows(run)
    assert (first["total_bytes"], first["used_bytes"], first["free_bytes"]) == (81559 * MIB, 70000 * MIB, 11008 * MIB)
    assert first["util_ratio"] == pytest.approx(0.89)
    assert "input.dialect" in problems(run)


def test_bare_numbers_without_header_are_not_guessed():
    assert rows(read("1, 2, 3\n4, 5, 6\n")) == []


def test_devices_without_a_mark_are_told_by_their_order_within_a_time():
    header = "timestamp, memory.used [MiB], memory.total [MiB]"
    text = header + "\n" + "".join(
        f"2026/01/01 00:00:0{s}.000, {u} MiB, 81559 MiB\n" for s in range(2) for u in (100, 200)
    )
    assert [(r["key"], r["used_bytes"] // MIB) for r in rows(read(text))] == [("0", 100), ("1", 200)] * 2


def test_hosts_keep_devices_apart():
    text = "hostname, index, memory.used [MiB], memory.total [MiB]\na, 0, 1 MiB, 9 MiB\nb, 0, 2 MiB, 9 MiB\n"
    assert [r["key"] for r in rows(read(text))] == ["a/0", "b/0"]


def test_processes_with_and_without_header():
    named = read("pid, process_name, used_gpu_memory [MiB], gpu_uuid\n5001, python3, 38700 MiB, GPU-aaaa0000\n")
    bare = read("GPU-aaaa0000-1111, 5001, /usr/bin/python, 38700\nGPU-aaaa0000-1111, 5002, x, [N/A]\n")
    for run in (named, bare):
        process = run.rows("gpu_process")[0]
        assert (process["pid"], process["used_bytes"]) == (5001, 38700 * MIB)
        assert process["key"].startswith("GPU-aaaa0000")
    assert bare.rows("gpu_process")[1]["used_bytes"] is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026/01/01 00:00:00.500", 1767225600.5),
        ("Thu Jan  1 00:00:00 2026", 1767225600),
        ("Do 1. Jan 00:00:00 2026", 1767225600),
        ("jeudi 1 janvier 2026, 00:00:00 (UTC+0100)", 1767225600),
        ("mar. 03 mars 2026 10:00:00", 1772532000),
        ("Thu 01 Jan 2026 12:00:00 AM UTC", 1767225600),
        ("2026年 01月 01日 星期四 00:00:00 CST", 1767225600),
        ("13.02.2026 00:00:05", 1770940805),
        ("02/13/2026 00:00:05", 1770940805),
        ("13/02/2026 00:00:05", 1770940805),
        ("20260101   10:01:02", 1767261662),
        ("10:01:02", 36062),
        ("1767225600123", 1767225600.123),
        ("no time", None),
        ("-3", None),
    ],
)
def test_times(text, seconds):
    assert when(text) == seconds


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[N/A]", "missing"), ("N/A", "missing"), ("[Not Supported]", "missing"), ("", "missing"), ("-", "missing"),
        ("Requested functionality has been deprecated", "missing"),
        ("[Insufficient Permissions]", "denied"),
        ("[Unknown Error]", "error"), ("ERR!", "error"), ("[GPU requires reset]", "error"),
        ("[GPU is lost]", "lost"), ("0 MiB", ""), ("Not Active", ""), ("Active", ""),
    ],
)  # fmt: skip
def test_what_stands_in_place_of_a_value(text, fault):
    assert fault_of(text) == fault


def test_bit_masks():
    assert flags_of("0x1") == "gpu_idle"
    assert flags_of("12") == "sw_power_cap hw_slowdown"
    assert flags_of("Active") is None


@given(st.text(max_size=20))
def test_any_text_is_a_value_or_noted(text):
    sample = Sample("0")
    sample.put("used_bytes", text)
    assert sample.numbers.get("used_bytes", 0.0) >= 0
    when(text)
