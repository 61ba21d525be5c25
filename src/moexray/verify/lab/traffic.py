"""What is asked of the engine and where its experts lie: prompts, arrivals, placements that fit or not."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from moexray.verify.lab.corpus import DOMAINS
from moexray.verify.lab.model import Prompts

__all__ = ["HOT", "LENGTH", "PROMPTS", "Traffic", "arrivals", "fitted", "stale"]

LENGTH, PROMPTS = 64, 10  # tokens of a prompt, prompts of a request
OTHERS = 3  # prompts of a request that differ where most are identical
SLACK = 0.03  # how far a placement that fits the usual mix may be from half and half
HOT = 0.8  # share of the hot prompts' tokens that a placement gives rank 0: 1.6 times the mean of two ranks
FLOOR = 1.0  # tokens that an expert counts at least, so that unused ones are spread, too


@dataclass(frozen=True, slots=True)
class Traffic:
    """Usual prompts and the hot ones.

    Args:
        hot: Domain that the incident brings; the others are usual.
        identical: Most hot prompts are one and the same.
        seed: Of what is drawn.
    """

    hot: str
    identical: bool
    seed: int

    @classmethod
    def of(cls, seed: int) -> Traffic:
        """The incident of a seed: each domain in turn, every third with identical prompts."""
        return cls(DOMAINS[seed % len(DOMAINS)], seed % 3 == 2, seed)

    def usual(self, rng: np.random.Generator, requests: int) -> np.ndarray:
        """[requests, PROMPTS, LENGTH] of the other domains."""
        rest = [d for d in DOMAINS if d != self.hot]
        return _requests(Prompts.of(rest, LENGTH), rng, requests)

    def flood(self, rng: np.random.Generator, requests: int) -> np.ndarray:
        """[requests, PROMPTS, LENGTH] of the hot domain."""
        prompts = Prompts.of([self.hot], LENGTH)
        flood = _requests(prompts, rng, requests)
        if self.identical:
            flood[:, OTHERS:] = prompts.draw(np.random.default_rng([self.seed, 17]), 1)
        return flood


def _requests(prompts: Prompts, rng: np.random.Generator, requests: int) -> np.ndarray:
    return prompts.draw(rng, requests * PROMPTS).reshape(requests, PROMPTS, LENGTH)


def arrivals(rng: np.random.Generator, requests: int, mean_s: float) -> np.ndarray:
    """[requests] s: a Poisson process, fixed before anything is sent."""
    return np.cumsum(rng.exponential(mean_s, requests))


def stale(usual: np.ndarray, hot: np.ndarray) -> np.ndarray:
    """The placement on two ranks that fits the usual mix and gives rank 0 some `HOT` of the hot one.

    Args:
        usual: [layers, experts] tokens of the usual mix.
        hot: The same of the hot prompts.

    Returns:
        [layers, experts], the expert in each slot.
    """
    experts = usual.shape[1]
    picks = np.array(list(combinations(range(experts), experts // 2)))
    sets = np.zeros((len(picks), experts), bool)
    np.put_along_axis(sets, picks, values=True, axis=1)
    out = []
    for before, after in zip(usual, hot, strict=True):
        off = np.abs(sets @ (before / before.sum()) - 0.5)
        fits = np.flatnonzero(off <= max(SLACK, float(off.min())))
        best = sets[fits[np.argmin(np.abs(sets[fits] @ after / after.sum() - HOT))]]
        out.append(np.concatenate([np.flatnonzero(best), np.flatnonzero(~best)]))
    return np.array(out)


def fitted(counts: np.ndarray, ranks: int) -> np.ndarray:
    """The remedy: the placement that moexray plans for measured loads.

    Args:
        counts: [layers, experts] tokens.
        ranks: EP ranks.

    Returns:
        [layers, experts], the expert in each slot.
    """
    from moexray.algorithms.placement import Shape, place
    from moexray.algorithms.replication import token_costs

    shape = Shape(counts.shape[1], counts.shape[1], ranks)
    return np.array([place(token_costs(load + FLOOR, shape.most), shape) for load in counts])
