"""Transfers that are slow by themselves: transport lines and matrices of waits per source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moexray.analyse.comm import ranks_text
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.analyse.comm_matrix import Outlier
    from moexray.core.limits import Limits
    from moexray.core.run import Batch, Row, Run

__all__ = ["links"]

SHOWN = 6
TRACES = "aligned traces of two or more ranks (they separate lateness from transfer)"


def links(run: Run, limits: Limits) -> list[Finding]:
    """comm.slow_transfer from waits per pair, backed by transport lines; each alone mostly cannot tell."""
    weak = _degraded(run)
    found = []
    for batch in run.batches("a2a_matrix"):
        if batch.attrs["quantity"] == "wait":
            found += _waits(batch, weak, limits)
    if not found and weak:
        found = [_transport(weak)]
    return sorted(found, key=lambda f: -f.confidence)[:1]


def _waits(batch: Batch, weak: dict[int, list[Row]], limits: Limits) -> list[Finding]:
    from moexray.analyse.comm_matrix import slow_pairs

    out = slow_pairs(batch, limits.comm.slow_pair_ratio)
    if out is None:
        return []
    concerned = set(out.ranks) or {r for pair in out.pairs for r in pair}
    backed = sorted(concerned & set(weak))
    # A source that all wait for may just be late; only its own long waits or a transport line tell.
    slow = out.kind in ("pair", "rank") or bool(backed)
    certain = slow and (batch.attrs["quantity_from"] == "content" or bool(backed))
    return [_slow(batch, out, [r for b in backed for r in weak[b]], limits, certain=certain)]


def _slow(batch: Batch, out: Outlier, lines: Sequence[Row], limits: Limits, *, certain: bool) -> Finding:
    ratio = out.worst / out.median
    pair = f"rank {out.pairs[0][0]} from rank {out.pairs[0][1]}"
    who = {
        "pair": f"{len(out.pairs)} pairs of ranks, the worst {pair},"
        if len(out.pairs) > 1
        else f"one pair, {pair},",
        "source": f"every receiver from {ranks_text(out.ranks)}",
        "receiver": f"{ranks_text(out.ranks)} from every source",
        "rank": f"{ranks_text(out.ranks)} in both directions",
    }[out.kind]
    unit = batch.attrs["unit"] or ""
    claim = (
        f"Waits per source: {who} {ratio:.1f} times the median of all pairs ({out.worst:.6g} against "
        f"{out.median:.6g} {unit})."
    )
    if lines:
        claim += " Its transport lines show the slower path."
    elif not certain:
        claim += " A late rank or a slow link: these waits alone cannot tell."
    values = {"worst": out.worst, "median": out.median, "over_median_ratio": ratio, "pairs": len(out.pairs)}
    names = ranks_text(out.ranks) if out.ranks else pair
    return Finding(
        id="comm.slow_transfer",
        severity="warn" if certain else "info",
        confidence=(0.85 if lines else 0.7) if certain else 0.45,
        claim=claim,
        subject=Subject(rank=out.ranks[0] if len(out.ranks) == 1 else None),
        value=ratio,
        limit=limits.comm.slow_pair_ratio,
        unit="ratio",
        evidence=(
            Evidence(
                batch.source,
                "receiver, source " + "; ".join(f"{r}, {s}" for r, s in out.pairs[:SHOWN]),
                pairs(values),
            ),
            *(Evidence(r["source"], r["where"], r["text"]) for r in lines[:SHOWN]),
        ),
        remedies=(remedy("comm-check-link", ranks=names), remedy("comm-host-exchange")),
        settle_with=() if lines else (TRACES, "transport lines (NCCL_DEBUG=INFO) and link counters"),
    )


def _degraded(run: Run) -> dict[int, list[Row]]:
    """Ranks of the job's largest live communicator whose path is slower than that of their peers.

    Sockets where other ranks use InfiniBand, the network between ranks of one host, or a warning
    about the link. A uniform transport is no finding: it is how this machine is built.
    """
    rows = [r for r in run.rows("comm_link") if not r["destroyed"]]
    sizes: dict[str | None, int] = {r["comm"]: r["ranks"] or 0 for r in rows}
    if not sizes:
        return {}
    largest = max(sizes.values())
    rows = [r for r in rows if (r["ranks"] or 0) == largest]
    hosts = {(r["comm"], r["rank"]): r["process"].partition(":")[0] for r in rows if r["rank"] is not None}
    fast = {
        r["comm"]
        for r in rows
        if r["kind"] == "channel"
        and r["via"] not in ("NET/Socket", "P2P", "SHM")
        and r["via"].startswith("NET/")
    }
    weak: dict[int, list[Row]] = {}
    for row in rows:
        if row["kind"] == "channel":
            here, there = hosts.get((row["comm"], row["src"])), hosts.get((row["comm"], row["dst"]))
            inside = here is not None and here == there and row["via"].startswith("NET/")
            if inside or (row["via"] == "NET/Socket" and row["comm"] in fast and here != there):
                weak.setdefault(row["src"], []).append(row)
        elif row["kind"] == "warn" and row["rank"] is not None:
            weak.setdefault(row["rank"], []).append(row)
    return weak


def _transport(weak: dict[int, list[Row]]) -> Finding:
    rows = [r for lines in weak.values() for r in lines]
    names = ranks_text(weak)
    faults = [r for r in rows if r["kind"] == "warn"]
    what = "warn of their link" if faults else "use a slower path than their peers"
    shown = list({r["text"]: r for r in [*faults, *rows]}.values())[:SHOWN]
    return Finding(
        id="comm.slow_transfer",
        severity="info",
        confidence=0.4,
        claim=f"Transport lines of {names} {what}; whether transfers were slow cannot be told from them.",
        subject=Subject(rank=next(iter(weak)) if len(weak) == 1 else None),
        value=float(len(rows)),
        unit="count",
        evidence=tuple(Evidence(r["source"], r["where"], r["text"]) for r in shown),
        remedies=(remedy("comm-check-link", ranks=names), remedy("comm-host-exchange")),
        settle_with=(TRACES, "link counters of that node"),
    )
