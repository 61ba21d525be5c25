"""vLLM: where a policy would go in; refused, as no release was tested.

The seams, read in the source of 0.32: `RoutingSimulator.register_strategy(name, strategy)` together with
VLLM_MOE_ROUTING_SIMULATION_STRATEGY=name before the workers start (a strategy sees hidden states and
logits, but no layer and no bias, so it would have to redo groups itself), or a subclass of `BaseRouter`.
"""

from __future__ import annotations

from typing import Any, NoReturn

from moexray.core.errors import UsageError

__all__ = ["routers"]


def routers(model: Any, *, to_write: bool = True) -> NoReturn:
    """Refuses.

    Raises:
        UsageError: always.
    """
    del to_write
    raise UsageError(
        f"{type(model).__name__}: router policies were not tested in vLLM; nothing was changed",
        hint="try the policy on recorded scores: moexray whatif router",
    )
