"""Hangs as logs show them: watchdog lines, lost peers, dump signals.

First to complain is mostly a victim: a verdict names who is behind or who does not report.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from moexray.analyse.comm import log_groups, members_of, plain_op, ranks_text, symmetric, world_size
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moexray.analyse.comm import GroupState, Members
    from moexray.core.limits import Limits
    from moexray.core.run import Row, Run

__all__ = ["watchdog"]

SHOWN = 8  # quoted lines per finding
DUMPS = "flight-recorder dumps of all ranks (TORCH_FR_BUFFER_SIZE, TORCH_NCCL_DUMP_ON_TIMEOUT)"


def watchdog(run: Run, limits: Limits) -> list[Finding]:
    """comm.desync, comm.missing_rank, comm.size_mismatch from watchdog lines, one group at a time."""
    del limits
    groups = log_groups(run)
    if not groups:
        return [*_lost_peers(run), *_stale(run)]
    found: list[Finding] = []
    for group in groups:
        positions = {rank: row["seq"] for rank, row in group.reports.items()}
        ops = {plain_op(row["op"]) for row in group.reports.values() if row["op"]}
        if len(set(positions.values())) > 1 or len(ops) > 1:
            found.append(_desync(group))
        elif sizes := _odd_sizes(group):
            found.append(_size_mismatch(group, sizes))
    waiting = {rank for g in groups if not g.local for rank in g.reports}
    if not any(f.id == "comm.desync" for f in found):
        found += _missing(groups, run, waiting)
    return _best(found)


def _best(found: list[Finding]) -> list[Finding]:
    """One finding per id: the most certain, with the evidence of the others."""
    out: dict[str, Finding] = {}
    for f in sorted(found, key=lambda f: -f.confidence):
        out.setdefault(f.id, f)
    return list(out.values())


def _word(group: GroupState) -> str:
    return "group rank" if group.local else "rank"


def _quotes(rows: Iterable[Row]) -> list[Evidence]:
    chosen = list(rows)
    return [Evidence(r["source"], r["where"], r["text"]) for r in chosen[:SHOWN]]


def _desync(group: GroupState) -> Finding:
    """Ranks of one group stand at different numbers, or in different operations at one number."""
    rows = group.reports
    lowest, highest = min(r["seq"] for r in rows.values()), max(r["seq"] for r in rows.values())
    by_place: dict[tuple[int, str], list[int]] = {}
    for rank, row in rows.items():
        by_place.setdefault((row["seq"], row["op"] or "unknown operation"), []).append(rank)
    places = "; ".join(
        f"{ranks_text(ranks, _word(group))} in number {seq} ({op})"
        for (seq, op), ranks in sorted(by_place.items())
    )
    claim = f"{group.name}: ranks of one group wait in different collectives: {places}."
    behind = sorted(r for r, row in rows.items() if row["seq"] == lowest)
    if lowest != highest:
        done = [r for r, row in rows.items() if row["completed"] is not None and row["completed"] >= lowest]
        claim += f" Behind: {ranks_text(behind, _word(group))}"
        claim += (
            f", never finished {lowest}, which {ranks_text(done, _word(group))} completed." if done else "."
        )
        behind_or_odd = behind
    else:
        behind_or_odd = sorted(min(by_place.values(), key=len))
    claim += " The first rank to time out is no proof of guilt: the timeout is the consequence."
    first = rows[behind[0]]
    values = {
        "seq_behind": lowest,
        "seq_ahead": highest,
        "numel": first["numel_in"],
        "bytes_if_16_bit": 2 * first["numel_in"] if first["numel_in"] is not None else None,
        "enqueued": first["enqueued"],
        "timeout_ms": _ms(first["timeout_s"]),
        **{f"seq_rank{r}": row["seq"] for r, row in sorted(rows.items())[:16]},
    }
    one = behind_or_odd[0] if len(behind_or_odd) == 1 and not group.local else None
    evidence = [
        Evidence(first["source"], first["where"], pairs(values)),
        *_quotes(rows[r] for r in sorted(rows)),
    ]
    return Finding(
        id="comm.desync",
        severity="error",
        confidence=0.92,
        claim=claim,
        subject=Subject(rank=one),
        value=float(highest),
        limit=float(lowest),
        unit="count",
        evidence=tuple(evidence),
        remedies=(remedy("comm.find_branch"), remedy("comm.keep_recorder")),
        settle_with=(DUMPS,),
        cost=first["ran_s"] or 0.0,
    )


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _odd_sizes(group: GroupState) -> dict[tuple[int, int], list[int]]:
    """Ranks by the sizes of a symmetric operation, if they differ."""
    sizes: dict[tuple[int, int], list[int]] = {}
    for rank, row in group.reports.items():
        if symmetric(row["op"]) and row["numel_in"] is not None and row["numel_out"] is not None:
            sizes.setdefault((row["numel_in"], row["numel_out"]), []).append(rank)
    return sizes if len(sizes) > 1 else {}


def _size_mismatch(group: GroupState, sizes: dict[tuple[int, int], list[int]]) -> Finding:
    order = sorted(sizes.items(), key=lambda item: len(item[1]))
    tie = len(order[0][1]) == len(order[-1][1])
    first = group.reports[order[0][1][0]]
    said = "; ".join(f"{ranks_text(r, _word(group))}: {i} in, {o} out" for (i, o), r in order)
    odd = [r for _, ranks in (order if tie else order[:-1]) for r in ranks]
    who = "no side is in the minority" if tie else f"odd: {ranks_text(odd, _word(group))}"
    return Finding(
        id="comm.size_mismatch",
        severity="error",
        confidence=0.9,
        claim=f"{group.name}: number {first['seq']} ({first['op']}) needs one size on all ranks, but {said} ({who}).",
        subject=Subject(rank=odd[0] if len(odd) == 1 and not group.local else None),
        value=float(order[0][0][0]),
        limit=float(order[-1][0][0]),
        unit="count",
        evidence=tuple(_quotes(group.reports[r] for r in sorted(group.reports))),
        remedies=(remedy("comm.compare_shapes", ranks=ranks_text(odd, _word(group))),),
    )


def _missing(groups: list[GroupState], run: Run, waiting: set[int]) -> list[Finding]:
    """Suspects per group; a suspect that itself waits in another group passes the blame on."""
    found: list[Finding] = []
    for group in groups:
        members = members_of(group, run)
        seq = next(iter(group.reports.values()))["seq"]
        alive = _answered(group, run, seq)
        suspects = set(members.ranks) - set(group.reports) - alive
        elsewhere = suspects & waiting if not group.local else set()
        if suspects and suspects == elsewhere:
            found.append(_crossed(group, groups, elsewhere))
        elif suspects - elsewhere and _certain(group, suspects, run):
            found.append(_missing_rank(group, members, suspects - elsewhere, run))
        else:
            found.append(_cannot_tell(group, members, suspects, run))
    if any(not f.cannot_tell for f in found):
        found = [f for f in found if not f.cannot_tell]
    return found


def _answered(group: GroupState, run: Run, seq: int) -> set[int]:
    """Ranks that answered a dump signal of this group and have launched the operation, too."""
    rows = [r for r in run.rows("comm_report") if r["kind"] == "dump_signal" and not r["stale"]]
    rows = [r for r in rows if r["group"] == group.key and r["enqueued"] is not None and r["enqueued"] >= seq]
    return {r["group_rank"] if group.local else r["rank"] for r in rows} - {None}


def _certain(group: GroupState, suspects: set[int], run: Run) -> bool:
    """Absence of a line is evidence where lines of others, or other lines of the suspect, are here."""
    if group.repeats or len(suspects) > len(group.reports):
        return False
    if len(group.reports) >= 2:
        return True
    return not group.local and suspects <= _speaking(run)


def _speaking(run: Run) -> set[int]:
    """Ranks that wrote any line that we hold."""
    logs = [*run.rows("log"), *run.rows("comm_report")]
    return {r["rank"] for r in logs if r["rank"] is not None}


def _missing_rank(group: GroupState, members: Members, suspects: set[int], run: Run) -> Finding:
    rows = group.reports
    first = rows[min(rows)]
    names = ranks_text(suspects, _word(group))
    only = " is the only member" if len(suspects) == 1 else " are the only members"
    claim = (
        f"{group.name}: {ranks_text(rows, _word(group))} wait in the same number {first['seq']} ({first['op'] or 'unknown'}); "
        f"{names}{only} without a timeout line ({members.how}): inspect {'it' if len(suspects) == 1 else 'them'} "
        f"and the link. The ranks that report are victims."
    )
    trouble = [
        r
        for r in run.rows("comm_report")
        if r["kind"] in ("exception", "dump_signal")
        and r["rank"] in suspects
        and not r["stale"]
        and not group.local
    ]
    failures = [r for r in trouble if r["kind"] == "exception"]
    failures += [r for r in run.rows("oom") if r["rank"] in suspects and r["kind"] != "warning"]
    if failures:
        claim += f" Its own log has an exception: {failures[0]['text'].splitlines()[0][:120]!r}."
    values = {
        "seq": first["seq"],
        "reporters": len(rows),
        "members": len(members.ranks),
        "missing": len(suspects),
        "numel_in": first["numel_in"],
        "numel_out": first["numel_out"],
        "timeout_ms": _ms(first["timeout_s"]),
        "missing_ranks": ",".join(str(s) for s in sorted(suspects)[:32]),
    }
    evidence = [
        Evidence(first["source"], first["where"], pairs(values)),
        *_quotes(rows[r] for r in sorted(rows)),
    ]
    evidence += _quotes([*failures, *(r for r in trouble if r["kind"] == "dump_signal")])[:3]
    base = 0.88 if members.complete else 0.8
    return Finding(
        id="comm.missing_rank",
        severity="error",
        confidence=min(0.95, base + (0.07 if failures else 0.0)),
        claim=claim,
        subject=Subject(rank=min(suspects) if len(suspects) == 1 and not group.local else None),
        value=float(len(rows)),
        limit=float(len(members.ranks)),
        unit="count",
        evidence=tuple(evidence),
        implied_by=tuple(_oom_causes(run, suspects)),
        remedies=(
            remedy("comm.inspect_rank", ranks=names),
            remedy("comm.token_liveness"),
            remedy("comm.keep_recorder"),
        ),
        settle_with=(f"log, stack and recorder dump of {names}",),
        cost=first["ran_s"] or 0.0,
    )


def _oom_causes(run: Run, suspects: set[int]) -> Iterable[str]:
    """A suspect that ran out of memory is why it is missing; whichever of these was found counts."""
    if any(r["rank"] in suspects and r["kind"] != "warning" for r in run.rows("oom")):
        yield from (
            "mem.fragmentation",
            "mem.fragmentation_contributes",
            "mem.true_exhaustion",
            "mem.other_process",
            "mem.non_torch",
            "mem.non_torch_buffers",
            "mem.limit_below_free",
            "mem.unbudgeted_activation",
            "mem.oversubscription",
            "mem.oom_unexplained",
        )


def _crossed(group: GroupState, groups: list[GroupState], elsewhere: set[int]) -> Finding:
    """Members that this group waits for wait in another group: two groups in different order."""
    others = [(g, r) for g in groups if g is not group for r in elsewhere if r in g.reports]
    other, rank = others[0]
    mine, theirs = next(iter(group.reports.values())), other.reports[rank]
    return Finding(
        id="comm.desync",
        severity="error",
        confidence=0.75,
        claim=(
            f"{ranks_text(group.reports)} wait in {group.name} number {mine['seq']} ({mine['op']}) for "
            f"{ranks_text(elsewhere)}, which wait in {other.name} number {theirs['seq']} ({theirs['op']}): the ranks "
            "took the collectives of two groups in different order."
        ),
        subject=Subject(rank=rank if len(elsewhere) == 1 else None),
        evidence=tuple(_quotes([mine, theirs])),
        remedies=(remedy("comm.find_branch"), remedy("comm.keep_recorder")),
        settle_with=(DUMPS,),
    )


def _cannot_tell(group: GroupState, members: Members, suspects: set[int], run: Run) -> Finding:
    """A collective timed out and who is at fault cannot be told from these lines."""
    rows = group.reports
    first = rows[min(rows)]
    why = "who is in the group is not known"
    if group.repeats:
        why = f"the log swallowed {group.repeats} lines of other ranks"
    elif members.complete and not suspects:
        why = "all members report it, so it is the transfer itself or a rank whose numbers agree by chance"
    elif suspects:
        why = f"the lines of the other members ({ranks_text(suspects, _word(group))}) are not here"
    places = Counter((r["seq"], r["op"]) for r in rows.values())
    (seq, op), _ = places.most_common(1)[0]
    world = world_size(run)
    return Finding(
        id="comm.missing_rank",
        severity="info",
        confidence=0.4,
        claim=(
            f"{group.name}: {ranks_text(rows, _word(group))} timed out in number {seq} ({op or 'unknown'}) after "
            f"{first['ran_s'] or 0:.0f} s; which rank holds it up cannot be told: {why}."
        ),
        value=float(len(rows)),
        limit=float(world) if world else None,
        unit="count",
        evidence=tuple(_quotes(rows[r] for r in sorted(rows))),
        settle_with=("logs of all ranks of the group", "the list of ranks of the group", DUMPS),
    )


def _lost_peers(run: Run) -> list[Finding]:
    """Ranks that lost a peer, without any timeout: the peer that does not complain went first."""
    rows = {
        r["rank"]: r
        for r in run.rows("comm_report")
        if r["kind"] == "lost_peer" and not r["stale"] and r["rank"] is not None
    }
    world = world_size(run)
    if len(rows) < 2 or world is None:
        return []
    suspects = set(range(world)) - set(rows)
    if not suspects or len(suspects) > len(rows):
        return []
    names = ranks_text(suspects)
    failed = [
        r
        for r in run.rows("comm_report")
        if r["kind"] == "exception" and r["rank"] in suspects and not r["stale"]
    ]
    claim = f"{ranks_text(rows)} of {world} lost the connection to a peer; {names} did not complain: it went first."
    if failed:
        claim += f" Its own log has an exception: {failed[0]['text'][:120]!r}."
    return [
        Finding(
            id="comm.missing_rank",
            severity="error",
            confidence=0.88 if failed else 0.7,
            claim=claim,
            subject=Subject(rank=min(suspects) if len(suspects) == 1 else None),
            value=float(len(rows)),
            limit=float(world),
            unit="count",
            evidence=tuple(_quotes([*(rows[r] for r in sorted(rows)), *failed])),
            implied_by=tuple(_oom_causes(run, suspects)),
            remedies=(remedy("comm.inspect_rank", ranks=names),),
            settle_with=(f"log of {names}",),
        )
    ]


def _stale(run: Run) -> list[Finding]:
    """Timeouts of an earlier process: said as ruled out, so that nobody follows them."""
    rows = [r for r in run.rows("comm_report") if r["kind"] == "timeout" and r["stale"]]
    if not rows:
        return []
    return [
        Finding(
            id="not:comm.missing_rank",
            severity="info",
            confidence=0.85,
            claim=f"{len(rows)} watchdog lines stand before the engine was started again: an earlier process, not this one.",
            value=float(len(rows)),
            unit="count",
            evidence=tuple(_quotes(rows[:2])),
        )
    ]
