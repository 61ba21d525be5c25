"""Placement policies: where in one space a request goes. The same classes serve a what-if and an arena.

`POLICIES` lists them by name; PyTorch's caching allocator is algorithms/allocator.py.
"""

from __future__ import annotations

from moexray.algorithms.policies.buddy import Buddy
from moexray.algorithms.policies.fits import BestFit, FirstFit, NaiveFirstFit, NextFit, WorstFit
from moexray.algorithms.policies.policy import GRANULE, Policy
from moexray.algorithms.policies.scope import Scope
from moexray.algorithms.policies.segregated import Segregated
from moexray.algorithms.policies.tlsf import Tlsf

__all__ = [
    "GRANULE",
    "POLICIES",
    "BestFit",
    "Buddy",
    "FirstFit",
    "NaiveFirstFit",
    "NextFit",
    "Policy",
    "Scope",
    "Segregated",
    "Tlsf",
    "WorstFit",
]

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (FirstFit, NaiveFirstFit, NextFit, BestFit, WorstFit, Buddy, Tlsf, Segregated, Scope)
}
