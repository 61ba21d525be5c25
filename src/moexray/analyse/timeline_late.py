"""Who is late, how much, in which steps, and what that rank did while the others waited.

Glossary: a *place* is an operation and its position within a step; a *burst* is a step in which one
rank's lateness passes several median steps; the *late window* is the time in which the others waited.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.timeline import DRIVER, RUNTIME
from moexray.analyse.timeline_host import COMPILE, DEVICE_MEMORY, MOSTLY, cover_of, silences

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from moexray.analyse.timeline_comm import Collectives

__all__ = ["USUAL", "Late", "Place", "Slow", "late_ranks", "places", "slow_columns", "waited"]

GROWN = 1.25  # compute of a step / usual from which its batch is taken to have grown
USUAL = 5  # percentile of transfers that stands for a quick one: slow ones may be most of them
BEYOND = 0.2  # lateness / (transfer - usual transfer) below which the transfer itself is what is slow
VALLEY_WIDTH = 0.2  # of the distance of the two heaps: transfers as close to a length as this are counted
VALLEY = 0.25  # the emptiest place between the heaps / the smaller of their tops
FEW = 3  # columns of a place from which their median is trusted
THIRDS = ("first third", "middle third", "last third")
THIRD_LEAST = 9  # columns of a place from which its thirds are looked at, too
BURST_SHARE = 0.05  # share of all step time that smaller bursts must cost in sum


@dataclass(frozen=True, slots=True)
class Place:
    """An operation at one position of a step.

    Args:
        op: Operation.
        place: Its position in the step among those of the same ranks; -1 for all of a step together.
        columns: Columns, in order of time.
        lateness_ns: Median lateness; of the worst third if `part` is set.
        part: "" for all, else "first", "middle", "last third".
        late: Rank position that is late most; -1 if it changes.
    """

    op: str
    place: int
    columns: NDArray[np.int64]
    lateness_ns: float
    part: str
    late: int


@dataclass(frozen=True, slots=True)
class Late:
    """One late rank.

    Args:
        rank: Position in Collectives.profiles; -1: no single rank.
        places: Places at which it is late in the median.
        bursts: Step positions (or columns without steps) of its bursts.
        burst_ns: Lateness in each burst, summed over its collectives.
        columns: All columns that this is about.
        total_ns: Lateness over all of them.
        did: What the rank did in the late windows -> share of the lateness.
    """

    rank: int
    places: tuple[Place, ...]
    bursts: NDArray[np.int64]
    burst_ns: NDArray[np.float64]
    columns: NDArray[np.int64]
    total_ns: float
    did: dict[str, float]


def places(c: Collectives, ratio: float, lone: float) -> list[Place]:
    """Places with a median lateness >= `ratio` of a step, `lone` times that if seen once or twice."""
    found = []
    for op, place, columns in _by_place(c):
        lateness = c.costly[columns]
        least = ratio * c.step_ns * (lone if len(columns) < FEW else 1.0)
        middle, part, name = float(np.median(lateness)), columns, ""
        if middle < least and len(columns) >= THIRD_LEAST:
            thirds = np.array_split(columns, 3)
            medians = [float(np.median(c.costly[third])) for third in thirds]
            at = int(np.argmax(medians))
            middle, part, name = medians[at], thirds[at], THIRDS[at]
        if middle >= least:
            found.append(Place(op, place, part, middle, name, _mostly_late(c, part)))
    return found


def _whole_steps(c: Collectives, ratio: float) -> list[Place]:
    """The rank that is a little late at many places: what these cost in a step, in the median."""
    inside = np.flatnonzero(c.step >= 0)
    steps, at = np.unique(c.step[inside], return_inverse=True)
    if len(steps) < THIRD_LEAST:
        return []
    sums = np.zeros((len(c.profiles), len(steps)))
    np.add.at(sums, (c.cause[inside], at), c.fresh[inside])
    middle = np.median(sums, axis=1)
    rank = int(np.argmax(middle))
    if middle[rank] < ratio * c.step_ns or middle[rank] < MOSTLY * np.median(sums.sum(axis=0)):
        return []
    columns = inside[c.cause[inside] == rank]
    ops, cost = np.unique(c.op[columns].astype(str), return_inverse=True)
    by_op = np.bincount(cost, c.fresh[columns])
    named = ", ".join(ops[np.argsort(-by_op)][:3].tolist())
    return [Place(named, -1, columns, float(middle[rank]), "", rank)]


def _by_place(c: Collectives) -> Iterator[tuple[str, int, NDArray[np.int64]]]:
    groups: dict[tuple[str, int, int], list[int]] = {}
    for column in c.order.tolist():
        key = (c.op[column], int(c.members[column]), int(c.place[column]))
        groups.setdefault(key, []).append(column)
    for (op, _, place), columns in groups.items():
        yield op, place, np.array(columns)


def _mostly_late(c: Collectives, columns: NDArray[np.int64]) -> int:
    weight = np.bincount(c.cause[columns], c.costly[columns], minlength=len(c.profiles))
    top = int(np.argmax(weight))
    return top if weight[top] >= MOSTLY * weight.sum() else -1


def late_ranks(c: Collectives, ratio: float, burst_steps: float, lone: float = 1.0) -> list[Late]:
    """Every rank that the others wait for, the costliest first.

    Args:
        c: Matched collectives.
        ratio: Median lateness / step from which a place counts.
        burst_steps: Lateness in one step / median step from which a burst counts.
        lone: How much stricter `ratio` is for places seen once or twice.
    """
    if not len(c) or not 0 < c.step_ns < np.inf:
        return []
    steady: dict[int, list[Place]] = {}
    for place in places(c, ratio, lone) or _whole_steps(c, ratio):
        steady.setdefault(place.late, []).append(place)
    bursts = _bursts(c, burst_steps)
    found = []
    for rank in sorted({*steady, *bursts}):
        at, sums, columns = bursts.get(rank, (np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64)))
        for place in steady.get(rank, []):
            own = place.columns if rank < 0 else place.columns[c.cause[place.columns] == rank]
            columns = np.union1d(columns, own)
        total = float(c.fresh[columns].sum())
        did = _did(c, rank, columns) if rank >= 0 and not c.profiles[rank].cut else {}
        found.append(Late(rank, tuple(steady.get(rank, ())), at, sums, columns, total, did))
    return sorted(found, key=lambda x: -x.total_ns)


def _bursts(
    c: Collectives, burst_steps: float
) -> dict[int, tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]]:
    """Rank -> (steps, lateness in each, columns) of the bursts it causes."""
    usual = np.zeros(len(c))
    for _, _, columns in _by_place(c):
        usual[columns] = np.median(c.costly[columns]) if len(columns) > 1 else 0.0
    excess = np.maximum(c.fresh - usual, 0)
    bins = c.step if (c.step >= 0).any() else np.arange(len(c))
    inside = bins >= 0
    found = {}
    for rank in range(len(c.profiles)):
        mine = inside & (c.cause == rank)
        if not mine.any():
            continue
        sums = np.bincount(bins[mine], excess[mine])
        long = np.flatnonzero(sums > c.step_ns)
        strong = (sums > burst_steps * c.step_ns).any()
        steps = len(np.unique(bins[inside]))
        often = len(long) >= 3 and sums[long].sum() >= BURST_SHARE * steps * c.step_ns
        if strong or often:
            columns = np.flatnonzero(mine & np.isin(bins, long) & (excess > 0.01 * c.step_ns))
            found[rank] = (long.astype(np.int64), sums[long].astype(np.float64), columns.astype(np.int64))
    return found


def _did(c: Collectives, rank: int, columns: NDArray[np.int64]) -> dict[str, float]:
    """What the rank did in its late windows -> share; what lies before its trace is "untraced".

    A stop early in the segment moves the work behind it into the window; it is the work that is to blame
    only if the other ranks computed less.
    """
    profile = c.profiles[rank]
    own = (c.late[columns] == rank) & (c.cause[columns] == rank)  # not those of other groups behind it
    columns = columns[own & (c.fresh[columns] >= MOSTLY * c.lateness[columns])]
    end = c.start[rank, columns]
    lateness = c.lateness[columns]
    start = end - lateness.astype(np.int64)
    begin = np.minimum(start, _segments(c, rank, columns))
    covers = {
        "alloc": cover_of(profile, DEVICE_MEMORY, RUNTIME, DRIVER),
        "compile": cover_of(profile, COMPILE),
        "host": silences(profile, 0.5 * float(np.median(lateness))) if len(columns) else None,
    }
    spent = [("untraced", np.maximum(0, profile.window[0] - start))]
    spent += [(name, cover.within(start, end)) for name, cover in covers.items() if cover]
    spent += [("compute", np.minimum(profile.compute.within(start, end), _longer(c, rank, columns)))]
    spent += [(name, cover.within(begin, end)) for name, cover in covers.items() if cover]
    left = np.ones(len(columns), bool)
    shares: dict[str, float] = {}
    for name, covered in spent:
        hit = left & (covered >= MOSTLY * lateness)
        left &= ~hit
        shares[name] = shares.get(name, 0.0) + float(lateness[hit].sum())
    shares["unexplained"] = float(lateness[left].sum())
    total = max(1.0, float(lateness.sum()))
    return {name: value / total for name, value in shares.items() if value > 0}


def _segments(c: Collectives, rank: int, columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """When the collective before each of these ended on a rank; the start of its trace for the first."""
    here = np.flatnonzero(c.present[rank])
    here = here[np.argsort(c.start[rank, here], kind="stable")]
    ended = np.maximum.accumulate(c.end[rank, here]) if len(here) else here
    at = np.searchsorted(c.start[rank, here], c.start[rank, columns])
    first = c.profiles[rank].window[0]
    return np.where(at > 0, np.append(ended, first)[at - 1], first)


def _longer(c: Collectives, rank: int, columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """[columns] by how much longer a rank computes until each collective ends than the others, median, ns.

    To the end and not to the arrival: on another stream, who arrives later has had more time to compute.
    """
    work = np.full((len(c.profiles), len(columns)), np.nan)
    for other, profile in enumerate(c.profiles):
        at = np.flatnonzero(c.present[other, columns])
        mine = columns[at]
        until = c.end[other, mine]
        work[other, at] = profile.compute.within(np.minimum(_segments(c, other, mine), until), until)
    others = np.delete(work, rank, axis=0)
    return np.asarray(work[rank] - np.nanmedian(others, axis=0), np.float64)


def waited(c: Collectives) -> list[tuple[float, float, int]]:
    """Per rank (seconds it made others wait, seconds it waited itself, collectives)."""
    waits = np.nan_to_num(c.duration - c.transfer)
    out = []
    for rank in range(len(c.profiles)):
        late = float(c.fresh[c.cause == rank].sum()) if len(c) else 0.0
        out.append((late / 1e9, float(waits[rank].sum()) / 1e9, int(c.present[rank].sum())))
    return out


@dataclass(frozen=True, slots=True)
class Slow:
    """Collectives whose transfer is slow although all ranks were there.

    Args:
        op: Operation.
        size: Elements; -1 where the place in the step stands for the size.
        columns: The slow ones.
        usual_ns: Median transfer of the same operation and size elsewhere.
        normal: How many these are.
        cost_ns: What all slow transfers of the capture took beyond their usual times, other kinds included.
    """

    op: str
    size: int
    columns: NDArray[np.int64]
    usual_ns: float
    normal: int
    cost_ns: float = 0.0


def slow_columns(c: Collectives, lateness_ratio: float, factor: float, least: int) -> Slow | None:
    """The costliest kind of collective with slow transfers; None if there is none.

    A kind is an operation with one size (within 12 %). Where sizes are not recorded it is an operation
    with one place in the step, and it counts only if no rank computes longer in the slow steps: what
    the bytes of a collective follow, the batch and the tokens of each rank's experts, did not grow. Slow
    places of one operation are told together.
    """
    kinds: dict[tuple[str, int, int], list[int]] = {}
    for column in np.flatnonzero(c.complete).tolist():
        op, size = str(c.op[column]), int(c.size[column])
        if size > 0:
            kinds.setdefault((op, round(np.log2(size) * 6), 0), []).append(column)
        else:  # a place is counted among the operations of the same ranks
            kinds.setdefault((op, -1 - int(c.place[column]), int(c.members[column])), []).append(column)
    found: list[Slow] = []
    for (op, kind, _), members in kinds.items():
        columns = np.array(members)
        transfer = c.transfer[columns]
        low = float(np.percentile(transfer, USUAL))
        high = transfer >= factor * max(low, 1.0)
        usual = float(np.median(transfer[~high])) if (~high).any() else 0.0
        high &= transfer >= factor * usual
        late = c.lateness[columns] >= lateness_ratio * (transfer + c.lateness[columns])
        late &= c.lateness[columns] >= BEYOND * (transfer - usual)  # else waiting is not what takes long
        slow = columns[high & ~late]
        if len(slow) < least or np.count_nonzero(~high) < least or not _two_levels(transfer, high):
            continue
        if kind < 0 and _worked_more(c, slow, columns[~high]):
            continue
        cost = float((c.transfer[slow] - usual).sum())
        size = int(np.median(c.size[slow])) if kind >= 0 else -1
        found.append(Slow(op, size, slow, usual, int(np.count_nonzero(~high)), cost))
    if not found:
        return None
    best = max(found, key=lambda s: s.cost_ns)
    same = [s for s in found if s is best or (s.op == best.op and s.size < 0 and best.size < 0)]
    return replace(
        best,
        columns=np.sort(np.concatenate([s.columns for s in same])),
        usual_ns=float(np.median([s.usual_ns for s in same])),
        normal=sum(s.normal for s in same),
        cost_ns=sum(s.cost_ns for s in found),
    )


def _two_levels(transfer: NDArray[np.float64], high: NDArray[np.bool_]) -> bool:
    """Whether slow and usual transfers are two heaps with a valley between, not one that scatters widely."""
    length = np.sort(np.log(np.maximum(transfer, 1.0)))
    low, top = (float(np.median(np.log(np.maximum(transfer[at], 1.0)))) for at in (~high, high))
    width = VALLEY_WIDTH * (top - low)

    def near(at: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.searchsorted(length, at + width / 2) - np.searchsorted(length, at - width / 2)

    between = near(np.linspace(low + width, top - width, 32))
    return bool(between.min() <= VALLEY * near(np.array([low, top])).min())


def _worked_more(c: Collectives, slow: NDArray[np.int64], usual: NDArray[np.int64]) -> bool:
    """Whether the ranks compute longer in the steps of the slow columns, or steps are not known."""
    mine, others = (np.unique(c.step[columns]) for columns in (slow, usual))
    mine, others = np.setdiff1d(mine[mine >= 0], others), others[others >= 0]
    if not len(mine) or not len(others):
        return True
    grown = []
    for rank, p in enumerate(c.profiles):
        own, usually = (c.step_on(rank, steps) for steps in (mine, others))
        if (own >= 0).any() and (usually >= 0).any():
            work = p.compute.within(p.steps.start, p.steps.end)
            before = np.median(work[usually[usually >= 0]])
            grown.append(bool(np.median(work[own[own >= 0]]) > GROWN * before))
    return not grown or any(grown)
