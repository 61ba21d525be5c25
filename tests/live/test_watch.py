"""Spikes and their causes, told once."""

import os
import shutil
from pathlib import Path

import pytest

from moexray.core.finding import Finding, Subject
from moexray.core.verdicts import VERDICTS
from moexray.diagnose.engine import Diagnosis
from moexray.live import watch as module
from moexray.live.folder import Folder
from moexray.live.metrics import TIMED, UNKNOWN
from moexray.live.page import Page
from moexray.live.watch import Watch, _cause

INCIDENT = Path(__file__).resolve().parents[2] / "examples" / "incident"


def finding(id, **subject):
    return Finding(id, "warn", 0.9, "", Subject(**subject))


def test_causes_are_verdicts():
    assert set(TIMED) <= {v.id for v in VERDICTS}
    assert len(set(TIMED)) == len(TIMED)


@pytest.mark.parametrize(
    ("start_s", "clock", "cause"),
    [(10.0, "epoch", "host.gc_pause"), (20.0, "epoch", "mem.alloc_stall"), (30.0, "epoch", UNKNOWN),
     (30.0, "relative", "host.gc_pause"), (float("nan"), "epoch", "host.gc_pause")],
)  # fmt: skip
def test_a_spike_has_the_cause_whose_window_it_meets(start_s, clock, cause):
    timed = [finding("host.gc_pause", t_from_ns=9_500_000_000, t_to_ns=10_500_000_000),
             finding("mem.alloc_stall", t_from_ns=19_000_000_000, t_to_ns=21_000_000_000)]  # fmt: skip
    assert _cause(timed, start_s, start_s + 0.2, clock) == cause


def test_without_a_finding_about_time_the_cause_is_unknown():
    assert _cause([], 1.0, 1.1, "relative") == UNKNOWN


def test_the_incidents_spikes_are_counted_once(tmp_path):
    told = []
    shutil.copytree(INCIDENT, tmp_path / "b")
    page = Page()
    watch = Watch(Folder(page, tmp_path / "b"), tell=told.append)
    watch.update()
    spikes = page.value("moex_spike_total", "", "", "", "mem.alloc_stall")
    assert spikes == len(told[0].spikes) == 8
    assert [f.id for f in told[0].findings][:2] == ["mem.fragmentation", "mem.alloc_stall"]
    assert watch.update() is None
    os.utime(tmp_path / "b" / "latency" / "itl.csv")
    again = watch.update()
    assert again.findings == again.spikes == ()
    assert page.value("moex_spike_total", "", "", "", "mem.alloc_stall") == spikes


def test_a_new_spike_is_counted_alone(tmp_path):
    lines = ["t_s,itl_ms", *(f"{i}.0,10" for i in range(1, 61))]
    file, page = tmp_path / "itl.csv", Page()
    watch = Watch(Folder(page, tmp_path))
    for i in (20, 40, 50):
        lines[i] = f"{i}.0,400"
        file.write_text("\n".join(lines) + "\n")
        os.utime(file, ns=(i, i))
        report = watch.update()
        assert [(s.line, s.cause) for s in report.spikes] == [(i + 1, UNKNOWN)]
    assert page.value("moex_spike_total", "", "", "", UNKNOWN) == 3


def test_mismatches_of_an_exchange_are_counted_by_kind(tmp_path, monkeypatch):
    found = [finding("comm.size_mismatch", rank=1), finding("comm.desync"), finding("a2a.count_mismatch", rank=1)]
    monkeypatch.setattr(module, "diagnose", lambda run: Diagnosis(run, tuple(found)))
    page = Page()
    watch = Watch(Folder(page, tmp_path))
    for i in range(2):  # told again, counted once
        (tmp_path / "x.log").write_text("x" * (i + 1))
        watch.update()
    assert page.value("moex_alltoall_mismatch_total", "", "", 1, "size") == 2
    assert page.value("moex_alltoall_mismatch_total", "", "", "", "sequence") == 1
