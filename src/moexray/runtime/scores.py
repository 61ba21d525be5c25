"""What the router policies are made of, on torch tensors: ranking, counter noise, rounding, spread.

Twins of functions in algorithms/routers.py: the same bits on the same numbers. Nothing here waits for the
device.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from moexray.algorithms.routers import PRECISIONS

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["Batch", "gaussian", "mean_std", "noise", "ranked", "rounded", "shifted"]

LARGEST = {"fp16": 65504.0, "e4m3": 448.0, "e5m2": 57344.0}
# splitmix64, as signed numbers
_MIX = tuple(c - 2**64 for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def ranked(scores: Tensor, k: int) -> Tensor:
    """[rows, k] of the highest scores, best first, ties to the lowest index."""
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :k]


def noise(seed: int, batch: Tensor, rows: Tensor, experts: int) -> Tensor:
    """Twin of algorithms.routers.noise: int64 [rows, experts] holding the bits of the unsigned numbers.

    Args:
        seed: Of the run.
        batch: int64, [1] or [rows]: id of the batch.
        rows: int64 [rows], position in the batch.
        experts: Columns.
    """
    import torch

    start = _mixed(seed + (batch + 1) * _MIX[0])
    start = _mixed(start + (rows + 1) * _MIX[0])
    columns = torch.arange(1, experts + 1, device=rows.device)
    return _mixed(start[:, None] + columns * _MIX[0])


def _mixed(x: Tensor) -> Tensor:
    x = (x ^ shifted(x, 30)) * _MIX[1]
    x = (x ^ shifted(x, 27)) * _MIX[2]
    return x ^ shifted(x, 31)


def shifted(x: Tensor, bits: int) -> Tensor:
    """Right by so many bits, filled with zeros: torch fills with the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def gaussian(bits: Tensor) -> Tensor:
    """Standard normal numbers, float64, from 64-bit ones (Box-Muller on two halves)."""
    u = (shifted(bits, 32).double() + 1.0) / 2.0**32
    v = (bits & 0xFFFFFFFF).double() / 2.0**32
    return (-2.0 * u.log()).sqrt() * (2.0 * math.pi * v).cos()


class Batch:
    """The id of the forward in progress, on one device, and the numbers drawn for it.

    Noise does not depend on the layer: the first router of a forward draws, the others find it here.

    Attributes:
        id: int64 [1].
    """

    def __init__(self, id: int, device: torch.device | str = "cpu") -> None:
        import torch

        with torch.inference_mode(mode=False):
            self.id = torch.full((1,), id, dtype=torch.int64, device=device)
        self._drawn: dict[tuple[Any, ...], Tensor] = {}

    def become(self, id: int) -> None:
        """Takes this id."""
        self.id.fill_(id)
        self._drawn.clear()

    def advance(self) -> None:
        """Takes the next id."""
        self.id.add_(1)
        self._drawn.clear()

    def bits(self, seed: int, scores: Tensor) -> Tensor:
        """See `noise`, for a batch of scores."""
        import torch

        rows, experts = scores.shape
        if (found := self._drawn.get((seed, rows, experts))) is None:
            found = noise(seed, self.id, torch.arange(rows, device=scores.device), experts)
            self._drawn[seed, rows, experts] = found
        return found

    def normal(self, seed: int, scores: Tensor) -> Tensor:
        """Standard normal numbers, float64, for a batch of scores."""
        key = ("normal", seed, *scores.shape)
        if (found := self._drawn.get(key)) is None:
            found = self._drawn[key] = gaussian(self.bits(seed, scores))
        return found


def rounded(values: Tensor, precision: str) -> Tensor:
    """Twin of algorithms.routers.rounded."""
    import torch

    values = values.float()
    if precision == "fp32":
        return values
    if precision == "bf16":
        return values.bfloat16().float()
    if precision == "int8":
        step = values.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30) / 127
        return (values / step).round() * step
    significand, exponent = PRECISIONS[precision]
    power = values.frexp().exponent.clamp(min=3 - 2 ** (exponent - 1)) - significand
    step = ((power + 127) << 23).to(torch.int32).view(torch.float32)  # 2**power, exact
    return ((values / step).round() * step).clamp(-LARGEST[precision], LARGEST[precision])


def mean_std(values: Tensor) -> tuple[Tensor, Tensor]:
    """Twin of algorithms.routers.mean_std."""
    kept = values.isfinite()
    count = kept.sum(dim=1, keepdim=True).clamp(min=1)
    finite = values.double().masked_fill(~kept, 0.0)
    mean = _total(finite) / count
    return mean, (_total(((finite - mean) ** 2).masked_fill(~kept, 0.0)) / count).sqrt()


def _total(values: Tensor) -> Tensor:
    import torch

    width = 1 << max(values.shape[1] - 1, 0).bit_length()
    values = torch.nn.functional.pad(values, (0, width - values.shape[1]))
    while width > 1:
        width //= 2
        values = values[:, :width] + values[:, width:]
    return values
