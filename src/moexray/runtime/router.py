"""Router policies inside an engine: `attach(model, "salted:ties_only=true")`, and `detach()`.

The router runs as it always does; a hook then chooses again by the policy, on what the model allows, and
computes the weights by the model's own rule. So the original result is at hand: it stands where the policy
is "plain", switched off, or raises. Choices are a function of the logits, the row's place in the forward,
and the batch id: the number of the forward, or what `next_batch` says; while switched off none is counted.

A choice that capacity drops keeps its expert with weight 0: the output is that of a drop; the work is not
saved. Under torch.compile or CUDA graphs: attach, run one forward, then capture; `next_batch` reaches into
a captured graph, the count of forwards does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from moexray.core.errors import UsageError
from moexray.runtime.engines import routers
from moexray.runtime.guard import Guard, say_once
from moexray.runtime.handle import Handle, Hook
from moexray.runtime.policies import parse
from moexray.runtime.scores import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from moexray.runtime.engines import Router
    from moexray.runtime.policies import Policy

__all__ = ["Effect", "RouterHandle", "attach"]


@dataclass(frozen=True, slots=True)
class Effect:
    """What a policy did to one router.

    Args:
        path: Module.
        layer: Number in that path, or None.
        choices: Choices made under the policy.
        flips: Of these, how many the router would not have made.
        lost: Of these, how many got no expert.
    """

    path: str
    layer: int | None
    choices: int
    flips: int
    lost: int


def attach(model: Any, policy: str) -> RouterHandle:
    """Puts a policy over every router of a model.

    Args:
        model: A torch module of a known engine.
        policy: NAME[:key=value,...] as for `moexray whatif routing`, without batch: a forward is one.

    Returns:
        The handle. Where the model, a router or the engine's version is not known, nothing is changed,
        `attached` is False and `reason` says why; that is logged once.

    Raises:
        UsageError: there is no such policy or option.
    """
    return RouterHandle(model, parse(policy)).attach()


class RouterHandle(Handle):
    """Detaches the policy; meanwhile names batches and tells what it did.

    Attributes:
        guard: Kill switch, calls (one a router and forward) and fallbacks.
        reason: Why nothing was attached; empty if it was.
    """

    def __init__(self, model: Any, make: Callable[[], Policy]) -> None:
        super().__init__("router", self._put_in)
        self.guard = Guard("router")
        self.reason = ""
        self._model, self._make = model, make
        self._sites: Sequence[_Site] = ()
        self._batches: dict[Any, Batch] = {}  # by device
        self._named = False

    def attach(self) -> Self:
        """Puts the policy in, or says in `reason` why not; never raises."""
        try:
            self.reason = ""
            return super().attach()
        except UsageError as why:
            self.reason = str(why)
        except Exception as why:  # noqa: BLE001 - the edge of a host engine
            self.reason = f"{type(why).__name__}: {why}"
        say_once(f"router policy is not attached: {self.reason}")
        return self

    def next_batch(self, id: int) -> None:
        """Gives the next forward this batch id; those after it count on from there."""
        self._named = True
        for batch in self._batches.values():
            batch.become(id)

    def effects(self) -> list[Effect]:
        """What the policy did since it was attached, router by router; waits for the device."""
        return [
            Effect(site.router.path, site.router.layer, *(int(n) for n in site.counts.tolist()))
            for site in self._sites
        ]

    def _put_in(self, _: Handle) -> None:
        import torch

        found = routers(self._model)
        with torch.inference_mode(mode=False):
            places = [next(router.module.parameters()).device for router in found]
            self._batches = {at: Batch(-1, at) for at in set(places)}
            self._sites = [
                _Site(router, self._make(), self._batches[at], torch.zeros(3, dtype=torch.int64, device=at))
                for router, at in zip(found, places, strict=True)
            ]
        slow = [site for site in self._sites if site.policy.on_host and site.counts.device.type != "cpu"]
        if slow:
            raise UsageError(
                f"{slow[0].router.path}: this policy serves token after token on the host and would stop the "
                f"{slow[0].counts.device.type} device in each layer",
                hint="capacity:mode=drop and bias stay on the device",
            )
        self.on_detach(self._model.register_forward_pre_hook(Hook(self._enter)).remove)
        for site in self._sites:
            hook = Hook(partial(self._after, site))
            self.on_detach(site.router.module.register_forward_hook(hook).remove)

    def _enter(self, _model: Any, _args: Any) -> None:
        if not self.guard.on:
            return
        try:
            if not self._named:
                for batch in self._batches.values():
                    batch.advance()
            self._named = False
        except Exception as why:  # noqa: BLE001 - the edge of a host engine
            self.guard.failed(why)

    def _after(self, site: _Site, _module: Any, _args: Any, output: Any) -> Any:
        return self.guard.run(site.decide, _leave, output)


def _leave(_output: Any) -> None:
    """The original path: a hook that returns None changes nothing."""


@dataclass(frozen=True, slots=True)
class _Site:
    """One router under a policy.

    Args:
        router: Of the engine.
        policy: Its own, with its state.
        batch: Shared by the routers of a device.
        counts: int64 [3]: choices, flips, lost.
    """

    router: Router
    policy: Policy
    batch: Batch
    counts: Tensor

    def decide(self, output: Any) -> Any:
        """The router's output under the policy; None leaves it as it is."""
        if not self.policy.changes_choice:
            return None
        logits, weights, before = self.router.read(output)
        by, paid = self.policy.logits(logits)
        ids, wanted = self.policy.choose(self.router.scores(by), self.router.k, self.batch)
        if wanted is None:
            made = self.router.write(output, self.router.weights(paid, ids, weights), ids)
        else:
            lost = ids < 0
            named = wanted.where(lost, ids)
            gone = None if self.policy.lost_counts else lost
            new = self.router.weights(paid, named, weights, gone).masked_fill(lost, 0.0)
            made = self.router.write(output, new, named)
        self._count(ids, before)  # last: what raises above was not done
        return made

    def _count(self, ids: Tensor, before: Tensor) -> None:
        kept = (ids[:, :, None] == before[:, None, :]).any(dim=2).sum()
        self.counts[0] += ids.numel()
        self.counts[1] += ids.numel() - kept
        self.counts[2] += (ids < 0).sum()
