"""The engines: how each one's routers are found, read and written. One file an engine, named only here."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol

from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

__all__ = ["ENGINES", "ON_IMPORT", "Router", "engine_of", "routers"]

# package that a model's class comes from -> its adapter, with a function `routers(model)`
ENGINES = {
    "transformers": "moexray.runtime.engines.transformers",
    "vllm": "moexray.runtime.engines.vllm",
}
# module whose import tells that an engine is in use -> what has its models recorded, in a recorded program
ON_IMPORT = {
    "transformers.modeling_utils": "moexray.runtime.engines.transformers:register",
    "vllm.model_executor.model_loader.base_loader": "moexray.runtime.engines.vllm:register",
}


class Router(Protocol):
    """One router of a model. Rows are the tokens of a forward, in the engine's order.

    Attributes:
        module: torch module of the router, or of the layer that holds it.
        block: torch module around it, the MoE layer, whose time is recorded; None where it may not be hooked.
        path: Of the module in the model.
        layer: Number in that path: dense layers count; None where the path has none.
        k: Experts per token.
        experts: Experts to choose from.
    """

    module: Any
    block: Any
    path: str
    layer: int | None
    k: int
    experts: int

    def watch(self, told: Callable[..., None]) -> Callable[[], object]:
        """Has `told` called after each choice, with what `ids` reads as last argument; gives the undo."""

    def ids(self, seen: Any) -> Tensor:
        """Logical expert ids [rows, k], as the router chose them."""

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


def routers(model: Any, *, to_write: bool = True) -> Sequence[Router]:
    """The routers of a model, in the order of its modules.

    Args:
        model: A torch module of a known engine.
        to_write: `scores`, `weights` and `write` are wanted, too: each router is compared with the rule that
            its adapter states. Else only `watch` and `ids` are.

    Raises:
        UsageError: an unknown engine, version or router: nothing may be changed; the message says which.
    """
    if not callable(getattr(model, "named_modules", None)):
        raise UsageError(f"{type(model).__name__} is no torch module", hint="give the model itself")
    name = engine_of(model)
    if not name:
        raise UsageError(
            f"{type(model).__name__} holds no module of an engine that moexray knows",
            hint=f"known engines: {', '.join(ENGINES)}",
        )
    found: Sequence[Router] = importlib.import_module(ENGINES[name]).routers(model, to_write=to_write)
    return found


def engine_of(model: Any) -> str:
    """The package that a model's class comes from, a key of ENGINES; empty if none."""
    for module in model.modules():
        for kind in type(module).__mro__:
            package = kind.__module__.partition(".")[0]
            if package in ENGINES:
                return package
    return ""
