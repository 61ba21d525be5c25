"""Hangs as logs show them: watchdog lines, lost peers, dump signals.

First to complain is mostly a victim: a verdict names who is behind or who does not report.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from moexray.analyse.comm import log_groups, members_of, plain_op, ranks_text, symmetric, world_size
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy
from moexray.diagnose.comm.lost import barrier, earlier_process, lost_peers, oom_causes, quotes

if TYPE_CHECKING:
    from moexray.analyse.comm import GroupState, Members
    from moexray.core.limits import Limits
    from moexray.core.run import Run

__all__ = ["watchdog"]

SHOWN = 8  # quoted lines per finding
DUMPS = "flight-recorder dumps of all ranks (TORCH_FR_BUFFER_SIZE, TORCH_NCCL_DUMP_ON_TIMEOUT)"


def watchdog(run: Run, limits: Limits) -> list[Finding]:
    """comm.desync, comm.missing_rank, comm.size_mismatch from watchdog lines, one group at a time."""
    del limits
    groups = log_groups(run)
    if not groups:
        return [*(barrier(run) or lost_peers(run)), *earlier_process(run)]
    if run.batches("comm_flight") and _dumps_decide(run):
        return []  # dumps show operations and states, log lines only who complained
    found: list[Finding] = []
    for group in groups:
        positions = {rank: row["seq"] for rank, row in group.reports.items()}
        ops = {plain_op(row["op"]) for row in group.reports.values() if row["op"]}
        if len(set(positions.values())) > 1 or len(ops) > 1:
            found.append(_desync(group))
        elif sizes := _odd_sizes(group):
            found.append(_size_mismatch(group, sizes))
    if not any(f.id == "comm.desync" for f in found):
        found += _missing(groups, run)
    return _best(found)


def _dumps_decide(run: Run) -> bool:
    from moexray.diagnose.comm.flight import positions

    return any(f.severity == "error" for f in positions(run))


def _best(found: list[Finding]) -> list[Finding]:
    """One finding per id: the most certain, with the evidence of the others."""
    out: dict[str, Finding] = {}
    for f in sorted(found, key=lambda f: -f.confidence):
        out.setdefault(f.id, f)
    return list(out.values())


def _word(group: GroupState) -> str:
    return "group rank" if group.local else "rank"


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
        smallest = min(by_place.values(), key=len)
        behind_or_odd = sorted(smallest)
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
        *quotes(rows[r] for r in sorted(rows)),
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
        remedies=(remedy("comm-find-branch"), remedy("comm-keep-recorder")),
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
        claim=f"{group.name}: number {first['seq']} ({first['op']}) needs one size on all ranks, but {said} "
        f"({who}).",
        subject=Subject(rank=odd[0] if len(odd) == 1 and not group.local else None),
        value=float(order[0][0][0]),
        limit=float(order[-1][0][0]),
        unit="count",
        evidence=tuple(quotes(group.reports[r] for r in sorted(group.reports))),
        remedies=(remedy("comm-compare-shapes", ranks=ranks_text(odd, _word(group))),),
    )


def _missing(groups: list[GroupState], run: Run) -> list[Finding]:
    """Suspects per group; a suspect that itself waits in another group passes the blame on."""
    found: list[Finding] = []
    for group in groups:
        members = members_of(group, run)
        seq = next(iter(group.reports.values()))["seq"]
        alive = _answered(group, run, seq)
        suspects = set(members.ranks) - set(group.reports) - alive
        others = [
            g for g in groups if g is not group and not g.local and (g.job is None or g.job == group.job)
        ]
        elsewhere = {r for g in others for r in g.reports if r in suspects} if not group.local else set()
        if suspects and suspects == elsewhere:
            found.append(_crossed(group, others, elsewhere))
        elif suspects - elsewhere and _certain(group, suspects, run):
            found.append(_missing_rank(group, members, suspects - elsewhere, run))
        else:
            found.append(_cannot_tell(group, members, suspects, run))
    certain = [f for f in found if not f.cannot_tell]
    if not certain and len(groups) > 1:
        return [_several_groups(groups)]
    return certain or found


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
        f"{group.name}: {ranks_text(rows, _word(group))} wait in the same number {first['seq']} "
        f"({first['op'] or 'unknown'}); "
        f"{names}{only} without a timeout line ({members.how}): inspect "
        f"{'it' if len(suspects) == 1 else 'them'} "
        f"and the link. The ranks that report are victims."
    )
    trouble = [
        r
        for r in run.rows("comm_report")
        if r["kind"] in ("exception", "dump_signal", "stuck")
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
        *quotes(rows[r] for r in sorted(rows)),
    ]
    evidence += quotes([*failures, *(r for r in trouble if r["kind"] != "exception")])[:3]
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
        implied_by=tuple(oom_causes(run, suspects)),
        remedies=(
            remedy("comm-inspect-rank", ranks=names),
            remedy("comm-token-liveness"),
            remedy("comm-keep-recorder"),
        ),
        settle_with=(f"log, stack and recorder dump of {names}",),
        cost=first["ran_s"] or 0.0,
    )


def _crossed(group: GroupState, groups: list[GroupState], elsewhere: set[int]) -> Finding:
    """Members that this group waits for wait in another group: two groups in different order."""
    other, rank = next((g, r) for g in groups for r in sorted(elsewhere) if r in g.reports)
    mine, theirs = next(iter(group.reports.values())), other.reports[rank]
    return Finding(
        id="comm.desync",
        severity="error",
        confidence=0.75,
        claim=(
            f"{ranks_text(group.reports)} wait in {group.name} number {mine['seq']} ({mine['op']}) for "
            f"{ranks_text(elsewhere)}, which wait in {other.name} number {theirs['seq']} ({theirs['op']}): "
            "the ranks "
            "took the collectives of two groups in different order."
        ),
        subject=Subject(rank=rank if len(elsewhere) == 1 else None),
        evidence=tuple(quotes([mine, theirs])),
        remedies=(remedy("comm-find-branch"), remedy("comm-keep-recorder")),
        settle_with=(DUMPS,),
    )


def _several_groups(groups: list[GroupState]) -> Finding:
    """Ranks wait in several groups at once, and who is in them is not known."""
    said = []
    rows = []
    for g in groups:
        first = next(iter(g.reports.values()))
        rows += list(g.reports.values())
        where = f"number {first['seq']} ({first['op'] or 'unknown'}) of {g.name}"
        said.append(f"{ranks_text(g.reports, _word(g))} in {where}")
    return Finding(
        id="comm.desync",
        severity="info",
        confidence=0.45,
        claim=(
            f"Ranks wait in several groups at once: {'; '.join(said[:6])}. The culprit is one that a group "
            "waits for while it waits in another; who is in the groups is not known, so it cannot be told."
        ),
        value=float(len(groups)),
        unit="count",
        evidence=tuple(quotes(rows)),
        remedies=(remedy("comm-keep-recorder"),),
        settle_with=("the lists of ranks of the groups", "logs of all ranks", DUMPS),
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
            f"{group.name}: {ranks_text(rows, _word(group))} timed out in number {seq} ({op or 'unknown'}) "
            "after "
            f"{first['ran_s'] or 0:.0f} s; which rank holds it up cannot be told: {why}."
        ),
        value=float(len(rows)),
        limit=float(world) if world else None,
        unit="count",
        evidence=tuple(quotes(rows[r] for r in sorted(rows))),
        settle_with=("logs of all ranks of the group", "the list of ranks of the group", DUMPS),
    )
