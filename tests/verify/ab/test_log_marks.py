"""Marks from a growing log: what lasted, what is still under way, what is none of our business."""

import time

import pytest

from moexray.core.errors import UsageError
from moexray.verify.ab.log_marks import LogMarks

HEAD = "INFO 10-30 01:35:41 [eplb_state.py:680] "


def _follow(file, *lines):
    with LogMarks(file) as log:
        for line in lines:
            with file.open("a") as out:
                out.write(line + "\n")
            log.look()
        return log.take(), log.take()


def test_only_what_is_written_meanwhile_counts(tmp_path):
    file = tmp_path / "server.log"
    file.write_text(HEAD + "Rearranged experts in 1.50 seconds.\n")
    marks, _ = _follow(file, HEAD + "Avg prompt throughput: 10.0 tokens/s", "GET /health 200")
    assert marks == ()


def test_an_event_reaches_back_as_long_as_it_took(tmp_path):
    file = tmp_path / "server.log"
    file.write_text("")
    (mark,), later = _follow(file, HEAD + "Rearranged experts in 1.50 seconds.")
    assert mark.what == "rearrangement"
    assert mark.end_s - mark.start_s == pytest.approx(1.5, abs=0.2)
    assert abs(mark.end_s - time.perf_counter()) < 5
    assert later == ()


def test_an_event_under_way_lasts_to_now(tmp_path):
    file = tmp_path / "server.log"
    file.write_text("")
    with LogMarks(file) as log:
        file.write_text(HEAD + "Rearranging experts...\n")
        log.look()
        (first,), (second,) = log.take(), log.take()
        file.write_text(HEAD + "Rearranging experts...\n" + HEAD + "Rearranged experts in 0.01 seconds.\n")
        log.look()
        (ended,) = log.take()
        assert log.take() == ()
    assert first.start_s == second.start_s >= ended.start_s
    assert first.end_s < second.end_s <= ended.end_s


def test_compilation_and_snapshots_are_marks(tmp_path):
    file = tmp_path / "server.log"
    file.write_text("")
    marks, _ = _follow(
        file,
        "WARNING 10-30 01:35:41 [jit_monitor.py:100] Triton kernel JIT compilation during inference: fused_moe_kernel",
        "INFO 10-30 01:35:42 [worker.py:10] memory snapshot written in 2.0 s",
    )
    assert [m.what for m in marks] == ["compile", "snapshot"]


def test_a_log_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        LogMarks(tmp_path / "none.log")
