"""Joins what two kinds of input say of one fault.

Skew and memory: whether the requests of the hottest rank follow its tokens. Slow transfers and links:
traces show that the transfer is slow but never whose link, transport lines the other half.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moexray.core.finding import Evidence, pairs
from moexray.diagnose.chain import CAUSED_BY

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from moexray.analyse.routing_ranks import Ranks
    from moexray.core.finding import Finding
    from moexray.core.run import Batch, Run

__all__ = ["couple"]

MEMORY = ("mem.fragmentation", "mem.alloc_stall")  # the first one found on the rank is the link
BACKED = 0.9  # slow transfers seen in traces, and the slower path of one rank in its transport lines
LEAST_BYTES = 1 << 20  # activations: requests below come from the small pool
LEAST_ALLOCS = 10  # in a window
LEAST_WINDOWS = 6
LARGE = 0.9  # quantile of a window's requests: what follows the tokens lies among smaller ones of others
FOLLOWS = 0.5  # rank correlation at least
CHANCE = 1.56  # standard deviations of the correlation of independent windows: 6 % of cases lie beyond


def couple(run: Run, findings: list[Finding]) -> list[Finding]:
    """Links ep.skew to the memory fault of its rank, and a slow transfer to the link that is slow.

    What would settle a finding is no longer asked for where it is among the files.
    """
    return [_unasked(run, f) for f in _memory(run, _link(findings))]


def _unasked(run: Run, f: Finding) -> Finding:
    """A finding without the questions that a file of the run answers."""
    if not f.settle_with:
        return f
    recorded = any(b.attrs.get("rank") == f.subject.rank for b in run.batches("snapshot_events"))
    here = {"allocator snapshot": recorded, "NCCL_DEBUG": "comm_link" in run.present}
    left = tuple(s for s in f.settle_with if not any(s.startswith(k) and v for k, v in here.items()))
    return f if left == f.settle_with else replace(f, settle_with=left)


def _link(findings: list[Finding]) -> list[Finding]:
    """A slow transfer without a rank takes that of the one link that other inputs suspect."""
    slow = [f for f in findings if f.id == "comm.slow_transfer"]
    seen = next((f for f in slow if f.subject.rank is None and not f.cannot_tell), None)
    hints = [f for f in slow if f.subject.rank is not None]
    if seen is None or len(hints) != 1:
        return findings
    hint = hints[0]
    joined = replace(
        seen,
        confidence=max(seen.confidence, BACKED),
        claim=f"{seen.claim} The slow link is that of rank {hint.subject.rank}: {hint.evidence[0].text}",
        subject=replace(seen.subject, rank=hint.subject.rank),
        evidence=(*seen.evidence, *hint.evidence),
        settle_with=(),
    )
    return [joined if f is seen else f for f in findings if f is not hint]


def _memory(run: Run, findings: list[Finding]) -> list[Finding]:
    """ep.skew causes the memory fault of the same rank where the sizes asked for follow the tokens."""
    skew = next((f for f in findings if f.id == "ep.skew" and not f.cannot_tell), None)
    hit = next((f for id in MEMORY for f in findings if skew and f.id == id and _same_rank(f, skew)), None)
    if skew is None or hit is None:
        return findings
    proof = _follows(run, hit.subject.rank)
    if proof is None:
        return findings
    usual = hit.implied_by or CAUSED_BY.get(hit.id, ())
    linked = replace(hit, implied_by=("ep.skew", *usual), evidence=(*hit.evidence, proof))
    return [linked if f is hit else f for f in findings]


def _same_rank(f: Finding, skew: Finding) -> bool:
    return f.subject.rank is not None and f.subject.rank == skew.subject.rank and not f.cannot_tell


def _follows(run: Run, rank: int | None) -> Evidence | None:
    from moexray.analyse.memory_series import rank_correlation
    from moexray.analyse.routing import loads
    from moexray.analyse.routing_ranks import ep_size, to_ranks
    from moexray.analyse.timeline import profiles
    from moexray.core.limits.routing import RoutingLimits

    events = next((b for b in run.batches("snapshot_events") if b.attrs.get("rank") == rank), None)
    profile = next((p for p in profiles(run) if p.rank == rank and len(p.steps)), None)
    if events is None or profile is None or "time_ns" not in events.columns:
        return None
    for load in loads(run, RoutingLimits().dummy_run)[0]:
        count, _ = ep_size(run, load)
        ranks = to_ranks(run, load, count) if count and load.what == "routed" and load.ordered else None
        if ranks is None or rank is None or rank >= ranks.tokens.shape[-1]:
            continue
        steps = profile.steps
        tokens, sizes = _windows(events, ranks, rank, steps.label, steps.start, steps.end)
        r = rank_correlation(tokens, sizes) if len(tokens) >= LEAST_WINDOWS else None
        if r is not None and r >= max(FOLLOWS, CHANCE / (len(tokens) - 1) ** 0.5):
            text = pairs(
                {
                    "windows": len(tokens),
                    "rank_correlation_ratio": r,
                    "tokens_from": float(min(tokens)),
                    "tokens_to": float(max(tokens)),
                    "large_request_from_bytes": float(min(sizes)),
                    "large_request_to_bytes": float(max(sizes)),
                }
            )
            where = f"requests of rank {rank} beside its tokens in {load.source}"
            return Evidence(events.source, where, text)
    return None


def _windows(
    events: Batch, ranks: Ranks, rank: int, label: NDArray[np.int64], start: NDArray[np.int64],
    end: NDArray[np.int64],
) -> tuple[list[float], list[float]]:  # fmt: skip
    """Tokens of a rank and the size of its large requests (`LARGE`), window by window of the load."""
    import numpy as np

    size = np.asarray(events.columns["size_bytes"])
    when = np.asarray(events.columns["time_ns"])
    asked = (np.asarray(events.columns["action"]) == 0) & (size >= LEAST_BYTES)
    tokens: list[float] = []
    sizes: list[float] = []
    before = -1
    for i, step in enumerate(ranks.load.steps.tolist()):
        mine = (label > before) & (label <= step)
        before = step
        if not mine.any():
            continue
        inside = asked & (when >= start[mine].min()) & (when < end[mine].max())
        if int(inside.sum()) >= LEAST_ALLOCS:
            tokens.append(float(ranks.tokens[i, :, rank].sum()))
            sizes.append(float(np.quantile(size[inside], LARGE)))
    return tokens, sizes
