"""Benchmark windows with a one-off event of the log inside."""

import pytest

from engine_samples import EPOCH, compiles, dumps, moves, ready, relative
from text_runs import said

WINDOWS = "arm,window,t_from_s,t_to_s,output_tok_s\nA,1,10,40,1475\nA,2,50,80,1481\nB,1,100,130,1496\nB,2,140,170,1437\n"


@pytest.mark.parametrize(
    "log",
    [
        ready() + compiles([152.4]),
        moves([139.5]),  # 139.5 to 140.3 s reaches into the window
        dumps([150.0]),
        relative(145.0, "Server restarted by the supervisor") + ready(160.0),
    ],
)
def test_one_event_in_one_window(log):
    f = said(windows=WINDOWS, log=log)["metric.contaminated_window"]
    assert (f.severity, f.value) == ("warn", 1)
    assert "of 4 holds a one-off event" in f.claim


@pytest.mark.parametrize(
    "log",
    [
        ready() + compiles([45.0, 90.0]),  # between the windows
        compiles([20.0]) + ready(200.0),  # before ready
        moves([20.0, 60.0, 110.0, 150.0]),  # in every window: part of what was measured
        moves([150.0], mode=" (async)"),  # in the background
        moves([150.0], mode=" (profile)"),
        "[2026-02-10 00:02:30 TP0] DeepGEMM JIT code generation <g>: M=7.\n",  # another kind of clock
    ],
)
def test_clean_windows(log):
    assert "metric.contaminated_window" not in said(windows=WINDOWS, log=log)


def test_windows_with_dates():
    windows = "arm,start,end,tok_s\n" + "".join(f"{a},{EPOCH + 60 * k},{EPOCH + 60 * k + 40},10\n" for k, a in enumerate("ABAB"))
    log = "2026-02-10 00:02:10 INFO engine: memory snapshot written entries=1000\n"
    f = said(windows=windows, log=log)["metric.contaminated_window"]
    assert "10.0 s after the start of" in f.claim


@pytest.mark.parametrize(("day", "stamp"), [("2026-03-02", "03-02"), ("2028-03-02", "03-02"), ("2028-02-02", "02-02")])
def test_windows_with_dates_and_a_log_without_a_year(day, stamp):
    windows = f"arm,start,end,tok_s\nA,{day} 10:00:00,{day} 10:01:00,10\nB,{day}T10:02:00Z,{day}T10:03:00Z,9\n"
    log = f"INFO {stamp} 10:02:30 [a.py:1] memory snapshot written entries=1000\n"
    f = said(windows=windows, log=log)["metric.contaminated_window"]
    assert "30.0 s after the start of 'B #1'" in f.claim
    assert not said(windows=windows, log=log.replace("10:02:30", "10:04:30"))


def test_windows_in_json():
    run = '{{"arm": "{}", "start{}": {}, "end{}": {}, "tok_s": 10, "itl_ms": 7}}'
    runs = f"[{run.format('a', '', EPOCH, '', EPOCH + 40)}, "
    runs += f"{run.format('b', '_ms', 1000 * (EPOCH + 60), '_ms', 1000 * (EPOCH + 100))}]"
    log = "INFO 02-10 00:01:{} [a.py:1] memory snapshot written entries=1000\n"
    assert said(runs=runs, log=log.format(10))["metric.contaminated_window"].value == 1
    assert not said(runs=runs, log=log.format(50))
