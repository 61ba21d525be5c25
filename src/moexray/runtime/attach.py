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
from collections import deque
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Self

from moexray.core.errors import UsageError
from moexray.runtime.allocations import Allocations
from moexray.runtime.counters import ExpertCounter
from moexray.runtime.engines import engine_of, routers
from moexray.runtime.guard import Guard, say_once
from moexray.runtime.handle import Handle
from moexray.runtime.recorder import Ring, Site

if TYPE_CHECKING:
    from moexray.runtime.engines import Router

__all__ = ["READ_EVERY", "Recording", "attach"]

READ_EVERY = 16  # steps between two copies of the counts from a device (our choice)
FEW = 64  # pairs of a call that are counted one by one: in a running model half the cost of numpy
HELD = 4096  # pairs of a call that is recorded at the end of its step; larger ones at once
PAIRS = 1 << 20  # token-expert pairs of one call on a device: 131,072 tokens x 8; takes 12 MiB there
SECOND = 1_000_000_000
GAUGES = {
    "reserved_bytes": "reserved_bytes.all.current",
    "allocated_bytes": "allocated_bytes.all.current",
    "inactive_split_bytes": "inactive_split_bytes.all.current",
    "retries": "num_alloc_retries",
    "ooms": "num_ooms",
}  # name of ours -> key of torch.cuda.memory_stats()

_log = logging.getLogger(__name__)
_now = time.monotonic_ns


def attach(model: Any, *, by_kernels: bool | None = None, **options: Any) -> Recording:
    """Records the routing of a model from now on.

    Args:
        model: A torch module of a known engine, in the process that runs it.
        by_kernels: Whether kernels count; by default where the routers are not on the CPU.
        options: Of recorder.Ring: folder (where the ring lies; by default MOEXRAY_RINGS, else
            /dev/shm/moexray-UID), max_bytes (of the ring; the oldest records are overwritten, totals are
            kept), ids (so many expert ids of each call are kept beside the counts; none on a device).

    Returns:
        The handle. Where the model, a router, the engine's version or the ring's place is not fit, nothing is
        changed, `attached` is False and `reason` says why; that is logged once.
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
        self.guard = Guard("attach")
        self.ring: Ring | None = None
        self.reason = ""
        self._model, self._by_kernels, self._options = model, by_kernels, options
        self._device: _OnDevice | None = None

    def attach(self) -> Self:
        """Puts the hooks in, or says in `reason` why not; never raises."""
        try:
            self.reason = ""
            return super().attach()
        except (UsageError, OSError) as why:
            self.reason = str(why)
        except Exception as why:  # noqa: BLE001 - the edge of a host engine
            self.reason = f"{type(why).__name__}: {why}"
        say_once(f"nothing is recorded: {self.reason}", log=_log)
        return self

    def flush(self) -> None:
        """Brings all counts of a device into the ring; waits for the device. Between steps only."""
        if self._device is not None:
            self._device.collect()

    def _put_in(self, _: Handle) -> None:
        found = routers(self._model, to_write=False)
        sites = [Site(r.path, -1 if r.layer is None else r.layer, r.experts, r.k) for r in found]
        places = sorted({str(next(r.module.parameters()).device) for r in found})
        if len(places) > 1:
            raise UsageError(f"routers on several devices ({', '.join(places)}): nothing was changed")
        engine = engine_of(self._model)
        facts = {
            "engine": engine, "version": getattr(sys.modules.get(engine), "__version__", ""),
            "model": type(self._model).__name__, "device": places[0],
            "rank": _rank(), "role": "model",
        }  # fmt: skip
        names = tuple(GAUGES) if places[0].startswith("cuda") else ()
        ring = self.ring = Ring(sites, facts, gauges=names, **self._options)
        self.on_detach(ring.close)
        elsewhere = places[0] != "cpu" if self._by_kernels is None else self._by_kernels
        self._device = _OnDevice(ring, places[0]) if elsewhere else None
        bundle = os.environ.get("MOEXRAY_BUNDLE")  # set by `moexray record`
        name = f"rank{facts['rank'] or 0}_{os.getpid()}"
        allocations = Allocations(bundle, places[0], name) if bundle else None
        if allocations is not None:
            self.on_detach(allocations.end)
        clock = _Clock(ring, self.guard, self._device, allocations)
        blocks: dict[int, list[int]] = {}
        for number, router in enumerate(found):
            if router.block is not None:
                blocks.setdefault(id(router.block), []).append(number)
            self.on_detach(router.watch(partial(clock.chosen, number, router)))
        for numbers in blocks.values():
            block = found[numbers[0]].block
            self.on_detach(block.register_forward_pre_hook(partial(clock.enter, numbers)).remove)
            self.on_detach(block.register_forward_hook(partial(clock.leave, numbers)).remove)
        self.on_detach(self._model.register_forward_pre_hook(clock.begin).remove)
        self.on_detach(self._model.register_forward_hook(clock.end).remove)
        if self._device is not None:
            self.on_detach(self._model.register_forward_hook(clock.left, always_call=True).remove)
        self.on_detach(self.flush)


def _rank() -> int | None:
    """Global rank of this process; None outside of a group."""
    import torch

    group = torch.distributed
    if group.is_available() and group.is_initialized():
        return int(group.get_rank())
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdigit() else None


class _Here(threading.local):
    """State of the thread that runs a forward: steps of two threads do not mix.

    On the CPU each is recorded. A device counts one forward at a time; one that another thread runs meanwhile
    is not counted there (`mine`), but as a failure.
    """

    def __init__(self) -> None:
        self.step = -1  # of the forward
        self.t0 = self.rows = 0
        self.own_ns = self.carry_ns = 0  # cost of recording in this step; of the end of the one before
        self.inside = False  # the model's own forward
        self.mine = True  # this step is counted: the device is not at the one of another thread
        self.entered: dict[int, int] = {}  # site -> when its block began
        self.ids: dict[int, Any] = {}  # site -> chosen ids, until its block ends
        self.calls: list[Any] = []  # of this step, held back: site, start, end, ids
        self.seen: set[int] = set()  # sites of this step


class _Clock:
    """The hooks. Each returns None: a hook that returns something replaces the output."""

    def __init__(
        self, ring: Ring, guard: Guard, device: _OnDevice | None, allocations: Allocations | None = None
    ) -> None:
        import torch

        self.ring, self.guard, self.device, self.allocations = ring, guard, device, allocations
        self.here = _Here()
        self.on = guard.on
        self._steps = count()
        self._compiling = torch.compiler.is_compiling

    def begin(self, _model: Any, _args: Any) -> None:
        """Before the model's forward."""
        if self._compiling():
            return
        self.on = self.guard.on
        self.here.inside = True
        try:
            if self.on and self.allocations is not None:
                self.allocations.begin()
            self._next_step(self.here)
        except Exception as why:  # noqa: BLE001 - the edge of a host engine
            self._failed(why)

    def end(self, _model: Any, _args: Any, _output: Any) -> None:
        """After it; where the forward raised it does not run, and the step has no record of its own."""
        here = self.here
        here.inside = False
        if self.on and not self._compiling():
            try:
                self._end(here, _now())
            except Exception as why:  # noqa: BLE001 - the edge of a host engine
                self._failed(why)

    def left(self, _model: Any, _args: Any, _output: Any) -> None:
        """After `end`, and where the forward raised: the device is free for another thread."""
        if self.device is not None and not self._compiling():
            self.here.inside = False
            self.device.release()

    def _end(self, here: _Here, now: int) -> None:
        if self.device is not None:
            if here.mine:
                self.device.step(here.step, here.t0, now, here.rows, own_ns=here.own_ns)
            return
        few = max((call[3].numel() for call in here.calls), default=0) <= FEW
        calls = [(site, t0, t1, ids.tolist() if few else ids.numpy()) for site, t0, t1, ids in here.calls]
        here.calls.clear()
        self.ring.step(here.step, here.t0, now, here.rows, own_ns=here.own_ns, calls=calls)
        here.carry_ns = _now() - now

    def enter(self, sites: list[int], _block: Any, _args: Any) -> None:
        """Before the block around routers."""
        if self.on and not self._compiling():
            now = _now()
            for site in sites:
                self.here.entered[site] = now

    def chosen(self, site: int, router: Router, seen: Any) -> None:
        """After a router."""
        if not self.on or self._compiling():
            return
        began, here = _now(), self.here
        try:
            here.ids[site] = router.ids(seen)
            if site not in here.entered:  # its block is not called as a module, or not hooked
                self._write(here, site, began)
        except Exception as why:  # noqa: BLE001 - the edge of a host engine
            self._failed(why)
        here.own_ns += _now() - began

    def leave(self, sites: list[int], _block: Any, _args: Any, _output: Any) -> None:
        """After the block."""
        if not self.on or self._compiling():
            return
        here, now = self.here, _now()
        try:
            for site in sites:
                if site in here.ids:
                    self._write(here, site, now)
        except Exception as why:  # noqa: BLE001 - the edge of a host engine
            self._failed(why)
        here.own_ns += _now() - now

    def _write(self, here: _Here, site: int, now: int) -> None:
        ids, t0 = here.ids.pop(site), here.entered.pop(site, now)
        if not here.inside and (site in here.seen or here.step < 0):  # an inner module was called
            self._next_step(here)
        here.seen.add(site)
        here.rows = rows = ids.shape[0]
        if self.device is not None:
            if here.mine:
                self.device.add(site, t0, now, ids)
        elif here.inside and ids.numel() <= HELD:
            here.calls.append((site, t0, now, ids))
        else:
            self.ring.write(site, here.step, t0, now, rows, ids.numpy())

    def _next_step(self, here: _Here) -> None:
        before, here.step = here.step, next(self._steps)
        here.t0, here.own_ns, here.rows, here.carry_ns = _now(), here.carry_ns, 0, 0
        here.seen.clear()
        here.ids.clear()
        calls, here.calls = here.calls, []
        for site, t0, t1, ids in calls:  # of a forward that raised
            self.ring.write(site, before, t0, t1, len(ids), ids.numpy())
        if self.on and self.device is not None:
            here.mine = False
            here.mine = self.device.begin(here.step, holds=here.inside)
            if not here.mine:
                self.ring.failed()
                say_once("forwards of several threads at once: a device counts one, others fail", log=_log)

    def _failed(self, why: Exception) -> None:
        self.ring.failed()
        self.guard.failed(why)
        self.on = self.guard.on


class _OnDevice:
    """Counts on the device, host times beside them, both into the ring later.

    The number of the step is on the device, one for all threads: so a thread holds it for a forward.
    """

    def __init__(self, ring: Ring, device: str) -> None:
        self._ring, self._name = ring, device
        self._counter = ExpertCounter(
            len(ring.sites), ring.layout.experts, pairs=PAIRS, steps=4 * READ_EVERY, device=device
        )
        self._steps: deque[_Launched] = deque(maxlen=4 * READ_EVERY)
        self._begun = self._copying = self._sampled = 0
        self._lock, self._holder = threading.Lock(), 0  # thread whose forward is counted

    def begin(self, step: int, *, holds: bool) -> bool:
        """Starts a step, of the whole model where it `holds`; False if that of another thread is not over."""
        me = threading.get_ident()
        with self._lock:
            if self._holder not in {0, me}:
                return False
            self._holder = me if holds else 0
            self._counter.begin()
            self._steps.append(_Launched(self._begun, step))
            self._begun += 1
        return True

    def release(self) -> None:
        """The forward of this thread is over."""
        if self._holder == threading.get_ident():
            self._holder = 0

    def add(self, site: int, t0: int, t1: int, ids: Any) -> None:
        if self._steps[-1].thread != threading.get_ident():
            raise RuntimeError("another thread's forward came between: this one is not counted")
        self._counter.add(site, ids)
        self._steps[-1].calls[site] = (t0, t1, ids.shape[0])

    def step(self, step: int, t0: int, t1: int, rows: int, *, own_ns: int) -> None:
        """The end of a step; starts or ends a copy, and waits for neither."""
        self._steps[-1].end = (step, t0, t1, rows, own_ns)
        if self._copying:
            if self._counter.is_ready():
                self._give()
        elif self._begun % READ_EVERY == 0:
            self._counter.start()
            self._copying = self._begun
        if self._name.startswith("cuda") and t1 - self._sampled > SECOND:
            import torch

            stats = torch.cuda.memory_stats(self._name)
            self._ring.gauge(**{name: stats.get(key, 0) for name, key in GAUGES.items()})
            self._sampled = t1

    def collect(self) -> None:
        """Everything so far; waits."""
        if self._copying:
            self._give()
        self._counter.start()
        self._copying = self._begun
        self._give()

    def _give(self) -> None:
        counts = self._counter.finish()
        steps, done = len(counts.tokens), self._copying
        replayed = counts.first + steps - done  # steps that no hook saw: a graph was replayed
        self._copying = 0
        self._begun += replayed
        known = {s.number: s for s in self._steps if s.number < done} if not replayed else {}
        for s in self._steps:
            s.number += replayed
        for at, tokens in enumerate(counts.tokens.numpy().astype("int64"), counts.first):
            launched = known.get(at) or _Launched(at, at)
            for site, row in enumerate(tokens):
                pairs = int(row.sum())
                t0, t1, rows = launched.calls.get(site, (0, 0, pairs // self._ring.sites[site].k))
                if pairs or site in launched.calls:
                    self._ring.write_counts(site, launched.step, t0, t1, rows, row, 0, int(replayed > 0))
            if launched.end is not None:
                step, t0, t1, rows, own_ns = launched.end
                self._ring.step(step, t0, t1, rows, own_ns=own_ns)


class _Launched:
    """A step as the host saw it: its number on the device, and its launch times by site."""

    def __init__(self, number: int, step: int) -> None:
        self.number, self.step, self.thread = number, step, threading.get_ident()
        self.calls: dict[int, tuple[int, int, int]] = {}
        self.end: tuple[int, int, int, int, int] | None = None
