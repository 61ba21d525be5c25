"""`moexray precision`: a model of the lab rounded to FP8, and what cannot be read."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from moexray.faces.cli.main import main

pytest.importorskip("torch")
pytest.importorskip("transformers")
MODEL = Path(__file__).resolve().parents[2] / "src" / "moexray" / "verify" / "lab" / "models" / "skewed"
TEXT = Path(__file__).resolve().parents[2] / "docs" / "capture.md"


def _run(*args):
    return CliRunner().invoke(main, ["precision", *map(str, args)])


@pytest.mark.skipif(not (MODEL / "config.json").exists(), reason="the lab's models are not here")
def test_a_trained_model_keeps_its_loss_in_fp8():
    found = _run(MODEL, "--text", TEXT, "--rows", 8, "--tokens", 64, "--format", "json")
    assert found.exit_code == 0, found.output
    d = json.loads(found.stdout)
    assert d["schema"] == "moexray.precision/1"
    assert d["saturated"] == 0
    assert d["loss"]["verdict"] == "no change"
    assert all(x["weight_max_relative"] <= d["fp8_bound"] * (1 + 1e-6) for x in d["layers"])
    text = _run(MODEL, "--text", TEXT, "--rows", 8, "--tokens", 64, "--most", 0.001, "--fallback", "*layers.0.*=keep")
    assert "loss of the next token: " in text.stdout
    assert "--fallback 'model.layers.1.mlp.experts.*=bf16'" in text.stdout
    assert "layers.0." not in text.stdout


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("nowhere", "--text", TEXT), "nowhere is no folder"),
        ((TEXT.parent, "--text", TEXT), "cannot be read"),
        ((TEXT.parent, "--text", "none.txt"), "cannot be read"),
        ((TEXT.parent, "--text", TEXT, "--fallback", "x"), "names no format"),
        ((TEXT.parent, "--text", TEXT, "--fallback", "x=fp4"), "names no format"),
    ],
)
def test_what_cannot_be_read(args, told):
    found = _run(*args)
    assert found.exit_code == 2
    assert told in found.stderr
