"""Who stands where: positions of ranks in their process groups, from watchdog lines.

Glossary: *reporter*, a rank that says that it waits; *member*, a rank of the group; *suspect*, a
member that does not report. The group's members come from lists, dumps or sizes; failing that, from
order: ranks in a group ascend with the global ranks, so "[rank3] is Rank 3 of the group" says that
0, 1 and 2 are members.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from moexray.core.pattern import lazy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from moexray.core.run import Row, Run

__all__ = [
    "GroupState",
    "Members",
    "log_groups",
    "members_by_order",
    "members_of",
    "peer_to_peer",
    "plain_op",
    "ranks_text",
    "same_op",
    "symmetric",
    "synchronising",
    "world_size",
]

SYMMETRIC = lazy(r"^(?:allreduce|allgather|reducescatter|broadcast)")
SYNCHRONISING = lazy(r"^(?:allreduce|allgather|reducescatter|alltoall|barrier)")
PEER_TO_PEER = lazy(r"^(?:send|recv|coalesced|isend|irecv)")


@dataclass(frozen=True, slots=True)
class Members:
    """Who is in a group, as far as it can be told.

    Args:
        ranks: Members that are certain.
        complete: No other rank can be in it.
        how: How we know, for the claim.
    """

    ranks: frozenset[int] = frozenset()
    complete: bool = False
    how: str = ""


@dataclass(slots=True)
class GroupState:
    """One process group as its reporters describe it.

    Args:
        name: As people call it: "PG 3 (GUID 21)", "tp".
        reports: The first unfinished collective of each rank (global rank, else group rank).
        local: The keys of `reports` are ranks in the group, not global ranks.
        repeats: Lines of unknown ranks that a de-duplicator swallowed.
        job: The file, where several files tell of several jobs.
    """

    name: str
    key: str | None
    group_id: str | None = None
    desc: str | None = None
    reports: dict[int, Row] = field(default_factory=dict)
    local: bool = False
    repeats: int = 0
    job: str | None = None


@lru_cache(maxsize=1024)
def plain_op(op: str | None) -> str:
    """Operation without library, case and spelling: "_ALLGATHER_BASE", "nccl:all_gather" -> allgather."""
    name = re.sub(r"[^a-z0-9]", "", (op or "").lower().rpartition(":")[2])
    return re.sub(r"(?:base|single|intotensor|tensor|oop)$", "", name)


def same_op(a: str | None, b: str | None) -> bool:
    """True if both are the same collective, or one is unknown."""
    return not a or not b or plain_op(a) == plain_op(b)


def symmetric(op: str | None) -> bool:
    """Every rank must bring the same size."""
    return SYMMETRIC.match(plain_op(op)) is not None


def synchronising(op: str | None) -> bool:
    """It completes nowhere before all ranks have joined."""
    return SYNCHRONISING.match(plain_op(op)) is not None


def peer_to_peer(op: str | None) -> bool:
    """A send or receive: its numbers are those of a pair."""
    return PEER_TO_PEER.match(plain_op(op)) is not None


def log_groups(run: Run) -> list[GroupState]:
    """Groups with reporters, out of the watchdog lines of engines that were not started again since."""
    rows = [r for r in run.rows("comm_report") if r["kind"] == "timeout" and not r["stale"]]
    rows = [r for r in rows if r["seq"] is not None and not peer_to_peer(r["op"])]
    keys = {r["group"] for r in rows if r["group"] is not None}
    alone = next(iter(keys)) if len(keys) == 1 else None
    by_key: dict[str | None, list[Row]] = {}
    for row in rows:
        by_key.setdefault(row["group"] if row["group"] is not None else alone, []).append(row)
    states: list[GroupState] = []
    for key, mine in by_key.items():
        parts = _apart(mine)
        states += [_state(key, part) for part in parts]
        if len({r["source"] for r in mine}) == len(parts) > 1:
            for state, part in zip(states[-len(parts) :], parts, strict=True):
                state.job = part[0]["source"]
    return [g for g in states if g.reports]


def _state(key: str | None, rows: list[Row]) -> GroupState:
    """The first unfinished collective of each rank."""
    named = next((r for r in rows if r["group"] is not None), rows[0])
    desc = next((r["desc"] for r in rows if r["desc"]), None)
    group = GroupState(_name(named), key, named["group_id"], desc)
    group.repeats = sum(r["repeats"] or 0 for r in rows)
    group.local = any(r["rank"] is None for r in rows)
    for row in rows:
        rank = row["group_rank"] if group.local else row["rank"]
        if rank is not None and (rank not in group.reports or row["seq"] < group.reports[rank]["seq"]):
            group.reports[rank] = row
    return group


def _apart(rows: list[Row]) -> list[list[Row]]:
    """Parts a name that stands for several groups: two jobs, or an id that is counted on each rank.

    Two files in which one rank stands at different numbers are two jobs. Before torch 2.5 the id
    is local: two global ranks that are the same rank of "the" group are in two groups.
    """
    files: dict[int, dict[str, int]] = {}
    places: dict[int, set[int]] = {}
    for r in rows:
        if r["rank"] is not None:
            first = files.setdefault(r["rank"], {})
            first[r["source"]] = min(r["seq"], first.get(r["source"], r["seq"]))
            if r["group_rank"] is not None and r["group"] is not None:
                places.setdefault(r["group_rank"], set()).add(r["rank"])
    if any(len(set(f.values())) > 1 for f in files.values()):
        return _split(rows, lambda r: r["source"])
    if any(len(p) > 1 for p in places.values()):
        return _split(rows, lambda r: (r["seq"], plain_op(r["op"])))
    return [rows]


def _split(rows: list[Row], key: Callable[[Row], object]) -> list[list[Row]]:
    parts: dict[object, list[Row]] = {}
    for row in rows:
        parts.setdefault(key(row), []).append(row)
    return list(parts.values())


def _name(row: Row) -> str:
    if row["group"] is None:
        return "the group"
    id_, guid = row["group_id"], row["group"]
    name = f"PG {id_}" if id_ and id_ != guid else f"PG {guid}"
    name += f" (GUID {guid})" if id_ and id_ != guid else ""
    return f"{name} {row['desc']}" if row["desc"] else name


def world_size(run: Run) -> int | None:
    """Ranks of the job, where all lines that say it agree."""
    said = {
        r["size"] for r in run.rows("comm_group") if r["desc"] == "world" and r["group"] is None and r["size"]
    }
    said |= {r["size"] for r in run.rows("comm_group") if r["desc"] == "default_pg" and r["size"]}
    return said.pop() if len(said) == 1 else None


def members_of(group: GroupState, run: Run) -> Members:
    """Members of a group: listed, computed from its size, or proven by the order of ranks."""
    known = [r for r in run.rows("comm_group") if _same_group(group, r)]
    listed = [r for r in known if r["members"] and (group.local or set(group.reports) <= set(r["members"]))]
    if not listed:
        lists = [r for r in run.rows("comm_group") if r["members"] and r["origin"] != "dump"]
        names = {tuple(r["members"]) for r in lists}
        if len(names) == 1 and not group.local and set(group.reports) <= set(lists[0]["members"]):
            listed = lists
    if listed:
        return Members(
            frozenset(listed[0]["members"]), complete=True, how=f"members listed in {listed[0]['source']}"
        )
    size = next((r["size"] for r in known if r["size"]), None) or _gathered(group)
    world = world_size(run)
    if size is None and (group.desc == "default_pg" or (group.key is None and group.local)):
        size = world
    if group.local:
        return (
            Members(frozenset(range(size)), complete=True, how=f"the group has {size} ranks")
            if size
            else Members()
        )
    places = [
        (row["rank"], row["group_rank"]) for row in group.reports.values() if row["group_rank"] is not None
    ]
    return members_by_order(places, size, world)


def members_by_order(places: Iterable[tuple[int, int]], size: int | None, world: int | None) -> Members:
    """Members that (global rank, rank in the group) pairs prove, given the sizes of group and job.

    Between two known places as far apart in the job as in the group, every rank is a member.
    """
    points = sorted(set(places))
    if size is not None and size == world:
        return Members(frozenset(range(size)), complete=True, how=f"the group has all {size} ranks")
    sure = {g for g, _ in points}
    last = (-1, -1)
    for point in points:
        if point[0] - last[0] == point[1] - last[1]:
            sure |= set(range(last[0] + 1, point[0]))
        last = point
    if size is not None and world is not None and world - 1 - last[0] == size - 1 - last[1]:
        sure |= set(range(last[0] + 1, world))
    if size is not None and len(sure) < size:
        sure |= _stride(points, size, world)
    complete = size is not None and len(sure) == size
    return Members(
        frozenset(sure), complete, f"the group has {size} ranks" if size else "ranks of the group ascend"
    )


def _stride(points: Sequence[tuple[int, int]], size: int, world: int | None) -> set[int]:
    """Members of a group whose known places lie on one line: start + stride * rank in the group."""
    if not points:
        return set()
    (g0, r0), (g1, r1) = points[0], points[-1]
    if r1 == r0:
        stride, even = 1, g0 == r0
    else:
        stride, rest = divmod(g1 - g0, r1 - r0)
        even = rest == 0 and all(g - g0 == stride * (r - r0) for g, r in points)
    start = g0 - stride * r0
    if not even or start < 0 or (world is not None and start + stride * (size - 1) >= world):
        return set()
    return {start + stride * r for r in range(size)}


def _same_group(group: GroupState, row: Row) -> bool:
    if group.key is not None and row["group"] is not None and row["group"] == group.key:
        return True
    if group.desc and row["desc"] == group.desc and row["origin"] != "dump":
        return True
    unnamed = row["group"] is None or row["group"] == row["group_id"]
    return group.group_id is not None and unnamed and row["group_id"] == group.group_id


def _gathered(group: GroupState) -> int | None:
    """Size of the group from an all-gather or reduce-scatter: what comes out / what goes in."""
    for row in group.reports.values():
        small, large = row["numel_in"], row["numel_out"]
        op = plain_op(row["op"])
        if op == "reducescatter":
            small, large = large, small
        if op in ("allgather", "reducescatter") and small and large and large % small == 0 and large > small:
            return int(large // small)
    return None


def ranks_text(ranks: Iterable[int], word: str = "rank") -> str:
    """Names ranks: "rank 3", "ranks 0, 1 and 3", "ranks 0-29" (runs of three and more are joined)."""
    given = sorted(ranks)
    parts: list[str] = []
    i = 0
    while i < len(given):
        j = i
        while j + 1 < len(given) and given[j + 1] == given[j] + 1:
            j += 1
        parts += [f"{given[i]}-{given[j]}"] if j - i >= 2 else [str(r) for r in given[i : j + 1]]
        i = j + 1
    if len(parts) > 12:
        parts = [*parts[:11], f"{len(given)} in all"]
    text = " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)
    return f"{word}{'s' if len(given) != 1 else ''} {text}"
