"""Two real processes over gloo: skew costs the busiest rank time and the other one waiting; so does a late peer."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from moexray.diagnose.engine import diagnose
from moexray.readers.read_any import read_any
from moexray.verify.lab.bundle import write_rest
from moexray.verify.lab.cluster import Engine, LabError
from moexray.verify.lab.model import Prompts
from moexray.verify.lab.pressure import PressureSpec
from moexray.verify.lab.work import Job, Late, Plan

pytest.importorskip("transformers", reason="the lab needs torch and transformers")
PLAN = Plan("skewed", "ep", 2, PressureSpec(capacity=256 << 20, fill=0.7, calm=0.5))
SHARES = (0.5, 0.75, 1.0)  # of the rows that rank 0 should get, as far as whole experts allow
ROUNDS, STEPS, PROMPTS = 4, 8, 32


def drawn(seed: int, steps: int = STEPS) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return Prompts.of(["tables"], 64).draw(rng, steps * PROMPTS).reshape(steps, PROMPTS, 64)


def placed(loads: np.ndarray, share: float) -> np.ndarray:
    """The placement whose rank 0 gets the share nearest to the wanted one, layer by layer."""
    picks = list(combinations(range(loads.shape[1]), loads.shape[1] // 2))
    out = []
    for load in loads / loads.sum(axis=1, keepdims=True):
        best = min(picks, key=lambda pick, load=load: abs(load[list(pick)].sum() - share))
        out.append([*best, *(e for e in range(len(load)) if e not in best)])
    return np.array(out)


@pytest.mark.soak
def test_the_busiest_rank_and_the_wait_of_the_other_grow_with_the_skew():
    cpu, wait = {s: [] for s in SHARES}, {s: [] for s in SHARES}
    with Engine(PLAN) as engine:
        loads = engine.run(Job(drawn(0), engine.flat, "split", 0.5)).counts.sum(axis=0)
        slots = {share: placed(loads, share) for share in SHARES}
        for turn in range(ROUNDS):
            for share in SHARES if turn % 2 else reversed(SHARES):
                measured = engine.run(Job(drawn(1 + turn), slots[share], "split", 0.5))
                cpu[share] += measured.cpu_s.tolist()
                wait[share] += measured.wait_s[:, 1].tolist()
    busiest, waited = ([float(np.median(side[s])) for s in SHARES] for side in (cpu, wait))
    assert busiest == sorted(busiest)
    assert waited == sorted(waited)


@pytest.mark.soak
def test_a_late_peer_is_named_and_not_the_network(tmp_path):
    with Engine(PLAN) as engine:
        loads = engine.run(Job(drawn(0), engine.flat, "split", 0.5)).counts.sum(axis=0)
        even = placed(loads, 0.5)
        job = Job(drawn(1, 40), even, "split", 0.5, folder=tmp_path, late=Late(1, 0.4, 4))
        write_rest(tmp_path, engine.run(job), even, 2)
    findings = [f for f in diagnose(read_any([str(tmp_path)])).findings if f.severity != "info"]
    late = [f for f in findings if f.id == "comm.straggler_wait"]
    assert late
    assert late[0].subject.rank == 1
    assert not [f for f in findings if f.id in ("comm.slow_transfer", "ep.skew", "mem.fragmentation")]


def test_a_process_that_fails_is_told():
    with pytest.raises(LabError, match="no model in"), Engine(Plan("nowhere", "hf", 2, PLAN.memory)):
        pass
