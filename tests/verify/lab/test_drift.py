"""The real routing of the lab's models: another domain is seen within 2,000 tokens, the same one stays quiet.

A change is one that lasts: a prompt that differs from its neighbours makes a burst, not a drift.
"""

from __future__ import annotations

import numpy as np
import pytest

from moexray.algorithms.drift import changes
from moexray.verify.lab.corpus import DOMAINS
from moexray.verify.lab.model import MODELS, Prompts, load

torch = pytest.importorskip("torch", reason="the lab needs torch and transformers")
pytest.importorskip("transformers", reason="the lab needs torch and transformers")
torch.set_num_threads(1)  # two that spin on a busy machine take ten times as long
LENGTH, PER_WINDOW = 64, 5  # tokens of a prompt, prompts of a window: in fewer, one odd text lasts
BEFORE, WITHIN = 40, 2_000 // (LENGTH * PER_WINDOW)  # windows; 6 are 1,920 tokens


@pytest.fixture(scope="module", params=MODELS)
def routed(request):
    """{domain: [prompts, layers, experts] counts of each prompt}."""
    model, ids = load(request.param), {}
    for layer, block in enumerate(model.model.layers):
        block.mlp.gate.register_forward_hook(lambda _m, _a, out, layer=layer: ids.update({layer: out[2]}))
    found = {}
    for domain in DOMAINS:
        tokens = Prompts.of([domain], LENGTH).tokens[:240]
        with torch.inference_mode():
            model(input_ids=torch.from_numpy(tokens), use_cache=False, logits_to_keep=1)
        chosen = np.stack([ids[layer].numpy().reshape(len(tokens), -1) for layer in sorted(ids)], axis=1)
        found[domain] = (chosen[..., None] == np.arange(16)).sum(axis=2)
    return found


def windows(counts: np.ndarray, seed: int, many: int) -> np.ndarray:
    order = np.random.default_rng(seed).permutation(len(counts))[: many * PER_WINDOW]
    return counts[order].reshape(many, PER_WINDOW, *counts.shape[1:]).sum(axis=1)


@pytest.mark.parametrize("before", DOMAINS)
@pytest.mark.parametrize("after", DOMAINS)
def test_another_domain_is_seen_within_2000_tokens(routed, before, after):
    if before == after:
        return
    stream = np.concatenate([windows(routed[before], 1, BEFORE), windows(routed[after], 2, WITHIN)])
    found = [c for c in changes(stream) if c.lasts]
    assert found, "the change was not seen"
    assert all(abs(c.start - BEFORE) <= 2 for c in found)


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_same_domain_stays_quiet(routed, domain):
    streams = {seed: windows(routed[domain], seed, BEFORE + WITHIN) for seed in range(20)}
    assert not [seed for seed, stream in streams.items() if any(c.lasts for c in changes(stream))]
