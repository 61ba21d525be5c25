"""Status reports of a live communicator (NCCL RAS): who has launched fewer operations, who is gone.

The report lists the smaller sets, mostly the ranks that are ahead; the laggards are those with the
low count, listed or not. One report is an instant: a difference of one is normal while ranks run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.analyse.comm import ranks_text
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.core.limits import Limits
    from moexray.core.run import Row, Run

__all__ = ["status"]

Key = tuple[str | None, str]  # communicator, operation that is counted


def status(run: Run, limits: Limits) -> list[Finding]:
    """comm.lagging_ranks by counts per rank; comm.missing_rank for ranks that RAS cannot reach."""
    del limits
    polls: dict[tuple[str, int], int] = {}  # (file, report) in the order in which they were read
    for row in run.rows("comm_ras"):
        polls.setdefault((row["source"], row["report"]), len(polls))
    found: list[Finding] = []
    counted: dict[Key, dict[int, list[Row]]] = {}
    for row in run.rows("comm_ras"):
        if row["count"] is not None:
            poll = polls[row["source"], row["report"]]
            counted.setdefault((row["comm"], row["op"]), {}).setdefault(poll, []).append(row)
    for by_poll in counted.values():
        found += _lagging(by_poll, len(polls))
    found += _gone(run)
    best: dict[str, Finding] = {}
    for f in sorted(found, key=lambda f: -f.confidence):
        best.setdefault(f.id, f)
    return list(best.values())


def _lagging(by_poll: dict[int, list[Row]], polls: int) -> list[Finding]:
    last = by_poll[max(by_poll)]
    counts = sorted({r["count"] for r in last})
    if len(counts) < 2:
        return []
    low, high = counts[0], counts[-1]
    before = [sorted({r["count"] for r in rows}) for poll, rows in by_poll.items() if poll != max(by_poll)]
    later = polls - 1 > max(by_poll)  # a later report does not show this communicator as different
    if later or any(b[0] != low for b in before):
        return [_progress(last, before, low, later=later)]
    behind = [r for r in last if r["count"] < high]
    ranks = _who(behind, last)
    number = sum(r["ranks"] for r in behind)
    ahead = sum(r["ranks"] for r in last if r["count"] == high)
    listed = sorted(k for r in last if r["count"] == high for k in r["listed"])
    op = last[0]["op"]
    names = ranks_text(ranks) if ranks else f"{number} ranks"
    one = number == 1
    claim = f"{names} {'has' if one else 'have'} launched up to {op} {low} only; {ahead} ranks are at {high}."
    if listed and not any(r["listed"] for r in behind):
        claim += (
            f" The report lists {ranks_text(listed)}, which {'is' if len(listed) == 1 else 'are'} ahead; the "
            f"{number} "
            f"unlisted rank{'' if one else 's'} {'has' if one else 'have'} not launched {low + 1}: look at "
            "the unlisted."
        )
    claim += (
        " Two reports show the same counts: nothing moves." if before else " One report is only an instant."
    )
    values = {
        "at_low": number,
        "low_count": low,
        "at_high": ahead,
        "high_count": high,
        "ranks": number + ahead,
        "reports": len(before) + 1,
    }
    return [
        Finding(
            id="comm.lagging_ranks",
            severity="warn",
            confidence=0.92 if before else 0.72,
            claim=claim,
            subject=Subject(rank=ranks[0] if len(ranks) == 1 else None),
            value=float(low),
            limit=float(high),
            unit="count",
            evidence=(
                Evidence(last[0]["source"], last[0]["where"], pairs(values)),
                *(Evidence(r["source"], r["where"], _quote(r)) for r in last),
            ),
            remedies=(remedy("comm-stacks-of-laggards", ranks=names),),
            settle_with=() if before else ("a second status report after 10 s",),
        )
    ]


def _quote(row: Row) -> str:
    listed = f" (listed: {ranks_text(row['listed'])})" if row["listed"] else ""
    return f"{row['name'] or ''} {row['op']}: {row['text']}{listed}".strip()


def _who(behind: Sequence[Row], rows: Sequence[Row]) -> list[int]:
    """Global ranks of the laggards: listed, or all that are not listed elsewhere."""
    size = next((r["size"] for r in rows if r["size"]), None) or sum(r["ranks"] for r in rows)
    ranks: set[int] = set()
    unlisted = [r for r in rows if len(r["listed"]) != r["ranks"]]
    for row in behind:
        if len(row["listed"]) == row["ranks"]:
            ranks |= set(row["listed"])
        elif len(unlisted) == 1 and sum(r["ranks"] for r in rows) == size:
            ranks |= set(range(size)) - {k for r in rows for k in r["listed"]}
        else:
            return []
    return sorted(ranks)


def _progress(last: Sequence[Row], before: list[list[int]], low: int, *, later: bool) -> Finding:
    said = (
        "a later report shows equal counts" if later else f"the low count moved from {before[-1][0]} to {low}"
    )
    return Finding(
        id="not:comm.lagging_ranks",
        severity="info",
        confidence=0.85,
        claim=f"The counts of the ranks differ at an instant, but all progress: {said}.",
        value=float(low),
        unit="count",
        evidence=tuple(Evidence(r["source"], r["where"], _quote(r)) for r in last[:2]),
    )


def _gone(run: Run) -> list[Finding]:
    """Ranks that the report cannot reach."""
    rows = [r for r in run.rows("comm_ras") if r["gone"]]
    if not rows:
        return []
    ranks = sorted({k for r in rows for k in r["gone"]})
    size = next((r["size"] for r in rows if r["size"]), None)
    names = ranks_text(ranks)
    return [
        Finding(
            id="comm.missing_rank",
            severity="error",
            confidence=0.88,
            claim=f"The status report has no data of {names}: the process is dead or cannot be reached; "
            "inspect it and its link.",
            subject=Subject(rank=ranks[0] if len(ranks) == 1 else None),
            value=float(len(ranks)),
            limit=float(size) if size else None,
            unit="count",
            evidence=tuple(Evidence(r["source"], r["where"], _quote(r)) for r in rows[:4]),
            remedies=(remedy("comm-inspect-rank", ranks=names),),
            settle_with=(f"log and process state of {names}",),
        )
    ]
