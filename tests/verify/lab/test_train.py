from __future__ import annotations

import json

import pytest

from moexray.core.errors import UsageError
from moexray.verify.lab import corpus, train
from moexray.verify.lab.train import RECIPES, Recipe

pytest.importorskip("transformers", reason="training needs torch and transformers")


@pytest.fixture
def little(monkeypatch):
    """The made domains stand for all: reading the whole standard library takes half a minute."""
    made = {"chinese": corpus.documents("chinese")[:150], "tables": corpus.documents("tables")[:150]}
    made |= {"python": made["tables"], "english": made["chinese"]}
    monkeypatch.setattr(train, "documents", made.__getitem__)


@pytest.mark.parametrize("kind", list(RECIPES))
def test_the_same_recipe_gives_the_same_bytes(tmp_path, little, kind):
    recipe = Recipe(RECIPES[kind].balance, RECIPES[kind].each, steps=2)
    losses = [train.train(tmp_path / name, recipe, lambda _: None) for name in ("a", "b")]
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert {"model.safetensors", "config.json", "tokenizer.json", "prompts.json"} <= set(files)
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    assert losses[0] == losses[1]
    assert set(json.loads((tmp_path / "a" / "prompts.json").read_text())) == set(corpus.DOMAINS)


def test_no_steps_are_refused(tmp_path):
    with pytest.raises(UsageError, match="0 steps"):
        train.train(tmp_path, Recipe(0.01, steps=0), lambda _: None)


def test_code_and_prose_come_apart(monkeypatch, tmp_path):
    source = tmp_path / "one.py"
    source.write_text('def f():\n    """' + "It says what f does. " * 20 + '"""\n    return ' + " + ".join("abcdefgh" * 20))
    monkeypatch.setattr(corpus.sysconfig, "get_path", lambda _: str(tmp_path))
    code, prose = corpus.documents("python"), corpus.documents("english")
    assert "It says" not in code[0]
    assert "return a + b" in code[0]
    assert "It says what f does." in prose[-1]
    assert "return" not in prose[-1]
