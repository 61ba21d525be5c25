"""Collectives across ranks: which belong together, clock offsets, who arrived late, how long it took.

Glossary: a *column* is one collective as several ranks saw it; *lateness* is longest minus shortest
duration (the rank with the shortest came last), free of clock offsets; *transfer* is the shortest; the
*cause* of a wait is the rank that came last, or whom that one had waited for itself, in another group.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.analyse.timeline import ANNOTATION, DRIVER, RUNTIME, Cover, captures, profiles
from moexray.analyse.timeline_order import MIN_TOLERANCE_NS, by_order
from moexray.core.pattern import lazy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moexray.analyse.timeline import Profile
    from moexray.core.run import Run

__all__ = ["Capture", "Collectives", "Offset", "launch_times", "match", "op_name", "survey"]

# Point-to-point and rooted operations: one side waits by design, its shorter partner is not late.
ONE_SIDED = lazy(
    r"(?:^|[^a-z])(?:i?send|i?recv|batch_isend_irecv|coalesced)$"
    r"|^_?(?:broadcast|reduce|gather|scatter)(?:_oop|_single)?$|Kernel_(?:Broadcast|Reduce)_",
    re.IGNORECASE,
)
POINT_TO_POINT = lazy(r"^nccl:(?:i?send|i?recv)\b", re.IGNORECASE)
LEAST_SHARED = 3  # collectives that two ranks share from which the offset of their clocks is taken
BARE = 0.5  # share of a wait without compute from which it costs time; the rest lies behind other work
DOUBT = 0.25  # ends of a column that lie apart by this share of its lateness: it tells no waiting
NO_STEP = -(1 << 40)  # while the positions of ranks are brought together, which may be negative


@dataclass(frozen=True, slots=True)
class Offset:
    """The clock of a rank against the first rank.

    Args:
        rank: Position in Collectives.profiles.
        offset_ns: Median difference of the ends of matching collectives, in the middle of them.
        residual_ns: Median deviation from offset and drift; summed up over the ranks between.
        drift_ppm: Change of the offset in parts per million.
        matches: Collectives it rests on.
        middle_ns: Time of that middle on the clock of the first rank.
    """

    rank: int
    offset_ns: float
    residual_ns: float
    drift_ppm: float
    matches: int
    middle_ns: float = 0.0


class Collectives:
    """Matched collectives: arrays of shape [ranks, columns]."""

    def __init__(
        self,
        profiles: list[Profile],
        cells: dict[Any, dict[int, int]],
        facts: dict[Any, tuple[str, int, int]],
    ) -> None:
        self.profiles = profiles
        keys = [k for k, ranks in cells.items() if len(ranks) >= 2]
        shape = (len(profiles), len(keys))
        self.row = np.full(shape, -1, np.int64)
        for column, key in enumerate(keys):
            for rank, row in cells[key].items():
                self.row[rank, column] = row
        self.present = self.row >= 0
        self.start = np.zeros(shape, np.int64)
        self.end = np.zeros(shape, np.int64)
        for rank, profile in enumerate(profiles):
            has = self.present[rank]
            self.start[rank, has] = profile.start[self.row[rank, has]]
            self.end[rank, has] = profile.end[self.row[rank, has]]
        self.op = np.array([facts[k][0] for k in keys], dtype=object)
        self.size = np.array([facts[k][1] for k in keys], np.int64)
        self.group_size = np.array([facts[k][2] for k in keys], np.int64)
        unknown = (None, (None, None))  # neither number nor group noted
        self.by_order = np.array([isinstance(k[0], str) and k[1] in unknown for k in keys], np.bool_)

    def __len__(self) -> int:
        return self.row.shape[1]

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """Columns in order of time; the clocks of the ranks are brought together for it."""
        shift = np.zeros((len(self.profiles), 1))
        for offset in self.offsets:
            shift[offset.rank] = offset.offset_ns
        first = np.where(self.present, self.start - shift, 2.0**62).min(axis=0, initial=2.0**62)
        return np.argsort(first, kind="stable")

    @cached_property
    def duration(self) -> NDArray[np.float64]:
        """Durations in ns; NaN where a rank is not there."""
        return np.where(self.present, self.end - self.start, np.nan)

    @cached_property
    def transfer(self) -> NDArray[np.float64]:
        """Shortest duration of each column, ns."""
        return np.asarray(np.nanmin(self.duration, axis=0))

    @cached_property
    def lateness(self) -> NDArray[np.float64]:
        """Longest minus shortest duration of each column, ns."""
        return np.asarray(np.nanmax(self.duration, axis=0) - self.transfer)

    @cached_property
    def late(self) -> NDArray[np.int64]:
        """Position of the rank that arrived last in each column."""
        return np.asarray(np.nanargmin(self.duration, axis=0))

    @cached_property
    def costly(self) -> NDArray[np.float64]:
        """The lateness where a rank that waits computes nothing for most of it, else 0, ns."""
        bare = np.zeros(len(self))
        for rank, profile in enumerate(self.profiles):
            has = np.flatnonzero(self.present[rank])
            start = self.start[rank, has]
            wait = (self.duration[rank, has] - self.transfer[has]).astype(np.int64)
            bare[has] = np.maximum(bare[has], wait - profile.compute.within(start, start + wait))
        return np.where(bare >= BARE * self.lateness, self.lateness, 0.0)

    @cached_property
    def _blame(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        from moexray.analyse.timeline_blame import blame

        return blame(self)

    @property
    def cause(self) -> NDArray[np.int64]:
        """Position of the rank that each column waited for; it may be in another group."""
        return self._blame[0]

    @property
    def fresh(self) -> NDArray[np.float64]:
        """The part of the lateness that no other wait for the same rank counts already, ns."""
        return self._blame[1]

    @cached_property
    def doubtful(self) -> NDArray[np.bool_]:
        """Columns matched by order whose ends do not agree: they may be several collectives at one time."""
        return self.by_order & (self.apart > np.maximum(MIN_TOLERANCE_NS, DOUBT * self.lateness))

    @cached_property
    def complete(self) -> NDArray[np.bool_]:
        """All members of the group are there, as far as is known."""
        worlds = [p.world_size for p in self.profiles if p.world_size]
        expected = np.where(self.group_size > 0, self.group_size, max(worlds, default=2))
        return np.asarray(self.present.sum(axis=0) >= expected)

    @cached_property
    def _steps(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(step of each column, -1 outside; what to add to a rank's own positions to get these)."""
        shift = np.zeros(len(self.profiles), np.int64)
        out = np.full(len(self), NO_STEP)
        for rank, profile in enumerate(self.profiles):  # profilers of a capture start some steps apart
            has = np.flatnonzero(self.present[rank])
            own = profile.steps.of(launch_times(profile, self.row[rank, has]))
            has, own = has[own >= 0], own[own >= 0]
            known = out[has] != NO_STEP
            shift[rank] = np.median(out[has[known]] - own[known]) if known.any() else 0
            out[has[~known]] = own[~known] + shift[rank]
        least = min(0, int(out[out != NO_STEP].min(initial=0)))
        return np.where(out == NO_STEP, -1, out - least), shift - least

    @property
    def step(self) -> NDArray[np.int64]:
        """Step of each column, counted from the first that any rank has; -1 outside of steps."""
        return self._steps[0]

    def step_on(self, rank: int, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Positions of steps in the profile of a rank; -1 where that rank does not have them."""
        own = steps - self._steps[1][rank]
        return np.where((steps >= 0) & (own >= 0) & (own < len(self.profiles[rank].steps)), own, -1)

    def labels(self, steps: NDArray[np.int64]) -> list[int]:
        """Step numbers as the traces print them, for steps of the columns."""
        out = steps.copy()
        for rank in reversed(range(len(self.profiles))):
            own = self.step_on(rank, steps)
            out[own >= 0] = self.profiles[rank].steps.label[own[own >= 0]]
        return [int(s) for s in out.tolist()]

    @cached_property
    def step_ns(self) -> float:
        """Median step; without steps the median distance between collectives of one kind."""
        medians = [p.steps.median_ns for p in self.profiles if len(p.steps)]
        if medians:
            return float(np.median(medians))
        gaps = []
        first = np.where(self.present, self.start, 2**62).min(axis=0, initial=2**62)
        for op in dict.fromkeys(self.op):
            times = np.sort(first[self.op == op])
            gaps += list(np.diff(times))
        return float(np.median(gaps)) if gaps else float("nan")

    @cached_property
    def members(self) -> NDArray[np.int64]:
        """Which set of ranks a column has, as a number."""
        return np.unique(self.present, axis=1, return_inverse=True)[1].ravel()

    @cached_property
    def place(self) -> NDArray[np.int64]:
        """Which occurrence of its operation among its ranks in its step a column is, from 0; 0 outside."""
        out = np.zeros(len(self), np.int64)
        seen: dict[tuple[Any, int, int], int] = {}
        for column in self.order:
            if self.step[column] >= 0:
                key = (self.op[column], int(self.members[column]), int(self.step[column]))
                out[column] = seen.get(key, 0)
                seen[key] = int(out[column]) + 1
        return out

    @cached_property
    def offsets(self) -> list[Offset]:
        """Clock offsets against the first rank, of all that share collectives with it or are linked to it.

        Ranks of other groups are reached over ranks that are in both: offsets, drifts and errors add up.
        """
        known = {0: Offset(0, 0.0, 0.0, 0.0, 0)} if self.profiles else {}
        todo = list(known)
        for base in todo:  # grows while it is walked
            shared = np.count_nonzero(self.present & self.present[base], axis=1)
            for rank in np.flatnonzero(shared >= LEAST_SHARED).tolist():
                if rank not in known:
                    known[rank] = self._offset(rank, known[base])
                    todo.append(rank)
        return [known[rank] for rank in sorted(known) if rank]

    def _offset(self, rank: int, base: Offset) -> Offset:
        both = self.present[base.rank] & self.present[rank]
        at = self.end[base.rank, both].astype(np.float64)
        difference = (self.end[rank, both] - self.end[base.rank, both]).astype(np.float64)
        middle = float(np.median(difference))
        slope = _slope(at - at[0], difference)
        centre = float(np.median(at))
        line = middle + slope * (at - centre)
        residual = float(np.median(np.abs(difference - line)))
        return Offset(
            rank,
            base.offset_ns + base.drift_ppm * 1e-6 * (centre - base.offset_ns - base.middle_ns) + middle,
            base.residual_ns + residual,
            base.drift_ppm + slope * 1e6,
            int(np.count_nonzero(both)),
            centre - base.offset_ns,
        )

    def waiting(self, profile: Profile) -> Cover | None:
        """When a rank waits in its collectives for others to come; None for one that is not matched."""
        if not len(self) or profile not in self.profiles:
            return None
        rank = self.profiles.index(profile)
        has = self.present[rank]
        start = self.start[rank, has]
        return Cover(start, start + (self.duration[rank, has] - self.transfer[has]).astype(np.int64))

    def shift(self, profile: Profile, base: Profile) -> int:
        """What to add to a time of `base` to get it on the clock of `profile`, ns."""
        ahead = {self.profiles[o.rank].source: o.offset_ns for o in self.offsets}
        return round(ahead.get(profile.source, 0.0) - ahead.get(base.source, 0.0))

    def end_residual(self, columns: NDArray[np.int64]) -> float:
        """How far the ends of a collective lie apart once the clocks are aligned, median, ns."""
        return float(np.median(self.apart[columns]))

    @cached_property
    def apart(self) -> NDArray[np.float64]:
        """How far the ends of each column lie apart once the clocks are aligned, ns."""
        origin = int(self.end.max(initial=0))  # as floats, times since 1970 are exact to 256 ns only
        ends = np.where(self.present, self.end - origin, np.nan)
        for o in self.offsets:
            ends[o.rank] -= o.offset_ns
            ends[o.rank] -= o.drift_ppm * 1e-6 * (ends[o.rank] + (origin - o.middle_ns))
        return np.asarray(np.nanmax(ends, axis=0) - np.nanmin(ends, axis=0))


def _slope(at: NDArray[np.float64], value: NDArray[np.float64]) -> float:
    """Slope between the medians of the first and the last third; robust against outliers."""
    if len(at) < 9:
        return 0.0
    order = np.argsort(at)
    third = len(at) // 3
    head, tail = order[:third], order[-third:]
    span = float(np.median(at[tail]) - np.median(at[head]))
    return float(np.median(value[tail]) - np.median(value[head])) / span if span > 0 else 0.0


@lru_cache(maxsize=4096)
def op_name(kernel: str) -> str:
    """The kernel's name without return type, template values and parameters."""
    bare = re.sub(r"^(?:void|static|__global__)\s+", "", kernel.replace("(anonymous namespace)::", ""))
    return re.split(r"[<(]", bare, maxsplit=1)[0].strip() or kernel[:60]


def launch_times(profile: Profile, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """When the kernels were launched; their own start where no launch is recorded."""
    calls = np.flatnonzero(profile.of(RUNTIME, DRIVER) & (profile.correlation >= 0))
    if not len(calls) or not len(rows):
        return profile.start[rows]
    ids = profile.correlation[calls]
    order = np.argsort(ids, kind="stable")
    at = np.minimum(np.searchsorted(ids[order], profile.correlation[rows]), len(order) - 1)
    call = calls[order[at]]
    known = (profile.correlation[call] == profile.correlation[rows]) & (profile.correlation[rows] >= 0)
    return np.where(known, profile.start[call], profile.start[rows])


@dataclass(frozen=True, slots=True)
class Capture:
    """Traces that were taken together.

    Args:
        profiles: All of them.
        usable: Those whose rank occurs once; doubles are never merged.
        collectives: Matched over the usable ones; without columns for a single one.
    """

    profiles: list[Profile]
    usable: list[Profile]
    collectives: Collectives


def survey(run: Run) -> list[Capture]:
    """All captures of a run, matched; many rules ask, one matches."""
    return run.once(_survey)


def _survey(run: Run) -> list[Capture]:
    found = []
    for group in captures(profiles(run)):
        ranks = [p.rank for p in group]
        usable = [p for p in group if p.rank is None or ranks.count(p.rank) == 1]
        found.append(Capture(group, usable, match(usable)))
    return found


def match(profiles: list[Profile]) -> Collectives:
    """Matches collectives by group and sequence number, else by order of the same operation.

    Args:
        profiles: One capture, each rank once, in any order (the answer is by rank).
    """
    profiles = sorted(profiles, key=lambda p: (p.rank is None, p.rank or 0, p.source))
    cells: dict[Any, dict[int, int]] = {}
    facts: dict[Any, tuple[str, int, int]] = {}
    unnumbered: dict[Any, dict[int, list[int]]] = {}
    sizes: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, profile in enumerate(profiles):
        known = _metadata(profile)
        pairs = len(profile.named(POINT_TO_POINT, ANNOTATION)) > 0
        seen: dict[Any, int] = {}
        for row in profile.comm_rows.tolist():
            op, group, seq, size, members = known.get(row, (None, None, -1, -1, -1))
            name = op or op_name(profile.names[profile.name[row]])
            if ONE_SIDED.search(name) or (pairs and op is None and "SendRecv" in name):
                continue
            if seq < 0:
                unnumbered.setdefault((name, group), {}).setdefault(rank, []).append(row)
                sizes[rank, row] = (size, members)
                continue
            nth = seen.get((group, seq), 0)
            seen[group, seq] = nth + 1
            cells.setdefault((group, seq, nth), {})[rank] = row
            known_size = facts.get((group, seq, nth), ("", -1, 0))[1]  # the fullest rank sets the time
            facts[group, seq, nth] = (str(op), max(size, known_size), members)
    for (name, group), by_rank in unnumbered.items():
        for index, ranks in enumerate(by_order(profiles, by_rank)):
            key = (name, group, index)
            cells[key] = ranks
            facts[key] = (name, *max(sizes[cell] for cell in ranks.items()))
    return Collectives(profiles, cells, facts)


def _metadata(profile: Profile) -> dict[int, tuple[str, Any, int, int, int]]:
    """Row -> (operation, group, sequence number, elements, members)."""
    comm = profile.comm
    if comm is None:
        return {}
    out = {}
    for i, row in enumerate(comm["row"].tolist()):
        size = max(int(comm["in_elements"][i]), int(comm["out_elements"][i]))
        group = (comm["group"][i], comm["ranks"][i])
        out[row] = (comm["collective"][i], group, int(comm["seq"][i]), size, int(comm["group_size"][i]))
    return out
