"""Two snapshots of one device compared: what grew, what is new, what has gone.

Signs: every change is after - before, so what grew is positive. Glossary: a live block is *kept* if the
other snapshot holds one of the same size and call site at the same address (a block that was freed and
allocated again in between cannot be told from one that stayed).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.snapshot import INACTIVE, Pool, Shot, pools
from moexray.analyse.snapshot_history import history
from moexray.analyse.snapshot_sites import owners

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["PoolPair", "SiteChange", "leak_candidates", "paired_pools", "same_process", "site_changes"]

SHARED_EVENTS = 0.5  # of the moments that both histories cover, at least


@dataclass(frozen=True, slots=True)
class PoolPair:
    """One stream of one pool in both snapshots; None where one of them lacks it."""

    before: Pool | None
    after: Pool | None


@dataclass(frozen=True, slots=True)
class SiteChange:
    """Live blocks of one call site in both snapshots.

    Args:
        stack: Frames of one of its blocks.
        new_blocks: Live in the second one only; None where the snapshots are of different processes.
        gone_blocks: Live in the first one only; None likewise.
    """

    site: str
    stack: str
    before_blocks: int
    after_blocks: int
    before_bytes: int
    after_bytes: int
    new_blocks: int | None
    new_bytes: int | None
    gone_blocks: int | None
    gone_bytes: int | None

    @property
    def change_bytes(self) -> int:
        """Growth of its live bytes; negative where it shrank."""
        return self.after_bytes - self.before_bytes


def same_process(before: Shot, after: Shot) -> tuple[bool, str]:
    """Whether both are of one process, so that addresses can be compared, and how that is known.

    Events with the same times prove it, other events at that time refute it. Else common segments
    speak for it, though two runs of one program may get the same addresses.
    """
    first, second = _moments(before), _moments(after)
    if len(first) and len(second):
        begin, end = max(first.min(), second.min()), min(first.max(), second.max())
        during = np.unique(first[(first >= begin) & (first <= end)])
        if len(during):
            if np.isin(during, second).mean() >= SHARED_EVENTS:
                return True, "the histories share their events"
            return False, "the histories tell of other events at the same time"
        if second.min() > first.max() and history(after).kind == "complete":
            return False, "the second history begins with nothing, after the end of the first one"
    held = [_segments(shot) for shot in (before, after)]
    if not held[0] or not held[1]:
        return True, "one of them holds no segment"
    if not held[0] & held[1]:
        return False, "no segment is in both"
    return True, "segments are in both; two runs of one program may share addresses, too"


def _moments(shot: Shot) -> NDArray[np.int64]:
    """Times of all events of the history, ns; empty where none is written."""
    times = (shot.events or {}).get("time_ns")
    return np.zeros(0, dtype=np.int64) if times is None else np.asarray(times, dtype=np.int64)


def _segments(shot: Shot) -> set[tuple[int, int]]:
    return set(zip(*(shot.segments[k].tolist() for k in ("address", "total_bytes")), strict=True))


def paired_pools(before: Shot, after: Shot) -> list[PoolPair]:
    """The streams of each pool side by side, in the order of the first snapshot, then new ones."""
    first, second = (
        {(p.id or (0, 0), p.stream): p for p in pools(shot, by_stream=True)} for shot in (before, after)
    )
    return [PoolPair(first.get(key), second.get(key)) for key in dict.fromkeys((*first, *second))]


def site_changes(before: Shot, after: Shot) -> list[SiteChange]:
    """Every call site that has live blocks in either snapshot, most growth first."""
    names: dict[str, int] = {}
    held = [_live(shot, names) for shot in (before, after)]
    count = len(names)
    kept = _kept(*held) if same_process(before, after)[0] else None
    sums = []
    for side, (_, size, site, _) in enumerate(held):
        lost = np.zeros(len(site), dtype=bool) if kept is None else ~kept[side]
        sums += [
            np.bincount(site, minlength=count),
            np.bincount(site, weights=size, minlength=count).astype(np.int64),
            np.bincount(site[lost], minlength=count),
            np.bincount(site[lost], weights=size[lost], minlength=count).astype(np.int64),
        ]
    stacks: dict[int, str] = {}
    for shot, (_, _, site, stack) in zip((before, after), held, strict=True):
        stacks |= {code: shot.texts[row] for code, row in zip(site.tolist(), stack.tolist(), strict=True)}
    changes = []
    for name, i in names.items():
        blocks, held_bytes, gone, gone_bytes, now, now_bytes, new, new_bytes = (int(s[i]) for s in sums)
        told = kept is not None
        changes.append(
            SiteChange(
                site=name,
                stack=stacks[i],
                before_blocks=blocks,
                after_blocks=now,
                before_bytes=held_bytes,
                after_bytes=now_bytes,
                new_blocks=new if told else None,
                new_bytes=new_bytes if told else None,
                gone_blocks=gone if told else None,
                gone_bytes=gone_bytes if told else None,
            )
        )
    return sorted(changes, key=lambda c: (-c.change_bytes, -c.after_bytes, c.site))


Live = tuple["NDArray[np.int64]", "NDArray[np.int64]", "NDArray[np.int64]", "NDArray[np.int64]"]


def _live(shot: Shot, names: dict[str, int]) -> Live:
    """Address, size, call site (numbered in `names`) and stack of the live blocks, by address."""
    rows = np.flatnonzero(shot.blocks["state"] != INACTIVE)
    rows = rows[np.argsort(shot.blocks["address"][rows], kind="stable")]
    stack = owners(shot)[rows]
    used = {row: names.setdefault(shot.sites[row], len(names)) for row in np.unique(stack).tolist()}
    codes = np.zeros(len(shot.sites), dtype=np.int64)
    codes[list(used)] = list(used.values())
    return shot.blocks["address"][rows], shot.blocks["size_bytes"][rows], codes[stack], stack


def _kept(first: Live, second: Live) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which blocks of either side the other one holds, too."""
    kept = np.zeros(len(first[0]), dtype=bool), np.zeros(len(second[0]), dtype=bool)
    if not len(first[0]) or not len(second[0]):
        return kept
    place = np.minimum(np.searchsorted(first[0], second[0]), len(first[0]) - 1)
    same = np.ones(len(place), dtype=bool)
    for mine, other in zip(first[:3], second[:3], strict=True):
        same &= mine[place] == other
    kept[0][place[same]] = True
    kept[1][same] = True
    return kept


def leak_candidates(
    changes: list[SiteChange], *, least_bytes: int, gone_ratio: float
) -> list[SiteChange]:
    """Call sites whose live bytes grew while they let go of (almost) nothing.

    Two snapshots cannot tell a leak from a cache that still fills: a third one, later, can.

    Args:
        changes: From site_changes.
        least_bytes: Growth from which on a site counts.
        gone_ratio: Blocks gone per new block, at most.
    """
    return [
        c
        for c in changes
        if c.change_bytes >= least_bytes
        and c.new_blocks is not None
        and (c.gone_blocks or 0) <= gone_ratio * c.new_blocks
    ]
