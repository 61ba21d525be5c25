"""Memory findings from the end state of allocator snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.snapshot import INACTIVE, Pool, Shot, pools, shots
from moexray.core.finding import Evidence, Finding, pairs
from moexray.core.remedies import remedy
from moexray.core.sizes import human_bytes as size
from moexray.diagnose.advice import expandable_check
from moexray.diagnose.memory.snapshot_words import (
    by_subject,
    clash_of_expandable,
    expandable_is_on,
    place,
    subject,
)

if TYPE_CHECKING:
    from moexray.core.finding import Remedy
    from moexray.core.limits import Limits
    from moexray.core.limits.snapshot import SnapshotLimits
    from moexray.core.run import Run

__all__ = ["fragmentation", "private_pools"]

ENV = "PYTORCH_ALLOC_CONF"
SHOWN = 6  # rows of evidence of one kind
NAMED = 3  # call sites named


def fragmentation(run: Run, limits: Limits) -> list[Finding]:
    """mem.fragmentation from snapshots: bytes that are free and that nobody can use or give back."""
    out = []
    for group in by_subject(shots(run)):
        ordinary = [(shot, pool) for shot in group for pool in pools(shot) if not pool.private]
        judged = [(shot, pool, _stuck(pool, limits.snapshot)) for shot, pool in ordinary]
        guilty = [j for j in judged if j[2] or _big(j[0], limits.snapshot).size]
        if guilty:
            out.append(_fragmented(run, limits.snapshot, guilty, group))
        else:
            cached = [(s, p) for s, p in ordinary if p.free_bytes >= limits.snapshot.stuck_bytes]
            out += [_not_fragmented(s, p, limits.snapshot) for s, p in cached[:1]]
    return out


def _stuck(pool: Pool, limits: SnapshotLimits) -> bool:
    return pool.stuck_bytes >= max(limits.stuck_bytes, limits.stuck_ratio * pool.reserved_bytes)


def _big(shot: Shot, limits: SnapshotLimits) -> np.ndarray:
    """Rows of large segments of the default pool that a live block pins though little is active."""
    s = shot.segments
    ordinary = np.array([shot.pool_ids[code] in (None, (0, 0)) for code in s["pool"].tolist()], dtype=bool)
    thin = s["live"] < limits.big_segment_active_ratio * s["total_bytes"]
    return np.flatnonzero(
        shot.sound & ordinary & (s["total_bytes"] >= limits.big_segment_bytes) & (s["live_blocks"] > 0) & thin
        & (s["stuck"] * 2 >= s["total_bytes"])  # not so where expandable pages can go back
    )  # fmt: skip


def _fragmented(
    run: Run, limits: SnapshotLimits, guilty: list[tuple[Shot, Pool, bool]], group: list[Shot]
) -> Finding:
    shot, pool, by_pool = max(guilty, key=lambda j: j[1].stuck_bytes)
    big = _big(shot, limits)
    share = pool.stuck_bytes / pool.reserved_bytes
    claim = (
        f"{size(pool.stuck_bytes)} of the {size(pool.reserved_bytes)} that PyTorch reserves on {place(shot)}"
        f" ({share:.0%}) lie free in segments that a live block pins: they cannot go back to the device and"
        f" serve no request above the largest free block of {size(pool.largest_free_bytes)}."
    )
    if big.size:
        claim += _big_words(shot, int(big[np.argmax(shot.segments["stuck"][big])]), group)
    sites = _pins(shot)
    if sites and sites[0][0]:
        claim += f" Most pinning blocks come from {sites[0][0]}."
    evidence = [_pool_row(s, p) for s, p, _ in guilty[:SHOWN]]
    evidence += [_segment_row(shot, int(i)) for i in big[:SHOWN]]
    evidence += [
        Evidence(shot.source, f"live blocks of {site or 'no stack'}", pairs({"blocks": n, "live_bytes": b}))
        for site, n, b in sites
    ]
    before = [s for s in group if s.source not in {g[0].source for g in guilty}]
    evidence += [_pool_row(s, p) for s in before[:2] for p in pools(s)[:1]]
    return Finding(
        id="mem.fragmentation",
        severity="warn",
        confidence=0.9,
        claim=claim,
        subject=subject(shot),
        value=float(pool.stuck_bytes),
        limit=float(limits.stuck_bytes if by_pool else limits.big_segment_bytes),
        unit="bytes",
        evidence=tuple(evidence),
        remedies=_remedies(run, shot, sites[0][0] if sites else ""),
        cost=float(pool.stuck_bytes),
    )


def _big_words(shot: Shot, row: int, group: list[Shot]) -> str:
    s = shot.segments
    total, live, stuck = (int(s[k][row]) for k in ("total_bytes", "live", "stuck"))
    words = (
        f" One segment of {total:,} B is {live / total:.1%} active and cannot be released:"
        f" {stuck / 1e9:.1f} GB ({size(stuck)}) stranded."
    )
    for other in group:
        same = (other.segments["address"] == s["address"][row]) & (other.segments["total_bytes"] == total)
        if other is not shot and (same & (other.segments["live_blocks"] == 0)).any():
            return words + f" In {other.source} the same segment was whole and free."
    return words


def _pins(shot: Shot) -> list[tuple[str, int, int]]:
    """Call sites of the pinning blocks: (site, blocks, bytes), most blocks first."""
    mine = _pinning(shot)
    counts: dict[str, list[int]] = {}
    stacks, sizes = shot.blocks["stack"][mine].tolist(), shot.blocks["size_bytes"][mine].tolist()
    for stack, n in zip(stacks, sizes, strict=True):
        entry = counts.setdefault(shot.sites[stack], [0, 0])
        entry[0] += 1
        entry[1] += n
    top = sorted(counts.items(), key=lambda item: -item[1][0])[:NAMED]
    return [(site, n, b) for site, (n, b) in top]


def _pinning(shot: Shot) -> np.ndarray:
    """Live blocks in segments where at least 1 MiB is stuck."""
    pinned = shot.segments["stuck"] >= 1 << 20
    return np.asarray((shot.blocks["state"] != INACTIVE) & pinned[shot.blocks["segment"]])


def _remedies(run: Run, shot: Shot, site: str) -> tuple[Remedy, ...]:
    out = []
    if shot.events is not None and len(shot.events["action"]) > 1 and not expandable_is_on(run, shot):
        out.append(remedy("snapshot-try-settings", source=shot.source))
    if not expandable_is_on(run, shot):
        out += _expandable(run, shot)
        largest = int(shot.blocks["size_bytes"][_pinning(shot)].max(initial=0)) >> 20
        out.append(remedy("max-split-size", env=ENV, mb=max(32, 1 << largest.bit_length())))
        out.append(remedy("gc-threshold", env=ENV))
    if site:
        out.append(remedy("snapshot-move-pins", site=site))
    return tuple(out)


def _expandable(run: Run, shot: Shot) -> list[Remedy]:
    """Expandable segments, unless the launch shows what they clash with."""
    state, words = expandable_check(run, shot.source)
    if state == "blocked" or clash_of_expandable(run):
        return []
    return [remedy("expandable-segments", env=ENV, checked=words)]


def _pool_row(shot: Shot, pool: Pool) -> Evidence:
    return Evidence(
        shot.source,
        f"device {shot.device}, {pool.name}",
        pairs(
            {
                "stranded_bytes": pool.stuck_bytes,
                "reserved_bytes": pool.reserved_bytes,
                "active_bytes": pool.active_bytes,
                "free_bytes": pool.free_bytes,
                "largest_free_block_bytes": pool.largest_free_bytes,
                "one_minus_largest_to_free_ratio": pool.ratio,
                "stuck_share_ratio": pool.stuck_bytes / max(pool.reserved_bytes, 1),
                "segments": pool.segments,
            }
        ),
    )


def _segment_row(shot: Shot, row: int) -> Evidence:
    s = shot.segments
    total, live = int(s["total_bytes"][row]), int(s["live"][row])
    return Evidence(
        shot.source,
        f"segment at {int(s['address'][row])}",
        pairs(
            {
                "segment_bytes": total,
                "active_bytes": live,
                "active_share": live / total,
                "stranded_bytes": int(s["stuck"][row]),
                "largest_free_block_bytes": int(s["largest_free"][row]),
                "live_blocks": int(s["live_blocks"][row]),
            }
        ),
    )


def _not_fragmented(shot: Shot, pool: Pool, limits: SnapshotLimits) -> Finding:
    return Finding(
        id="not:mem.fragmentation",
        severity="info",
        confidence=0.9,
        claim=(
            f"Not fragmentation on {place(shot)}: of {size(pool.free_bytes)} free inside PyTorch only"
            f" {size(pool.stuck_bytes)} lie beside live blocks, the rest is whole segments that empty_cache"
            f" returns (1 - largest/free is {pool.ratio:.2f}, which is normal)."
        ),
        subject=subject(shot),
        value=float(pool.stuck_bytes),
        limit=float(limits.stuck_bytes),
        unit="bytes",
        evidence=(_pool_row(shot, pool),),
    )


def private_pools(run: Run, limits: Limits) -> list[Finding]:
    """mem.graph_pool_fragmentation: free blocks that only one private pool can use."""
    lim, out = limits.snapshot, []
    for group in by_subject(shots(run)):
        guilty = [
            (shot, pool)
            for shot in group
            for pool in pools(shot)
            if pool.private
            and pool.free_bytes >= lim.private_free_bytes
            and pool.free_bytes >= lim.private_free_ratio * pool.reserved_bytes
        ]
        if not guilty:
            continue
        shot, pool = max(guilty, key=lambda g: g[1].free_bytes)
        more = f" (and {len(guilty) - 1} more)" if len(guilty) > 1 else ""
        fixes = [remedy("snapshot-graph-order")]
        if not expandable_is_on(run, shot):
            fixes += _expandable(run, shot)
        out.append(
            Finding(
                id="mem.graph_pool_fragmentation",
                severity="warn",
                confidence=0.9,
                claim=(
                    f"{size(pool.free_bytes)} of {size(pool.reserved_bytes)} in {pool.name}{more} on"
                    f" {place(shot)} are free but usable only inside that pool"
                    f" ({pool.free_bytes / pool.reserved_bytes:.0%}); nothing returns them while its graphs"
                    " live."
                ),
                subject=subject(shot),
                value=float(pool.free_bytes),
                limit=float(lim.private_free_bytes),
                unit="bytes",
                evidence=tuple(_pool_row(s, p) for s, p in guilty[:SHOWN]),
                remedies=tuple(fixes),
                cost=float(pool.free_bytes),
            )
        )
    return out
