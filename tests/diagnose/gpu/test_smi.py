"""smi.*: what samples of devices say, and what they must not be made to say."""

import json

import pytest

from moexray.diagnose.engine import diagnose
from smi_samples import DATA, MIB, findings, query, read, sample
from text_runs import said

THROTTLE = "timestamp, index, utilization.gpu [%], clocks.sm [MHz], clocks_event_reasons.active"


def throttle(samples):
    return findings(query([(0, f"{u} %", f"{mhz} MHz", mask) for u, mhz, mask in samples], header=THROTTLE))


FREE, CAPPED, IDLE = "0x0000000000000000", "0x0000000000000004", "0x0000000000000001"


def test_throttled_under_load_with_lower_clocks():
    got = throttle([(97, 1965, FREE)] * 6 + [(97, 1400, CAPPED)] * 4)["smi.throttled"]
    assert got.severity == "warn"
    assert got.subject.device == 0
    assert got.value == pytest.approx(1 - 1400 / 1965)
    assert "throttled_samples=4 samples=10" in got.evidence[0].text


@pytest.mark.parametrize(
    "samples",
    [
        [(97, 1965, FREE)] * 6 + [(0, 345, CAPPED)] * 4,  # flags at idle
        [(97, 1965, FREE)] * 6 + [(97, 1800, CAPPED)] * 4,  # clocks hardly fall
        [(97, 1965, FREE)] * 9 + [(97, 1400, CAPPED)],  # rare
        [(97, 1965, FREE)] * 6 + [(97, 1400, "0x0000000000000002")] * 4,  # application clocks
        [(97, 1965, FREE)] * 6 + [(97, 1400, IDLE)] * 4,
    ],
)
def test_not_throttled(samples):
    assert throttle(samples) == {}


def test_devices_are_judged_one_by_one():
    rows = [(d, "97 %", f"{1400 if d == 1 and i > 3 else 1965} MHz", CAPPED if d == 1 and i > 3 else FREE)
            for i in range(8) for d in (0, 1)]  # fmt: skip
    got = findings(query(rows, header=THROTTLE))
    assert got["smi.throttled"].subject.device == 1


def test_throttled_throughout_is_a_hypothesis_against_the_highest_clock():
    header = THROTTLE + ", clocks.max.sm [MHz]"
    got = findings(query([(0, "97 %", "1300 MHz", CAPPED, "1980 MHz")] * 5, header=header))["smi.throttled"]
    assert (got.severity, got.cannot_tell) == ("info", True)
    assert got.settle_with


def test_one_sample_is_a_hypothesis():
    found = {f.id: f for f in diagnose(sample("perf.txt")).findings}
    assert found["smi.throttled"].cannot_tell
    assert diagnose(sample("clock.txt")).findings == ()


def test_dmon_violations():
    run = sample("dmon.txt")
    got = {f.id: f for f in diagnose(run).findings}["smi.throttled"]
    assert got.subject.device == 0
    assert got.severity == "warn"


def test_dcgm_scrapes():
    page = (
        'DCGM_FI_DEV_GPU_UTIL{{gpu="3",UUID="GPU-1",Hostname="n"}} 98\n'
        'DCGM_FI_DEV_SM_CLOCK{{gpu="3",UUID="GPU-1",Hostname="n"}} {mhz}\n'
        'DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{{gpu="3",UUID="GPU-1",Hostname="n"}} {mask}\n'
        'DCGM_FI_DEV_FB_USED{{gpu="3",UUID="GPU-1",Hostname="n"}} 70000\n'
        'DCGM_FI_DEV_FB_FREE{{gpu="3",UUID="GPU-1",Hostname="n"}} 11000\n'
    )
    pages = [page.format(mhz=1400 if i > 3 else 1965, mask=0x40 if i > 3 else 0) for i in range(8)]
    run = read(*pages, names=[f"s{i}.prom" for i in range(8)])
    diagnosis = diagnose(run)
    got = {f.id: f for f in diagnosis.findings}["smi.throttled"]
    assert (got.subject.device, got.severity) == (3, "warn")
    assert {r["owner"]: r["bytes"] for r in diagnosis.exhibits["ledger"]} == {
        "in use": 70000 * MIB,
        "free": 11000 * MIB,
    }


GB10 = "memory.total [MiB], memory.used [MiB], memory.free [MiB], utilization.gpu [%], temperature.gpu\n"


def test_unified_memory_is_unknown_and_not_zero():
    got = findings(
        GB10 + "[N/A], [N/A], [N/A], 5 %, 35\n",
        "MemTotal:       1000 kB\nMemAvailable:   600 kB\n",
        "GPU-00000000-0000, 77, /usr/bin/python, 19135\n",
    )
    f = got["smi.unified_memory"]
    assert "input.missing_values" not in got
    assert "19135 MiB" in f.claim
    assert "0 MiB used" not in f.claim
    assert not f.settle_with
    assert any("memtotal_bytes=1024000" in e.text for e in f.evidence)


@pytest.mark.parametrize(
    "row",
    ["81559 MiB, [N/A], [N/A], 5 %, 35", ", ".join(["[Insufficient Permissions]"] * 3) + ", 5 %, 35"],
)
def test_one_field_or_a_forbidden_one_is_a_missing_value(row):
    got = findings(GB10 + row + "\n")
    assert set(got) == {"input.missing_values"}


def test_mig_instance_is_the_limit():
    got = {f.id: f for f in diagnose(sample("mig535.txt")).findings}
    assert got["smi.mig_limit"].value == 19968 * MIB
    assert got["smi.mig_limit"].limit == 81920 * MIB


def test_a_record_of_the_whole_card_is_no_mig_limit():
    text = (DATA / "mig535.txt").read_text(encoding="utf-8").replace("capacity of 19.50", "capacity of 80.00")
    assert "smi.mig_limit" not in findings(text)


LOST = "timestamp, index, utilization.gpu [%], memory.used [MiB], memory.total [MiB]"


def lost(*cells):
    return findings(query([(0, *c) for c in cells], header=LOST))


GOOD, GONE = ("95 %", "70000 MiB", "81559 MiB"), ("[Unknown Error]", "[Unknown Error]", "ERR!")


def test_a_device_that_answered_and_no_longer_does():
    f = lost(GOOD, GOOD, GONE, GONE)["smi.gpu_lost"]
    assert (f.severity, f.subject.device, f.value) == ("error", 0, 2)


def test_a_device_that_answers_again_is_not_lost():
    assert "smi.gpu_lost" not in lost(GOOD, GONE, GOOD)


def test_fields_that_are_not_supported_are_no_loss():
    assert "smi.gpu_lost" not in lost(GOOD, ("[Not Supported]", "[N/A]", "81559 MiB"))


def test_errors_without_history_are_a_hypothesis():
    found = {f.id: f for f in diagnose(sample("t418.txt")).findings}
    assert found["smi.gpu_lost"].cannot_tell
    assert found["smi.gpu_lost"].subject.device == 1


def test_messages_of_the_tool():
    said = "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system\n"
    assert findings(said)["smi.gpu_lost"].severity == "error"
    assert findings("No devices were found\n")["smi.gpu_lost"].cannot_tell
    assert findings("Failed to initialize NVML: Driver/library version mismatch\n") == {}


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "79.10 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has 78.00 GiB memory in use. "
    "Of the allocated memory 77.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but "
    "unallocated.\n"
)


def test_what_the_driver_reserves_is_no_other_process():
    run = read(OOM, "index, memory.used [MiB], memory.total [MiB]\n0, 80000 MiB, 81559 MiB\n")
    out = [f for f in diagnose(run).ruled_out if f.id == "mem.other_process"]
    assert out[0].value == pytest.approx(81559 * MIB - 79.10 * 1024 * MIB, abs=MIB)


OLD_OOM = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.35 GiB total capacity; 40.10 GiB "
    "already allocated; 1.20 GiB free; 41.00 GiB reserved in total by PyTorch)\n"
)


def processes(*sizes):
    return "".join(f"GPU-00000000-0000, {5000 + i}, python3, {s}\n" for i, s in enumerate(sizes))


def test_a_record_without_process_clause_is_completed_from_the_list():
    assert findings(OLD_OOM, processes(42900, 37100))["mem.other_process"].severity == "error"


def test_the_own_process_alone_is_no_other():
    assert "mem.other_process" not in findings(OLD_OOM, processes(79000))


def test_others_that_a_container_hides_count():
    assert "mem.other_process" in findings(OLD_OOM, processes(42900))


def test_a_sensor_that_fails_is_no_lost_device():
    header = LOST + ", power.draw [W]"
    rows = [(0, *GOOD, "500.00 W")] * 3 + [(0, *GOOD, "[Unknown Error]")]
    assert findings(query(rows, header=header)).get("smi.gpu_lost", None) is None or findings(
        query(rows, header=header)
    )["smi.gpu_lost"].cannot_tell


def test_samples_as_json_and_in_own_tables():
    steps = range(24)
    load = "t_s,requests_running\n" + "".join(f"{60 * i},32\n" for i in steps)
    records = [{"ts": 60 * i, "index": 0, "memory.used": 80000 + 1500 * i, "memory.total": 143771, "utilization.gpu": 92} for i in steps]
    flat = "".join(json.dumps(r) + "\n" for r in records)
    nested = "".join(json.dumps({"ts": r["ts"], "gpus": [{k: v for k, v in r.items() if k != "ts"}]}) + "\n" for r in records)
    table = "t_s,gpu,used_mib,total_mib,util_pct\n" + "".join(f"{60 * i},0,{80000 + 1500 * i},143771,92\n" for i in steps)
    for text in (flat, nested, json.dumps(records, indent=1), table):
        assert list(said(a=text, load=load)) == ["mem.growth_unattributed"]


def test_a_gpu_off_the_bus_is_lost():
    xid = "Jan 12 09:00:01 n7 kernel: NVRM: Xid (PCI:0000:19:00): {}, pid='<unknown>', name=<unknown>, text\n"
    assert said(log=xid.format(79))["smi.gpu_lost"].severity == "error"
    assert said(log=xid.format(31)) == {}
