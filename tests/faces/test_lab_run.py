"""`moexray lab run` and `lab train`: words, refusals, what is handed on; the runs themselves are in tests/verify/lab."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from moexray.faces.cli import lab_run, lab_train
from moexray.faces.cli.main import main
from moexray.verify.lab import incident
from moexray.verify.lab import train as training
from moexray.verify.lab.cluster import LabError

NOISY = "the machine is too noisy: load 9.0 on 2 cores (limit 3.0)"


def figure(name, before, after, low, high, verdict="better", reason="the interval excludes 0"):
    ends = {"value": after / before, "low": low, "high": high} if before and after else None
    gap = {"value": after - before, "low": None, "high": None}
    return {"figure": name, "before": {"value": before}, "after": {"value": after}, "ratio": ends, "difference": gap,
            "verdict": verdict, "reason": reason}  # fmt: skip


def document(noisy="", **changes):
    wall = ("cannot tell", noisy) if noisy else ("better", "the interval excludes 0")
    return {
        "schema": "moexray.lab/1", "incident": "both", "engine": "ep", "model": "skewed", "seed": 1,
        "diagnosis": {"verdict": "mem.fragmentation", "findings": [
            {"id": "mem.fragmentation", "severity": "error"}, {"id": "ep.skew", "severity": "warn"},
            {"id": "snapshot.history_incomplete", "severity": "info"}],
            "chain": [{"from": "ep.skew", "to": "mem.fragmentation"},
                      {"from": "mem.fragmentation", "to": "mem.alloc_stall"}]},
        "truth": {"causes": [{"cause": "fragmented arena"}, {"cause": "hot experts on one rank"}],
                  "hot_domain": "english"},
        "named_right": True, "wrong": [], "remedies": ["pages"], "machine": {"noisy": noisy}, "note": "An arena.",
        "outcomes": [
            figure("p50_cpu_s", 0.033, 0.031, 0.9, 0.97), figure("p99_cpu_s", 0.262, 0.0504, 0.18, 0.2),
            figure("p50_s", 0.2, 0.1, 0.4, 0.7, *wall), figure("p99_s", 1.5, 0.3, 0.1, 0.3, *wall),
            figure("largest_free_bytes", 10 << 20, 50 << 20, 4.2, 5.4), figure("expert_load_std", 0.82, 0.1, 0.1, 0.2),
            figure("moves_per_step", 0.04, 0.0, None, None),
        ],
        **changes,
    }  # fmt: skip


def ran(monkeypatch, made, *args):
    asked = []

    def run(setup, folder, say):
        asked.append((setup, folder))
        say("engine is up")
        return made

    monkeypatch.setattr(incident, "run", run)
    return CliRunner().invoke(main, ("lab", "run", *args), catch_exceptions=False), asked


def test_the_choices_are_those_of_the_lab():
    assert (lab_run.INCIDENTS, lab_run.ENGINES) == (incident.INCIDENTS, incident.ENGINES)
    assert tuple(training.RECIPES) == lab_train.KINDS


def test_the_table_names_both_sides_and_what_was_planted(monkeypatch):
    done, asked = ran(monkeypatch, document(), "--engine", "hf", "--seed", "4", "--requests", "200")
    assert done.exit_code == 0
    setup, _ = asked[0]
    assert (setup.engine, setup.seed, setup.requests, setup.incident) == ("hf", 4, 200, "both")
    assert "planted: fragmented arena and hot experts on one rank (hot domain: english)" in done.stdout
    assert "named:   mem.fragmentation; also ep.skew\n" in done.stdout
    assert "chain:   ep.skew -> mem.fragmentation -> mem.alloc_stall\n" in done.stdout
    assert "P99 of a step, CPU" in done.stdout
    assert "x 0.19 [0.18, 0.20]: better" in done.stdout
    assert "50.0 MiB" in done.stdout
    assert "* " not in done.stdout
    assert "engine is up" in done.stderr
    assert done.stdout.rstrip().endswith("An arena.")


def test_a_noisy_machine_is_marked(monkeypatch):
    done, _ = ran(monkeypatch, document(noisy=NOISY), "--quiet")
    assert f"* no verdict: {NOISY}; CPU times hold" in done.stdout
    assert [line[2:13] for line in done.stdout.splitlines() if line.startswith("* P")] == ["P50 latency", "P99 latency"]
    assert not done.stderr


def test_a_wrong_diagnosis_says_why(monkeypatch):
    done, _ = ran(monkeypatch, document(named_right=False, wrong=["ep.skew was not named"]))
    assert "the diagnosis is not right: ep.skew was not named" in done.stdout


def test_json_is_the_document(monkeypatch, tmp_path):
    done, asked = ran(monkeypatch, document(), "--format", "json", "-o", str(tmp_path / "new"))
    assert json.loads(done.stdout) == document()
    assert asked[0][1] == tmp_path / "new"


def test_a_folder_that_is_not_empty_is_refused(monkeypatch, tmp_path):
    (tmp_path / "old.txt").touch()
    done, asked = ran(monkeypatch, document(), "-o", str(tmp_path))
    assert done.exit_code == 2
    assert "is not empty" in done.stderr
    assert not asked


def test_an_engine_that_fails_is_told(monkeypatch):
    def run(*_):
        raise LabError("it ended without a word", where="process 1", hint="is there enough memory?")

    monkeypatch.setattr(incident, "run", run)
    done = CliRunner().invoke(main, ("lab", "run"))
    assert done.exit_code == 2
    assert "it ended without a word" in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize(("args", "kind", "steps", "seed"), [
    ((), "skewed", 450, 1), (("--kind", "balanced", "--steps", "7", "--seed", "0"), "balanced", 7, 0),
])  # fmt: skip
def test_train_hands_on_what_was_asked(monkeypatch, tmp_path, args, kind, steps, seed):
    asked = []
    monkeypatch.setattr(training, "train", lambda *a: asked.append(a) or 2.5)
    done = CliRunner().invoke(main, ("lab", "train", "-o", str(tmp_path / "m"), *args), catch_exceptions=False)
    assert done.exit_code == 0
    recipe = asked[0][1]
    assert (recipe.steps, recipe.seed, recipe.balance) == (steps, seed, training.RECIPES[kind].balance)
    assert "loss 2.50" in done.stdout


def test_train_does_not_overwrite_a_model(tmp_path):
    (tmp_path / "model.safetensors").touch()
    done = CliRunner().invoke(main, ("lab", "train", "-o", str(tmp_path)))
    assert done.exit_code == 2
    assert "holds a model" in done.stderr
