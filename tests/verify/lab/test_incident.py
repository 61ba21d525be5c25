from __future__ import annotations

import json

import pytest

from moexray.core.errors import UsageError
from moexray.verify.lab.incident import Setup, run

pytest.importorskip("transformers", reason="the lab needs torch and transformers")
SEEDS = range(10)
IN_PROCESS = ("hf", "ep")  # vLLM: test_served.py
FULL, SHORT = 1_000, 100  # requests of an arm: what a P99 wants; enough for the counts and the names


def lab(tmp_path, *, engine: str, incident: str = "both", seed: int, requests: int) -> dict:
    said: list[str] = []
    document = run(Setup(incident, engine, seed, requests=requests), tmp_path, said.append)
    assert said
    return document


def check_written(document: dict, folder) -> None:
    assert document == json.loads((folder / "lab.json").read_text())
    assert document["truth"] == json.loads((folder / "truth.json").read_text())
    assert (folder / "report.html").stat().st_size > 10_000
    bundle = folder / "artefacts"
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["schema"] == "moexray.bundle/1"
    assert {"traces", "memory", "routing", "latency", "logs", "metrics"} <= {f.split("/")[0] for f in manifest["files"]}
    assert not [p for p in bundle.rglob("*") if "truth" in p.name]
    assert "injected beside the engine" in document["note"]
    for side in ("before", "after"):
        assert {"p50_s", "p99_s", "p50_cpu_s", "p99_cpu_s", "largest_free_bytes", "expert_load_std"} <= set(document[side])


def check_cured(document: dict) -> None:
    before, after = document["before"], document["after"]
    assert before["moves_per_step"] > 0
    assert after["moves_per_step"] == 0
    assert after["largest_free_bytes"] > 1.2 * before["largest_free_bytes"]
    assert after["expert_load_std"] < 0.2 * before["expert_load_std"]


@pytest.mark.parametrize(("engine", "seed"), [("hf", 2), ("ep", 1)])
def test_a_double_fault_is_named_and_cured(tmp_path, engine, seed):
    document = lab(tmp_path, engine=engine, seed=seed, requests=SHORT)
    assert document["named_right"], document["wrong"]
    check_written(document, tmp_path)
    check_cured(document)
    assert document["ratio"]["p99_cpu"]["value"] > 2


@pytest.mark.soak
@pytest.mark.parametrize("engine", IN_PROCESS)
def test_nine_of_ten_seeds_are_named_and_cured(tmp_path, engine):
    missed = []
    for seed in SEEDS:
        document = lab(tmp_path / str(seed), engine=engine, seed=seed, requests=FULL)
        check_cured(document)
        p99, p50 = document["ratio"]["p99_cpu"], document["ratio"]["p50_cpu"]
        good = document["named_right"] and p99["value"] >= 4 and p99["low"] > 2 and abs(p50["value"] - 1) <= 0.10
        if not good:
            missed.append((seed, document["wrong"], p99, p50))
    assert len(missed) <= len(SEEDS) // 10, missed


@pytest.mark.soak
@pytest.mark.parametrize("engine", IN_PROCESS)
@pytest.mark.parametrize("incident", ["frag", "skew"])
def test_one_fault_alone_is_named_alone(tmp_path, engine, incident):
    document = lab(tmp_path, engine=engine, incident=incident, seed=3, requests=SHORT)
    assert document["named_right"], document["wrong"]
    assert len(document["remedies"]) == 1
    if (engine, incident) == ("ep", "skew"):
        waits = [f for f in document["diagnosis"]["findings"] if f["id"] == "comm.straggler_wait"]
        assert any(f["subject"]["rank"] == 0 and "ep.skew" in f["implied_by"] for f in waits)


@pytest.mark.soak
def test_a_late_peer_is_named_and_goes(tmp_path):
    document = lab(tmp_path, engine="ep", incident="late", seed=1, requests=SHORT)
    assert document["named_right"], document["wrong"]
    assert document["diagnosis"]["verdict"] == "comm.straggler_wait"
    assert len(document["remedies"]) == 1
    assert document["ratio"]["p99_cpu"]["low"] > 2
    assert document["before"]["moves_per_step"] == 0


@pytest.mark.soak
def test_the_balanced_model_is_diagnosed_as_well(tmp_path):
    document = run(Setup("both", "ep", 0, model="balanced", requests=SHORT), tmp_path)
    assert document["named_right"], document["wrong"]


def test_an_unknown_incident_is_refused():
    with pytest.raises(UsageError, match="no incident 'flood'"):
        Setup("flood")
    with pytest.raises(UsageError, match="a process for each rank"):
        Setup("late", "hf")
