"""`moexray.attach(model)`: what a running engine routes, recorded into a ring that other processes read.

    recording = moexray.attach(model)     # hooks; the ring is a file in shared memory
    ...                                   # serve; `moexray exporter --attach` or live.drain reads the ring
    recording.detach()                    # the hooks are gone, the ring says it is closed

Glossary: a *step* is one forward of the model; the *block* is the module around a router (the MoE layer),
whose time a record holds. The hooks return None, so they never change an output; they record only, and what
they raise ends in a counter, never in the engine. Compiled code (torch.compile) runs without them.

On a CPU the hook counts the ids. Elsewhere nothing may wait for the device: kernels count (see `counters`;
they go on when a captured graph is replayed), the counts are copied out every READ_EVERY steps without
waiting, and a record's times are those of the launch.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import weakref
from functools import partial, wraps
from itertools import count
from typing import TYPE_CHECKING, Any, Self

from moexray.core.errors import UsageError
from moexray.runtime.allocations import Allocations
from moexray.runtime.engines import engine_of, routers
from moexray.runtime.guard import Guard, say_once
from moexray.runtime.handle import Handle, Hook
from moexray.runtime.on_device import GAUGES, OnDevice
from moexray.runtime.recorder import Ring, Site, ring_folder
from moexray.runtime.tracing import current_span

if TYPE_CHECKING:
    from moexray.runtime.engines import Router

__all__ = ["Recording", "attach"]

HELD = 4096  # pairs of a call that is recorded after its step; larger ones at once

_log = logging.getLogger(__name__)
_now = time.monotonic_ns
_recordings: weakref.WeakSet[Recording] = weakref.WeakSet()  # of this process


def attach(model: Any, *, by_kernels: bool | None = None, **options: Any) -> Recording:
    """Records the routing of a model from now on.

    Args:
        model: A torch module of a known engine, in the process that runs it.
        by_kernels: Whether kernels count; by default where the routers are not on the CPU.
        options: Of recorder.Ring: folder (where the ring lies; by default MOEXRAY_RINGS, else
            /dev/shm/moexray-UID), max_bytes (of the ring; the oldest records are overwritten, totals are
            kept), ids (so many expert ids of each call are kept beside the counts; none on a device).

    Returns:
        The handle. Where the model, a router, the engine's version or the ring's place is not fit, or the
        model is recorded already into that folder (by `moexray record`, say), nothing is changed, `attached`
        is False and `reason` says why; that is logged once.
    """
    return Recording(model, by_kernels=by_kernels, **options).attach()


class Recording(Handle):
    """Detaches the hooks; safe twice.

    Attributes:
        guard: Kill switch (MOEXRAY_OFF=attach) and failures.
        ring: What is written to; None before the first attach.
        reason: Why nothing was attached; empty if it was.
    """

    def __init__(self, model: Any, *, by_kernels: bool | None = None, **options: Any) -> None:
        super().__init__("attach", self._put_in)
        self.guard = Guard("attach", told=False)
        self.ring: Ring | None = None
        self.reason = ""
        self._model, self._by_kernels, self._options = model, by_kernels, options
        self._device: OnDevice | None = None
        self._modules: set[int] = set()  # of the routers that are recorded
        _recordings.add(self)

    def attach(self) -> Self:
        """Puts the hooks in, or says in `reason` why not; never raises."""
        try:
            self.reason = ""
            return super().attach()
        except (UsageError, OSError) as why:
            self.reason = str(why)
        except Exception as why:  # noqa: BLE001 - the edge of a host engine
            self.reason = f"{type(why).__name__}: {why}"
        say_once(f"no recording was attached: {self.reason}", log=_log)
        return self

    def __repr__(self) -> str:
        """Whether it records, what, and where to."""
        if not self.attached or self.ring is None:
            return f"<Recording: not attached{': ' * bool(self.reason)}{self.reason}>"
        model = type(self._model).__name__
        return f"<Recording: {len(self.ring.sites)} routers of {model} into {self.ring.path}>"

    def flush(self) -> None:
        """Brings all counts of a device into the ring; waits for the device. Between steps only."""
        if self._device is not None:
            self._device.collect()
        if self.ring is not None:
            self.ring.flush()

    def _put_in(self, _: Handle) -> None:
        found = routers(self._model, to_write=False)
        sites = [Site(r.path, -1 if r.layer is None else r.layer, r.experts, r.k) for r in found]
        places = sorted({str(next(r.module.parameters()).device) for r in found})
        if len(places) > 1:
            raise UsageError(f"routers on several devices ({', '.join(places)}): nothing was changed")
        _refuse_compiled(self._model, [router.path for router in found])
        self._refuse_twice({id(router.module) for router in found})
        engine = engine_of(self._model)
        facts = {
            "engine": engine, "version": getattr(sys.modules.get(engine), "__version__", ""),
            "model": type(self._model).__name__, "device": places[0],
            "rank": _rank(), "role": "model",
        }  # fmt: skip
        names = tuple(GAUGES) if places[0].startswith("cuda") else ()
        ring = self.ring = Ring(sites, facts, gauges=names, **self._options)
        self.on_detach(ring.close)
        gone = weakref.finalize(self._model, ring.close)  # deleted while it was recorded
        gone.atexit = False
        self.on_detach(gone.detach)
        elsewhere = places[0] != "cpu" if self._by_kernels is None else self._by_kernels
        self._device = OnDevice(ring, places[0]) if elsewhere else None
        bundle = os.environ.get("MOEXRAY_BUNDLE")  # set by `moexray record`
        name = f"rank{facts['rank'] or 0}_{os.getpid()}"
        allocations = Allocations(bundle, places[0], name) if bundle else None
        if allocations is not None:
            self.on_detach(allocations.end)
        clock = _Clock(ring, self.guard, self._device, allocations)
        blocks: dict[weakref.ref[Any], list[int]] = {}  # a class outlives its model
        for number, router in enumerate(found):
            if router.block is not None:
                blocks.setdefault(weakref.ref(router.block), []).append(number)
            self.on_detach(router.watch(clock.after(number, router)))
        there = [router.block for router in found if router.block is not None]
        for owner in {block if "forward" in vars(block) else type(block): None for block in there}:
            self.replace(owner, "forward", clock.around(blocks, owner))
        self.on_detach(blocks.clear)  # where somebody else's lies over ours, ours only passes on
        self.on_detach(self._model.register_forward_pre_hook(Hook(clock.begin)).remove)
        self.on_detach(self._model.register_forward_hook(Hook(clock.end), always_call=True).remove)
        if self._device is not None or (allocations is not None and allocations.by_profiles):
            self.on_detach(self._model.register_forward_hook(Hook(clock.left), always_call=True).remove)
        self.on_detach(self.flush)

    def _refuse_twice(self, modules: set[int]) -> None:
        """A reader of the folder would count what two recordings of one model wrote twice."""
        folder = ring_folder(self._options.get("folder"))
        for other in list(_recordings):
            ring = other.ring if other.attached and other is not self else None
            if ring is not None and ring.path.parent == folder and other._modules & modules:  # noqa: SLF001
                raise UsageError(f"the model is recorded already, into {ring.path}")
        self._modules = modules


def _refuse_compiled(model: Any, routers: list[str]) -> None:
    """Routers in compiled code run without hooks: an empty recording would look like an idle engine."""
    for name, module in model.named_modules():
        within = not name or any(path == name or path.startswith(f"{name}.") for path in routers)
        if within and (hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None)):
            raise UsageError(
                f"{name or type(model).__name__} is compiled by torch.compile, whose code runs without hooks",
                hint="run it without torch.compile (TORCH_COMPILE_DISABLE=1) while you record",
            )


def _rank() -> int | None:
    """Global rank of this process; None outside of a group."""
    import torch

    group = torch.distributed
    if group.is_available() and group.is_initialized():
        return int(group.get_rank())
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdigit() else None


class _Forward:
    """What one thread's forward has come to: forwards of two threads do not mix.

    On the CPU each is recorded. A device counts one forward at a time; one that another thread runs meanwhile
    is not counted there (`mine`), but as a failure.
    """

    __slots__ = (
        "calls", "carry_ns", "inside", "mine", "own_ns", "rows", "seen", "span", "step", "t0", "waits",
    )  # fmt: skip

    def __init__(self) -> None:
        self.step = -1
        self.t0 = self.rows = 0
        self.own_ns = self.carry_ns = 0  # cost of recording in this step; of the end of the one before
        self.inside = False  # the model's own forward
        self.waits = False  # its calls wait for its end
        self.mine = True  # this step is counted: the device is not at the one of another thread
        self.calls: list[tuple[int, int, int, Any]] = []  # of this step: site, start, end, ids
        self.span: tuple[int, int] | None = None  # of OpenTelemetry, that the step is done for
        self.seen: set[int] = set()  # sites of this step, where an inner module was called


class _Here(threading.local):
    """The forward of the thread that asks."""

    def __init__(self) -> None:
        self.forward = _Forward()


class _Clock:
    """The hooks. Each returns None: a hook that returns something replaces the output.

    Between two of them the model's own work drives their code out of the caches, so that a line costs many
    times what it costs alone: they keep times and ids, and all else waits until the ring counts many steps.
    """

    def __init__(
        self, ring: Ring, guard: Guard, device: OnDevice | None, allocations: Allocations | None = None
    ) -> None:
        import torch

        self.ring, self.guard, self.device, self.allocations = ring, guard, device, allocations
        self.here = _Here()
        self.on = guard.on
        self._steps = count()
        self._compiling, self._traced = torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling

    def begin(self, _model: Any, _args: Any) -> None:
        """Before the model's forward."""
        if self._traced():
            return
        here = self.here.forward
        here.inside = here.waits = False
        if self._compiling():  # an export, whose tensors hold no numbers
            self.on = False
            return
        self.on = self.guard.on
        here.inside, here.waits = True, self.device is None
        try:
            if self.on and self.allocations is not None:
                self.allocations.begin()
            self._next_step(here)
        except Exception as why:  # noqa: BLE001 - the edge of a host engine
            self._failed(why)

    def end(self, _model: Any, _args: Any, output: Any) -> None:
        """After it, also where the forward raised: then the step has no record of its own."""
        if self._traced():
            return
        here, now = self.here.forward, _now()
        raised = output is None and sys.exc_info()[0] is not None
        if self.on:
            try:
                if self.device is None:
                    calls, here.calls = here.calls, []
                    if calls:
                        here.rows = calls[-1][3].shape[0]
                    t1 = None if raised else now
                    self.ring.hold(here.step, here.t0, t1, here.rows, here.own_ns, calls, here.span)
                    here.carry_ns = _now() - now
                elif not raised:
                    self._end_on(self.device, here, now)
            except Exception as why:  # noqa: BLE001 - the edge of a host engine
                self._failed(why)
        here.inside = here.waits = False
        here.step = -1

    def left(self, _model: Any, _args: Any, _output: Any) -> None:
        """After `end`, and where the forward raised: the device is free for another thread."""
        if self.allocations is not None:
            self.allocations.step_ended()
        if self.device is not None and not self._compiling():
            here = self.here.forward
            here.inside, here.step = False, -1
            self.device.release()

    def around(self, blocks: dict[weakref.ref[Any], list[int]], owner: Any) -> Any:
        """`forward` of a class of blocks, or of a block with one of its own: times those that hold routers.

        In place of two hooks, which make a module's call take its slow path: that cost more than the record.
        """
        local, traced, ref = self.here, self._traced, weakref.ref
        call = original = owner.forward
        if not isinstance(owner, type):

            def call(_block: Any, *args: Any, **kwargs: Any) -> Any:
                return original(*args, **kwargs)

        @wraps(original)
        def forward(block: Any, *args: Any, **kwargs: Any) -> Any:
            sites = None if traced() or not self.on else blocks.get(ref(block))
            if sites is None:
                return call(block, *args, **kwargs)
            here, t0 = local.forward, _now()
            first = len(here.calls)
            output = call(block, *args, **kwargs)
            now = _now()
            try:
                calls = here.calls
                for at in range(first, len(calls)):
                    site, _, _, ids = calls[at]
                    if site in sites:
                        calls[at] = (site, t0, now, ids)
                if calls and not (here.waits and calls[-1][3].numel() <= HELD):
                    self._write(here, first)
            except Exception as why:  # noqa: BLE001 - the edge of a host engine
                self._failed(why)
            here.own_ns += _now() - now
            return output

        return forward if isinstance(owner, type) else partial(forward, owner)

    def after(self, site: int, router: Router) -> Any:
        """What a router's choice is told to."""
        local, traced, read, alone = self.here, self._traced, router.ids, router.block is None

        def chosen(*seen: Any) -> None:
            if not self.on or traced():
                return
            here, now = local.forward, _now()
            try:
                ids = read(seen[-1])
                here.calls.append((site, now, now, ids))  # the times of its block come later
                if alone and not (here.waits and ids.numel() <= HELD):
                    self._write(here, len(here.calls) - 1)
            except Exception as why:  # noqa: BLE001 - the edge of a host engine
                self._failed(why)

        return chosen

    def _write(self, here: _Forward, first: int) -> None:
        """Calls that do not wait for the end of their step."""
        calls, here.calls = here.calls[first:], here.calls[:first]
        if self._compiling():  # an export of an inner module
            return
        for site, t0, t1, ids in calls:
            if not here.inside:  # an inner module was called
                if site in here.seen or here.step < 0:
                    self._next_step(here)
                here.seen.add(site)
            here.rows = rows = ids.shape[0]
            if self.device is None:
                self.ring.write(site, here.step, t0, t1, rows, ids.numpy())
            elif here.mine:
                self.device.add(site, t0, t1, ids)

    def _next_step(self, here: _Forward) -> None:
        here.t0 = began = _now()
        before, here.step, here.rows = here.step, next(self._steps), 0
        here.seen.clear()
        if here.calls:  # of a forward that raised
            calls, here.calls = here.calls, []
            if self.device is None:
                self.ring.hold(before, 0, None, calls=calls, span=here.span)
            else:  # too late to count there
                for _ in calls:
                    self.ring.failed()
        if self.on:
            here.span = current_span()
            if self.device is not None:
                self._begin_on(self.device, here)
        here.own_ns, here.carry_ns = here.carry_ns + _now() - began, 0

    def _end_on(self, device: OnDevice, here: _Forward, now: int) -> None:
        self._write(here, 0)  # of blocks that were not called as modules
        if here.mine:
            device.step(here.step, here.t0, now, here.rows, own_ns=here.own_ns)

    def _begin_on(self, device: OnDevice, here: _Forward) -> None:
        here.mine = False
        here.mine = device.begin(here.step, holds=here.inside)
        if not here.mine:
            self.ring.failed()
            say_once("forwards of several threads at once: a device counts one, others fail", log=_log)
        if here.span is not None:
            self.ring.request(here.step, *here.span)

    def _failed(self, why: Exception) -> None:
        self.ring.failed()
        self.guard.failed(why)
        self.on = self.guard.on
