from __future__ import annotations

import numpy as np
import pytest

from moexray.core.errors import UsageError
from moexray.runtime.arena import Memory
from moexray.verify.lab import engine
from moexray.verify.lab.bench import State
from moexray.verify.lab.corpus import DOMAINS
from moexray.verify.lab.model import FOLDER, MODELS, Prompts, load
from moexray.verify.lab.pressure import Pressure, PressureSpec

torch = pytest.importorskip("torch", reason="the lab needs torch and transformers")
pytest.importorskip("transformers", reason="the lab needs torch and transformers")
torch.set_num_threads(1)  # two that spin on a busy machine take ten times as long
SPEC = PressureSpec(capacity=64 << 20)
LAYERS, EXPERTS, RANKS = 4, 16, 2


def fitted_model(name: str, slots: np.ndarray) -> tuple[object, State]:
    model = load(name)
    memory = {r: Pressure(SPEC, "shared", Memory.take(SPEC.capacity)) for r in range(RANKS)}
    sizes = (LAYERS, EXPERTS)
    state = State(slots, memory, np.zeros(sizes, np.int64), np.zeros((LAYERS, RANKS), np.int64))
    engine.fit(model, state, engine.Local(RANKS))
    return model, state


def forward(model, tokens: np.ndarray):
    with torch.inference_mode():
        return model(input_ids=torch.from_numpy(tokens), use_cache=False).logits


@pytest.mark.parametrize("name", MODELS)
def test_the_engine_answers_as_the_model_does(name):
    rng = np.random.default_rng(0)
    slots = np.array([rng.permutation(EXPERTS) for _ in range(LAYERS)])
    tokens = Prompts.of(["english"], 32).draw(rng, 3)
    model, state = fitted_model(name, slots)
    assert torch.allclose(forward(model, tokens), forward(load(name), tokens), atol=1e-4)
    assert state.counts.sum() == state.rows.sum() == LAYERS * tokens.size * 2
    half = np.take_along_axis(state.counts, slots, axis=1).reshape(LAYERS, RANKS, -1).sum(axis=2)
    assert (half == state.rows).all()
    assert not any(p.arena.figures().used_bytes - sum(n for *_, n, _h in p._kv.alive) for p in state.pressures.values())


def test_the_models_route_by_domain_and_one_more_evenly_than_the_other():
    spread = {}
    for name in MODELS:
        model, state = fitted_model(name, np.tile(np.arange(EXPERTS), (LAYERS, 1)))
        cvs, shares = [], []
        for domain in DOMAINS:
            state.counts[:] = 0
            forward(model, Prompts.of([domain], 64).draw(np.random.default_rng(1), 24))
            share = state.counts / state.counts.sum(axis=1, keepdims=True)
            shares.append(share)
            cvs.append((share.std(axis=1) * EXPERTS).mean())
        apart = np.abs(shares[0] - shares[2]).sum(axis=1).mean()  # code and Chinese
        assert apart > 0.5
        spread[name] = float(np.mean(cvs))
    assert spread["balanced"] < 0.85 * spread["skewed"]


def test_the_models_are_small_and_say_what_they_are_made_of():
    for name in MODELS:
        assert sum(p.stat().st_size for p in (FOLDER / name).iterdir()) < 4_000_000
    card = (FOLDER / "README.md").read_text()
    assert "Python Software Foundation" in card
    assert all(domain in card for domain in DOMAINS)


def test_a_model_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no model in"):
        load(str(tmp_path))
