"""The router policies of algorithms/routers.py on torch tensors: same names, options and choices.

Glossary: *scores* are what a router selects by, float32 [rows, experts], -inf where an expert is not
allowed; a *row* is a token of one forward; a *batch* is one forward, and has an id. Ids are the same bits
as numpy's on the same scores, ties included (to the lowest index); counters replace random generators, so
a row's noise depends on seed, batch id, row and expert only.

Nothing here waits for the device, but for `Capacity` with spill or reroute: these serve token after token
on the host. Temporaries come from torch's caching allocator; what outlives a call is allocated once.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Protocol

from moexray.algorithms.policy_text import split_policy
from moexray.algorithms.routers import MODES, PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["POLICIES", "Biased", "Capacity", "Plain", "Policy", "Salted", "SoftMask", "Sticky", "Temperature",
           "noise", "parse", "ranked", "rounded"]  # fmt: skip

LARGEST = {"fp16": 65504.0, "e4m3": 448.0, "e5m2": 57344.0}
# splitmix64, as signed numbers
_MIX = tuple(c - 2**64 for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


# ---- building blocks


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
    x = (x ^ _shifted(x, 30)) * _MIX[1]
    x = (x ^ _shifted(x, 27)) * _MIX[2]
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Right by so many bits, filled with zeros: torch fills with the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _gaussian(bits: Tensor) -> Tensor:
    u = (_shifted(bits, 32).double() + 1.0) / 2.0**32
    v = (bits & 0xFFFFFFFF).double() / 2.0**32
    return (-2.0 * u.log()).sqrt() * (2.0 * math.pi * v).cos()


def _drawn(scores: Tensor, seed: int, batch: Tensor) -> Tensor:
    """The noise of one batch."""
    import torch

    return noise(seed, batch, torch.arange(scores.shape[0], device=scores.device), scores.shape[1])


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


def _mean_std(values: Tensor) -> tuple[Tensor, Tensor]:
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


# ---- policies


class Policy(Protocol):
    """One policy for one router; it may keep state from forward to forward (bias, experts held).

    Attributes:
        changes_choice: False for `Plain`: the router's own result stands.
        on_host: It waits for the device.
        lost_counts: A choice that is lost keeps its part of the weights: the others are not raised.
    """

    changes_choice: bool
    on_host: bool
    lost_counts: bool

    def logits(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The logits that the choice starts from, and those that the weights start from."""

    def choose(self, scores: Tensor, k: int, batch: Tensor) -> tuple[Tensor, Tensor | None]:
        """Chooses experts.

        Args:
            scores: float32 [rows, experts].
            k: Experts per token.
            batch: int64 [1], id of the batch.

        Returns:
            Ids, int64 [rows, k], -1 where the choice is lost; and where choices can be lost the ids that
            were wanted, else None.
        """


class _Policy:
    changes_choice: bool = True
    on_host: bool = False
    lost_counts: bool = False

    def logits(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return logits, logits

    def choose(self, scores: Tensor, k: int, batch: Tensor) -> tuple[Tensor, Tensor | None]:  # noqa: ARG002
        return ranked(scores, k), None


class Plain(_Policy):
    """The router's own choice."""

    changes_choice = False


class Salted(_Policy):
    """Seeded noise of salt x scale on the scores; or, ties_only, lots for exact ties."""

    def __init__(
        self, *, seed: int = 0, salt: float = 17.0, scale: float = 1e-5, ties_only: bool = False,
        precision: str = "fp32",
    ) -> None:  # fmt: skip
        self.seed, self.salt, self.scale = seed, salt, scale
        self.ties_only, self.precision = ties_only, precision

    def logits(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Rounded to the precision."""
        used = logits if self.precision == "fp32" else rounded(logits, self.precision)
        return used, used

    def choose(self, scores: Tensor, k: int, batch: Tensor) -> tuple[Tensor, Tensor | None]:
        """See Policy."""
        bits = _drawn(scores, self.seed, batch)
        if not self.ties_only:
            return ranked(scores + (_gaussian(bits) * self.salt * self.scale).float(), k), None
        kth = scores.topk(k, dim=1).values[:, -1:]
        above, tied = scores > kth, scores == kth
        room = k - above.sum(dim=1, keepdim=True)
        lots = _shifted(bits, 1).masked_fill(~tied, 2**63 - 1)  # lowest lots win
        place = lots.argsort(dim=1, stable=True).argsort(dim=1, stable=True)
        return ranked(scores.masked_fill(~(above | (tied & (place < room))), -math.inf), k), None


class Temperature(_Policy):
    """Logits divided by a temperature: the same experts, flatter (above 1) or sharper weights."""

    def __init__(self, *, value: float = 2.0) -> None:
        self.value = value

    def logits(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Divided for the weights only: with a bias or groups, division would change the choice."""
        return logits, logits.float() / self.value


class SoftMask(_Policy):
    """Logits cut at mean + cap standard deviations of the row, with noise of sigma on the selection."""

    def __init__(self, *, cap: float = 1.0, sigma: float = 0.0, seed: int = 0) -> None:
        self.cap, self.sigma, self.seed = cap, sigma, seed

    def logits(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Cut."""
        mean, std = _mean_std(logits.float())
        used = logits.float().minimum((mean + self.cap * std).float())
        return used, used

    def choose(self, scores: Tensor, k: int, batch: Tensor) -> tuple[Tensor, Tensor | None]:
        """See Policy."""
        if self.sigma > 0:
            scores = scores + (_gaussian(_drawn(scores, self.seed, batch)) * self.sigma).float()
        return ranked(scores, k), None


class Biased(_Policy):
    """A bias per expert on the selection follows the load: after each forward, `rate` deviations up or down.

    The standard deviation is that of the first forward's scores (numpy's twin takes all scores of a run).
    """

    def __init__(self, *, rate: float = 0.02) -> None:
        self.rate = rate
        self.step: Tensor | None = None  # float32 [1]
        self._bias: Tensor | None = None

    def choose(self, scores: Tensor, k: int, batch: Tensor) -> tuple[Tensor, Tensor | None]:  # noqa: ARG002
        """See Policy."""
        import torch

        if self._bias is None:
            with torch.inference_mode(mode=False):
                self._bias = torch.zeros(scores.shape[1], device=scores.device)
        if self.step is None:
            self.step = (self.rate * _mean_std(scores.reshape(1, -1))[1]).float().reshape(1)
        ids = ranked(scores + self._bias, k)
        flat = ids.reshape(-1)
        load = torch.zeros_like(self._bias, dtype=torch.int64).scatter_add_(0, flat, torch.ones_like(flat))
        # mean - load, times the number of experts: whole numbers, so the sign is exact
        self._bias.add_(self.step * (flat.numel() - load * scores.shape[1]).sign())
        return ids, None


class Capacity(_Policy):
    """At most ceil(factor x k x rows / experts) rows of a forward per expert, first come first served.

    Mode: a choice without room is lost ("drop"), goes to the next best expert with room ("spill") or to
    the least loaded one with room ("reroute").
    """

    def __init__(self, *, factor: float = 1.25, mode: str = "drop") -> None:
        self.factor, self.mode = factor, mode
        self.on_host = mode != "drop"
        self.lost_counts = mode == "drop"

    def choose(self, scores: Tensor, k: int, batch: Tensor) -> tuple[Tensor, Tensor | None]:  # noqa: ARG002
        """See Policy."""
        rows, experts = scores.shape
        room = int(-(-self.factor * k * rows // experts))
        order = ranked(scores, experts)
        wanted = order[:, :k]
        kept = _turn(wanted, experts) < room
        if self.mode == "drop":
            return wanted.where(kept, -1), wanted
        return self._served(order, scores, kept, room), wanted

    def _served(self, order: Tensor, scores: Tensor, kept: Tensor, room: int) -> Tensor:
        """Rows before the first without room are settled; the rest is served by the numpy loop."""
        import numpy as np
        import torch

        from moexray.algorithms.routers import fill_batch

        (rows, experts), k = order.shape, kept.shape[1]
        settled = int(kept.all(dim=1).long().cumprod(dim=0).sum())
        best = order.cpu().numpy()
        ids = np.full((rows, k), -1, np.int64)
        ids[:settled] = best[:settled, :k]
        left = room - np.bincount(ids[:settled].ravel(), minlength=experts)
        usable = scores.isfinite().sum(dim=1).cpu().numpy()
        fill_batch(best[settled:], usable[settled:], left, MODES.index(self.mode), ids[settled:])
        return torch.from_numpy(ids).to(order.device)


def _turn(wanted: Tensor, experts: int) -> Tensor:
    """[rows, k]: how many choices before this one, row by row, wanted the same expert."""
    import torch

    flat = wanted.reshape(-1)
    asked = torch.zeros(experts, dtype=torch.int64, device=flat.device)
    asked.scatter_add_(0, flat, torch.ones_like(flat))
    before = asked.cumsum(dim=0) - asked
    together = flat.argsort(stable=True)
    at = torch.arange(flat.numel(), device=flat.device)
    turn = torch.empty_like(flat)
    turn[together] = at - before[flat[together]]
    return turn.view_as(wanted)


class Sticky(_Policy):
    """An expert of the row before keeps its place if it is within `margin` of the winners.

    The row before is the same row of the forward before: in decode, row i is sequence i. Where the number
    of rows changes (prefill, another batch) nothing is held.
    """

    def __init__(self, *, margin: float = 0.1) -> None:
        self.margin = margin
        self._held: Tensor | None = None

    def choose(self, scores: Tensor, k: int, batch: Tensor) -> tuple[Tensor, Tensor | None]:  # noqa: ARG002
        """See Policy."""
        import torch

        if self._held is None or self._held.shape != scores.shape:
            with torch.inference_mode(mode=False):
                self._held = torch.zeros(scores.shape, device=scores.device)
        ids = ranked(scores + self.margin * self._held, k)
        self._held.zero_().scatter_(1, ids, 1.0)
        return ids, None


# ---- by name

POLICIES: dict[str, Callable[..., Policy]] = {
    "plain": Plain,
    "salted": Salted,
    "temperature": Temperature,
    "soft-mask": SoftMask,
    "bias": Biased,
    "capacity": Capacity,
    "sticky": Sticky,
}


def parse(text: str) -> Callable[[], Policy]:
    """NAME[:key=value,...], as `moexray whatif router --policy` takes it, as a maker of policies.

    Raises:
        UsageError: unknown name or option, or a value that does not fit; the message lists what does.
    """
    name, options = split_policy(text, POLICIES, "policy")
    return partial(POLICIES[name], **options)
