"""Who allocates what, how often: temporaries per step and the device calls they cost; small blocks.

Glossary: a *miss* is an alloc event right behind a segment_alloc or segment_map: it had to ask the
device; a *temporary* is an allocation that is freed within the history; a *step* is a range that the
program marked, or, without marks, one period of the call site itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.analyse.snapshot import INACTIVE, Columns, Shot, is_action
from moexray.analyse.snapshot_history import killers
from moexray.core.pattern import lazy

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Repeat", "Zone", "hot_zones", "repeats", "steps_of"]

STEP_WORDS = lazy(r"step|iter|batch|forward|decode|generate|token", re.IGNORECASE)
DIGITS = lazy(r"\d+")
MAX_KEYS = 50  # sizes and call sites that are followed one by one
BLOCK = 512  # bytes, the smallest block (c10 kMinBlockSize)
SHARE_ALIVE = 0.25  # more of them alive at once are a working set that grows, no temporary
REGULAR = 2.0  # a gap between two allocations up to this many median gaps counts as a period


@dataclass(frozen=True, slots=True)
class Repeat:
    """A temporary that comes back in step after step.

    Args:
        marked: The steps were marked; else they are the periods of the call site.
        steps: Steps in the history.
        steps_with: Steps in which it was allocated and freed again.
        device_allocs: segment_alloc and segment_map events for it after warm-up.
        device_frees: segment_free and segment_unmap events for it after warm-up.
        device_steps: Later steps with such an event.
        late_steps: Steps after warm-up.
        together: Most of them alive at the same time.
    """

    site: str
    size_bytes: int
    marked: bool
    steps: int
    steps_with: int
    device_allocs: int
    device_frees: int
    device_steps: int
    late_steps: int
    together: int


@dataclass(frozen=True, slots=True)
class Zone:
    """Small blocks of one call site: events, live blocks, the segments they pin and what is stuck there."""

    site: str
    allocs: int
    frees: int
    mean_bytes: float
    live_blocks: int
    stuck_bytes: int
    segments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Lives:
    """Allocations of a history in order, each with the event that ended it (-1 if none)."""

    born: NDArray[np.int64]
    died: NDArray[np.int64]
    site: NDArray[np.int64]
    size: NDArray[np.int64]
    device_calls: NDArray[np.int64]  # device events right before it
    freed_segments: NDArray[np.int64]  # index of the event that freed the segment it began, or -1


def steps_of(marks: Columns) -> NDArray[np.int64] | None:
    """Starts and ends (ns) of the marked steps, shape [steps, 2]; None where nothing looks like a step.

    Names that differ in a number only, or occur again and again, form a group; the group whose name
    speaks of steps wins, then the most frequent; nested ones are left out.
    """
    groups: dict[str, list[int]] = {}
    for row, name in enumerate(marks.get("name", ())):
        groups.setdefault(DIGITS.sub("#", str(name)), []).append(row)
    best: list[int] = []
    named = False
    for name, rows in groups.items():
        speaks = STEP_WORDS.search(name) is not None
        if (speaks, len(rows)) > (named, len(best)):
            best, named = rows, speaks
    if len(best) < 2:
        return None
    spans = np.stack([np.asarray(marks["start_ns"])[best], np.asarray(marks["end_ns"])[best]], axis=1)
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    apart = np.ones(len(spans), dtype=bool)
    apart[1:] = spans[1:, 0] >= np.maximum.accumulate(spans[:, 1])[:-1]
    return np.asarray(spans[apart], dtype=np.int64)


def _lives(shot: Shot, events: Columns) -> _Lives:
    births, ends = is_action(events, "alloc"), killers(events)
    site_names = {name: i for i, name in reversed(list(enumerate(shot.sites)))}
    site_of_stack = np.array([site_names[name] for name in shot.sites], dtype=np.int64)
    born = np.flatnonzero(births)
    return _Lives(
        born=born,
        died=_next_at(events["address"], births, ends),
        site=site_of_stack[events["stack"][born]],
        size=events["size_bytes"][born],
        device_calls=_calls_before(events)[born],
        freed_segments=_next_at(
            events["address"], births, is_action(events, "segment_free", "segment_unmap")
        ),
    )


def _calls_before(events: Columns) -> NDArray[np.int64]:
    """For each event, how many segment_alloc or segment_map events stand right before it."""
    asks = is_action(events, "segment_alloc", "segment_map")
    index = np.arange(len(asks))
    last_other = np.maximum.accumulate(np.where(asks, -1, index))
    out = np.zeros(len(asks), dtype=np.int64)
    out[1:] = index[:-1] - last_other[:-1]
    return out


def _next_at(
    address: NDArray[np.int64], starts: NDArray[np.bool_], stops: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """For each start the next stop at its address, before the next start there; else -1."""
    index = np.flatnonzero(starts | stops)
    order = np.argsort(address[index], kind="stable")
    place, event = address[index][order], index[order]
    start = starts[event]
    out = np.full(len(address), -1, dtype=np.int64)
    follows = (place[1:] == place[:-1]) & start[:-1] & ~start[1:]
    out[event[:-1][follows]] = event[1:][follows]
    return out[starts]


def repeats(shot: Shot, *, least_ratio: float, least_steps: int, warmup_ratio: float) -> list[Repeat]:
    """Temporaries that come back, most device calls first.

    Args:
        shot: The snapshot.
        least_ratio: Share of the steps that must hold it.
        least_steps: Steps (or occurrences, without marks) that there must be.
        warmup_ratio: First share of the steps that is left out when device calls are counted.
    """
    asks = ("segment_alloc", "segment_free", "segment_map", "segment_unmap")
    if shot.events is None or is_action(shot.events, *asks).sum() < least_steps:
        return []
    lives = _lives(shot, shot.events)
    time = shot.events.get("time_ns")
    spans = None if time is None else steps_of(shot.marks)
    in_step = None if spans is None or time is None else _step(time, spans)
    if spans is not None and in_step is not None and not (in_step >= 0).any():
        spans = in_step = None
    sizes, which = np.unique(lives.size, return_inverse=True)
    keys, inverse, counts = np.unique(
        lives.site * len(sizes) + which.reshape(-1), return_inverse=True, return_counts=True
    )
    inverse = inverse.reshape(-1)
    paid = _paid(lives, inverse, len(keys))
    steps = None if in_step is None else int(in_step.max() - in_step[in_step >= 0].min() + 1)
    least = least_steps if steps is None else max(least_ratio * steps, 1)
    often = np.flatnonzero((counts >= least) & (paid > 0))
    often = often[np.argsort(-paid[often], kind="stable")][:MAX_KEYS]
    out = []
    for key in often.tolist():
        mine = np.flatnonzero(inverse == key)
        found = _repeat(lives, mine, in_step, warmup_ratio)
        if found is None or found["steps"] < least_steps:
            continue
        if found["steps_with"] < least_ratio * found["steps"]:
            continue
        site, size = divmod(int(keys[key]), len(sizes))
        out.append(Repeat(site=shot.sites[site], size_bytes=int(sizes[size]), **found))
    return sorted(out, key=lambda r: -(r.device_allocs + r.device_frees))


def _paid(lives: _Lives, inverse: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Device events of each size and call site, over the whole history."""
    calls = lives.device_calls + (lives.freed_segments >= 0)
    return np.bincount(inverse, weights=calls, minlength=count).astype(np.int64)


def _step(time: NDArray[np.int64], spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """The step that each event lies in, -1 between steps."""
    step = np.searchsorted(spans[:, 0], time, side="right") - 1
    inside = (step >= 0) & (time <= spans[np.maximum(step, 0), 1])
    return np.asarray(np.where(inside, step, -1), dtype=np.int64)


def _repeat(
    lives: _Lives, mine: NDArray[np.int64], in_step: NDArray[np.int64] | None, warmup_ratio: float
) -> dict[str, Any] | None:
    """Figures of one size and call site; None where it has no period."""
    born, died, freed = lives.born[mine], lives.died[mine], lives.freed_segments[mine]
    together = _most_alive(born, died)
    if in_step is None:
        gaps = np.diff(born)
        irregular = (gaps > REGULAR * np.median(gaps)).mean() > warmup_ratio if len(gaps) else True
        if irregular or together > len(mine) * SHARE_ALIVE:
            return None
        step_born, first, steps = np.arange(len(mine)), 0, len(mine)
    else:
        used = in_step[in_step >= 0]
        first, steps = int(used.min()), int(used.max() - used.min() + 1)
        step_born = in_step[born]
    late = first + int(np.ceil(warmup_ratio * steps))
    temporary = (died >= 0) & (step_born >= first)
    calls = np.where(step_born >= late, lives.device_calls[mine], 0)
    gone = (step_born >= late) & (freed >= 0)
    return {
        "marked": in_step is not None,
        "steps": steps,
        "steps_with": len(np.unique(step_born[temporary])),
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


def hot_zones(shot: Shot, below_bytes: int) -> list[Zone]:
    """Call sites of blocks that were requested below a size, most stuck bytes first."""
    if shot.events is None:
        return []
    lives, blocks, count = _lives(shot, shot.events), shot.blocks, len(shot.sites)
    small = _small_lives(shot, lives, below_bytes)
    allocs = np.bincount(lives.site[small], minlength=count)
    frees = np.bincount(lives.site[small & (lives.died >= 0)], minlength=count)
    summed = np.bincount(lives.site[small], weights=lives.size[small], minlength=count)
    rows, which = _still_open(shot, lives, small)
    sites = lives.site[which]
    pairs = np.unique(np.stack([sites, blocks["segment"][rows]], axis=1), axis=0)
    stuck = np.zeros(count, dtype=np.int64)
    np.add.at(stuck, pairs[:, 0], shot.segments["stuck"][pairs[:, 1]])
    live = np.bincount(sites, minlength=count)
    zones = [
        Zone(
            site=shot.sites[i],
            allocs=int(allocs[i]),
            frees=int(frees[i]),
            mean_bytes=float(summed[i] / allocs[i]),
            live_blocks=int(live[i]),
            stuck_bytes=int(stuck[i]),
            segments=tuple(pairs[pairs[:, 0] == i, 1].tolist()),
        )
        for i in np.flatnonzero(allocs).tolist()
    ]
    return sorted(zones, key=lambda z: (-z.stuck_bytes, -z.allocs))


def _small_lives(shot: Shot, lives: _Lives, below_bytes: int) -> NDArray[np.bool_]:
    """Allocations requested below a size; where events carry rounded sizes, the blocks tell."""
    small = lives.size < below_bytes
    rounded = ~small & (lives.size <= BLOCK)
    rows, which = _still_open(shot, lives, rounded)
    asked = shot.blocks["requested_bytes"][rows]
    for site in np.unique(lives.site[which[(asked > 0) & (asked < below_bytes)]]).tolist():
        small |= rounded & (lives.site == site)
    return np.asarray(small)


def _still_open(
    shot: Shot, lives: _Lives, chosen: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of live blocks whose allocation is among the chosen ones, and which allocation that is."""
    address = (shot.events or {})["address"][lives.born]
    open_lives = np.flatnonzero(chosen & (lives.died < 0))
    open_lives = open_lives[np.argsort(address[open_lives], kind="stable")]
    rows = np.flatnonzero(shot.blocks["state"] != INACTIVE)
    if not len(open_lives):
        return rows[:0], rows[:0]
    wanted, known = shot.blocks["address"][rows], address[open_lives]
    place = np.maximum(np.searchsorted(known, wanted, side="right") - 1, 0)
    hit = known[place] == wanted
    return rows[hit], open_lives[place[hit]]
