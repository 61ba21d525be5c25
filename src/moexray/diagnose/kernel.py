"""kernel.bank_conflict: serialised shared-memory accesses of kernels that take a share of the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moexray.core.finding import Evidence, Finding, pairs
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from moexray.core.limits import Limits
    from moexray.core.run import Run

__all__ = ["bank_conflict"]

SHOWN = 5


@dataclass(slots=True)
class _Kernel:
    """Sums over the launches of one kernel of one report."""

    source: str
    name: str
    where: str
    launches: int = 0
    dur_s: float = 0.0
    wavefronts: float = 0.0
    conflicts: float = 0.0
    ideal: float = 0.0
    share: float | None = None

    @property
    def ratio(self) -> float | None:
        """Share of wavefronts that conflicts cost; against the ideal where the report has it."""
        if not self.wavefronts:
            return None
        if self.ideal:
            return 1 - self.ideal / self.wavefronts
        return self.conflicts / self.wavefronts


def bank_conflict(run: Run, limits: Limits) -> list[Finding]:
    """Conflicts per wavefront above the limit, on a kernel with its share of the report's time."""
    lim = limits.requests
    kernels = _sums(run)
    hot = [
        k
        for k in kernels
        if (k.ratio or 0) > lim.conflict_ratio and k.share is not None and k.share >= lim.kernel_share
    ]
    if not hot:
        return []
    hot.sort(key=lambda k: -(k.ratio or 0) * (k.share or 0))
    top = hot[0]
    ratio, share = top.ratio or 0.0, top.share or 0.0
    more = f" So do {len(hot) - 1} more kernels." if len(hot) > 1 else ""
    small = [k for k in kernels if (k.ratio or 0) > ratio and (k.share or 0) < lim.kernel_share]
    aside = (
        f" {small[0].name} conflicts more ({small[0].ratio:.0%}) but takes {small[0].share:.1%} of the time."
        if small
        else ""
    )
    claim = (
        f"{top.name}: {top.conflicts:.0f} bank conflicts on {top.wavefronts:.0f} shared-memory wavefronts "
        f"({ratio:.0%}), with {share:.0%} of the report's kernel time.{more}{aside}"
    )
    evidence = tuple(
        Evidence(
            k.source,
            k.where,
            f"{k.name}: "
            + pairs(
                {
                    "conflicts": int(k.conflicts),
                    "wavefronts": int(k.wavefronts),
                    "conflict_ratio": round(k.ratio or 0, 4),
                    "time_share": round(k.share or 0, 4),
                    "launches": k.launches,
                    "time_s": k.dur_s,
                }
            ),
        )
        for k in hot[:SHOWN]
    )
    return [
        Finding(
            "kernel.bank_conflict",
            "info",
            0.85,
            claim,
            value=ratio,
            limit=lim.conflict_ratio,
            unit="ratio",
            evidence=evidence,
            remedies=(remedy("kernel.pad_rows"),),
            cost=top.dur_s * ratio,
        )
    ]


def _sums(run: Run) -> list[_Kernel]:
    found: dict[tuple[str, str], _Kernel] = {}
    for r in run.rows("kernels"):
        k = found.setdefault((r["source"], r["kernel"]), _Kernel(r["source"], r["kernel"], r["where"]))
        k.launches += 1
        k.dur_s += r["dur_s"] or 0.0
        k.wavefronts += r["wavefronts"] or 0.0
        k.conflicts += r["conflicts"] or 0.0
        k.ideal += r["ideal"] or 0.0
    totals: dict[str, float] = {}
    for k in found.values():
        totals[k.source] = totals.get(k.source, 0.0) + k.dur_s
    for k in found.values():
        k.share = k.dur_s / totals[k.source] if totals[k.source] else None
    return list(found.values())
