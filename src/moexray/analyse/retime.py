"""Steps re-timed without a cause: P50 and P99 as they would have been.

The ranks of a capture are a clockwork: between two collectives each rank works on its own (a *segment*),
a collective begins when the last member arrives and takes its *transfer* time. Removing a cause shortens
segments; the longest path through the graph gives the new times. What overlaps inside a segment is
left as it was observed.

Glossary: *pace* is the time from the last collective of a step to that of the next; *idle* is the part of a
segment in which the device computes nothing; a segment is *stalled* if its idle part passes the typical one
of its rank and place in the step by far (a larger batch computes longer, it does not stall).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.gaps import COMPILING
from moexray.analyse.timeline import DRIVER, OPERATOR, PYTHON, RUNTIME, Cover
from moexray.analyse.timeline_comm import launch_times
from moexray.analyse.timeline_host import COLLECT, DEVICE_MEMORY, RELEASE, has_host
from moexray.analyse.timeline_late import USUAL
from moexray.core.pattern import lazy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moexray.analyse.timeline import Profile
    from moexray.analyse.timeline_comm import Collectives

__all__ = ["KINDS", "Clockwork", "Times", "clockwork", "times"]

KINDS = ("memory", "jit", "gc", "host")  # what a stalled rank did, as far as its trace tells
LEAST_STEPS = 8
STALL_SHARE = 0.1  # of the median pace: less is the unrest of a healthy run
STALL_SPREAD = 5.0  # median deviations of the place and rank
SLOW = 2.0  # times a quick transfer of its place: no usual one, as in slow_columns
FOLLOWS = 0.5  # share of the variance of transfers that the work of the fullest rank must explain
WAITING = lazy(rf"Synchronize|{RELEASE.pattern}")  # the host waits for the device, a release too
EXPLAINS = 0.3  # share of the excess that calls of a kind must cover
DRAWS = 200  # of the bootstrap
BLOCK = 4  # steps drawn together


@dataclass(frozen=True, slots=True)
class Clockwork:
    """Segments and transfers in the order of the collectives. Times in ns.

    Args:
        profiles: The ranks.
        present: [ranks, collectives].
        segment: [ranks, collectives] work before each; 0 where a rank takes no part.
        typical: The same without a stall: its own work and the usual idle part of that rank and place.
        stalled: Where that is passed by far.
        kind: Index into KINDS where stalled; -1.
        transfer: [collectives], from the last arrival to the end.
        usual_transfer: Of that place in the step.
        last: Index of the last collective of each step.
        ready: [ranks, collectives] when the host had launched it, from the end of the step before; a host
            that runs ahead of its device stands still while others are waited for. -inf where it had
            waited for the device before, so that it would have come earlier had the others.
    """

    profiles: list[Profile]
    present: NDArray[np.bool_]
    segment: NDArray[np.float64]
    typical: NDArray[np.float64]
    stalled: NDArray[np.bool_]
    kind: NDArray[np.int64]
    transfer: NDArray[np.float64]
    usual_transfer: NDArray[np.float64]
    last: NDArray[np.int64]
    ready: NDArray[np.float64]

    def paces(
        self, stalls: NDArray[np.bool_] | None = None, *, even: bool = False, transfers: bool = False,
        slow: frozenset[int | None] = frozenset(),
    ) -> NDArray[np.float64]:  # fmt: skip
        """[steps - 1] ns: the pace without some causes; as observed without arguments.

        Args:
            stalls: [ranks, collectives], True: this stalled segment takes its typical time.
            even: The ranks share the work of each place evenly.
            transfers: Transfers take their usual time.
            slow: Ranks (their numbers) that take as long as the others instead.
        """
        calm = np.where(self.stalled, self.typical, self.segment)
        left = np.where(self.stalled if stalls is None else self.stalled & ~stalls, self.segment - calm, 0.0)
        calm = self._alike(calm, slow)
        transfer = np.minimum(self.transfer, self._expected(calm)) if transfers else self.transfer
        if even:
            members = np.maximum(self.present.sum(axis=0), 1)
            mean = (calm * self.present).sum(axis=0) / members
            transfer = transfer * self._relief(calm.max(axis=0), mean)
            calm = np.where(self.present, mean, 0.0)
        ready = self.ready
        if stalls is not None:  # a host whose stalls are gone comes earlier; how much is in its segments
            ready = np.where(stalls.any(axis=1, keepdims=True), -np.inf, ready)
        return np.diff(self._ends(calm + left, transfer, ready)[self.last])

    def _alike(self, calm: NDArray[np.float64], slow: frozenset[int | None]) -> NDArray[np.float64]:
        """[ranks, collectives] work where slow ranks take no longer than the others in the median."""
        mask = np.array([p.rank in slow for p in self.profiles])
        if not mask.any() or mask.all():
            return calm
        others = np.where(self.present & ~mask[:, None], calm, np.nan)
        known = ~np.isnan(others).all(axis=0)
        pace = np.full(calm.shape[1], np.inf)
        pace[known] = np.nanmedian(others[:, known], axis=0)
        return np.where(mask[:, None], np.minimum(calm, pace), calm)

    def _expected(self, calm: NDArray[np.float64]) -> NDArray[np.float64]:
        """[collectives] the usual transfer of each place, more in steps with more work: a larger batch."""
        step = np.minimum(np.searchsorted(self.last, np.arange(len(self.transfer))), len(self.last) - 1)
        work = np.bincount(step, calm.max(axis=0), len(self.last))
        grown = np.maximum(1.0, work / max(float(np.median(work)), 1.0))
        return np.asarray(self.usual_transfer * grown[step])

    def _relief(self, most: NDArray[np.float64], mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """[collectives] factor of the transfers if the fullest rank had the mean load.

        Bytes follow the tokens as the work does. How far the time follows the bytes, the steps tell: a
        line through transfer and work of the fullest rank, step by step, if it explains half of both.
        """
        step = np.minimum(np.searchsorted(self.last, np.arange(len(most))), len(self.last) - 1)
        moved, work, ideal = (np.bincount(step, x, len(self.last)) for x in (self.transfer, most, mean))
        ordinary = moved <= 2 * np.median(moved)
        if not work.std() or not moved.std() or ordinary.sum() < LEAST_STEPS:
            return np.ones(len(most))
        spread = np.cov(work[ordinary], moved[ordinary])
        if spread[0, 1] <= 0 or spread[0, 1] ** 2 < FOLLOWS * spread[0, 0] * spread[1, 1]:
            return np.ones(len(most))
        less = moved - spread[0, 1] / spread[0, 0] * (work - ideal)
        floor = moved * ideal / np.maximum(work, 1.0)
        return np.asarray((np.maximum(less, floor) / np.maximum(moved, 1.0))[step])

    def _ends(
        self, segment: NDArray[np.float64], transfer: NDArray[np.float64], ready: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Longest path: the end of each collective."""
        now, begin = np.zeros(len(segment)), np.zeros(len(segment))
        ends = np.zeros(segment.shape[1])
        lasts = set(self.last.tolist())
        for k in range(segment.shape[1]):
            here = self.present[:, k]
            arrived = np.maximum(now + segment[:, k], begin + ready[:, k])
            ends[k] = now[here] = arrived[here].max() + transfer[k]
            if k in lasts:
                begin = now.copy()
        return ends

    def of(self, kinds: tuple[str, ...], rank: int | None) -> NDArray[np.bool_]:
        """Stalled segments of some kinds, of one rank or of all."""
        wanted = np.isin(self.kind, [KINDS.index(k) for k in kinds])
        mine = np.array([rank is None or p.rank == rank for p in self.profiles])
        return np.asarray(self.stalled & wanted & mine[:, None])


@dataclass(frozen=True, slots=True)
class Times:
    """Quantiles of paces in s; low and high are the ends of the 95 % interval of the P99."""

    p50_s: float
    p99_s: float
    low_s: float
    high_s: float
    mean_s: float


def times(paces: NDArray[np.float64], seed: int = 0) -> Times:
    """Median, P99 with its interval (bootstrap over blocks of steps) and mean."""
    rng = np.random.default_rng(seed)
    size = min(BLOCK, len(paces))
    starts = np.arange(len(paces) - size + 1)
    picked = rng.choice(starts, (DRAWS, -(-len(paces) // size)))[:, :, None] + np.arange(size)
    tails = np.quantile(paces[picked.reshape(DRAWS, -1)], 0.99, axis=1)
    low, high = np.quantile(tails, [0.025, 0.975])
    return Times(
        float(np.median(paces)) / 1e9, float(np.quantile(paces, 0.99)) / 1e9, float(low) / 1e9,
        float(high) / 1e9, float(paces.mean()) / 1e9,
    )  # fmt: skip


def clockwork(c: Collectives) -> Clockwork | None:
    """The clockwork of matched collectives; None without steps, or with too few."""
    order = c.order
    step = c.step[order]
    labels, at = np.unique(step[::-1], return_index=True)
    last = np.sort(len(step) - 1 - at[labels >= 0])
    if len(last) < LEAST_STEPS:
        return None
    present = c.present[:, order]
    start, end = c.start[:, order].astype(np.float64), c.end[:, order].astype(np.float64)
    before = np.zeros_like(end)
    for rank in range(len(c.profiles)):
        mine = np.flatnonzero(present[rank])
        before[rank, mine[1:]] = end[rank, mine[:-1]]
        before[rank, mine[:1]] = start[rank, mine[:1]]
    segment = np.where(present, start - before, 0.0)
    idle = segment - _worked(c.profiles, before, start, present)
    transfer = np.where(present, end - start, np.inf).min(axis=0)
    place = _places(step)
    usually, unrest, usual = np.zeros_like(segment), np.zeros_like(segment), np.zeros_like(transfer)
    for p in np.unique(place):
        there = np.flatnonzero(place == p)
        quick = transfer[there] <= SLOW * np.percentile(transfer[there], USUAL)  # slow ones may be many
        usual[there] = np.median(transfer[there][quick])
        for rank in range(len(c.profiles)):
            mine = there[present[rank, there]]
            if len(mine):
                middle = np.median(idle[rank, mine])
                usually[rank, mine] = middle
                unrest[rank, mine] = np.median(np.abs(idle[rank, mine] - middle))
    pace = float(np.median(np.diff(np.where(present, end, 0.0).max(axis=0)[last])))
    excess = idle - usually
    stalled = present & (excess > STALL_SHARE * pace) & (excess > STALL_SPREAD * unrest)
    kind = np.full(segment.shape, -1)
    for rank, profile in enumerate(c.profiles):
        at = np.flatnonzero(stalled[rank])
        kind[rank, at] = _kinds(profile, before[rank, at], start[rank, at], excess[rank, at])
    ready = _ready(c, order, last)
    calm = segment - excess
    return Clockwork(c.profiles, present, segment, calm, stalled, kind, transfer, usual, last, ready)


def _ready(c: Collectives, order: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.float64]:
    """[ranks, collectives] as in Clockwork."""
    out = np.full((len(c.profiles), len(order)), -np.inf)
    step = np.searchsorted(last, np.arange(len(order)))  # after the last one comes an unfinished step
    for rank, profile in enumerate(c.profiles):
        if not has_host(profile):
            continue
        columns = order[last]
        ended = np.where(c.present[rank, columns], c.end[rank, columns], -1)
        begin = np.where(step > 0, ended[np.maximum(step - 1, 0)], -1)
        at = np.flatnonzero(c.present[rank, order] & (begin >= 0))
        launched = launch_times(profile, c.row[rank, order[at]])
        waits = np.sort(profile.start[profile.named(WAITING, RUNTIME, DRIVER)])
        ran = np.searchsorted(waits, launched) == np.searchsorted(waits, begin[at])
        out[rank, at[ran]] = (launched - begin[at])[ran]
    return out


def _worked(
    profiles: list[Profile], start: NDArray[np.float64], end: NDArray[np.float64], present: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """[ranks, collectives] ns in which the device of a rank computes before a collective."""
    out = np.zeros_like(start)
    for rank, profile in enumerate(profiles):
        at = present[rank]
        since, until = (times[rank, at].astype(np.int64) for times in (start, end))
        out[rank, at] = profile.compute.within(since, until)
    return out


def _places(step: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which collective of its step each is, from 0; -1 outside of steps."""
    order = np.argsort(step, kind="stable")
    ranked = step[order]
    first = np.searchsorted(ranked, ranked, side="left")
    out = np.empty(len(step), np.int64)
    out[order] = np.arange(len(step)) - first
    return np.where(step >= 0, out, -1)


def _kinds(
    profile: Profile, start: NDArray[np.float64], end: NDArray[np.float64], excess: NDArray[np.float64]
) -> NDArray[np.int64]:
    """What the host did in stalled segments: the first kind whose calls cover enough of the excess."""
    rows = (
        profile.named(DEVICE_MEMORY, RUNTIME, DRIVER),
        profile.named(COMPILING, PYTHON, OPERATOR, RUNTIME, DRIVER),
        profile.named(COLLECT, PYTHON, OPERATOR),
    )
    out = np.full(len(start), KINDS.index("host"))
    for own in (False, True):  # what the launching threads did themselves goes before
        for kind in reversed(range(len(rows))):
            mine = rows[kind][np.isin(profile.lane[rows[kind]], profile.launching)] if own else rows[kind]
            cover = Cover(profile.start[mine], profile.end[mine])
            spent = cover.within(start.astype(np.int64), end.astype(np.int64))
            out = np.where(spent >= EXPLAINS * excess, kind, out)
    return out
