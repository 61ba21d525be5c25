"""ep.skew as a question: a rank that is late because some of its kernels, not all, take longer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from moexray.analyse.timeline import KERNEL, MEMCPY, MEMSET
from moexray.analyse.timeline_comm import op_name
from moexray.analyse.timeline_host import MOSTLY
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.pattern import lazy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from moexray.analyse.timeline import Profile
    from moexray.analyse.timeline_comm import Collectives
    from moexray.analyse.timeline_late import Late
    from moexray.core.limits import Limits
    from moexray.core.limits.timeline import TimelineLimits
    from moexray.core.run import Run

__all__ = ["uneven_work"]

EXCHANGE = lazy(r"dispatch|combine|all_?to_?all|sendrecv", re.IGNORECASE)  # experts lie on several ranks
LEAST_CALLS = 8
MS = 1e6


def uneven_work(run: Run, c: Collectives, late: list[Late], limits: Limits) -> list[Finding]:
    """For the first rank that is late because it computes longer; silent where loads were counted."""
    if run.present & {"counts", "routes"} or not any(EXCHANGE.search(str(op)) for op in set(c.op)):
        return []
    for x in late:
        if x.rank >= 0 and x.places and x.did.get("compute", 0.0) >= MOSTLY:
            t = limits.timeline
            return _finding(c.profiles[x.rank], _ratios(c, x.rank, t.kernel_share), t)
    return []


def _ratios(c: Collectives, rank: int, least: float) -> dict[str, tuple[float, float]]:
    """Kernel -> (time of a call on the rank / median of the others, share of its compute time)."""
    mine = _times(c.profiles[rank])
    others = [_times(p) for i, p in enumerate(c.profiles) if i != rank]
    total = sum(float(t.sum()) for t in mine.values()) or 1.0
    out = {}
    for name, times in mine.items():
        peers = [float(np.mean(o[name])) for o in others if name in o and len(o[name]) >= LEAST_CALLS]
        share = float(times.sum()) / total
        if peers and len(times) >= LEAST_CALLS and share >= least:
            out[name] = (float(times.mean()) / max(float(np.median(peers)), 1.0), share)
    return out


def _times(profile: Profile) -> dict[str, NDArray[np.int64]]:
    mask = profile.of(KERNEL, MEMCPY, MEMSET)
    mask[profile.comm_rows] = False
    rows = np.flatnonzero(mask)
    order = rows[np.argsort(profile.name[rows], kind="stable")]
    ids, first = np.unique(profile.name[order], return_index=True)
    parts = np.split(profile.end[order] - profile.start[order], first[1:])
    return {profile.names[i]: t for i, t in zip(ids.tolist(), parts, strict=True)}


def _finding(
    profile: Profile, ratios: dict[str, tuple[float, float]], t: TimelineLimits
) -> list[Finding]:
    longer = {n: r for n, (r, _) in ratios.items() if r >= t.longer_ratio}
    if not longer or not any(r <= t.alike_ratio for r, _ in ratios.values()):
        return []  # nothing, or everything takes longer: that is the device, not the load
    name = max(longer, key=lambda n: longer[n])
    facts = {f"slower_{i}_ratio": r for i, r in enumerate(sorted(longer.values(), reverse=True)[:4])}
    return [
        Finding(
            "ep.skew", "info", 0.45,
            f"{profile.who} is late because {len(longer)} of its {len(ratios)} larger kernels "
            f"({op_name(name)} first, {longer[name]:.2f}x the others) take longer while the rest takes as "
            "long as elsewhere: that is what more tokens for its experts look like. No counts say so.",
            Subject(rank=profile.rank), longer[name], t.longer_ratio, "ratio",
            (Evidence(profile.source, f"kernels of {profile.who} against the other ranks", pairs(facts)),),
            settle_with=("expert counts per rank of the same time", "input sizes of these kernels"),
        )
    ]  # fmt: skip
