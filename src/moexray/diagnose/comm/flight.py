"""Flight-recorder dumps: who is in another collective, who has not arrived, who brought another size.

One process group at a time; an entry's state and times count, `retired` does not. A missing dump is
evidence where its rank is also the one that the others wait for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moexray.analyse.comm import ranks_text
from moexray.analyse.comm_flight import recorders
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy
from moexray.diagnose.comm.flight_late import late_launches
from moexray.diagnose.comm.flight_sizes import sizes
from moexray.diagnose.comm.flight_skew import divergence
from moexray.diagnose.comm.near import near_timeout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moexray.analyse.comm_flight import GroupView, Recorders
    from moexray.core.limits import Limits
    from moexray.core.run import Run

__all__ = ["positions", "recorder", "waits"]

SHOWN = 8
SINGLE_AGE_S = 1.0  # a single dump tells of a hang only if something is open for so long; own choice


def recorder(run: Run, limits: Limits) -> list[Finding]:
    """All verdicts of one set of dumps; the first set that shows a fault speaks for its ids."""
    found: list[Finding] = []
    for dumps in recorders(run):
        stuck = _positions(dumps, run)
        mine = [*stuck, *sizes(dumps), *near_timeout(dumps, run, limits)]
        if not stuck:  # else the numbers of the ranks may not belong together
            mine += late_launches(dumps, run, limits)
        suspects = {r for f in mine if f.id == "comm.missing_rank" for r in dumps.absent}
        mine += _rank_set(dumps, suspects)
        alone = run.present <= {"comm_flight", "comm_group"} and all(f.severity == "info" for f in mine)
        mine = [
            f if alone or f.id != "a2a.uneven_is_legal" else replace(f, id="not:a2a.count_mismatch")
            for f in mine
        ]
        said = {f.id for f in found}
        found += [f for f in mine if f.id not in said]
    return found


def positions(run: Run) -> list[Finding]:
    """Who stands where, over all sets of dumps."""
    return [f for dumps in recorders(run) for f in _positions(dumps, run)]


def _positions(dumps: Recorders, run: Run) -> list[Finding]:
    found = divergence(dumps)
    if found:
        return found
    frontiers = {name: g.frontier() for name, g in dumps.groups.items()}
    waiting = {rank for f in frontiers.values() for rank in f}
    strong: list[Finding] = []
    weak: list[Finding] = []
    for name, front in frontiers.items():
        if not front:
            continue
        group = dumps.groups[name]
        seq = min(front.values())
        late = sorted(r for r, p in group.positions.items() if r not in front and (p.launched or 0) < seq)
        suspects = [r for r in (*late, *group.absent) if r not in waiting and r not in dumps.duplicates]
        if not suspects:
            continue
        alone = len(front) == 1 and not late
        if (alone or len(suspects) > len(front)) and not late:
            weak += _cannot_tell(dumps, group, front, suspects)
        else:
            strong.append(_missing(group, front, late, suspects, run))
    return strong[:1] or weak[:1]


def _missing(
    group: GroupView, front: dict[int, int], late: list[int], suspects: list[int], run: Run
) -> Finding:
    seq = min(front.values())
    first = min(front)
    entry = group.positions[first].entries.get(seq)
    op, shape = (entry.op, entry.sizes_in) if entry else ("unknown", "")
    names = ranks_text(suspects)
    claim = (
        f"{group.title}: {ranks_text(front)} wait in number {seq} ({op}); {names} {_is(suspects)} missing "
        "there"
    )
    if here := [r for r in suspects if r in late]:
        last = {group.positions[r].launched for r in here}
        claim += (
            f": {ranks_text(here)} launched nothing after number "
            f"{', '.join(str(n) for n in sorted(filter(None, last)))}"
        )
    if gone := [r for r in suspects if r not in late]:
        claim += f"; {ranks_text(gone)} left no dump, which is evidence, too"
    failed = [
        r
        for r in run.rows("comm_report")
        if r["kind"] == "exception" and r["rank"] in suspects and not r["stale"]
    ]
    claim += ". The ranks that wait are victims."
    if failed:
        claim += f" Its own log has an exception: {failed[0]['text'][:120]!r}."
    values = {
        "seq": seq,
        "waiting": len(front),
        "members": len(group.members),
        "missing": len(suspects),
        "missing_ranks": ",".join(map(str, suspects[:32])),
        "last_number": group.positions[here[0]].launched if here else None,
    }
    evidence = [Evidence(group.positions[first].source, f"{group.title} number {seq}", pairs(values))]
    evidence += _shown(group, dict.fromkeys(sorted(front)[:SHOWN], f"op={op} sizes={shape} state=open"))
    evidence += _shown(group, {r: f"launched={group.positions[r].launched}" for r in here[:SHOWN]})
    evidence += [Evidence(r["source"], r["where"], r["text"]) for r in failed[:2]]
    sure = 0.85 if any(p.timing for p in group.positions.values()) else 0.72
    return Finding(
        id="comm.missing_rank",
        severity="error",
        confidence=0.95 if failed else sure,
        claim=claim,
        subject=Subject(rank=suspects[0] if len(suspects) == 1 else None),
        value=float(len(front)),
        limit=float(len(group.members) or len(front) + len(suspects)),
        unit="count",
        evidence=tuple(evidence),
        remedies=(remedy("comm-inspect-rank", ranks=names), remedy("comm-find-branch")),
        settle_with=(f"log and stack of {names}",),
    )


def _shown(group: GroupView, said: dict[int, str]) -> list[Evidence]:
    return [Evidence(group.positions[r].source, group.title, f"rank={r} {text}") for r, text in said.items()]


def _is(ranks: list[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _cannot_tell(
    dumps: Recorders, group: GroupView, front: dict[int, int], suspects: list[int]
) -> list[Finding]:
    """Too few dumps: what the others do is not known. Silent unless something is open for long."""
    age = 0.0
    for rank, seq in front.items():
        p = group.positions[rank]
        if seq in p.entries:
            last = max(
                e.created_ns
                for g in dumps.groups.values()
                if rank in g.positions
                for e in g.positions[rank].entries.values()
            )
            age = max(age, (last - p.entries[seq].created_ns) / 1e9)
    if age < SINGLE_AGE_S:
        return []
    rank, seq = next(iter(front.items()))
    return [
        Finding(
            id="comm.missing_rank",
            severity="info",
            confidence=0.4,
            claim=f"{group.title}: {ranks_text(front)} wait in number {seq} for {age:.1f} s or more; whom "
            "they wait for "
            f"cannot be told without the dumps of {ranks_text(suspects)}.",
            value=age,
            unit="s",
            evidence=(
                Evidence(group.positions[rank].source, f"{group.title} number {seq}", pairs({"wait_s": age})),
            ),
            settle_with=(f"recorder dumps of {ranks_text(suspects)}", "logs of all ranks"),
        )
    ]


def _rank_set(dumps: Recorders, suspects: set[int]) -> list[Finding]:
    """input.rank_set: a single dump is a choice; among several, gaps and doubles are named."""
    missing = [r for r in dumps.absent if r not in suspects]
    number = len(dumps.ranks) + len(dumps.duplicates)
    if not dumps.duplicates and (number < 2 or not missing):
        return []
    said = []
    if dumps.duplicates:
        twice = ranks_text(dumps.duplicates)
        said.append(
            f"{twice} {_is(list(dumps.duplicates))} there twice with different content, and used by no rule"
        )
    if missing and number > 1:
        said.append(f"{ranks_text(missing)} of {len(dumps.world)} {_is(missing)} missing")
    values = {
        "world_size": len(dumps.world) or None,
        "found": number,
        "missing": len(missing),
        "double": len(dumps.duplicates),
        "missing_ranks": ",".join(map(str, missing[:32])) or None,
    }
    sources = [s for files in dumps.duplicates.values() for s in files] or list(dumps.ranks.values())
    return [
        Finding(
            id="input.rank_set",
            severity="warn",
            confidence=0.95,
            claim=f"Recorder dumps do not complete the set of ranks: {'; '.join(said)}.",
            value=float(number),
            limit=float(len(dumps.world)) if dumps.world else None,
            unit="count",
            evidence=tuple(Evidence(s, "the dump", pairs(values)) for s in sources[:SHOWN]),
            settle_with=(f"recorder dumps of {ranks_text(missing)}",) if missing else (),
        )
    ]


def waits(run: Run) -> list[dict[str, object]]:
    """Exhibit: how late each rank launched the collectives that all dumps share, and how long it waited."""
    if "trace" in run.present:
        return []  # traces tell it better
    return [row for dumps in recorders(run) for row in _waits_of(dumps)]


def _waits_of(dumps: Recorders) -> Iterator[dict[str, object]]:
    late: dict[int, float] = {}
    waited: dict[int, float] = {}
    number: dict[int, int] = {}
    for group in dumps.groups.values():
        if len(group.positions) < 2:
            continue
        shared = set.intersection(*(set(p.entries) for p in group.positions.values()))
        for seq in shared:
            at = {r: p.entries[seq].created_ns for r, p in group.positions.items()}
            if any(t != t for t in at.values()):  # noqa: PLR0124  # NaN: a time is unknown
                continue
            first, last = min(at.values()), max(at.values())
            for rank, t in at.items():
                late[rank] = max(late.get(rank, 0.0), (t - first) / 1e9)
                waited[rank] = max(waited.get(rank, 0.0), (last - t) / 1e9)
                number[rank] = number.get(rank, 0) + 1
    for rank in sorted(late):
        yield {
            "rank": rank,
            "late_s": late[rank],
            "waited_s": waited[rank],
            "collectives": number[rank],
            "source": dumps.ranks[rank],
        }
