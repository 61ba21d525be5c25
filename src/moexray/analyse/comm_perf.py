"""Collectives of several ranks as NCCL Inspector timed them, put together by communicator and number.

Glossary: a *column* is one collective as several ranks saw it; *lateness* is its longest minus its
shortest execution time (the rank with the shortest came last, and the others waited in their kernels),
free of clock offsets; *transfer* is the shortest; *distance* is the time from one collective of a
communicator to its next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moexray.core.run import Run

__all__ = ["Timed", "timed"]

ON_DEVICE = ("kernel_gpu", "kernel_cpu", "gpu_globaltimer")  # clocks of the kernels, not of the call
CALLS = ("Send", "Recv")
MOSTLY = 0.5  # share of its lateness that a rank must have waited itself to be a victim
LEAST_DUMPS = 8  # records from which the times of writing tell the pace


@dataclass(frozen=True, slots=True)
class Timed:
    """The columns of one communicator that at least two ranks timed. Arrays of [columns].

    Args:
        comm: Its id.
        name: Its name, "" if it has none.
        ranks: Its size; -1 unknown.
        sources: Files of its ranks.
        op: Operation of each column.
        size: Bytes of the message; -1 unknown.
        present: Ranks that timed it.
        lateness, transfer: Seconds.
        last: Rank that came last.
        distance_s: Median distance of its collectives; NaN unknown.
        files: Rank -> the file of its process, which tells it again in other communicators.
        waited: Rank -> seconds it waited for others.
    """

    comm: str
    name: str
    ranks: int
    sources: tuple[str, ...]
    op: NDArray[Any]
    size: NDArray[np.int64]
    present: NDArray[np.int64]
    lateness: NDArray[np.float64]
    transfer: NDArray[np.float64]
    last: NDArray[np.int64]
    distance_s: float
    files: dict[int, str]
    waited: dict[int, float]

    def __len__(self) -> int:
        return len(self.op)

    @property
    def title(self) -> str:
        """How it is called in a claim."""
        of = f" of {self.ranks} ranks" if self.ranks > 0 else ""
        return f"communicator {self.name or self.comm}{of}"


def timed(run: Run) -> list[Timed]:
    """Every communicator with collectives that two or more ranks timed, the largest first."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for batch in run.batches("comm_perf"):
        for code, comm in enumerate(batch.attrs["comms"]):
            mine = np.flatnonzero(batch.columns["comm"] == code)
            if len(mine):
                part: dict[str, Any] = {k: np.asarray(v)[mine] for k, v in batch.columns.items()}
                part["op"] = np.array(batch.attrs["ops"], object)[part["op"]]
                part["timing"] = np.array(batch.attrs["timings"], object)[part["timing"]]
                part |= {"source": batch.source, "name": batch.attrs["names"][code]}
                rows.setdefault(comm, []).append(part)
    found = [t for comm, parts in rows.items() if (t := _of_comm(comm, parts)) is not None]
    return sorted((_blamed(t, found) for t in found), key=lambda t: (-t.ranks, -len(t)))


def _blamed(t: Timed, found: list[Timed]) -> Timed:
    """The same with the blame passed on from ranks that came last as they waited in another communicator."""
    last = t.last.copy()
    ranks = {file: rank for rank, file in t.files.items()}
    for rank, file in t.files.items():
        late_s = float(t.lateness[t.last == rank].sum())
        for other in found:
            own = next((r for r, f in other.files.items() if f == file), None)
            if other is t or own is None or not 0 < MOSTLY * late_s <= other.waited.get(own, 0.0):
                continue
            lasts, at = np.unique(other.last, return_inverse=True)
            late = int(lasts[np.bincount(at, other.lateness).argmax()])
            guilty = ranks.get(other.files.get(late, file), rank)
            if t.waited.get(guilty, 0.0) < MOSTLY * late_s:  # else it was here in time, waiting for the rank
                last[t.last == rank] = guilty
    return replace(t, last=last)


def _of_comm(comm: str, parts: list[dict[str, Any]]) -> Timed | None:
    table = {k: np.concatenate([p[k] for p in parts]) for k in parts[0] if k not in ("source", "name")}
    sound = (table["seq"] >= 0) & ~np.isin(table["op"], CALLS) & np.isin(table["timing"], ON_DEVICE)
    ops, code = np.unique(table["op"][sound].astype(str), return_inverse=True)
    table = {k: v[sound] for k, v in table.items()}
    if not len(code):
        return None
    order = np.lexsort((table["rank"], table["seq"], code))
    table, code = {k: v[order] for k, v in table.items()}, code[order]
    again = (np.diff(code) == 0) & (np.diff(table["seq"]) == 0) & (np.diff(table["rank"]) == 0)
    keep = np.flatnonzero(~np.append(False, again))  # one file given twice
    table, code = {k: v[keep] for k, v in table.items()}, code[keep]
    first = np.flatnonzero(np.append(True, (np.diff(code) != 0) | (np.diff(table["seq"]) != 0)))
    count = np.diff(np.append(first, len(code)))
    took = table["exec_s"]
    longest, shortest = (f.reduceat(took, first) for f in (np.maximum, np.minimum))
    column = np.repeat(np.arange(len(first)), count)
    quick = np.flatnonzero(took == shortest[column])
    at = quick[np.unique(column[quick], return_index=True)[1]]
    many = count >= 2
    waited = np.where(many[column], took - shortest[column], 0.0)
    members = np.unique(table["rank"]).tolist()
    if not many.any():
        return None
    return Timed(
        comm=comm,
        name=next((p["name"] for p in parts if p["name"]), ""),
        ranks=int(table["ranks"].max()),
        sources=tuple(dict.fromkeys(p["source"] for p in parts)),
        op=ops[code[first]][many],
        size=np.maximum.reduceat(table["bytes"], first)[many],
        present=count[many],
        lateness=(longest - shortest)[many],
        transfer=shortest[many],
        last=table["rank"][at][many],
        distance_s=_distance(table),
        files={int(p["rank"][0]): p["source"] for p in parts if len(np.unique(p["rank"])) == 1},
        waited={r: float(waited[table["rank"] == r].sum()) for r in members},
    )


def _distance(table: dict[str, Any]) -> float:
    """Median time between the collectives of a rank: from kernel starts, else from the times of writing."""
    rank = np.bincount(table["rank"]).argmax() if table["rank"].max() < 1 << 20 else table["rank"][0]
    mine = table["rank"] == rank
    starts = np.sort(table["start_ns"][mine & (table["start_ns"] > 0)])
    if len(starts) > 1:
        return float(np.median(np.diff(starts))) / 1e9
    dumped = table["dumped_ns"][mine & (table["dumped_ns"] > 0)]
    if len(dumped) < LEAST_DUMPS or dumped.max() == dumped.min():
        return float("nan")
    return float(dumped.max() - dumped.min()) / (len(dumped) - 1) / 1e9
