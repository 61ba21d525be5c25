"""All-to-all: buffer limits, silent sources, and matrices of what was sent and received."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from moexray.analyse.comm import ranks_text
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.analyse.comm_matrix import Comparison
    from moexray.core.finding import Remedy
    from moexray.core.limits import Limits
    from moexray.core.run import Row, Run

__all__ = ["buffer_limit", "matrices", "silent_source"]

SHOWN = 6


def buffer_limit(run: Run, limits: Limits) -> list[Finding]:
    """a2a.buffer_limit: the assertion of the low-latency path, or limits that differ between ranks."""
    rows = [r for r in run.rows("a2a_event") if not r["stale"]]
    asserted = [r for r in rows if r["kind"] == "assertion"]
    given = [r for r in rows if r["kind"] == "limit"]
    hung = bool(asserted) or any(r["kind"].endswith("timeout") for r in rows) or bool(run.rows("comm_report"))
    found = _differing(given, asserted, hung=hung)
    if asserted and not found:
        found = [_too_large(asserted, given, run, limits)]
    return found


def _too_large(asserted: Sequence[Row], given: Sequence[Row], run: Run, limits: Limits) -> Finding:
    first = max(asserted, key=lambda r: r["batch"] or 0)
    batch: int | None = first["batch"]
    limit: int | None = given[0]["limit"] if given else None
    default = limit is None and any(r["engine"] == "sglang" for r in run.rows("launch"))
    if default:
        limit = limits.comm.default_dispatch_limit
    if batch is not None and limit is not None and batch <= limit:
        batch = None  # the batch that failed is another one
    of = " (the default)" if default else ""
    if batch is not None and limit is not None:
        claim = (
            f"A batch of {batch} tokens went into the low-latency all-to-all, whose buffer holds {limit} "
            f"tokens per rank{of}"
        )
    else:
        claim = (
            "A batch larger than the limit went into the low-latency all-to-all (the library's assertion "
            "says so"
        )
        claim += f"; limit {limit} tokens per rank{of})" if limit is not None else ")"
    claim += (
        ": the wrong mode for prefill, or a limit that must be raised on ALL ranks; its memory grows "
        "linearly with it."
    )
    values = {
        "batch_tokens": batch,
        "limit": limit,
        "ratio": batch / limit if batch and limit else None,
        "ranks": len({(r["source"], r["worker"], r["rank"]) for r in asserted}),
    }
    evidence = [
        Evidence(first["source"], first["where"], pairs(values)),
        Evidence(first["source"], first["where"], first["text"]),
    ]
    if batch is not None and first["batch_text"]:
        evidence.append(Evidence(first["source"], "the batch logged before", first["batch_text"]))
    evidence += [Evidence(r["source"], r["where"], r["text"]) for r in given[:2]]
    return Finding(
        id="a2a.buffer_limit",
        severity="error",
        confidence=0.95 if batch is not None and limit is not None else 0.9,
        claim=claim,
        subject=Subject(rank=first["rank"]),
        value=float(batch) if batch is not None else None,
        limit=float(limit) if limit is not None else None,
        unit="tokens",
        evidence=tuple(evidence),
        remedies=_remedies(batch, limit),
        settle_with=() if limit is not None else ("launch line and environment of all ranks",),
    )


def _remedies(batch: int | None, limit: int | None) -> tuple[Remedy, ...]:
    factor = (
        f"{batch / limit:.0f} times the memory for {batch} tokens"
        if batch and limit
        else "twice the value, twice the memory"
    )
    return (
        remedy("a2a-normal-mode-for-prefill", limit=limit if limit is not None else "the limit"),
        remedy("a2a-raise-limit", needed=batch if batch is not None else "the largest batch", factor=factor),
    )


def _differing(given: Sequence[Row], asserted: Sequence[Row], *, hung: bool) -> list[Finding]:
    """Different limits within one server: on different nodes or ranks, or with a hang to explain."""
    scopes: dict[str, list[Row]] = {}
    for row in given:
        scopes.setdefault(row["scope"] or "", []).append(row)
    for rows in scopes.values():
        values = sorted({r["limit"] for r in rows})
        places = {(r["node"], r["rank"]) for r in rows if r["node"] or r["rank"] is not None}
        places = places or {(r["source"], None) for r in rows if "nnodes" in r["text"]}
        if len(values) < 2 or not (len(places) >= 2 or hung):
            continue
        said = ", ".join(f"{r['limit']} ({r['node'] or _rank(r) or r['source']})" for r in rows[:SHOWN])
        evidence = [
            Evidence(
                rows[0]["source"], rows[0]["where"], pairs({"limit_min": values[0], "limit_max": values[-1]})
            )
        ]
        evidence += [Evidence(r["source"], r["where"], r["text"]) for r in [*rows[:SHOWN], *asserted[:1]]]
        return [
            Finding(
                id="a2a.buffer_limit",
                severity="error",
                confidence=0.9 if len(places) >= 2 else 0.75,
                claim=f"The ranks do not agree on the low-latency limit of tokens per rank: {said}. Buffers "
                "are laid out by it, "
                "so ranks with another value read and write at the wrong place or wait for ever.",
                value=float(values[-1]),
                limit=float(values[0]),
                unit="tokens",
                evidence=tuple(evidence),
                remedies=(remedy("a2a-same-limit"), *_remedies(None, values[-1])[:1]),
            )
        ]
    return []


def _rank(row: Row) -> str | None:
    return None if row["rank"] is None else f"rank {row['rank']}"


def silent_source(run: Run, limits: Limits) -> list[Finding]:
    """a2a.silent_source: who the receivers wait for."""
    rows = [r for r in run.rows("a2a_event") if r["kind"] == "timeout" and not r["stale"]]
    waiting = [
        r for r in rows if r["role"] == "receiver" or r["src_node"] is not None or r["src_rank"] is not None
    ]
    if not waiting:
        return []
    named = [
        r
        for r in waiting
        if r["src_node"] is not None or r["src_rank"] is not None or r["src_gpu"] is not None
    ]
    levels = (
        ("rank", Counter(f"rank {r['src_rank']}" for r in named if r["src_rank"] is not None)),
        (
            "gpu",
            Counter(
                f"node {r['src_node']} GPU {r['src_gpu']}"
                for r in named
                if r["src_node"] is not None and r["src_gpu"] is not None
            ),
        ),
        ("node", Counter(f"node {r['src_node']}" for r in named if r["src_node"] is not None)),
    )
    for _, sources in levels:
        if not sources:
            continue
        source, hits = sources.most_common(1)[0]
        victims = {r["receiver"] for r in named if _is(r, source)}
        share = hits / len(waiting)
        if share >= limits.comm.silent_source_ratio and len(victims) >= limits.comm.silent_source_receivers:
            return [_silent(waiting, source, hits, victims, limits)]
    return [_no_source(waiting, levels[2][1] or levels[0][1], limits)]


def _is(row: Row, source: str) -> bool:
    node, gpu = f"node {row['src_node']}", f"node {row['src_node']} GPU {row['src_gpu']}"
    return source in (node, gpu, f"rank {row['src_rank']}")


def _silent(waiting: Sequence[Row], source: str, hits: int, victims: set[str], limits: Limits) -> Finding:
    share = hits / len(waiting)
    first = next(r for r in waiting if _is(r, source))
    kind, _, number = source.partition(" ")
    values = {
        "common_src_rdma" if kind == "node" else "common_src": number.replace(" GPU ", "/"),
        "hits": hits,
        "lines": len(waiting),
        "share_ratio": share,
        "receivers": len(victims),
    }
    examples = [r for r in waiting if _is(r, source)][:SHOWN]
    return Finding(
        id="a2a.silent_source",
        severity="error",
        confidence=0.85,
        claim=f"{hits} of {len(waiting)} receiver timeouts ({share:.0%}) wait for {source}, from "
        f"{len(victims)} receivers: "
        "look at that source first, the receivers are victims.",
        subject=Subject(rank=int(number) if kind == "rank" else None),
        value=share,
        limit=limits.comm.silent_source_ratio,
        unit="ratio",
        evidence=(
            Evidence(first["source"], first["where"], pairs(values)),
            *(Evidence(r["source"], r["where"], r["text"]) for r in examples),
        ),
        remedies=(remedy("a2a-inspect-source", source=source), remedy("a2a-collect-transport")),
        settle_with=(f"log and link counters of {source}",),
    )


def _no_source(waiting: Sequence[Row], sources: Counter[str], limits: Limits) -> Finding:
    receivers = {r["receiver"] for r in waiting}
    top = sources.most_common(1)[0][1] / len(waiting) if sources else 0.0
    if not sources:
        why = "the lines do not name who they wait for"
    elif len(receivers) < limits.comm.silent_source_receivers:
        why = "one receiver alone complains, it may itself be at fault"
    else:
        why = f"{len(sources)} sources are named, none by more than {top:.0%}: the fabric or the settings"
    values = {"lines": len(waiting), "receivers": len(receivers), "sources": len(sources), "share_ratio": top}
    return Finding(
        id="a2a.silent_source",
        severity="info",
        confidence=0.4,
        claim=f"{len(waiting)} receivers of the all-to-all timed out; a common source cannot be told: {why}.",
        value=top,
        limit=limits.comm.silent_source_ratio,
        unit="ratio",
        evidence=(
            Evidence(waiting[0]["source"], waiting[0]["where"], pairs(values)),
            *(Evidence(r["source"], r["where"], r["text"]) for r in waiting[:3]),
        ),
        remedies=(remedy("a2a-collect-transport"),),
        settle_with=(
            "transport log (NVSHMEM_DEBUG, NCCL_DEBUG)",
            "link counters of all nodes",
            "logs of all ranks",
        ),
    )


def matrices(run: Run, limits: Limits) -> list[Finding]:
    """a2a.count_mismatch edge by edge; a2a.uneven_is_legal where all pairs agree and amounts differ."""
    from moexray.analyse.comm_matrix import compare

    results = compare(run.batches("a2a_matrix"), limits.comm.agreeing_pairs_ratio)
    wrong = [c for c in results if c.differing]
    if wrong:
        return [_mismatch(max(wrong, key=lambda c: c.certain), len(wrong), len(results))]
    uneven = [c for c in results if c.uneven > 1]
    if not uneven:
        return []
    alone = run.present <= {"a2a_matrix", "comm_link"}
    return [_legal(max(uneven, key=lambda c: c.uneven), only=alone)]


def _mismatch(c: Comparison, number: int, of: int) -> Finding:
    src, dst, sent, received = c.differing[0]
    more = f" and {len(c.differing) - 1} more pairs" if len(c.differing) > 1 else "; the other pairs agree"
    calls = f" in {number} of {of} calls" if of > 1 else ""
    values = [
        pairs({"src": s, "dst": d, "sent": _count(a), "received": _count(b)})
        for s, d, a, b in c.differing[:SHOWN]
    ]
    unsure = (
        ""
        if c.labelled
        else " The files do not say which index is the sender; the order with fewer differences was taken."
    )
    return Finding(
        id="a2a.count_mismatch",
        severity="error",
        confidence=0.93 if c.labelled else 0.7,
        claim=f"Rank {src} sent {_count(sent)} to rank {dst}, but rank {dst} received {_count(received)} "
        f"from rank {src}{calls}{more} "
        f"({c.pairs} pairs compared): results of this exchange may be wrong.{unsure}",
        subject=Subject(),
        value=float(received),
        limit=float(sent),
        unit="count",
        evidence=(
            *(
                Evidence(c.received, f"rank {d} from rank {s}", v)
                for (s, d, _, _), v in zip(c.differing, values, strict=False)
            ),
            Evidence(
                c.sent,
                "all pairs",
                pairs(
                    {
                        "pairs": c.pairs,
                        "differing": len(c.differing),
                        "total_sent": _count(c.total_sent),
                        "total_received": _count(c.total_received),
                    }
                ),
            ),
        ),
        remedies=(remedy("a2a-distrust-results"),),
        settle_with=("per-pair split sizes of all ranks for that call",),
    )


def _count(value: float) -> float | int:
    return int(value) if float(value).is_integer() else value


def _legal(c: Comparison, *, only: bool) -> Finding:
    """Said as a finding when the matrices are all that was given; else it only rules a mismatch out."""
    values = {
        "total_sent": _count(c.total_sent),
        "total_received": _count(c.total_received),
        "pairs": c.pairs,
        "busiest": c.busiest,
        "max_over_mean_ratio": c.uneven,
    }
    return Finding(
        id="a2a.uneven_is_legal" if only else "not:a2a.count_mismatch",
        severity="info",
        confidence=0.9,
        claim=f"Ranks exchange different amounts, and every one of {c.pairs} pairs agrees (total "
        f"{_count(c.total_sent)} = "
        f"{_count(c.total_received)}): legal. Its cost follows the busiest, {ranks_text([c.busiest])} with "
        f"{c.uneven:.2f} times the mean.",
        value=c.uneven,
        unit="ratio",
        evidence=(Evidence(c.sent, "all pairs", pairs(values)), Evidence(c.received, "all pairs", "")),
    )
