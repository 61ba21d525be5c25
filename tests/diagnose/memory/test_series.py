"""mem.* over time: growth, drift, standstills; each with near misses."""

import json

import pytest

from moexray.diagnose.engine import diagnose
from smi_samples import GIB, MIB, findings, query, read


def smi(used, util=91, total=81559, step_s=900.0):
    utils = util if isinstance(util, list) else [util] * len(used)
    return query([(0, f"{u} MiB", f"{total} MiB", f"{x} %") for u, x in zip(used, utils, strict=True)], step_s=step_s)


def load(values, step_s=900.0):
    return "t_s,num_requests_running\n" + "".join(f"{i * step_s:.0f},{v}\n" for i, v in enumerate(values))


def stats(rows):
    return "\n".join(json.dumps({"t_s": 60.0 * i, "num_ooms": 0, **r}) for i, r in enumerate(rows))


GROWING = [52000 + 310 * i for i in range(41)]


def test_growth_at_constant_load():
    f = findings(smi(GROWING), load([31, 32] * 20 + [31]))["mem.growth_unattributed"]
    assert (f.severity, f.confidence, f.subject.device) == ("warn", 0.8, 0)
    assert f.limit == pytest.approx(0.05 * 81559 * MIB)
    # medians of the first and last of six windows of 41 samples: 7 and 7 samples
    assert f.value == pytest.approx(310 * 34 * MIB, rel=0.02)
    assert "largest free block" in f.claim


def test_growth_at_constant_utilisation_is_less_sure():
    f = findings(smi(GROWING))["mem.growth_unattributed"]
    assert (f.severity, f.confidence) == ("warn", 0.6)


def test_growth_at_unknown_load_is_a_hypothesis():
    header = "timestamp, index, memory.used [MiB], memory.total [MiB]"
    f = findings(query([(0, f"{u} MiB", "81559 MiB") for u in GROWING], header=header))["mem.growth_unattributed"]
    assert f.cannot_tell


@pytest.mark.parametrize(
    "used",
    [
        [52000 + 50 * i for i in range(41)],  # 2 000 MiB: below 5 %
        [52000 + 620 * min(i, 20) for i in range(41)],  # comes to rest
        [52000] * 20 + [64000] * 21,  # one jump
        [77412 + i % 3 for i in range(60)],  # flat
        GROWING[:3],  # too short
        [64000 - u + 52000 for u in GROWING],  # falls
    ],
)
def test_no_growth(used):
    assert "mem.growth_unattributed" not in findings(smi(used))


def test_memory_that_follows_the_load_is_no_growth():
    rising = list(range(8, 8 + 41))
    assert "mem.growth_unattributed" not in findings(smi(GROWING, util=95), load(rising))


def test_the_growth_is_split_where_statistics_stand_beside():
    rows = [{"allocated_bytes.all.current": 40 * GIB, "reserved_bytes.all.current": 45 * GIB,
             "num_requests_running": 24} for _ in GROWING]  # fmt: skip
    f = findings(smi(GROWING, step_s=60.0), stats(rows))["mem.growth_unattributed"]
    assert "look at non-torch first" in f.claim
    assert "torch_reserved_growth_bytes=0" in f.evidence[0].text


def drift(inactive, steps, running=24, reserved=60 * GIB):
    loads = running if isinstance(running, list) else [running] * len(inactive)
    return stats([
        {"allocated_bytes.all.current": 40 * GIB, "reserved_bytes.all.current": reserved, "step_ms": s,
         "inactive_split_bytes.all.current": int(x * reserved), "num_requests_running": n}
        for x, s, n in zip(inactive, steps, loads, strict=True)
    ])  # fmt: skip


RISING = [0.02 + 0.01 * i for i in range(24)]


def test_fragmentation_that_drifts_with_step_time():
    f = findings(drift(RISING, [31 + 0.6 * i for i in range(24)]))["mem.fragmentation_drift"]
    assert f.value == pytest.approx(1.0)
    assert "first_ratio=0.02 last_ratio=0.25" in f.evidence[0].text


@pytest.mark.parametrize(
    ("inactive", "steps", "running"),
    [
        (RISING, [31 + (i * 7919) % 5 for i in range(24)], 24),  # step time does not follow
        (RISING, [31 + 0.6 * i for i in range(24)], list(range(8, 32 * 24, 32))),  # load rises as well
        ([0.02 + 0.001 * i for i in range(24)], [31 + 0.6 * i for i in range(24)], 24),  # too little
        (RISING[:2], [31, 32], 24),  # two points
    ],
)
def test_no_drift(inactive, steps, running):
    assert "mem.fragmentation_drift" not in findings(drift(inactive, steps, running))


def test_drift_without_step_times_is_a_hypothesis():
    text = drift(RISING, [31] * 24).replace('"step_ms"', '"other"')
    assert findings(text)["mem.fragmentation_drift"].cannot_tell


def test_drift_leads_the_growth_that_it_causes():
    rows = [{"allocated_bytes.all.current": 40 * GIB, "reserved_bytes.all.current": int((41 + 0.6 * i) * GIB),
             "inactive_split_bytes.all.current": int((1 + 0.6 * i) * GIB), "step_ms": 31 + 0.6 * i,
             "num_requests_running": 24} for i in range(24)]  # fmt: skip
    got = diagnose(read(stats(rows))).findings
    assert [f.id for f in got] == ["mem.fragmentation_drift", "mem.growth_unattributed"]
    assert got[1].implied_by == ("mem.fragmentation_drift",)


def dips(full, low=70000, busy_low=True, step_s=1.0):
    """Work at falling and full memory; standstills of three seconds, at full memory or at low memory."""
    used, util = [], []
    for k in range(6):
        used += [low if busy_low else full] * 10 + [full] * 5
        util += [95] * 15
        used += [full if full > 80000 else low] * 3
        util += [0] * 3
        used += [low if busy_low else full] * 2
        util += [94] * 2
        assert k >= 0
    return smi(used, util=util, step_s=step_s)


def test_standstills_at_full_memory():
    f = findings(dips(81400))["mem.alloc_stall"]
    assert f.severity == "warn"
    assert f.confidence <= 0.6
    assert any("trace" in s for s in f.settle_with)


def test_standstills_at_ever_full_memory_are_a_hypothesis():
    assert findings(dips(81400, busy_low=False))["mem.alloc_stall"].cannot_tell


@pytest.mark.parametrize(
    "text",
    [
        dips(78000),  # below 98 %
        dips(81400, step_s=30.0),  # sampled too slowly
        smi([81400] * 40, util=[0] * 20 + [95] * 10 + [0] * 10, step_s=1.0),  # idle before and after
    ],
)
def test_no_standstills(text):
    assert "mem.alloc_stall" not in findings(text)


def test_long_series_are_thinned_with_their_extremes():
    used = [70000 + (9000 if i == 4321 else i % 7) for i in range(6000)]
    found = diagnose(read(smi(used, step_s=1.0))).exhibits["series"]
    memory = next(s for s in found if s["name"].startswith("memory"))
    assert len(memory["x"]) <= 2000
    assert max(memory["y"]) == 79000 * MIB
