"""Simulated arms for the A/B tests: latencies of many shapes, and a trial's turns made of them."""

from __future__ import annotations

import numpy as np

from moexray.verify.ab import Turn, places

BASE_S = 0.05


def _normal(rng, n):
    return rng.normal(BASE_S, 0.005, n)


def _lognormal(rng, n):
    return BASE_S * rng.lognormal(0, 0.3, n)


def _spikes(rng, n):
    return rng.normal(BASE_S, 0.003, n) + 0.2 * (rng.random(n) < 0.002)


def _bursts(rng, n):
    return rng.normal(BASE_S, 0.003, n) + 0.2 * np.repeat(rng.random(n // 10) < 0.01, 10)


def _autocorrelated(rng, n):
    noise = rng.normal(0, 0.002, n)
    out = np.empty(n)
    level = 0.0
    for i in range(n):
        level = 0.95 * level + noise[i]
        out[i] = BASE_S + level
    return out + rng.normal(0, 0.003, n)


def _drift(rng, n):
    t = np.linspace(0, 1, n)
    return rng.normal(BASE_S, 0.005, n) + 0.1 * t**2 + 0.02 * np.sin(40 * t)


def _cauchy(rng, n):
    return BASE_S + 0.002 * np.abs(rng.standard_cauchy(n))


SHAPES = {
    "normal": _normal,
    "lognormal": _lognormal,
    "rare spikes of 200 ms": _spikes,
    "bursts of 200 ms": _bursts,
    "autocorrelated": _autocorrelated,
    "drift of both arms": _drift,
    "no mean (Cauchy)": _cauchy,
}


def quads(shape, seed, count=60, per_turn=100, shift=0.0):
    """The quads of a trial in which B is A plus a shift; one stream of latencies, labels by the schedule."""
    rng = np.random.default_rng([seed, 7])
    values = SHAPES[shape](rng, count * 4 * per_turn).reshape(count * 4, per_turn)
    turns = []
    for i, place in enumerate(places(count, seed)):
        value = values[i] + (shift if place.arm == "B" else 0.0)
        turns.append(Turn(place, float(i), i + np.linspace(0, 0.99, per_turn), value))
        if len(turns) == 4:
            yield turns
            turns = []
