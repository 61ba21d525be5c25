"""comm.desync from recorder dumps: numbers or operations of one group that do not belong together."""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING

from moexray.analyse.comm import plain_op, ranks_text, same_op
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from moexray.analyse.comm_flight import GroupView, Recorders

__all__ = ["divergence"]

SHOWN = 10


def divergence(dumps: Recorders) -> list[Finding]:
    """One finding over all groups, with the rank that is odd in most of them."""
    places = {name: _place(g) for name, g in dumps.groups.items()}
    apart = {name: p for name, p in places.items() if p}
    ops = {name: seq for name, g in dumps.groups.items() if (seq := _first_other_op(g)) is not None}
    if not apart and not ops:
        return []
    deltas = _deltas({n: dumps.groups[n] for n in {*apart, *ops}}, apart)
    odd = _odd(dumps, deltas, ops)
    said = [
        _sentence(dumps.groups[n], apart.get(n), ops.get(n))
        for n in sorted({*apart, *ops}, key=lambda n: -len(dumps.groups[n].members))
    ]
    claim = " ".join(said[:2])
    signs = {d > 0 for d in (deltas[n].get(odd, 0) for n in deltas) if d} if odd is not None else set()
    if odd is not None:
        moves = ", ".join(
            f"{abs(d[odd])} {'ahead' if d[odd] > 0 else 'behind'} in {dumps.groups[n].title}"
            for n, d in sorted(deltas.items())
            if d.get(odd)
        )
        claim = f"Rank {odd} issues other collectives than its peers{': ' + moves if moves else ''}. {claim}"
    if len(signs) == 2:
        claim += (
            " Ahead in one group and behind in another: it took a branch that its peers did not take, long "
            "before the hang."
        )
    claim += " The rank may differ from run to run; the one that times out first is no proof of guilt."
    evidence = _evidence(dumps, apart, ops, deltas, odd)
    values = [p for p in apart.values() if p]
    return [
        Finding(
            id="comm.desync",
            severity="error",
            confidence=0.92 if odd is not None or ops else 0.88,
            claim=claim,
            subject=Subject(rank=odd),
            value=float(max(values[0].values())) if values else None,
            limit=float(min(values[0].values())) if values else None,
            unit="count" if values else None,
            evidence=tuple(evidence),
            remedies=(remedy("comm-find-branch"), remedy("comm-keep-recorder")),
            settle_with=("stacks of the ranks at the first number at which they differ",),
        )
    ]


def _place(group: GroupView) -> dict[int, int]:
    """Rank -> number where it stands, if the group's ranks cannot be in step; else {}."""
    if len(group.positions) < 2 or any(not p.timing for p in group.positions.values()):
        return {}
    front = group.frontier()
    standing = {r: front.get(r, p.launched) for r, p in group.positions.items()}
    known = {r: s for r, s in standing.items() if s is not None}
    if not front:
        return {}  # nobody waits: dumps of a live job, taken at different moments
    if min(p.launched or 0 for p in group.positions.values()) < group.completed():
        return known  # an operation cannot complete before all have launched it: the numbers do not match
    return known if len(set(front.values())) > 1 else {}


def _first_other_op(group: GroupView) -> int | None:
    """Lowest number at which two ranks launched different operations."""
    ops: dict[int, str] = {}
    other: list[int] = []
    for p in group.positions.values():
        for seq, e in p.entries.items():
            if not same_op(ops.setdefault(seq, e.op), e.op):
                other.append(seq)
    return min(other, default=None)


def _deltas(groups: dict[str, GroupView], apart: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    """Per group: how many numbers each rank is ahead of the group's middle.

    In a pair, the rank that is odd in a larger group is the odd one here, too.
    """
    out: dict[str, dict[int, int]] = {}
    for name in groups:
        place = apart.get(name)
        if place:
            middle = median_low(sorted(place.values()))
            out[name] = {r: s - middle for r, s in place.items() if s != middle}
    votes: dict[int, int] = {}
    for name, delta in out.items():
        if len(groups[name].positions) > 2:
            for rank in delta:
                votes[rank] = votes.get(rank, 0) + 1
    for name, place in apart.items():
        if len(place) == 2:
            a, b = sorted(place, key=lambda r: (-votes.get(r, 0), place[r]))
            out[name] = {a: place[a] - place[b]}
    return out


def _odd(dumps: Recorders, deltas: dict[str, dict[int, int]], ops: dict[str, int]) -> int | None:
    """The rank that stands apart in most groups; None if several do equally."""
    votes: dict[int, float] = {}
    for delta in deltas.values():
        for rank in delta:
            votes[rank] = votes.get(rank, 0) + 1 / len(delta)
    for name, seq in ops.items():
        kinds: dict[str, list[int]] = {}
        for rank, p in dumps.groups[name].positions.items():
            if seq in p.entries:
                kinds.setdefault(plain_op(p.entries[seq].op), []).append(rank)
        least = min(kinds.values(), key=len)
        if sum(len(k) == len(least) for k in kinds.values()) == 1 or len(least) == 1 < len(
            max(kinds.values(), key=len)
        ):
            for rank in least:
                votes[rank] = votes.get(rank, 0) + 1 / len(least)
    best = sorted(votes.items(), key=lambda item: -item[1])
    if not best or best[0][1] < 1 or (len(best) > 1 and best[1][1] == best[0][1]):
        return None
    return best[0][0]


def _sentence(group: GroupView, place: dict[int, int] | None, op_seq: int | None) -> str:
    """Who stands where in one group."""
    if place:
        stands: dict[tuple[int, str], list[int]] = {}
        for rank, seq in place.items():
            stands.setdefault((seq, _describe(group, rank, seq)), []).append(rank)
        said = "; ".join(f"{ranks_text(r)} at number {s}{d}" for (s, d), r in sorted(stands.items()))
        return f"{group.title}: {said}."
    kinds: dict[str, list[int]] = {}
    for rank, p in group.positions.items():
        if op_seq is not None and op_seq in p.entries:
            kinds.setdefault(_describe(group, rank, op_seq).strip(), []).append(rank)
    return (
        f"{group.title}: number {op_seq} is {'; '.join(f'{d} on {ranks_text(r)}' for d, r in kinds.items())}."
    )


def _describe(group: GroupView, rank: int, seq: int) -> str:
    entry = group.positions[rank].entries.get(seq)
    return f" ({entry.op} {entry.sizes_in})" if entry else ""


def _evidence(
    dumps: Recorders,
    apart: dict[str, dict[int, int]],
    ops: dict[str, int],
    deltas: dict[str, dict[int, int]],
    odd: int | None,
) -> list[Evidence]:
    out: list[Evidence] = []
    if odd is not None:
        values: dict[str, object] = {"rank": odd}
        for name, delta in sorted(deltas.items()):
            if delta.get(odd):
                group = dumps.groups[name]
                values[f"delta_{group.desc or group.name}"] = delta[odd]
                peers = [r for r in group.positions if r != odd]
                values[f"{group.desc or group.name}_peers"] = ",".join(map(str, sorted(peers)[:32]))
        out.append(Evidence(dumps.ranks[odd], "all groups", pairs(values)))
    for name in sorted({*apart, *ops}):
        group = dumps.groups[name]
        place = apart.get(name) or {
            r: ops[name] for r, p in group.positions.items() if ops[name] in p.entries
        }
        for rank, seq in sorted(place.items()):
            p = group.positions[rank]
            entry = p.entries.get(seq)
            out.append(
                Evidence(
                    p.source,
                    f"{group.title} number {seq}",
                    pairs(
                        {
                            "rank": rank,
                            "seq": seq,
                            "op": entry.op if entry else None,
                            "sizes": entry.sizes_in if entry else None,
                            "done": entry.done if entry else None,
                            "launched": p.launched,
                        }
                    ),
                )
            )
    return out[: 2 * SHOWN]
