"""Compile skew between nodes, and runs that are slow until compilation is over."""

import pytest

from engine_samples import compiles, ready
from text_runs import said

DAY = "[2026-04-19 08:{:02d}:{:02d} {}] "


def line(t, worker, message):
    return DAY.format(t // 60, t % 60, worker) + message + "\n"


def node(worker, end, every=30, last=100):
    """A compile session from 0 on that reaches `last` percent at `end`."""
    text = line(0, worker, "Entering DeepGEMM JIT Pre-Compile session. It may take a long time")
    for t in range(0, end, every):
        text += line(t, worker, f"DeepGEMM warmup: {int(t / end * last)}%")
    return text + line(end, worker, f"DeepGEMM warmup: {last}%")


TIMEOUT = "RuntimeError: DeepEP error: timeout (dispatch CPU)"


def test_ends_as_far_apart_as_the_limit():
    f = said(a=node("DP0 TP0 EP0", 200) + line(301, "DP0 TP0 EP0", TIMEOUT), b=node("DP4 TP16 EP16", 330))["jit.compile_skew"]
    assert (f.severity, f.value, f.limit) == ("error", 130, 100)
    assert "b finished compiling 130 s after a (330 s against 200 s)" in f.claim
    assert "waited_s=101" in f.evidence[0].text


def test_a_node_that_never_finished():
    f = said(a=node("DP0 TP0 EP0", 200) + line(301, "DP0 TP0 EP0", TIMEOUT), b=node("DP4 TP16 EP16", 270, last=60))["jit.compile_skew"]
    assert f.confidence == 0.8
    assert "still compiling (its last line says 60 %)" in f.claim


def test_a_watchdog_limit_that_the_log_states():
    watchdog = (
        "[2026-04-19 08:05:31 TP0] [rank0]:[E419 08:05:31.5 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLTOALL_BASE, NumelIn=8, NumelOut=8, "
        "Timeout(ms)=120000) ran for 120001 milliseconds before timing out.\n"
    )
    f = said(a=node("TP0", 210) + watchdog, b=node("TP8", 400))["jit.compile_skew"]
    assert (f.value, f.limit) == (190, 120)


@pytest.mark.parametrize(
    "files",
    [
        {"a": node("TP0", 200) + line(301, "TP0", TIMEOUT), "b": node("TP8", 212)},  # close
        {"a": node("TP0", 200), "b": node("TP8", 330)},  # nothing fired
        {"a": line(50, "TP0", TIMEOUT) + node("TP0", 200), "b": node("TP8", 330)},  # before anyone was done
        {"a": node("TP0", 200) + line(500, "TP0", TIMEOUT), "b": node("TP8", 330)},  # long after all were done
        {"a": node("TP0", 200) + line(301, "TP0", TIMEOUT)},  # one node
    ],
)
def test_no_skew(files):
    assert "jit.compile_skew" not in said(**files)


def test_workers_of_one_log_are_nodes_too():
    text = node("DP0 TP0 EP0", 200) + node("DP1 TP8 EP8", 330) + line(301, "DP0 TP0 EP0", TIMEOUT)
    assert "jit.compile_skew" in said(log=text)


def runs(*values):
    return "run,total_tok_s\n" + "".join(f"{i},{v}\n" for i, v in enumerate(values, 1))


def test_runs_that_climb_and_settle():
    f = said(runs=runs(1200, 7600, 11000, 11100, 11200), log=ready() + compiles([5.0, 9.0]))["jit.compile_in_hot_path"]
    assert (f.severity, f.confidence) == ("warn", 0.8)
    assert "settle at run 3" in f.claim
    assert f.value == pytest.approx(1200 / 11100)


def test_runs_that_climb_without_a_log_are_a_hypothesis():
    f = said(runs=runs(1200, 7600, 11000, 11100))["jit.compile_in_hot_path"]
    assert f.cannot_tell
    assert f.settle_with


@pytest.mark.parametrize(
    "values",
    [
        (11000, 11100, 11050, 11200),  # settled from the start
        (1200, 5000, 8000, 11000),  # never settles
        (11200, 11100, 7000, 6900),  # gets slower
        (1200, 11000),  # too few
    ],
)
def test_runs_that_show_nothing(values):
    assert "jit.compile_in_hot_path" not in said(runs=runs(*values), log=ready() + compiles([5.0, 9.0]))
