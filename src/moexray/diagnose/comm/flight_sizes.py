"""Sizes in recorder dumps: an odd minority in symmetric collectives, totals and pairs of all-to-all."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from moexray.analyse.comm import plain_op, ranks_text, symmetric
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy
from moexray.diagnose.comm.flight_skew import divergence

if TYPE_CHECKING:
    from moexray.analyse.comm_flight import Entry, GroupView, Recorders

__all__ = ["sizes"]

SHOWN = 8


def sizes(dumps: Recorders) -> list[Finding]:
    """comm.size_mismatch, a2a.count_mismatch, a2a.uneven_is_legal; nothing where the numbers do not match."""
    if divergence(dumps):
        return []
    found: list[Finding] = []
    for group in dumps.groups.values():
        found += _symmetric(group)
        found += _alltoall(group)
    worst = {"info": 1}
    best: dict[str, Finding] = {}
    for f in sorted(found, key=lambda f: worst.get(f.severity, 0)):
        best.setdefault(f.id, f)
    return list(best.values())


def _shared(group: GroupView) -> dict[int, dict[int, Entry]]:
    """Number -> entries of the ranks that have it, two at least."""
    out: dict[int, dict[int, Entry]] = {}
    for rank, p in group.positions.items():
        for seq, entry in p.entries.items():
            out.setdefault(seq, {})[rank] = entry
    return {s: e for s, e in sorted(out.items()) if len(e) > 1}


def _size(entry: Entry) -> tuple[float, float, str] | None:
    """What all ranks must share; of the list forms only the side that lists all ranks' shapes."""
    op, several_in, several_out = (
        plain_op(entry.op),
        entry.sizes_in.count("[") > 2,
        entry.sizes_out.count("[") > 2,
    )
    into, out_of = entry.numel_in, entry.numel_out
    if op.startswith("allgather") and several_out:
        into = 0.0
    if op.startswith("reducescatter") and several_in:
        out_of = 0.0
    if math.isnan(into) or math.isnan(out_of):
        return None
    return into, out_of, entry.dtype


def _symmetric(group: GroupView) -> list[Finding]:
    wrong: list[tuple[int, dict[tuple[float, float, str], list[int]]]] = []
    for seq, entries in _shared(group).items():
        if not all(symmetric(e.op) for e in entries.values()):
            continue
        kinds: dict[tuple[float, float, str], list[int]] = {}
        for rank, entry in entries.items():
            if (size := _size(entry)) is not None:
                kinds.setdefault(size, []).append(rank)
        if len(kinds) > 1:
            wrong.append((seq, kinds))
    if not wrong:
        return []
    seq, kinds = wrong[0]
    order = sorted(kinds.values(), key=len)
    tie = len(order[0]) == len(order[-1])
    odd = sorted(r for ranks in (order if tie else order[:-1]) for r in ranks)
    entries = _shared(group)[seq]
    said = "; ".join(
        f"{entries[r[0]].sizes_in} {entries[r[0]].dtype} on {ranks_text(r)}".replace("  ", " ") for r in order
    )
    who = "two sides of equal number, neither is the odd one" if tie else f"the odd one: {ranks_text(odd)}"
    op = entries[odd[0]].op
    values = {
        "seq": seq,
        "numbers_that_differ": len(wrong),
        "odd_ranks": ",".join(map(str, odd[:32])) if not tie else None,
        "odd_numel": entries[odd[0]].numel_in,
        "usual_numel": entries[order[-1][0]].numel_in,
    }
    return [
        Finding(
            id="comm.size_mismatch",
            severity="error",
            confidence=0.7 if tie else 0.92,
            claim=f"{group.title}: number {seq} ({op}) needs one size on all ranks, but it is {said} "
            f"({who}).",
            subject=Subject(rank=odd[0] if len(odd) == 1 else None),
            value=entries[odd[0]].numel_in,
            limit=entries[order[-1][0]].numel_in,
            unit="count",
            evidence=(
                Evidence(group.positions[odd[0]].source, f"{group.title} number {seq}", pairs(values)),
                *(
                    Evidence(
                        group.positions[r].source,
                        f"{group.title} number {seq}",
                        pairs({"rank": r, "sizes_in": e.sizes_in, "sizes_out": e.sizes_out}),
                    )
                    for r, e in sorted(entries.items())[:SHOWN]
                ),
            ),
            remedies=(remedy("comm-compare-shapes", ranks=ranks_text(odd)),),
        )
    ]


def _alltoall(group: GroupView) -> list[Finding]:
    """Totals over the whole group, and pairs where the dumps have split sizes."""
    if group.absent or not group.members:
        return []
    wrong: list[tuple[int, dict[int, Entry]]] = []
    uneven: list[tuple[int, dict[int, Entry]]] = []
    for seq, entries in _shared(group).items():
        if len(entries) != len(group.members) or not all(
            plain_op(e.op).startswith("alltoall") for e in entries.values()
        ):
            continue
        if any(math.isnan(e.numel_in) or math.isnan(e.numel_out) for e in entries.values()):
            continue
        if _total(entries, "in") != _total(entries, "out") or _pairs(group, entries):
            wrong.append((seq, entries))
        elif (
            len({e.numel_in for e in entries.values()}) > 1
            or len({e.numel_out for e in entries.values()}) > 1
        ):
            uneven.append((seq, entries))
    if wrong:
        return [_count_mismatch(group, wrong)]
    if not uneven:
        return []
    return [_legal(group, uneven)]


def _total(entries: dict[int, Entry], way: str) -> float:
    return sum(e.numel_in if way == "in" else e.numel_out for e in entries.values())


def _pairs(group: GroupView, entries: dict[int, Entry]) -> list[tuple[int, int, int, int]]:
    """(sender, receiver, sent, expected) that differ; [] where split sizes were not recorded."""
    members = group.members
    size = len(members)
    if any(
        e.splits_in is None or e.splits_out is None or len(e.splits_in) != size or len(e.splits_out) != size
        for e in entries.values()
    ):
        return []
    out = []
    for i, a in enumerate(members):
        for j, b in enumerate(members):
            sent, expected = (entries[a].splits_in or ())[j], (entries[b].splits_out or ())[i]
            if sent != expected:
                out.append((a, b, sent, expected))
    return out


def _count_mismatch(group: GroupView, wrong: list[tuple[int, dict[int, Entry]]]) -> Finding:
    seq, entries = wrong[0]
    sent, expected = _total(entries, "in"), _total(entries, "out")
    differing = _pairs(group, entries)
    values = {
        "seq": seq,
        "sent": sent,
        "expected": expected,
        "numbers_that_differ": len(wrong),
        **{f"in_rank{r}": e.numel_in for r, e in sorted(entries.items())[:SHOWN]},
        **{f"out_rank{r}": e.numel_out for r, e in sorted(entries.items())[:SHOWN]},
    }
    first = min(entries)
    evidence = [Evidence(group.positions[first].source, f"{group.title} number {seq}", pairs(values))]
    if differing:
        a, b, x, y = differing[0]
        claim = (
            f"{group.title}: all-to-all number {seq}: rank {a} sends {x} rows to rank {b}, which expects {y} "
            "from it"
        )
        claim += f" ({len(differing)} pairs differ)." if len(differing) > 1 else "; all other pairs agree."
        evidence += [
            Evidence(
                group.positions[s].source,
                f"{group.title} number {seq}",
                pairs({"src": s, "dst": d, "sent": x, "received": y}),
            )
            for s, d, x, y in differing[:SHOWN]
        ]
    else:
        claim = (
            f"{group.title}: all-to-all number {seq}: the ranks give {sent:.0f} elements and expect "
            f"{expected:.0f}: they do not match. "
            "The pair cannot be named: these dumps hold totals only (schema before 2.11)."
        )
    return Finding(
        id="a2a.count_mismatch",
        severity="error",
        confidence=0.92,
        claim=claim,
        value=expected,
        limit=sent,
        unit="count",
        evidence=tuple(evidence),
        remedies=(remedy("a2a-distrust-results"), remedy("comm-find-branch")),
        settle_with=()
        if differing
        else ("split sizes per peer (recorder schema 2.11, or a log line before the call)",),
    )


def _legal(group: GroupView, uneven: list[tuple[int, dict[int, Entry]]]) -> Finding:
    """The call in which the busiest rank carries most; its totals agree."""

    def skew(item: tuple[int, dict[int, Entry]]) -> float:
        loads = [max(e.numel_in, e.numel_out) for e in item[1].values()]
        return max(loads) * len(loads) / sum(loads) if sum(loads) else 0.0

    seq, entries = max(uneven, key=skew)
    total = _total(entries, "in")
    values = {
        "seq": seq,
        "total_in": total,
        "total_out": _total(entries, "out"),
        "calls": len(uneven),
        **{f"in_rank{r}": e.numel_in for r, e in sorted(entries.items())[:SHOWN]},
        **{f"out_rank{r}": e.numel_out for r, e in sorted(entries.items())[:SHOWN]},
    }
    return Finding(
        id="a2a.uneven_is_legal",
        severity="info",
        confidence=0.9,
        claim=f"{group.title}: the ranks bring different amounts to the all-to-all (number {seq}), but what "
        "is sent is what is expected "
        f"({total:.0f} = {_total(entries, 'out'):.0f}): no mismatch. Its cost follows the busiest rank.",
        value=skew((seq, entries)),
        unit="ratio",
        evidence=(
            Evidence(group.positions[min(entries)].source, f"{group.title} number {seq}", pairs(values)),
        ),
    )
