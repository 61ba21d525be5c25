"""The arms of the lab in turns, on an engine that only says what it is told: figures, pairs, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from moexray.verify.lab import trial
from moexray.verify.lab.cluster import Measured
from moexray.verify.lab.trial import Arm, compare

SLOTS = np.tile(np.arange(4), (2, 1))
ARMS = (Arm("shared", SLOTS, 0.9, ()), Arm("split", SLOTS, 0.9, ("cured",)))


class Engine:
    """Steps of a layout that is twice as fast, has ten times the hole and never moves."""

    def run(self, job):
        n, good = len(job.prompts), job.layout == "split"
        took = np.random.default_rng(n).normal(0.01 if good else 0.02, 0.0005, n)
        rows = np.tile([5, 5] if good else [8, 2], (n, 2, 1))
        zero = np.zeros((n, 2), np.int64)
        return Measured(zero[:, 0], zero[:, 0], took, took, took, zero, zero, rows, zero + (1000 if good else 100),
                        zero if good else zero + 1)  # fmt: skip


def outcomes(requests):
    document = compare(Engine(), ARMS, lambda rng, many: rng.integers(0, 9, (many, 10, 4)), requests, 0)
    return {o["figure"]: o for o in document["outcomes"]}


@pytest.mark.parametrize("requests", [20, 100, 200])
def test_fewer_than_six_pairs_allow_no_verdict_on_any_figure(requests):
    found = outcomes(requests)
    assert {o["pairs"] for o in found.values()} < {2, 4}
    assert {o["verdict"] for o in found.values()} == {"cannot tell"}


def test_six_pairs_decide_what_their_values_can():
    found = outcomes(300)
    assert {o["pairs"] for o in found.values()} == {6}
    for name in ("largest_free_bytes", "expert_load_std", "moves_per_step", "p50_cpu_s"):
        assert found[name]["verdict"] == "better", name
    assert "1,000 values" in found["p99_cpu_s"]["reason"]


def test_a_noisy_machine_withholds_verdicts_on_wall_clock_alone(monkeypatch):
    monkeypatch.setattr(trial, "refusal", lambda *_: "the machine is too noisy: load 9")
    found = outcomes(300)
    for name in ("p50_s", "p50_step_s", "p99_s"):
        assert (found[name]["verdict"], found[name]["reason"]) == ("cannot tell", "the machine is too noisy: load 9")
        assert found[name]["after"]["value"] > 0
    for name in ("p50_cpu_s", "largest_free_bytes", "expert_load_std"):
        assert found[name]["verdict"] == "better", name
