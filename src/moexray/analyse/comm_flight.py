"""Positions of ranks in their process groups, from flight-recorder dumps.

Glossary: *open*, launched and not completed; *frontier*, the lowest open collective of a rank;
*launched*, the highest number a rank has launched. Rings start at different numbers: only numbers
that two dumps share are compared. gloo reports no starts and ends, so only *launched* counts there.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moexray.analyse.comm import same_op, synchronising

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moexray.core.run import Batch, Run

__all__ = ["Entry", "GroupView", "Position", "Recorders", "recorders"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One collective of one rank."""

    seq: int
    op: str
    done: bool | None
    sizes_in: str
    sizes_out: str
    numel_in: float
    numel_out: float
    dtype: str
    splits_in: tuple[int, ...] | None
    splits_out: tuple[int, ...] | None
    created_ns: float
    completed_ns: float
    timeout_s: float

    @property
    def wait_s(self) -> float:
        """Created to completed; NaN if either is unknown."""
        return (self.completed_ns - self.created_ns) / 1e9


@dataclass(slots=True)
class Position:
    """How far one rank came in one group."""

    rank: int
    source: str
    timing: bool
    entries: dict[int, Entry] = field(default_factory=dict)
    launched: int | None = None
    completed: int | None = None

    def open(self) -> list[int]:
        """Numbers that were launched and are not completed, ascending."""
        return sorted(s for s, e in self.entries.items() if e.done is False)


@dataclass(slots=True)
class GroupView:
    """One process group as all dumps together show it."""

    name: str
    desc: str | None = None
    members: tuple[int, ...] = ()
    positions: dict[int, Position] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Name for claims: "group 4 (tp)"."""
        if not self.desc or self.desc == "undefined":
            return f"group {self.name}"
        return f"group {self.name} ({self.desc})" if self.desc != self.name else f"group {self.desc}"

    @property
    def absent(self) -> list[int]:
        """Members whose dump is not here."""
        return [m for m in self.members if m not in self.positions]

    def completed(self) -> int:
        """Highest number of an operation that is complete somewhere only if all ranks had joined."""
        best = 0
        for p in self.positions.values():
            if not p.timing:
                continue
            done = [s for s, e in p.entries.items() if e.done and synchronising(e.op)]
            best = max([best, *done])
        return best

    def frontier(self) -> dict[int, int]:
        """Rank -> number in which it waits; ranks that wait in nothing are left out.

        An open entry that a peer has completed is complete, too (its own watchdog was slow to
        look), if the operation joins all ranks and the rank launched the same one.
        """
        if any(not p.timing for p in self.positions.values()):
            return self._launched_only()
        out = {}
        for rank, p in self.positions.items():
            waiting = [s for s in p.open() if not self._done_elsewhere(rank, s)]
            if waiting:
                out[rank] = waiting[0]
        return out

    def _done_elsewhere(self, rank: int, seq: int) -> bool:
        mine = self.positions[rank].entries[seq]
        if not synchronising(mine.op):
            return False
        others = [p.entries[seq] for r, p in self.positions.items() if r != rank and seq in p.entries]
        return any(e.done and same_op(e.op, mine.op) for e in others)

    def _launched_only(self) -> dict[int, int]:
        """Without completions: ranks beyond the slowest one wait in the number that follows its last.

        Only if some rank is behind its own launches; else the dumps are of a live job.
        """
        launched = {r: p.launched for r, p in self.positions.items() if p.launched is not None}
        lagging = [
            p
            for p in self.positions.values()
            if p.completed is not None and p.launched is not None and p.completed < p.launched
        ]
        if not launched or not lagging:
            return {}
        low = min(launched.values())
        return {r: low + 1 for r, n in launched.items() if n > low}


@dataclass(slots=True)
class Recorders:
    """Dumps of one hang.

    Args:
        groups: By name.
        ranks: Rank -> file.
        duplicates: Ranks with two dumps of different content (used by neither).
        unknown: Files whose rank cannot be told.
        world: Ranks of the job: the largest group.
    """

    groups: dict[str, GroupView] = field(default_factory=dict)
    ranks: dict[int, str] = field(default_factory=dict)
    duplicates: dict[int, list[str]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    world: tuple[int, ...] = ()

    @property
    def absent(self) -> list[int]:
        """Ranks of the job whose dump is not here."""
        return [r for r in self.world if r not in self.ranks and r not in self.duplicates]


def recorders(run: Run) -> list[Recorders]:
    """One Recorders per set of dumps: all together, or per folder where ranks occur twice."""
    batches = list(run.batches("comm_flight"))
    ranks = [b.attrs["rank"] for b in batches if b.attrs["rank"] is not None]
    folders = {b.attrs["folder"] for b in batches}
    if len(set(ranks)) == len(ranks) or len(folders) < 2:
        return [_set(batches, run)]
    return [_set([b for b in batches if b.attrs["folder"] == f], run) for f in sorted(folders)]


def _set(batches: list[Batch], run: Run) -> Recorders:
    out = Recorders()
    chosen: dict[int, Batch] = {}
    for batch, rank in _ranked(batches, run):
        if rank is None:
            out.unknown.append(batch.source)
        elif rank not in chosen:
            chosen[rank] = batch
        elif _digest(chosen[rank]) != _digest(batch):
            out.duplicates.setdefault(rank, [chosen[rank].source]).append(batch.source)
    for rank in sorted(chosen):
        if rank not in out.duplicates:
            out.ranks[rank] = chosen[rank].source
            _place(out, rank, chosen[rank])
    sources = {b.source for b in batches}
    _facts(out, [r for r in run.rows("comm_group") if r["source"] in sources and r["origin"] == "dump"])
    return out


def _ranked(batches: list[Batch], run: Run) -> list[tuple[Batch, int | None]]:
    """Dumps with their ranks; one unnamed dump is the one rank that is left over."""
    ranked = [(b, b.attrs["rank"]) for b in batches]
    unnamed = [b for b, rank in ranked if rank is None]
    sources = {b.source for b in batches}
    members = {m for r in run.rows("comm_group") if r["source"] in sources for m in r["members"] or ()}
    left = members - {rank for _, rank in ranked}
    if len(unnamed) == 1 and len(left) == 1:
        return [(b, left.copy().pop() if rank is None else rank) for b, rank in ranked]
    return ranked


def _digest(batch: Batch) -> str:
    """Equal for two copies of one dump."""
    h = hashlib.sha1(usedforsecurity=False)
    for name in ("group", "seq", "op", "state", "created_ns"):
        h.update(str(list(batch.columns[name])).encode())
    return h.hexdigest()


def _place(out: Recorders, rank: int, batch: Batch) -> None:
    columns = {k: _plain(v) for k, v in batch.columns.items()}
    timing = bool(batch.attrs["timing"])
    for i, name in enumerate(columns["group"]):
        if columns["p2p"][i]:
            continue
        group = out.groups.setdefault(name, GroupView(name))
        position = group.positions.setdefault(rank, Position(rank, batch.source, timing))
        seq = columns["seq"][i]
        done: bool | None = None
        if timing:
            done = columns["state"][i] == "completed" or not math.isnan(columns["completed_ns"][i])
        position.entries[seq] = Entry(
            seq,
            columns["op"][i],
            done,
            columns["sizes_in"][i],
            columns["sizes_out"][i],
            columns["numel_in"][i],
            columns["numel_out"][i],
            columns["dtype"][i],
            columns["splits_in"][i],
            columns["splits_out"][i],
            columns["created_ns"][i],
            columns["completed_ns"][i],
            columns["timeout_s"][i],
        )


def _plain(column: Any) -> list[Any]:
    return list(column.tolist()) if hasattr(column, "tolist") else list(column)


def _facts(out: Recorders, rows: Iterable[Any]) -> None:
    """Members and progress that the dumps state beside their entries."""
    world: tuple[int, ...] = ()
    for row in rows:
        members = tuple(row["members"] or ())
        if len(members) > len(world) or (row["desc"] == "default_pg" and len(members) >= len(world)):
            world = members
        group = out.groups.get(row["group"])
        if group is None and row["enqueued"] and row["rank"] in out.ranks:
            group = out.groups.setdefault(row["group"], GroupView(row["group"]))
        if group is None:
            continue
        group.members = group.members or members
        group.desc = group.desc or row["desc"]
        position = group.positions.get(row["rank"])
        if position is None and row["rank"] in out.ranks and row["enqueued"]:
            timing = any(p.timing for p in group.positions.values()) or not group.positions
            position = group.positions[row["rank"]] = Position(row["rank"], row["source"], timing)
        if position is not None:
            position.launched, position.completed = row["enqueued"], row["completed"]
    out.world = world
    for group in out.groups.values():
        for position in group.positions.values():
            seen = max(position.entries, default=None)
            if seen is not None and (position.launched is None or seen > position.launched):
                position.launched = seen
