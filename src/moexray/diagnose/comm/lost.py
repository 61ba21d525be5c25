"""Lines that tell less than a timeout: lost peers, an earlier process; and what rules on logs share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.analyse.comm import ranks_text, world_size
from moexray.core.finding import Evidence, Finding, Subject
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from moexray.core.limits import Limits
    from moexray.core.run import Row, Run

__all__ = ["barrier", "earlier_process", "log_ranks", "lost_peers", "oom_causes", "quotes"]

SHOWN = 8  # quoted lines per finding


def quotes(rows: Iterable[Row]) -> list[Evidence]:
    """The lines themselves, the first few."""
    chosen = list(rows)
    return [Evidence(r["source"], r["where"], r["text"]) for r in chosen[:SHOWN]]


def oom_causes(run: Run, suspects: set[int]) -> Iterator[str]:
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


def barrier(run: Run) -> list[Finding]:
    """A monitored barrier names who did not come."""
    rows = [r for r in run.rows("comm_report") if r["kind"] == "barrier" and not r["stale"]]
    if not rows:
        return []
    ranks = sorted({k for r in rows for k in r["named"]})
    names = ranks_text(ranks)
    return [
        Finding(
            id="comm.missing_rank",
            severity="error",
            confidence=0.85,
            claim=f"A monitored barrier says that {names} did not pass it in time: inspect {names} first.",
            subject=Subject(rank=ranks[0] if len(ranks) == 1 else None),
            value=float(len(ranks)),
            unit="count",
            evidence=tuple(quotes(rows)),
            implied_by=tuple(oom_causes(run, set(ranks))),
            remedies=(remedy("comm-inspect-rank", ranks=names),),
            settle_with=(f"log of {names}",),
        )
    ]


def lost_peers(run: Run) -> list[Finding]:
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
    claim = (
        f"{ranks_text(rows)} of {world} lost the connection to a peer; {names} did not complain: it went "
        "first."
    )
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
            evidence=tuple(quotes([*(rows[r] for r in sorted(rows)), *failed])),
            implied_by=tuple(oom_causes(run, suspects)),
            remedies=(remedy("comm-inspect-rank", ranks=names),),
            settle_with=(f"log of {names}",),
        )
    ]


def earlier_process(run: Run) -> list[Finding]:
    """Timeouts of an earlier process: said as ruled out, so that nobody follows them."""
    rows = [r for r in run.rows("comm_report") if r["kind"] == "timeout" and r["stale"]]
    if not rows:
        return []
    return [
        Finding(
            id="not:comm.missing_rank",
            severity="info",
            confidence=0.85,
            claim=f"{len(rows)} watchdog lines stand before the engine was started again: an earlier "
            "process, not this one.",
            value=float(len(rows)),
            unit="count",
            evidence=tuple(quotes(rows[:2])),
        )
    ]


def log_ranks(run: Run, limits: Limits) -> list[Finding]:
    """input.rank_set for logs of one rank each: a gap in an almost complete set.

    A missing log of a rank that others wait for is evidence, not a gap; few logs of many ranks are a
    choice.
    """
    del limits
    ranks: dict[str, set[int]] = {}
    for row in [*run.rows("log"), *run.rows("comm_report")]:
        if row["rank"] is not None:
            ranks.setdefault(row["source"], set()).add(row["rank"])
    hang = any(r["kind"] != "exception" and not r["stale"] for r in run.rows("comm_report"))
    world = world_size(run)
    if hang or world is None or len(ranks) < 2 or any(len(r) > 1 for r in ranks.values()):
        return []
    found = set.union(*ranks.values())
    missing = sorted(set(range(world)) - found)
    if not missing or 2 * len(missing) >= len(found) or max(found) >= world:
        return []
    return [
        Finding(
            id="input.rank_set",
            severity="warn",
            confidence=0.8,
            claim=f"Logs of {len(found)} of {world} ranks are here; {ranks_text(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing.",
            value=float(len(found)),
            limit=float(world),
            unit="count",
            evidence=tuple(
                Evidence(source, "the log", f"rank={min(r)} world_size={world}")
                for source, r in sorted(ranks.items())[:SHOWN]
            ),
            settle_with=(f"log of {ranks_text(missing)}",),
        )
    ]
