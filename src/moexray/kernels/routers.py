"""Compiled twins of the two routers that serve token after token; see algorithms/routers.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

__all__ = ["fill_batch", "hold_rows"]

_DROP, _SPILL = 0, 1  # indices into algorithms.routers.MODES; 2 is reroute


@njit(cache=True)
def fill_batch(order: Any, usable: Any, room: Any, mode: int, ids: Any) -> None:
    """Twin of algorithms.routers.fill_batch."""
    taken = np.zeros(order.shape[1], np.bool_)
    for row in range(order.shape[0]):
        for j in range(ids.shape[1]):
            expert = order[row, j]
            if room[expert] <= 0 or taken[expert]:
                expert = -1
                if mode != _DROP:
                    for rank in range(usable[row]):
                        other = order[row, rank]
                        if room[other] <= 0 or taken[other]:
                            continue
                        if mode == _SPILL:
                            expert = other
                            break
                        better = expert < 0 or room[other] > room[expert]
                        if better or (room[other] == room[expert] and other < expert):
                            expert = other
            if expert >= 0:
                ids[row, j] = expert
                room[expert] -= 1
                taken[expert] = True
        for j in range(ids.shape[1]):
            if ids[row, j] >= 0:
                taken[ids[row, j]] = False


@njit(cache=True)
def hold_rows(scores: Any, margin: Any, ids: Any) -> None:
    """Twin of algorithms.routers.hold_rows."""
    experts = scores.shape[1]
    held = np.zeros(experts, np.bool_)
    raised = np.empty(experts, scores.dtype)
    for row in range(scores.shape[0]):
        for e in range(experts):
            raised[e] = scores[row, e] + (margin if held[e] else np.float32(0))
            held[e] = False
        for j in range(ids.shape[1]):
            best = 0
            for e in range(1, experts):
                if raised[e] > raised[best]:
                    best = e
            ids[row, j] = best
            raised[best] = -np.inf
        for j in range(ids.shape[1]):
            held[ids[row, j]] = True
