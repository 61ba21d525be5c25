"""The engine of the lab: a transformers model whose experts lie on several ranks, and its work in memory.

Every MoE block is replaced by one that sends each token's row to the ranks of its experts, computes there
in a work buffer from `Pressure`, and adds the results up. `Local` keeps all ranks in one process (engine
`hf`); `Gloo` is one of several processes that exchange rows by `all_to_all_single` with uneven splits
(engine `ep`). Router, attention and weights are the model's own; the output is too (a test compares them).

A work buffer holds, per row: the row, both halves of the up-projection, what is left of them after the
activation, the result.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moexray.verify.lab.bench import State

__all__ = ["Exchange", "Gloo", "Local", "fit"]


class Exchange(Protocol):
    """Sends rows to the ranks of their slots and brings the results back."""

    def __call__(self, layer: int, rows: Any, sent: Any, work: Callable[..., Any]) -> Any:
        """Results in the order of the rows.

        Args:
            layer: MoE layer.
            rows: [n, hidden], sorted by slot.
            sent: int64 [slots], rows of each slot.
            work: (rank, counts [sources, slots of the rank], fill) -> (results, give back).
        """


class Local:
    """All ranks in this process.

    Args:
        ranks: How many.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def __call__(self, layer: int, rows: Any, sent: Any, work: Callable[..., Any]) -> Any:
        """See Exchange."""
        import torch

        out = torch.empty_like(rows)
        at = 0
        for rank, counts in enumerate(sent.reshape(self.ranks, -1)):
            n = int(counts.sum())
            mine = rows[at : at + n]
            results, give = work(
                layer, rank, counts[None], mine.shape[0], lambda into, mine=mine: into.copy_(mine)
            )
            out[at : at + n] = results
            give()
            at += n
        return out


class Gloo:
    """One process of a group; `torch.distributed` is initialised.

    Args:
        rank: Of this process.
        ranks: In the group.
        delay: Called before rows are sent, e.g. to come late.
    """

    def __init__(self, rank: int, ranks: int, delay: Callable[[int], None] | None = None) -> None:
        self.rank, self.ranks, self.delay = rank, ranks, delay

    def __call__(self, layer: int, rows: Any, sent: Any, work: Callable[..., Any]) -> Any:
        """See Exchange."""
        import torch
        import torch.distributed as dist

        if self.delay is not None:
            self.delay(layer)
        counts = torch.empty_like(torch.from_numpy(sent))
        dist.all_to_all_single(counts, torch.from_numpy(sent))
        here = counts.numpy().reshape(self.ranks, -1)
        splits = (here.sum(axis=1).tolist(), sent.reshape(self.ranks, -1).sum(axis=1).tolist())

        def fill(into: Any) -> None:
            dist.all_to_all_single(into, rows, *splits)

        results, give = work(layer, self.rank, here, sum(splits[0]), fill)
        out = torch.empty_like(rows)
        dist.all_to_all_single(out, results, *reversed(splits))
        give()
        return out


def fit(model: Any, state: State, exchange: Exchange) -> None:
    """Puts the exchange under every MoE block of a model.

    Args:
        model: See `model.load`.
        state: Live.
        exchange: How rows travel.
    """
    for layer, block in enumerate(model.model.layers):
        block.mlp.experts.forward = _Experts(layer, block.mlp.experts, state, exchange)


class _Experts:
    """Replaces the forward of a block's experts."""

    def __init__(self, layer: int, experts: Any, state: State, exchange: Exchange) -> None:
        self.layer, self.state, self.exchange = layer, state, exchange
        self.up, self.down = (
            experts.gate_up_proj,
            experts.down_proj,
        )  # [experts, 2 inner, hidden], [.., inner]

    def __call__(self, hidden: Any, ids: Any, weights: Any) -> Any:
        """[tokens, hidden]; ids and weights [tokens, k]."""
        import torch

        slots = self.state.slots[self.layer]
        place = np.empty_like(slots)
        place[slots] = np.arange(len(slots))
        experts = ids.reshape(-1).numpy()
        self.state.counts[self.layer] += np.bincount(experts, minlength=len(slots))
        slot = place[experts]
        order = np.argsort(slot, kind="stable")
        sent = np.bincount(slot, minlength=len(slots)).astype(np.int64)
        index = torch.from_numpy(order // ids.shape[1])
        back = self.exchange(self.layer, hidden[index], sent, self._work)
        back = back * weights.reshape(-1, 1)[torch.from_numpy(order)]
        return torch.zeros_like(hidden).index_add_(0, index, back)

    def _work(self, layer: int, rank: int, counts: np.ndarray, n: int, fill: Callable[[Any], Any]) -> Any:
        """Computes what a rank received, in one work buffer; gives (results, how to give the buffer back)."""
        import torch

        self.state.rows[layer, rank] += n
        wide, inner = self.down.shape[1], self.down.shape[2]
        if not n:
            nothing = torch.empty(0, wide)
            fill(nothing)
            return nothing, lambda: None
        pressure = self.state.pressures[rank]
        parts = np.cumsum((0, wide, 2 * inner, inner, wide)).tolist()
        block = pressure.take(n * parts[-1] * 4)
        floats = torch.from_numpy(block.__enter__()).view(torch.float32)
        rows, both, gated, results = (floats[n * a : n * b].view(n, b - a) for a, b in pairwise(parts))
        fill(rows)
        mine = self.state.slots[layer].reshape(-1, counts.shape[1])[rank]
        for at, expert, many in _segments(counts, mine):
            piece = slice(at, at + many)
            torch.mm(rows[piece], self.up[expert].T, out=both[piece])
            torch.mul(torch.nn.functional.silu(both[piece, :inner]), both[piece, inner:], out=gated[piece])
            torch.mm(gated[piece], self.down[expert].T, out=results[piece])

        def give() -> None:
            block.__exit__(None, None, None)
            pressure.give(block)

        return results, give


def _segments(counts: np.ndarray, experts: Sequence[int]) -> list[tuple[int, int, int]]:
    """(first row, expert, rows) of each piece of rows of one expert from one source."""
    found, at = [], 0
    for line in counts.tolist():
        for expert, many in zip(experts, line, strict=True):
            if many:
                found.append((at, int(expert), many))
            at += many
    return found
