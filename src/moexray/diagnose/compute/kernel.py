"""kernel.bank_conflict: serialised shared-memory accesses, measured or predicted from a stated pattern."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moexray.analyse.banks import degree, padding
from moexray.core.finding import Evidence, Finding, pairs
from moexray.core.remedies import remedy

if TYPE_CHECKING:
    from moexray.analyse.banks import Degree
    from moexray.core.limits import Limits
    from moexray.core.run import Row, Run

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
        return [] if kernels else _predicted(run)
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
    told, beside = _beside(run, top)
    claim += told
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
            evidence=(*evidence, *beside),
            remedies=(remedy("kernel-pad-rows"),),
            cost=top.dur_s * ratio,
        )
    ]


def _beside(run: Run, kernel: _Kernel) -> tuple[str, tuple[Evidence, ...]]:
    """What a stated access pattern and a trace say of a measured kernel: words and evidence."""
    from moexray.analyse.kernel_match import base_name, in_traces

    words, evidence = "", []
    # Passes that were needed, each of them counted once: the tool's own ideal, or what is no conflict.
    ideal = kernel.ideal or kernel.wavefronts - kernel.conflicts
    name = base_name(kernel.name)
    for row in run.rows("accesses"):
        if row["kernel"] and base_name(row["kernel"]) == name and ideal > 0:
            stated = degree(row["stride_bytes"], row["width_bytes"], row["base_bytes"], row["lanes"])
            predicted, measured = stated.passes / stated.ideal, kernel.wavefronts / ideal
            words = (
                f" Its stated access (stride {row['stride_bytes']} bytes, width {row['width_bytes']}) "
                f"predicts {predicted:.3g} passes for one, {measured:.3g} are measured over all its accesses."
            )
            ratios = {"predicted_passes_ratio": predicted, "measured_passes_ratio": measured}
            evidence.append(Evidence(row["source"], row["where"], pairs({**ratios, "n_way": stated.ways})))
            break
    found = in_traces(run, kernel.name, kernel.launches) if "trace" in run.present else []
    if found:
        most = max(found, key=lambda f: f.share)
        words += (
            f" In the trace of {most.who} it runs {most.launches} times, {most.share:.1%} of the kernel time "
            "there."
        )
    for f in found[:SHOWN]:
        values = {
            "launches": f.launches, "matched_launches": f.matched, "trace_share_ratio": f.share,
            "first_ns": f.first_ns, "stream": f.stream,
        }  # fmt: skip
        evidence.append(Evidence(f.source, f"kernel {name}", pairs(values)))
    return words, tuple(evidence)


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


def _predicted(run: Run) -> list[Finding]:
    """The stated access pattern that costs most passes over the ideal."""
    known = [
        (degree(r["stride_bytes"], r["width_bytes"], r["base_bytes"], r["lanes"]), r)
        for r in run.rows("accesses")
    ]
    costs = [(d.passes / d.ideal, d, r) for d, r in known if d.passes > d.ideal or d.parts > 1]
    if not costs:
        return []
    costs.sort(key=lambda c: -c[0])
    _, worst, row = costs[0]
    width, stride, base = row["width_bytes"], row["stride_bytes"], row["base_bytes"]
    pad = padding(stride, width, base, row["lanes"])
    said = f"a {worst.ways}-way bank conflict" if worst.ways > 1 else "no bank conflict"
    split = f", each access split into {worst.parts} of {worst.part_bytes} bytes, as it is not aligned"
    cure = (
        f" Padding the stride by {pad} bytes to {stride + pad} leaves one access without conflict."
        if pad
        else " No padding of the stride helps: align the base, or swizzle."
    )
    more = f" {len(costs) - 1} more of the stated patterns conflict." if len(costs) > 1 else ""
    claim = (
        f"{row['kernel'] or 'The stated access'} (stride {stride} bytes, width {width}, base {base}) has "
        f"{said}{split if worst.parts > 1 else ''}: {worst.passes} passes instead of {worst.ideal}."
        f"{cure}{more}"
    )
    return [
        Finding(
            "kernel.bank_conflict",
            "info",
            0.9,
            claim,
            value=float(worst.ways),
            limit=1.0,
            unit="count",
            evidence=tuple(
                Evidence(r["source"], r["where"], pairs(_pattern(d, r))) for _, d, r in costs[:SHOWN]
            ),
            remedies=(remedy("kernel-pad-rows"),),
            cost=float(worst.passes - worst.ideal),
        )
    ]


def _pattern(found: Degree, row: Row) -> dict[str, object]:
    stride, width, base, lanes = (row[n] for n in ("stride_bytes", "width_bytes", "base_bytes", "lanes"))
    pad = padding(stride, width, base, lanes)
    return {
        "n_way": found.ways,
        "passes": found.passes,
        "ideal": found.ideal,
        "split": found.parts,
        "stride_bytes": stride,
        "width_bytes": width,
        "base_bytes": base,
        "pad_bytes": pad,
        "padded_stride_bytes": stride + pad if pad is not None else None,
    }
