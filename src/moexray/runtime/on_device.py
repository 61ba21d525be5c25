"""A recording whose routers are on a device: kernels count, and the counts come into the ring later.

Nothing here waits for the device but `collect`: the counts are copied out every READ_EVERY steps, and a
record's times are those of the launch. Used by `attach`.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from moexray.runtime.counters import ExpertCounter

if TYPE_CHECKING:
    from moexray.runtime.recorder import Ring

__all__ = ["GAUGES", "READ_EVERY", "OnDevice"]

READ_EVERY = 16  # steps between two copies of the counts from a device (our choice)
PAIRS = 1 << 20  # token-expert pairs of one call on a device: 131,072 tokens x 8; takes 12 MiB there
SECOND = 1_000_000_000
GAUGES = {
    "reserved_bytes": "reserved_bytes.all.current",
    "allocated_bytes": "allocated_bytes.all.current",
    "inactive_split_bytes": "inactive_split_bytes.all.current",
    "retries": "num_alloc_retries",
    "ooms": "num_ooms",
}  # name of ours -> key of torch.cuda.memory_stats()


class OnDevice:
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
        """Counts a call of the step that this thread began.

        Raises:
            RuntimeError: another thread has begun one since.
        """
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
