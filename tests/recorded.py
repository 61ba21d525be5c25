"""Helpers of the tests of a recording: a folder for rings, a forward, a count of what the routers return."""

import numpy as np
import pytest
import torch

from moexray.runtime import guard as guards
from moexray.runtime.engines.transformers import routers
from tiny_models import tokens


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    path = tmp_path / "rings"
    path.mkdir(0o700)
    monkeypatch.setenv("MOEXRAY_RINGS", str(path))
    for kept in ("_said", "_off"):
        monkeypatch.setattr(guards, kept, set())
    monkeypatch.delenv(guards.VARIABLE, raising=False)
    return path


def run(model, batch=None):
    with torch.inference_mode():
        return model(tokens() if batch is None else batch, use_cache=False).logits


def hooks(model):
    """Every hook of every module, and its forward, by identity."""
    return [
        (id(m), id(type(m).forward), id(vars(m).get("forward")), [list(map(id, t.values())) for t in (m._forward_hooks, m._forward_pre_hooks)])
        for m in model.modules()
    ]


def counted(model, batch=None):
    """[sites, experts]: an independent count of what the routers return in one forward."""
    found = routers(model, to_write=False)
    counts = np.zeros((len(found), found[0].experts), np.int64)

    def count(number, router):
        def hook(module, args, output):
            np.add.at(counts[number], router.read(output)[2].flatten().numpy(), 1)

        return router.module.register_forward_hook(hook)

    handles = [count(number, router) for number, router in enumerate(found)]
    run(model, batch)
    for handle in handles:
        handle.remove()
    return counts
