"""What plans for reusing memory would take for the tensors of a history, and what no plan can beat.

Each plan says which tensors it covers; its bound is the peak of their live bytes. What it saves counts
the tensors that it leaves out, too: they keep the addresses that they had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moexray.algorithms import intervals
from moexray.algorithms.allocator import CachingAllocator
from moexray.algorithms.blocks import Settings
from moexray.algorithms.device import Device
from moexray.algorithms.intervals import aligned, meetings, peak, shared_buffers, size_class, touched
from moexray.core.scopes import SCOPES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moexray.algorithms.blocks import Block
    from moexray.analyse.tensors import Tensors

    Ints = NDArray[np.int64]

__all__ = ["Plan", "plans"]

EXPERT = SCOPES.index("expert")
CLASSES = (0, 1, 2, 4, 8)  # classes per doubling that are tried; 0 keeps the sizes as they are
FEW = 500  # lives up to which the plain packing is quicker than loading the compiled one
MOST_IN_TIME = 1_000_000_000  # pairs of lives; in the order of time a pair takes some 6 ns
MOST_MEETINGS = 100_000_000  # pairs of lives, over all orders; a packing takes some 60 ns for each


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan and what it gives.

    Args:
        plan: Its name.
        how: What it does, with the choices made.
        tensors: Lives that it covers.
        covered: Their share of all allocated bytes.
        peak_bytes: Memory that it takes for them.
        lower_bound_bytes: Peak of their live bytes: the least of any plan.
        rest_bytes: What the tensors that it does not cover took, at the addresses that they had.
        as_allocated_bytes: What all tensors together took as they were allocated.
        calls: Allocations and frees that the plan still makes.
        saved_calls: Those that it saves.
    """

    plan: str
    how: str
    tensors: int
    covered: float
    peak_bytes: int
    lower_bound_bytes: int
    rest_bytes: int
    as_allocated_bytes: int
    calls: int
    saved_calls: int

    @property
    def over_bound(self) -> float:
        """How far above the bound, 0 is at it."""
        return self.peak_bytes / self.lower_bound_bytes - 1 if self.lower_bound_bytes else 0.0

    @property
    def saved_bytes(self) -> int:
        """Memory saved against all tensors as allocated; below 0 the plan takes more."""
        return self.as_allocated_bytes - self.peak_bytes - self.rest_bytes


@dataclass(frozen=True, slots=True)
class _Case:
    """The tensors, the addresses that "as allocated" counts, and what all of them took."""

    one: Tensors
    address: Ints
    basis: str

    def took(self, chosen: NDArray[np.bool_]) -> int:
        """Bytes that the chosen tensors took as they were allocated."""
        one = self.one
        gone = None if one.gone is None else one.gone[chosen]
        bytes_touched = touched(one.start[chosen], self.address[chosen], aligned(one.size[chosen]), gone)
        return max(bytes_touched, peak(one.start[chosen], one.end[chosen], one.size[chosen])[0])

    def plan(self, name: str, how: str, chosen: NDArray[np.bool_], taken: int, calls: int) -> Plan:
        """A plan of the chosen tensors that takes `taken` bytes and makes `calls` calls."""
        one = self.one
        size = one.size[chosen]
        made = 2 * len(size) - int(one.is_open[chosen].sum())
        return Plan(
            plan=name, how=how, tensors=len(size), covered=float(size.sum() / max(one.size.sum(), 1)),
            peak_bytes=taken, lower_bound_bytes=peak(one.start[chosen], one.end[chosen], size)[0],
            rest_bytes=self.took(~chosen & (one.size > 0)), as_allocated_bytes=self.took(one.size > 0),
            calls=calls, saved_calls=made - calls,
        )  # fmt: skip


def plans(one: Tensors) -> list[Plan]:
    """The plans for these tensors: as allocated, expert-wise, token-wise, interval packing.

    Plans that cover no tensor are left out.
    """
    if not one.size.any():
        return []
    case = _Case(one, *_addresses(one))
    everything = one.size > 0
    calls = 2 * int(everything.sum()) - int(one.is_open[everything].sum())
    as_it_was = case.plan("as allocated", case.basis, everything, case.took(everything), calls)
    out = [as_it_was, *_expert_wise(case), *_token_wise(case)]
    start, end, size = one.start[everything], one.end[everything], aligned(one.size[everything])
    taken, order = _packed(start, end, size)
    how = f"one buffer with offsets planned ahead; first fit, {order}"
    return [*out, case.plan("interval packing", how, everything, taken, 1)]


def _addresses(one: Tensors) -> tuple[Ints, str]:
    """Recorded addresses, else those that PyTorch's allocator would give; and which they are."""
    if one.address is not None:
        return one.address, "the addresses as recorded, each byte once"
    allocator = CachingAllocator(Settings(), Device(None))
    address = np.zeros(len(one.size), np.int64)
    held: dict[int, Block] = {}
    time = np.concatenate([one.end, one.start])
    count = len(one.size)
    for row in np.argsort(time, kind="stable").tolist():
        if row < count:
            if not one.is_open[row] and row in held:
                allocator.free(held.pop(row))
        elif size := int(one.size[row - count]):
            block = held[row - count] = allocator.malloc(size)
            address[row - count] = block.address
    return address, "the addresses that PyTorch's allocator gives with its defaults (simulated)"


def _expert_wise(case: _Case) -> list[Plan]:
    """Buffers by layer and padded size, which the experts of the layer take in turn."""
    one = case.one
    chosen = (one.scope == EXPERT) & (one.size > 0)
    if not chosen.any():
        return []
    out = []
    for name, by_layer in (("expert-wise", True), ("expert-wise, layers share", False)):
        keys = one.layer[chosen] if by_layer else np.zeros(int(chosen.sum()), np.int64)
        found = []
        for classes in CLASSES:
            size = size_class(one.size[chosen], classes)
            rows, _ = shared_buffers(one.start[chosen], one.end[chosen], size, keys)
            found.append((int((rows[1] * rows[2]).sum()), int(rows[2].sum()), classes))
        taken, buffers, classes = min(found)
        who = "of a layer" if by_layer else "of all layers"
        how = f"{buffers} buffers, taken in turn by the experts {who}; {_padding(classes)}"
        out.append(case.plan(name, how, chosen, taken, buffers))
    return out if out[1].peak_bytes < out[0].peak_bytes else out[:1]


def _token_wise(case: _Case) -> list[Plan]:
    """An arena by size classes for each step, reset at its end; tensors that outlive it are not covered."""
    one = case.one
    chosen = (one.size > 0) & ~one.is_open
    if one.steps:
        chosen &= (one.step >= 0) & (one.step == one.last_step)
        step, what = one.step[chosen], one.steps
    else:
        step, what = np.zeros(int(chosen.sum()), np.int64), "one scope, nothing tells steps"
    if not chosen.any():
        return []
    start, end = one.start[chosen], one.end[chosen]
    found = []
    for classes in CLASSES:
        rows, group = shared_buffers(start, end, size_class(one.size[chosen], classes), step)
        numbers, at = np.unique(rows[0], return_inverse=True)
        begin, stop = np.full(len(numbers), 1 << 62, np.int64), np.zeros(len(numbers), np.int64)
        np.minimum.at(begin, at[group], start)
        np.maximum.at(stop, at[group], end)
        arena = np.zeros(len(numbers), np.int64)
        np.add.at(arena, at, rows[1] * rows[2])
        found.append((peak(begin, stop, arena)[0], classes))
    taken, classes = min(found, key=lambda f: f[0])
    how = f"an arena reset after each step ({what}); {_padding(classes)}"
    return [case.plan("token-wise", how, chosen, taken, 1)]


def _padding(classes: int) -> str:
    if classes == 1:
        return "sizes padded to powers of two"
    return f"sizes padded to {classes} classes per doubling" if classes else "sizes not padded"


def _packed(start: Ints, end: Ints, size: Ints) -> tuple[int, str]:
    """(bytes, order) of the best of several packings."""
    found = []
    if len(start) <= FEW:
        pack, in_time = intervals.pack, intervals.pack_in_time
    else:
        from moexray.kernels import intervals as kernel

        pack, in_time = kernel.pack, kernel.pack_in_time
    pairs = max(meetings(start, end), 1)
    stays = (end == end.max()) if pairs > MOST_IN_TIME else np.zeros(len(end), dtype=bool)
    first, rest = int(size[stays].sum()), ~stays  # what stays never shares its memory
    offset = in_time(start[rest], end[rest], size[rest])
    taken = first + int((offset + size[rest]).max(initial=0))
    found.append((taken, "what stays first, then in the order of time" if first else "in the order of time"))
    orders = ((-size, "largest first"), (start - end, "longest first"))
    for order, name in orders[: MOST_MEETINGS // pairs]:
        offset = pack(start, end, size, np.lexsort((start, order)))
        found.append((int((offset + size).max()), name))
    if len(found) == 1:
        return found[0][0], f"{found[0][1]} (too many tensors for other orders)"
    return min(found, key=lambda f: f[0])
