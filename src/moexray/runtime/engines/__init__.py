"""The engines: how each one's routers are found, read and written. One file an engine, named only here."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol

from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

__all__ = ["ENGINES", "Router", "routers"]

# package that a model's class comes from -> its adapter, with a function `routers(model)`
ENGINES = {
    "transformers": "moexray.runtime.engines.transformers",
    "vllm": "moexray.runtime.engines.vllm",
}


class Router(Protocol):
    """One router of a model. Rows are the tokens of a forward, in the engine's order.

    Attributes:
        module: torch module whose forward is the router.
        path: Of the module in the model.
        layer: Number in that path: dense layers count; None where the path has none.
        k: Experts per token.
        experts: Experts to choose from.
    """

    module: Any
    path: str
    layer: int | None
    k: int
    experts: int

    def read(self, output: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [rows, experts], weights and ids [rows, k], as the router returned them."""

    def scores(self, logits: Tensor) -> Tensor:
        """What the router selects by, float32 [rows, experts]; -inf where the model allows no choice."""

    def weights(self, logits: Tensor, ids: Tensor, like: Tensor, gone: Tensor | None = None) -> Tensor:
        """The model's own rule for the weights of chosen experts.

        Args:
            logits: [rows, experts].
            ids: [rows, k].
            like: Weights of the router, for their dtype.
            gone: bool [rows, k]: choices that are no part of the sum and get 0.
        """

    def write(self, output: Any, weights: Tensor, ids: Tensor) -> Any:
        """The router's output with these weights and ids."""


def routers(model: Any) -> Sequence[Router]:
    """The routers of a model, in order; each has been compared with the rule its adapter states.

    Raises:
        UsageError: an unknown engine, version or router: nothing may be changed; the message says which.
    """
    for module in model.modules():
        for kind in type(module).__mro__:
            package = kind.__module__.partition(".")[0]
            if package in ENGINES:
                found: Sequence[Router] = importlib.import_module(ENGINES[package]).routers(model)
                return found
    raise UsageError(
        f"{type(model).__name__} holds no module of an engine that moexray knows",
        hint=f"known engines: {', '.join(ENGINES)}",
    )
