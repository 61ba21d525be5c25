"""Churn: temporaries that come back in step after step, and what a buffer that is kept would save.

Glossary: a *temporary* is an allocation that is freed within the history; a *step* is a range that
the program marked (analyse/snapshot_lives.py), or, without marks, one period of the call site: at least
`least_steps` allocations at regular distances, never more than a quarter of them alive at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.analyse.snapshot import Shot, is_action
from moexray.analyse.snapshot_lives import Lives, Steps, lives_of, steps_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["Repeat", "repeats"]

MAX_KEYS = 200  # sizes and call sites that are followed one by one
SHARE_ALIVE = 0.25  # more of them alive at once are a working set that grows, no temporary
REGULAR = 2.0  # a gap between two allocations up to this many median gaps counts as a period


@dataclass(frozen=True, slots=True)
class Repeat:
    """A temporary that comes back in step after step.

    Args:
        marked_by: What marks the steps; "" where they are the periods of the call site.
        steps: Steps in the history.
        steps_with: Steps in which it was allocated and freed again.
        allocs: Allocations of it from the first step on.
        frees: How many of them were freed again.
        device_allocs: segment_alloc and segment_map events for it after warm-up.
        device_frees: segment_free and segment_unmap events for it after warm-up.
        device_steps: Later steps with such an event.
        late_steps: Steps after warm-up.
        together: Most of them alive at the same time.
    """

    site: str
    size_bytes: int
    marked_by: str
    steps: int
    steps_with: int
    allocs: int
    frees: int
    device_allocs: int
    device_frees: int
    device_steps: int
    late_steps: int
    together: int

    @property
    def marked(self) -> bool:
        """The steps were marked by the program."""
        return self.marked_by != ""

    @property
    def buffer_bytes(self) -> int:
        """Bytes that a buffer in its place would hold all the time."""
        return self.size_bytes * self.together

    @property
    def calls_saved(self) -> int:
        """Allocator calls (alloc and free) that the buffer would save: all but those that make it."""
        return max(self.allocs - self.together, 0) + self.frees

    @property
    def bytes_saved(self) -> int:
        """Bytes that would not be asked for again and again."""
        return self.size_bytes * max(self.allocs - self.together, 0)


def repeats(
    shot: Shot, *, least_ratio: float, least_steps: int, warmup_ratio: float, paid_only: bool = True
) -> list[Repeat]:
    """Temporaries that come back: most device calls first, then most calls saved.

    Args:
        shot: The snapshot.
        least_ratio: Share of the steps that must hold it.
        least_steps: Steps (or occurrences, without marks) that there must be.
        warmup_ratio: First share of the steps that is left out when device calls are counted.
        paid_only: Leave out what the cache always served, without a call to the device.
    """
    events = shot.events
    if events is None:
        return []
    asks = ("segment_alloc", "segment_free", "segment_map", "segment_unmap")
    if paid_only and is_action(events, *asks).sum() < least_steps:
        return []
    lives, steps = lives_of(events), steps_in(shot)
    least = least_steps if steps is None else max(least_ratio * steps.count, 1)
    out = []
    for stack, mine in _groups(shot, lives, least, paid_only=paid_only):
        found = _repeat(lives, mine, steps, warmup_ratio)
        if found is None or found["steps"] < least_steps:
            continue
        if found["steps_with"] < least_ratio * found["steps"]:
            continue
        size = int(lives.size[mine[0]])
        out.append(Repeat(site=shot.sites[stack], size_bytes=size, **found))
    return sorted(out, key=lambda r: (-r.device_allocs - r.device_frees, -r.calls_saved, -r.size_bytes))


def _groups(
    shot: Shot, lives: Lives, least: float, *, paid_only: bool
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Allocations of the same size and call site, those with most (device) calls first.

    Yields:
        (row of a stack of that call site, rows of the allocations in order).
    """
    names = {name: row for row, name in reversed(list(enumerate(shot.sites)))}
    site = np.array([names[name] for name in shot.sites], dtype=np.int64)[lives.stack]
    sizes, which = np.unique(lives.size, return_inverse=True)
    keys, inverse, counts = np.unique(
        site * len(sizes) + which.reshape(-1), return_inverse=True, return_counts=True
    )
    inverse = inverse.reshape(-1)
    calls = lives.device_calls + (lives.freed_segments >= 0)
    paid = np.bincount(inverse, weights=calls, minlength=len(keys)).astype(np.int64)
    often = np.flatnonzero((counts >= least) & ((paid > 0) | (not paid_only)))
    often = often[np.lexsort((-counts[often], -paid[often]))][:MAX_KEYS]
    order = np.argsort(inverse, kind="stable")
    first = np.concatenate(([0], np.cumsum(counts)))
    for key in often.tolist():
        yield int(keys[key] // len(sizes)), order[first[key] : first[key + 1]]


def _repeat(
    lives: Lives, mine: NDArray[np.int64], marked: Steps | None, warmup_ratio: float
) -> dict[str, Any] | None:
    """Figures of one size and call site; None where it has no period."""
    born, died, freed = lives.born[mine], lives.died[mine], lives.freed_segments[mine]
    together = _most_alive(born, died)
    if marked is None:
        gaps = np.diff(born)
        irregular = (gaps > REGULAR * np.median(gaps)).mean() > warmup_ratio if len(gaps) else True
        if irregular or together > len(mine) * SHARE_ALIVE:
            return None
        step_born, first, steps = np.arange(len(mine)), 0, len(mine)
    else:
        step_born, first, steps = marked.of_event[born], marked.first, marked.count
    late = first + int(np.ceil(warmup_ratio * steps))
    within = step_born >= first
    temporary = (died >= 0) & within
    calls = np.where(step_born >= late, lives.device_calls[mine], 0)
    gone = (step_born >= late) & (freed >= 0)
    return {
        "marked_by": "" if marked is None else marked.marked_by,
        "steps": steps,
        "steps_with": len(np.unique(step_born[temporary])),
        "allocs": int(within.sum()),
        "frees": int(temporary.sum()),
        "device_allocs": int(calls.sum()),
        "device_frees": int(gone.sum()),
        "device_steps": len(np.unique(step_born[(calls > 0) | gone])),
        "late_steps": first + steps - late,
        "together": together,
    }


def _most_alive(born: NDArray[np.int64], died: NDArray[np.int64]) -> int:
    """Most lives that overlap; -1 in `died` stands for no end."""
    ends = np.where(died < 0, np.iinfo(np.int64).max, died)
    order = np.argsort(np.concatenate([born, ends]), kind="stable")
    return int(np.cumsum(np.where(order < len(born), 1, -1)).max(initial=0))
