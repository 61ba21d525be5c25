"""Stalls against the log: a positive and near misses of each rule, with counts by hand."""

import pytest

from engine_samples import EPOCH, compiles, dumps, moves, ready, relative, series
from moexray.diagnose.engine_logs.series import latency_series
from text_runs import ruled_out, run_of, said

AT = [12.0, 25.5, 37.1, 50.2]


def stamp(shift=0.0, whole=False):
    """A line with a date, `shift` seconds off the series."""
    import datetime as dt

    def line(t, message):
        at = dt.datetime.fromtimestamp(EPOCH + t + shift, dt.UTC)
        text = at.strftime("%Y-%m-%d %H:%M:%S") + ("" if whole else f".{int(at.microsecond / 1000):03d}")
        return f"[{text} TP0] {message}\n"

    return line


def test_rearrangements_that_stall():
    f = said(itl=series(AT), log=moves(AT))["ep.rearrange_stall"]
    assert (f.severity, f.confidence) == ("warn", 0.9)
    text = f.evidence[0].text
    # four stalls of 0.8 s: 3.2 s of 2,200 steps, 4 / 2200 = 0.182 %
    assert "stalls=4" in text
    assert "stalled_s=3.2" in text
    assert "0.182%" in f.claim
    assert "P99 does not show them" in f.claim


def test_sampled_series_keep_the_true_share():
    full = series(AT, form="step,t_s,itl_ms").splitlines()
    kept = [x for i, x in enumerate(full[1:]) if i % 10 == 0 or float(x.split(",")[2]) > 400]
    f = said(itl="\n".join([full[0], *kept]) + "\n", log=moves(AT))["ep.rearrange_stall"]
    assert "steps=2191" in f.evidence[0].text  # the last kept step is 2190
    assert f"{4 / 2191:.3%}" in f.claim


@pytest.mark.parametrize(
    "files",
    [
        {"itl": series([]), "log": moves(AT)},  # latency does not move
        {"itl": series([5.0]), "log": moves(AT)},  # it moves elsewhere
        {"itl": series(AT), "log": moves(AT, mode=" (profile)")},  # profiling only
        {"itl": series(AT), "log": moves(AT) + ready(60.0)},  # start-up only
        {"itl": series([12.0]), "log": moves([1.0, 5.0, 12.0, 20.0, 30.0, 40.0])},  # 1 of 6
    ],
)
def test_rearrangements_that_do_not(files):
    assert "ep.rearrange_stall" not in said(**files)


def test_moves_that_meet_stalls_as_any_moment_would_do_not_cause_them():
    busy = [3.0 + 1.1 * i for i in range(20)]  # 0.8 s of each 1.1 s are stalled, by something else
    assert "ep.rearrange_stall" not in said(itl=series(busy, n=900), log=moves([6.6, 13.2, 19.8]))
    same = [busy[i] for i in (2, 9, 14)]
    assert "ep.rearrange_stall" in said(itl=series(busy, n=900), log=moves(same))


def test_start_stamps_are_told_from_end_stamps():
    f = said(itl=series(AT, form="start_s,itl_ms"), log=moves(AT))["ep.rearrange_stall"]
    assert "4 of 4" in f.claim


@pytest.mark.parametrize(
    ("line", "confidence", "words"),
    [
        (stamp(), 0.9, ""),
        (stamp(whole=True), 0.9, ""),
        (stamp(8 * 3600.0), 0.65, "+8 h"),
    ],
)
def test_dated_clocks(line, confidence, words):
    f = said(itl=series(AT, t0=EPOCH), log=moves(AT, line=line))["ep.rearrange_stall"]
    assert f.confidence == confidence
    assert words in f.claim


def test_clocks_of_different_origin_are_related_by_their_pattern_or_not_at_all():
    f = said(itl=series(AT), log=moves(AT, line=stamp()))["ep.rearrange_stall"]
    assert (f.severity, f.confidence) == ("warn", 0.65)
    assert "aligned by 4 happenings" in f.claim
    f = said(itl=series([12.0, 20.0]), log=moves([12.0, 20.0], line=stamp()))["ep.rearrange_stall"]
    assert f.cannot_tell
    assert f.settle_with


def test_compilation_while_serving():
    f = said(itl=series([*AT, 58.0]), log=ready() + compiles([t - 0.5 for t in AT]))["jit.compile_in_hot_path"]
    assert "4 of 5" in f.claim
    assert f.value == pytest.approx(0.8)
    assert "jit-warm-up" in [r.id for r in f.remedies]


@pytest.mark.parametrize(
    "log",
    [
        compiles(AT) + ready(60.0),  # before ready
        ready() + compiles([AT[0] - 0.5]),  # 1 of 4
        ready() + compiles([t - 5 for t in AT]),  # more than 2 s before
        ready() + compiles([0.9 * i for i in range(70)]),  # always: chance
    ],
)
def test_compilation_that_is_not_to_blame(log):
    assert "jit.compile_in_hot_path" not in said(itl=series(AT), log=log)


def test_compile_lines_before_ready_are_ruled_out_in_words():
    out = ruled_out(itl=series(AT), log=compiles([-20.0, -10.0]) + ready())
    assert "All 2 compile lines lie before" in out["jit.compile_in_hot_path"].claim
    out = ruled_out(itl=series(AT), log=ready() + compiles([30.0]))
    assert "None of the 4 stalls" in out["jit.compile_in_hot_path"].claim


def test_snapshot_writes_that_stall():
    cost = "entries,with_traces_ms,without_traces_ms\n5000,800.5,0.2\n"
    f = said(itl=series(AT), log=dumps(AT), cost=cost)["mem.snapshot_overhead"]
    assert "4 of 4" in f.claim
    assert any("with_traces_ms=800.5" in e.text for e in f.evidence)
    both = said(itl=series(AT), log=dumps(AT), server=compiles([-9.0]) + ready())
    assert list(both) == ["mem.snapshot_overhead"]


def test_snapshot_writes_with_begin_and_end_lines():
    log = "".join(relative(t, "Dumping memory snapshot to s.pickle") + relative(t + 0.8, "memory snapshot saved") for t in AT)
    assert "mem.snapshot_overhead" in said(itl=series(AT), log=log)


@pytest.mark.parametrize("at", [AT[:2], [t + 3 for t in AT]])
def test_snapshot_writes_that_do_not(at):
    assert "mem.snapshot_overhead" not in said(itl=series(AT), log=dumps(at))


def test_exhibit_marks_the_happenings():
    (chart,) = latency_series(run_of(itl=series(AT), log=moves(AT)))
    assert (chart["unit"], chart["x_unit"], len(chart["x"]), len(chart["marks"])) == ("s", "s", 2200, 4)
    assert chart["marks"][0]["finding"] == "ep.rearrange_stall"
    (chart,) = latency_series(run_of(itl=series([3.0], form="step,itl_ms")))
    assert chart["x_unit"] == "step"


def collections(times, seconds=0.8):
    """Lines of vLLM's GC debug log, written when a collection ends."""
    text = "GC took {:.3f}ms to complete. Collected objects in GC generation 2: 90211"
    return "".join(relative(t + seconds, text.format(seconds * 1e3)) for t in times)


def test_collections_that_end_with_stalls_of_their_length():
    f = said(itl=series(AT), log=collections(AT))["host.gc_pause"]
    assert f.severity == "warn"
    assert 0.5 <= f.confidence < 0.7
    assert "4 of 4 latency spikes" in f.claim
    assert "stalled_s=3.2" in f.evidence[0].text
    assert [e.text for e in f.evidence[1:]]


@pytest.mark.parametrize(
    "files",
    [
        {"itl": series([]), "log": collections(AT)},  # latency does not move
        {"itl": series([5.0, 19.0]), "log": collections(AT)},  # it moves elsewhere
        {"itl": series(AT), "log": collections(AT, 0.08)},  # far too short to explain it
        {"itl": series(AT), "log": collections(AT[:1])},  # one of four
        {"itl": series(AT), "log": collections(AT) + moves(AT)},  # another record of the same times
        {"itl": series(AT), "log": collections([0.1 + 0.9 * i for i in range(70)])},  # always collecting
    ],
)
def test_collections_that_explain_nothing(files):
    assert "host.gc_pause" not in said(**files)
