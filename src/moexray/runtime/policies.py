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
from moexray.runtime.scores import mean_std, ranked, rounded, shifted

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from moexray.runtime.scores import Batch

__all__ = ["POLICIES", "Biased", "Capacity", "Plain", "Policy", "Salted", "SoftMask", "Sticky", "Temperature",
           "parse"]  # fmt: skip


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

    def choose(self, scores: Tensor, k: int, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Chooses experts.

        Args:
            scores: float32 [rows, experts].
            k: Experts per token.
            batch: The forward in progress.

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

    def choose(self, scores: Tensor, k: int, batch: Batch) -> tuple[Tensor, Tensor | None]:  # noqa: ARG002
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

    def choose(self, scores: Tensor, k: int, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """See Policy."""
        if not self.ties_only:
            salt = batch.normal(self.seed, scores) * self.salt * self.scale
            return ranked(scores + salt.float(), k), None
        bits = batch.bits(self.seed, scores)
        kth = scores.topk(k, dim=1).values[:, -1:]
        above, tied = scores > kth, scores == kth
        room = k - above.sum(dim=1, keepdim=True)
        lots = shifted(bits, 1).masked_fill(~tied, 2**63 - 1)  # lowest lots win
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
        mean, std = mean_std(logits.float())
        used = logits.float().minimum((mean + self.cap * std).float())
        return used, used

    def choose(self, scores: Tensor, k: int, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """See Policy."""
        if self.sigma > 0:
            scores = scores + (batch.normal(self.seed, scores) * self.sigma).float()
        return ranked(scores, k), None


class Biased(_Policy):
    """A bias per expert on the selection follows the load: after each forward, `rate` deviations up or down.

    The standard deviation is that of the first forward with tokens (numpy's twin takes all scores of a run).
    """

    def __init__(self, *, rate: float = 0.02) -> None:
        self.rate = rate
        self.step: Tensor | None = None  # float32 [1]
        self._bias: Tensor | None = None

    def choose(self, scores: Tensor, k: int, batch: Batch) -> tuple[Tensor, Tensor | None]:  # noqa: ARG002
        """See Policy."""
        import torch

        if self._bias is None:
            with torch.inference_mode(mode=False):
                self._bias = torch.zeros(scores.shape[1], device=scores.device)
        ids = ranked(scores + self._bias, k)
        if not len(scores):  # a rank without tokens: there is no load, and no deviation to keep
            return ids, None
        if self.step is None:
            self.step = (self.rate * mean_std(scores.reshape(1, -1))[1]).float().reshape(1)
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

    def choose(self, scores: Tensor, k: int, batch: Batch) -> tuple[Tensor, Tensor | None]:  # noqa: ARG002
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
        """Rows before the first without room are settled; the others are served one after another."""
        import torch

        k, experts = kept.shape[1], order.shape[1]
        settled = int(kept.all(dim=1).long().cumprod(dim=0).sum())
        ids: list[list[int]] = order[:settled, :k].tolist()
        left = (room - order[:settled, :k].reshape(-1).bincount(minlength=experts)).tolist()
        usable = scores[settled:].isfinite().sum(dim=1).tolist()
        ids += map(partial(self._serve, left, k), order[settled:].tolist(), usable)
        return torch.tensor(ids, dtype=torch.int64, device=order.device).view(-1, k)

    def _serve(self, left: list[int], k: int, best: list[int], usable: int) -> list[int]:
        """One row, by lists: ten times as fast as numpy's twin (fill_batch); lowers what is left."""
        ids: list[int] = []
        for expert in best[:k]:
            chosen = expert
            if left[expert] <= 0 or expert in ids:
                free = (e for e in best[:usable] if left[e] > 0 and e not in ids)
                if self.mode == "spill":
                    chosen = next(free, -1)
                else:
                    chosen = max(free, key=lambda e: (left[e], -e), default=-1)
            ids.append(chosen)
            left[chosen] -= chosen >= 0
        return ids


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

    def choose(self, scores: Tensor, k: int, batch: Batch) -> tuple[Tensor, Tensor | None]:  # noqa: ARG002
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
    """NAME[:key=value,...], as `moexray whatif routing --policy` takes it, as a maker of policies.

    Raises:
        UsageError: unknown name or option, or a value that does not fit; the message lists what does.
    """
    name, options = split_policy(text, POLICIES, "policy")
    return partial(POLICIES[name], **options)
