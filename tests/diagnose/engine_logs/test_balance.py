"""Balancing by its log: stuck, worth little, dearer than its gain; with the arithmetic by hand."""

import pytest

from engine_samples import balance, compiles, countdown, moves, ready, relative
from text_runs import said

OFF_ON = "mode,output_tok_s,duration_s\neplb_off,1000,600\neplb_on,{},{}\n"


def test_a_countdown_that_keeps_falling_is_stuck():
    f = said(log=countdown(600, 300, -300, -600, -900))["ep.async_stuck"]
    assert (f.severity, f.confidence, f.value) == ("warn", 0.9, -900)
    assert "counter_first=-300 counter_last=-900 lines=3 interval_steps=600" in f.evidence[0].text


def test_a_small_overshoot_is_less_certain():
    assert said(log=countdown(600, 300, -1, -12))["ep.async_stuck"].confidence == 0.6


@pytest.mark.parametrize(
    "log",
    [
        countdown(600, -1),  # one value
        countdown(600, 300, -1, 598, moved_after={2}),  # reset
        countdown(600, -300, -600, moved_after={2}),  # a completion follows
        countdown(600, -300, -600, 598),  # reset without a line of completion
        countdown(600, -1, 598, -2, 597, -3),  # one per cycle
        countdown(600, -5, -5, -5),  # does not fall
        countdown(600, -300, worker="W0") + countdown(500, -400, worker="W1"),  # one each
    ],
)
def test_countdowns_that_mean_nothing(log):
    assert "ep.async_stuck" not in said(log=log)


def test_balancing_that_is_off_is_not_stuck():
    log = countdown(600, -300, -600)
    assert "ep.async_stuck" in said(log=log, launch="vllm serve MODEL --enable-eplb\n")
    assert "ep.async_stuck" not in said(log=log, launch="vllm serve MODEL --no-enable-eplb\n")


def before_after(before, after, moves_at=(60.0, 120.0, 180.0)):
    """Ten lines before the first move, ten between and after."""
    text = balance([before] * 10, 0.0)
    for i, at in enumerate(moves_at):
        text += moves([at], seconds=1.5) + balance([after] * 10, at + 2 + i)
    return text


def test_little_to_gain_with_two_benchmarks():
    bench = "run,duration_s,output_tok_s\none,600,100\ntwo,603,99.5\n"
    f = said(log=before_after(0.92, 0.95), bench=bench)["ep.little_to_gain"]
    # ceiling 1 - 0.92 / 0.95 = 3.16 %, speed-up 0.95 / 0.92 - 1 = 3.26 %; break-even 1.5 / 0.0316 = 47.5 s
    assert f.value == pytest.approx(0.0316, abs=1e-4)
    assert "at most 3.3%" in f.claim
    assert "differ by 0.5%" in f.claim
    assert "more than 47 s" in f.claim or "more than 48 s" in f.claim


def test_little_to_gain_from_a_measured_change_alone():
    assert "ep.little_to_gain" in said(log=before_after(0.92, 0.95))


@pytest.mark.parametrize(
    "log",
    [
        before_after(0.92, 0.92),  # no change was measured and nothing is under test
        before_after(0.80, 0.95),  # 15.8 % to gain
        before_after(0.75, 0.78),  # uneven
        balance([0.97] * 20),  # balancing is not on
        before_after(0.92, 0.95, moves_at=(60.0,)),  # one move
    ],
)
def test_much_to_gain_or_nothing_known(log):
    assert "ep.little_to_gain" not in said(log=log)


LOG = balance([0.96] * 10) + "".join(moves([60.0 * k], seconds=3.0) + balance([0.96] * 5, 60.0 * k + 5) for k in range(1, 11))


def test_cost_exceeds_gain():
    f = said(log=LOG, bench=OFF_ON.format(930, 645))["ep.rebalance_cost_exceeds_gain"]
    # 45 s over 10 moves = 4.5 s each; the best balance saves at most 4 % of 60 s = 2.4 s
    assert f.value == pytest.approx(4.5)
    assert f.limit == pytest.approx(2.4)
    assert (f.severity, f.confidence) == ("warn", 0.85)
    assert "7.5% slower" in f.claim
    assert "112 s" in f.claim  # break-even 4.5 / 0.04


def test_cost_that_depends_on_the_share_of_moe_time():
    f = said(log=LOG.replace("0.960", "0.700"), bench=OFF_ON.format(930, 645))["ep.rebalance_cost_exceeds_gain"]
    assert f.confidence == 0.6  # 4.5 s against at most 18 s
    assert f.settle_with


@pytest.mark.parametrize(
    "files",
    [
        {"log": LOG, "bench": OFF_ON.format(985, 609)},  # 1.5 %: noise
        {"log": LOG, "bench": OFF_ON.format(1100, 550)},  # faster
        {"log": LOG, "bench": "mode,output_tok_s\neplb_on,930\n"},  # nothing to compare with
        {"log": LOG, "bench": "mode,output_tok_s\na,1000\nb,930\n"},  # which arm balances is not said
        {"log": ready(-9.0) + LOG + compiles([5.0, 9.0, 15.0, 22.0]), "bench": OFF_ON.format(930, 645)},  # another owner
        {"log": LOG + relative(7.0, "Sequence group 1 is preempted by X"), "bench": OFF_ON.format(930, 645)},
    ],
)
def test_cost_that_is_not_shown(files):
    assert "ep.rebalance_cost_exceeds_gain" not in said(**files)


def test_arms_by_the_folder_of_the_log():
    bench = "concurrency,duration_s\n1,{}\n2,{}\n"
    found = said(on__log=LOG, on__bench=bench.format(645, 645), off__bench=bench.format(600, 600))
    assert "ep.rebalance_cost_exceeds_gain" in found
