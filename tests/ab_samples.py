"""Results of runs made in memory, for comparisons and budgets."""

import json

import numpy as np


def gaps(ms, n=1500, seed=0, spikes=0.0):
    rng = np.random.default_rng(seed)
    values = rng.normal(ms, 0.4, n) + 40 * (rng.random(n) < spikes)
    return {"itl.csv": "step,itl_ms\n" + "".join(f"{i},{v:.4f}\n" for i, v in enumerate(values))}


def counts(hot, steps=40, experts=8, layers=2, seed=0):
    """Router choices of one expert per token; the first expert takes a share of `hot`."""
    rng = np.random.default_rng(seed)
    p = np.r_[hot, np.full(experts - 1, (1 - hot) / (experts - 1))]
    lines = [
        json.dumps({"step": s, "layer": y, "expert_counts": rng.multinomial(200, p).tolist()})
        for s in range(steps)
        for y in range(layers)
    ]
    return {"counts.jsonl": "\n".join(lines)}
