"""`moexray precision`: a model of the lab rounded to FP8, and what cannot be read."""

import json
import shutil
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


def _cut(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])


def _other(folder):
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**document, "hidden_size": 96}))


def _list(folder):
    (folder / "config.json").write_text("[]")


def _lacking(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "layers.1.self_attn" not in k}, folder / "model.safetensors",
              {"format": "pt"})  # fmt: skip


@pytest.mark.skipif(not (MODEL / "config.json").exists(), reason="the lab's models are not here")
@pytest.mark.parametrize(
    ("damage", "told"),
    [(_cut, "cannot be read"), (_other, "cannot be read"), (_list, "cannot be read"),
     (_lacking, "the files lack 6 weights of the model, model.layers.1.self_attn")],
)  # fmt: skip
def test_a_damaged_model_is_told_and_never_measured(tmp_path, damage, told):
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    damage(folder)
    found = _run(folder, "--text", TEXT, "--rows", 2, "--tokens", 16)
    assert found.exit_code == 2
    assert told in found.stderr
    assert "moexray failed" not in found.stderr
