"""docs/remedies.md: its examples run and show what their comments say; its switches are the guards'."""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import moexray  # noqa: E402
from tiny_models import tiny, tokens  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "remedies.md"


@pytest.fixture
def group():
    from torch import distributed

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_the_examples_run(group, monkeypatch, tmp_path):
    monkeypatch.setenv("MOEXRAY_RINGS", str(tmp_path / "rings"))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 8
    model, ids = tiny("qwen3_moe"), tokens()
    before = model(ids).logits
    scope = {"model": model, "ids": ids, "moexray": moexray}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), scope)
    assert torch.equal(model(ids).logits, before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert scope["host"].empty is torch.empty
    pool = scope["pool"].figures()
    assert (pool.made, pool.reused, pool.plain) == (1, 2, 0)
    moved = scope["control"].figures()
    assert (moved.armings, moved.moves, moved.refused) == (1, 1, 0)
    assert (scope["arena"].figures().plain, scope["arena"].figures().compactions) == (0, 0)
    assert scope["window"].figures().unasked == 0
    assert scope["handle"].reason == ""
    assert scope["handle"].counters().exchanges == 1
    assert torch.equal(scope["got"], scope["send"])
    assert scope["recording"].reason == ""
    assert scope["counter"].read().tokens.shape[0] == 0  # all were read on the page


def test_the_switches_of_the_table_are_those_of_the_catalogue():
    from moexray.core.remedies import REMEDIES

    rows = re.findall(r"^\| `\w+` \|[^|]+\| ([^|]+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    named = {name for r in REMEDIES for m in re.findall(r"MOEXRAY_OFF=([\w,-]+)", r.undo) for name in m.split(",")}
    assert told == named
