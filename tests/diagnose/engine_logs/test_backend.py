"""A changed backend: with a slower run, without one, and with other differences beside it."""

import pytest

from text_runs import ruled_out, said

LOG = "INFO {} 10:00:00 [fp8.py:405] Using {} Fp8 MoE backend out of potential backends: ['A', 'B']\n"
OLD, NEW = LOG.format("09-15", "DEEPGEMM"), LOG.format("11-17", "FLASHINFER_CUTLASS")
EVEN = "INFO 11-17 10:05:00 [e.py:1] EPLB step: avg_tokens=4096.00, max_tokens=4450, balancedness={}\n"
SWEEP = "build,concurrency,mean_ttft_ms,tok_s\nold,1,200,60\nnew,1,{},60\nold,32,900,2400\nnew,32,{},{}\n"


def test_the_slower_run_chose_another_backend():
    f = said(old_log=OLD, new_log=NEW, sweep=SWEEP.format(300, 880, 2520))["kernel.backend_change"]
    assert (f.severity, f.value) == ("warn", pytest.approx(1.5))
    assert "1.50x at level 1" in f.claim
    assert "1.05x at level 32" in f.claim  # tokens per second
    assert "DEEPGEMM for load levels 1 to 1" in f.remedies[0].action


def test_no_slower_run_is_ruled_out():
    sweep = SWEEP.format(203, 890, 2410)
    assert "kernel.backend_change" not in said(a=OLD, b=NEW, sweep=sweep)
    assert "within 1.5%" in ruled_out(a=OLD, b=NEW, sweep=sweep)["kernel.backend_change"].claim


@pytest.mark.parametrize(
    "files",
    [
        {"a": OLD, "b": OLD, "sweep": SWEEP.format(300, 880, 2520)},  # the same backend
        {"a": OLD, "b": NEW},  # no benchmark
        {"a": OLD, "sweep": SWEEP.format(300, 880, 2520)},  # one log
        {"a": OLD, "notes": "- the MoE backend line differs\n", "sweep": SWEEP.format(300, 880, 2520)},
    ],
)
def test_nothing_to_say(files):
    assert "kernel.backend_change" not in said(**files)


def test_other_differences_take_the_blame_away():
    f = said(a=OLD + EVEN.format(0.92), b=NEW + EVEN.format(0.70), sweep=SWEEP.format(300, 880, 2520))["kernel.backend_change"]
    assert f.cannot_tell
    assert "balancedness 0.92 / 0.70" in f.claim
    same = said(a=OLD + EVEN.format(0.92), b=NEW + EVEN.format(0.921), sweep=SWEEP.format(300, 880, 2520))
    assert same["kernel.backend_change"].severity == "warn"


def test_repeats_set_the_noise():
    noisy = "build,concurrency,mean_ttft_ms\nold,1,200\nold,1,240\nnew,1,235\nnew,1,245\n"
    assert "kernel.backend_change" not in said(a=OLD, b=NEW, sweep=noisy)  # 9 % apart, repeats spread by 18 %
