"""Replicas on EP ranks: greedy packing, then swaps of two slots while they take load off the busiest.

Glossary: *load* is tokens per logical expert; a *slot* holds a copy (replica) of one logical expert;
slots of a rank are consecutive, ranks of a node too; a *share* is what one replica brings its rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moexray.core.errors import UsageError

__all__ = ["balancedness", "pack", "rank_loads", "swap_duplicate"]

SWAPS = 8  # swaps per rank at most; layers of 512 experts on 128 ranks need about 1.3
STEP = 1e-9  # relative gain below which a swap is rounding


def balancedness(loads: np.ndarray) -> float:
    """Mean / max of the loads of ranks; 1 is perfect; NaN where nothing was loaded."""
    top = float(loads.max()) if loads.size else 0.0
    return float(loads.mean()) / top if top > 0 else float("nan")


def pack(
    share: np.ndarray, counts: np.ndarray, ranks: int, nodes: int, start: np.ndarray, target: float
) -> np.ndarray:
    """Puts replicas on ranks; no rank holds an expert twice, no node more than its part of the replicas.

    Heaviest first, each to the lightest rank that has room and lacks it. Then slots of the busiest rank
    are swapped for lighter ones elsewhere, as long as both ranks end below its load: the swap that is best
    for both, first of one slot, then of two. Where replicas on different nodes and on different ranks
    exclude each other, different ranks win.

    Args:
        share: [experts], what one replica brings its rank (load / counts).
        counts: [experts], replicas of each, at most `ranks`; their sum is a multiple of `ranks`.
        ranks: EP size.
        nodes: Nodes that the ranks lie on, in equal parts; 1 where it does not matter.
        start: [ranks, slots of a rank], replicas that already have a place, -1 elsewhere; at most
            `counts` of an expert, and no rank twice.
        target: Stop once no rank carries more.

    Returns:
        [slots], the logical expert in each slot, ranks one after another.

    Raises:
        UsageError: an expert has more replicas than there are ranks.
    """
    if counts.max(initial=0) > ranks:
        raise UsageError(f"{int(counts.max())} replicas of one expert do not fit on {ranks} ranks")
    board = _Board.of(share, counts, ranks, nodes, start)
    for expert in np.argsort(-share, kind="stable"):
        for _ in range(int(counts[expert] - board.holds[:, expert].sum())):
            board.add(int(expert))
    board.swap(target)
    return board.placed.reshape(-1)


@dataclass(frozen=True, slots=True)
class _Board:
    """The slots being filled; its arrays change.

    Args:
        share: [experts].
        placed: [ranks, slots of a rank], -1 is empty.
        carried: [ranks], shares of each rank.
        holds: [ranks, experts], the rank has the expert.
        near: [nodes, experts], replicas on each node.
        most: [experts], replicas that a node may have.
    """

    share: np.ndarray
    placed: np.ndarray
    carried: np.ndarray
    holds: np.ndarray
    near: np.ndarray
    most: np.ndarray

    @classmethod
    def of(cls, share: np.ndarray, counts: np.ndarray, ranks: int, nodes: int, start: np.ndarray) -> _Board:
        experts = len(share)
        board = cls(share, np.full_like(start, -1), np.zeros(ranks), np.zeros((ranks, experts), bool),
                    np.zeros((nodes, experts), np.int64), -(-counts // nodes))  # fmt: skip
        for rank in range(ranks):
            for slot, expert in enumerate(start[rank]):
                if expert >= 0:
                    board.put(rank, slot, int(expert))
        return board

    def node(self, rank: int) -> int:
        return rank * len(self.near) // len(self.placed)

    def put(self, rank: int, slot: int, expert: int) -> None:
        self.placed[rank, slot] = expert
        self.carried[rank] += self.share[expert]
        self.holds[rank, expert] = True
        self.near[self.node(rank), expert] += 1

    def add(self, expert: int) -> None:
        """On the lightest rank that lacks it, of a node that may have it; else another rank makes way."""
        ranks = len(self.placed)
        roomy = (self.placed < 0).any(axis=1)
        fits = roomy & ~self.holds[:, expert]
        allowed = np.repeat(self.near[:, expert] < self.most[expert], ranks // len(self.near))
        if not (fits & allowed).any():
            rank = int(np.where(roomy, self.carried, np.inf).argmin())
            if self.make_way(expert, rank, allowed) or not fits.any():
                return
            allowed = fits
        rank = int(np.where(fits & allowed, self.carried, np.inf).argmin())
        self.put(rank, int((self.placed[rank] < 0).argmax()), expert)

    def make_way(self, expert: int, rank: int, allowed: np.ndarray) -> bool:
        """A full rank takes the expert and gives up one of its own to a rank with room.

        Nodes are kept to if that can be; without, only if no rank with room lacks the expert.
        """
        here = self.node(rank)
        free = not ((self.placed < 0).any(axis=1) & ~self.holds[:, expert]).any()
        for spread in (True, False) if free else (True,):
            best, place = np.inf, (-1, -1)
            for other in range(len(self.placed)):
                theirs = self.placed[other]
                if self.holds[other, expert] or theirs.min() < 0 or (spread and not allowed[other]):
                    continue
                top = np.maximum(
                    self.carried[rank] + self.share[theirs],
                    self.carried[other] + (self.share[expert] - self.share[theirs]),
                )
                no = self.holds[rank, theirs]
                if spread and here != self.node(other):
                    no = no | (self.near[here, theirs] >= self.most[theirs])
                top = np.where(no, np.inf, top)
                if top.min() < best:
                    best, place = float(top.min()), (other, int(top.argmin()))
            other, slot = place
            if other >= 0:
                given = int(self.placed[other, slot])
                self.put(rank, int((self.placed[rank] < 0).argmax()), given)
                self.exchange(other, slot, given, expert)
                return True
        return False

    def exchange(self, rank: int, slot: int, old: int, new: int) -> None:
        self.placed[rank, slot] = new
        self.carried[rank] += self.share[new] - self.share[old]
        self.holds[rank, old], self.holds[rank, new] = False, True
        self.near[self.node(rank), old] -= 1
        self.near[self.node(rank), new] += 1

    def swap(self, target: float) -> None:
        """One slot for one, and two for two where no single swap helps."""
        ranks, room = self.placed.shape
        single, double = np.arange(room)[:, None], np.stack(np.triu_indices(room, 1), axis=1)
        for _ in range(SWAPS * ranks):
            hot = int(self.carried.argmax())
            if self.carried[hot] <= target:
                return
            rank, mine, theirs = self.best_swap(hot, single)
            if rank < 0:
                rank, mine, theirs = self.best_swap(hot, double)
            if rank < 0:
                return
            given, taken = self.placed[hot, mine], self.placed[rank, theirs]
            for slot, old, new in zip(mine, given, taken, strict=True):
                self.exchange(hot, slot, old, new)
            for slot, old, new in zip(theirs, taken, given, strict=True):
                self.exchange(rank, slot, old, new)

    def best_swap(self, hot: int, sets: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
        """(rank, slots of hot, slots of rank) that leave the lighter busier rank of both; -1: none helps.

        Args:
            hot: The busiest rank.
            sets: [sets, slots swapped together], positions on a rank.
        """
        best, found = self.carried[hot] * (1 - STEP), (-1, sets[0], sets[0]) if len(sets) else None
        if found is None:
            return -1, sets, sets
        # the lightest rank first: then most others cannot be better
        for rank in (int(self.carried.argmin()), *range(len(self.placed))):
            # both ends sum up to the same: no swap with this rank can be better than half of it
            if rank == hot or (self.carried[hot] + self.carried[rank]) / 2 >= best:
                continue
            top = self.tops(hot, rank, sets)
            if top.min() < best:
                best = float(top.min())
                mine, theirs = divmod(int(top.argmin()), len(sets))
                found = (rank, sets[mine], sets[theirs])
        return found

    def tops(self, hot: int, rank: int, sets: np.ndarray) -> np.ndarray:
        """[sets of hot, sets of rank], the load of the busier of both after a swap; inf: not allowed."""
        mine, theirs = self.placed[hot], self.placed[rank]
        here, there = self.node(hot), self.node(rank)
        stays, stuck = self.holds[rank, mine], self.holds[hot, theirs]
        if here != there:
            stays = stays | (self.near[there, mine] >= self.most[mine])
            stuck = stuck | (self.near[here, theirs] >= self.most[theirs])
        gain = self.share[mine][sets[:, 0]]
        if sets.shape[1] == 2:
            gain = gain + self.share[mine][sets[:, 1]]
        gain = gain[:, None]
        for column in sets.T:
            gain = gain - self.share[theirs][column][None]
        top = np.maximum(self.carried[hot] - gain, self.carried[rank] + gain)
        no = stays[sets].any(axis=1)[:, None] | stuck[sets].any(axis=1)[None] | (gain <= 0)
        return np.where(no, np.inf, top)


def rank_loads(load: np.ndarray, slots: np.ndarray, ranks: int) -> np.ndarray:
    """[ranks], tokens per rank if each expert's load is split equally over its slots (-1: empty)."""
    used = slots >= 0
    counts = np.bincount(slots[used], minlength=len(load))
    share = np.where(counts > 0, load / np.maximum(counts, 1), 0.0)
    per_slot = np.where(used, share[np.maximum(slots, 0)], 0.0)
    return np.asarray(per_slot.reshape(ranks, -1).sum(axis=1))


def swap_duplicate(
    load: np.ndarray, slots: np.ndarray, ranks: int, rank: int, expert: int
) -> tuple[int, int] | None:
    """The swap of two slots that takes one of two equal replicas off a rank and balances best.

    Args:
        load: [experts], tokens per logical expert (ones where unknown).
        slots: [slots], logical expert per slot.
        ranks: EP size.
        rank: The rank that holds `expert` twice.
        expert: The logical expert.

    Returns:
        (slot on `rank`, slot on another rank), or None if no swap avoids duplicates.
    """
    room = len(slots) // ranks
    mine = slots[rank * room : (rank + 1) * room]
    source = rank * room + int(np.flatnonzero(mine == expert)[-1])
    best: tuple[float, int] | None = None
    for target in range(len(slots)):
        other = target // room
        theirs = slots[other * room : (other + 1) * room]
        if other == rank or expert in theirs or slots[target] in mine:
            continue
        trial = slots.copy()
        trial[source], trial[target] = trial[target], trial[source]
        score = balancedness(rank_loads(load, trial, ranks))
        if best is None or score > best[0]:
            best = (score, target)
    return None if best is None else (source, best[1])
