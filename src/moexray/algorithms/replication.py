"""Which experts get the redundant slots, and the least that the busiest rank of any plan carries.

Glossary: *costs* are [experts, most]: what one replica brings its rank if its expert has 1, 2, ..
`most` replicas; it falls along a row. In tokens that is load / replicas. In a decode step, which reads
the weights of every expert that got a token, it is the chance that the replica gets one.
"""

from __future__ import annotations

import numpy as np

__all__ = [
    "active_costs",
    "least_growth",
    "least_top",
    "replicate",
    "replicate_active",
    "shares",
    "shift",
    "token_costs",
]

SURE = 40  # tokens per replica from which it is active for certain: it is idle once in exp(40) steps
SAME = 1e-12  # growth of the active experts per step that counts as none


def token_costs(load: np.ndarray, most: int) -> np.ndarray:
    """[experts, most], tokens of one replica if an expert's load [experts] is split equally."""
    return np.asarray(load, np.float64)[:, None] / np.arange(1, most + 1)


def active_costs(tokens: np.ndarray, most: int) -> np.ndarray:
    """Share of the steps in which a replica has work, if each token picks one of the replicas by chance.

    Args:
        tokens: [steps, experts], tokens in each decode step; fractions count as whole tokens.
        most: Replicas of an expert at most.

    Returns:
        [experts, most], active experts per step that one replica brings.
    """
    steps, experts = tokens.shape
    numbers, at = np.unique(np.ceil(np.minimum(tokens, SURE * most)), return_inverse=True)
    cells = np.arange(experts) * len(numbers) + at.reshape(steps, experts)
    often = np.bincount(cells.ravel(), minlength=experts * len(numbers)).reshape(experts, -1)
    idle = np.power(1 - 1 / np.arange(1, most + 1), numbers[:, None])  # [numbers, most]
    return np.asarray(1 - (often / steps) @ idle)


def shares(costs: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """[experts], what one replica brings with these counts."""
    return np.asarray(costs[np.arange(len(costs)), counts - 1])


def replicate(costs: np.ndarray, slots: int) -> np.ndarray:
    """Gives each extra slot to the expert whose replicas bring most: no counts have a lower maximum.

    Args:
        costs: [experts, most].
        slots: Physical slots in all, from one per expert to `most` per expert.

    Returns:
        [experts], replicas of each expert.

    Source: greedy replication by load per replica, as in DeepSeek EPLB.
    """
    experts, most = costs.shape
    counts = np.ones(experts, np.int64)
    share = costs[:, 0].copy()
    for _ in range(slots - experts):
        expert = int(share.argmax())
        counts[expert] += 1
        # a full expert is out of the race
        share[expert] = costs[expert, counts[expert] - 1] if counts[expert] < most else -1.0
    return counts


def replicate_active(costs: np.ndarray, slots: int) -> np.ndarray:
    """Gives each extra slot to the expert that becomes active least more often by it, then the busiest.

    Two replicas of an expert that always has many tokens are both always active: that is no help.

    Args:
        costs: [experts, most], of `active_costs`.
        slots: Physical slots in all.

    Returns:
        [experts], replicas of each expert.
    """
    experts, most = costs.shape
    number = np.arange(1, most + 1)
    grown = np.full(costs.shape, np.inf)
    grown[:, :-1] = np.diff(costs * number, axis=1)
    counts = np.ones(experts, np.int64)
    for _ in range(slots - experts):
        more = grown[np.arange(experts), counts - 1]
        best = more <= more.min() + SAME
        counts[int(np.where(best, shares(costs, counts), -1.0).argmax())] += 1
    return counts


def shift(costs: np.ndarray, counts: np.ndarray, slots: int, moves: int) -> np.ndarray:
    """Counts near the present ones: made to fill `slots`, then slots given on where that helps most.

    Args:
        costs: [experts, most].
        counts: [experts], replicas now.
        slots: Physical slots in all.
        moves: Slots that may change their expert for balance.

    Returns:
        [experts], replicas of each expert, at least one.
    """
    most = costs.shape[1]
    counts = np.clip(counts, 1, most)

    def hottest() -> int:
        return int(np.where(counts < most, shares(costs, counts), -1.0).argmax())

    def donor() -> tuple[int, float]:
        after = np.where(counts > 1, costs[np.arange(len(costs)), np.maximum(counts - 2, 0)], np.inf)
        return int(after.argmin()), float(after.min())

    while counts.sum() < slots:
        counts[hottest()] += 1
    while counts.sum() > slots:
        counts[donor()[0]] -= 1
    for _ in range(moves):
        hot, (giver, after) = hottest(), donor()
        if not after < costs[hot, counts[hot] - 1]:
            break
        counts[hot] += 1
        counts[giver] -= 1
    return counts


def least_growth(costs: np.ndarray, extra: int) -> float:
    """What extra replicas add to the sum over all ranks at least; 0 for tokens, which they only divide.

    Args:
        costs: [experts, most].
        extra: Redundant slots.
    """
    most = costs.shape[1]
    if not extra or most < 2:
        return 0.0
    added = costs[:, 1:] * np.arange(2, most + 1) - costs[:, :1]
    each = np.repeat(np.sort((added / np.arange(1, most)).min(axis=1)), most - 1)[:extra]
    return max(float(each.sum()), 0.0)


def least_top(costs: np.ndarray, counts: np.ndarray, ranks: int, *, split: bool = False) -> float:
    """No plan has a busiest rank below this; a rank holds an expert once.

    1. The mean. 2. Some replica brings at least the best maximum of any counts, and shares its rank with
    as many others as a rank has slots, at best the lightest. 3. Without redundant slots: of the n
    heaviest experts either two meet on a rank, or they lie on n ranks with the lightest company; then the
    busiest of these has at least their mean, and the n-th with the heaviest that the company must have.

    Args:
        costs: [experts, most].
        counts: [experts], of `replicate`.
        ranks: EP size.
        split: Replicas may take unequal parts of a load, even none.
    """
    experts, slots = len(costs), int(counts.sum())
    room = slots // ranks
    mean = float(costs[:, 0].sum()) / ranks
    if slots > experts:
        company = 0.0 if split or room < 2 else float(np.partition(costs[:, -1], room - 2)[: room - 1].sum())
        return max(mean, float(shares(costs, counts).max()) + company)
    heavy = np.sort(costs[:, 0])[::-1]
    light = np.concatenate([[0.0], np.cumsum(heavy[::-1])])  # light[m]: the m lightest together
    n = np.arange(1, ranks + 1)
    company_of = np.minimum(n * (room - 1), experts - n)
    apart = (np.cumsum(heavy)[:ranks] + light[company_of]) / n
    pair = np.full(ranks, np.inf)
    if room > 1:
        apart = np.maximum(apart, heavy[:ranks] + heavy[experts - company_of] + light[room - 2])
        pair[1:] = heavy[1:ranks] + heavy[: ranks - 1] + light[room - 2]
    return max(mean, float(np.minimum(apart, pair).max()))
