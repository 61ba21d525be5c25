"""comm.timeout_near: a collective that completed, but only just within the watchdog's limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.analyse.comm import ranks_text
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from moexray.analyse.comm_flight import Entry, GroupView, Recorders
    from moexray.core.limits import Limits
    from moexray.core.run import Run

__all__ = ["near_timeout"]

SHOWN = 8
# Launch options that set the limit -> seconds per unit (SGLang, Megatron, vLLM, transformers).
SETTINGS = {
    "dist_timeout": 1.0,
    "distributed_timeout_seconds": 1.0,
    "distributed_timeout_minutes": 60.0,
    "ddp_timeout": 1.0,
}


def near_timeout(dumps: Recorders, run: Run, limits: Limits) -> list[Finding]:
    """The longest wait of an operation that completed, against its own limit or the setting in force."""
    setting = _setting(run, limits)
    best: tuple[float, GroupView, int, int] | None = None
    number = 0
    for group in dumps.groups.values():
        for seq, of_ranks in _shares(group, setting).items():
            share, rank = max(of_ranks, key=lambda item: (item[0], -item[1]))
            if not limits.comm.timeout_near_ratio <= share < 1:
                continue  # beyond its limit it has timed out already
            number += 1
            if best is None or share > best[0]:
                best = (share, group, seq, rank)
    return [] if best is None else [_near(*best, setting, number, limits)]


def _setting(run: Run, limits: Limits) -> tuple[float, str] | None:
    """Limit of entries that do not carry their own: the option, else the default of a known launch."""
    launch = run.rows("launch")
    for row in launch:
        scale = SETTINGS.get(row["key"])
        if scale is not None and row["value"] and row["value"].replace(".", "", 1).isdigit():
            return float(row["value"]) * scale, f"set by {row['key']}"
    if launch:
        return limits.comm.default_timeout_s, "the library's default, as the launch line sets none"
    return None


def _limit(entry: Entry, setting: tuple[float, str] | None) -> float:
    """Seconds; NaN if unknown."""
    if entry.timeout_s > 0:
        return entry.timeout_s
    return setting[0] if setting else float("nan")


def _shares(group: GroupView, setting: tuple[float, str] | None) -> dict[int, list[tuple[float, int]]]:
    """Number -> (wait / limit, rank) of the ranks on which it completed."""
    shares: dict[int, list[tuple[float, int]]] = {}
    for rank, p in group.positions.items():
        for seq, e in p.entries.items():
            if e.done and e.wait_s > 0 and _limit(e, setting) > 0:
                shares.setdefault(seq, []).append((e.wait_s / _limit(e, setting), rank))
    return shares


def _near(
    share: float,
    group: GroupView,
    seq: int,
    rank: int,
    setting: tuple[float, str] | None,
    number: int,
    limits: Limits,
) -> Finding:
    entries = {r: p.entries[seq] for r, p in group.positions.items() if seq in p.entries}
    mine = entries[rank]
    own = mine.timeout_s > 0
    limit = _limit(mine, setting)
    origin = "the entry's own timeout" if own or setting is None else setting[1]
    late = max(entries, key=lambda r: entries[r].created_ns)
    behind = (entries[late].created_ns - min(e.created_ns for e in entries.values())) / 1e9
    blame = behind >= mine.wait_s / 2 and len(entries) > 1
    claim = (
        f"{group.title}: number {seq} ({mine.op}) completed after {mine.wait_s:.1f} s on rank {rank}, "
        f"{share:.0%} of its limit of {limit:.0f} s ({origin})."
    )
    if blame:
        claim += (
            f" Rank {late} launched it {behind:.1f} s after the first: the others waited for it. "
            "It arrived, so nothing hangs."
        )
    if number > 1:
        claim += f" {number} operations came as close."
    values = {
        "wait_s": mine.wait_s,
        "limit_s": limit,
        "share_ratio": share,
        "seq": seq,
        "late_rank": late if blame else None,
        "late_s": behind if blame else None,
    }
    where = f"{group.title} number {seq}"
    evidence = [Evidence(group.positions[rank].source, where, pairs(values))]
    evidence += [
        Evidence(group.positions[r].source, where, pairs({"rank": r, "wait_s": e.wait_s}))
        for r, e in sorted(entries.items())[:SHOWN]
    ]
    return Finding(
        id="comm.timeout_near",
        severity="warn",
        confidence=0.92 if own else 0.75,
        claim=claim,
        subject=Subject(rank=late if blame else None),
        value=mine.wait_s,
        limit=limits.comm.timeout_near_ratio * limit,
        unit="s",
        evidence=tuple(evidence),
        remedies=(remedy("comm-mend-late-rank", ranks=ranks_text([late]) if blame else "the late rank"),),
        settle_with=() if blame else ("traces of all ranks at that time",),
        cost=mine.wait_s,
    )
