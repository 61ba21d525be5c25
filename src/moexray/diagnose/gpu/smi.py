"""smi.*: what the driver's numbers can and cannot say about a device."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from moexray.analyse.gpu import SLOWDOWNS, processes_of, throttling
from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy
from moexray.diagnose.memory.oom_words import size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moexray.analyse.gpu import Device, Throttling
    from moexray.core.limits import Limits
    from moexray.core.run import Run

__all__ = ["driver_share", "gpu_lost", "mig_limit", "throttled", "unified_memory"]

SHOWN = 4
MEMORY = ("total_bytes", "used_bytes", "free_bytes", "reserved_bytes")
OTHERS = ("util_ratio", "temp_c", "power_w", "sm_mhz")
SERIES = (
    "nvidia-smi --query-gpu=timestamp,index,utilization.gpu,clocks.sm,clocks_event_reasons.active "
    "--format=csv -l 1 under load"
)
# Slowdowns that are no matter of course at full load (a software power cap is one on many cards).
HARD = SLOWDOWNS - {"sw_power_cap"}


def unified_memory(run: Run, _limits: Limits, found: Sequence[Device]) -> list[Finding]:
    """smi.unified_memory: total, used and free are all not available, other fields have values."""
    blind = [d for d in found if _without_memory(d)]
    if not blind:
        return []
    best = max(blind, key=_has_values)
    others = _has_values(best)
    host = next(iter(run.rows("meminfo")), None)
    listed = [p for d in blind for p in processes_of(run, d)] or [
        p for p in run.rows("gpu_process") if p["used_bytes"] is not None
    ]
    claim = (
        f"{best.label[0].upper()}{best.label[1:]}{f' ({best.name})' if best.name else ''} has no framebuffer "
        "numbers by design: its memory is unified with the host's, so what nvidia-smi leaves out is unknown, "
        "not zero."
    )
    evidence = [
        Evidence(d.source, d.where(len(d) - 1), f"memory {d.words['missing'][-1].split()} not available")
        for d in blind[:SHOWN]
    ]
    if host is not None:
        available = host["available_bytes"]
        claim += f" The host has {size(host['total_bytes'])}"
        claim += f", of which {size(available)} are available." if available is not None else "."
        values = {"memtotal_bytes": host["total_bytes"], "memavailable_bytes": available}
        evidence.append(Evidence(host["source"], host["where"], f"{host['text']} {pairs(values)}"))
    for p in sorted(listed, key=lambda p: -p["used_bytes"])[:SHOWN]:
        claim += f" Process {p['pid']} ({p['name']}) holds {p['used_bytes'] >> 20} MiB."
        values = {"pid": p["pid"], "process_bytes": p["used_bytes"], "process_mib": p["used_bytes"] >> 20}
        evidence.append(Evidence(p["source"], p["where"], pairs(values)))
    missing = (("/proc/meminfo of the host",) if host is None else ()) + (
        ("nvidia-smi --query-compute-apps=pid,used_memory --format=csv",) if not listed else ()
    )
    return [
        Finding(
            id="smi.unified_memory",
            severity="info",
            confidence=0.92 if others else 0.75,
            claim=claim,
            subject=Subject(device=best.device),
            evidence=tuple(evidence),
            remedies=(remedy("use-meminfo"),),
            settle_with=missing,
        )
    ]


def _without_memory(device: Device) -> bool:
    """No sample has any memory number, and at least two of the fields say that there are none."""
    if any(device.last(n) is not None for n in MEMORY) or device.mig:
        return False
    if any(device.words["errors"]):
        return False
    return all(len({"total", "used", "free"} & set(m.split())) >= 2 for m in device.words["missing"])


def _has_values(device: Device) -> int:
    return sum(device.last(n) is not None for n in OTHERS)


def mig_limit(run: Run, limits: Limits, found: Sequence[Device]) -> list[Finding]:
    """smi.mig_limit: the total of an out-of-memory record is that of a MIG instance."""
    instances = run.rows("mig")
    cards = {(d.source, d.key): d.last("total_bytes") for d in found}
    tolerance = limits.gpu.same_total_ratio
    out: list[Finding] = []
    for record in run.rows("oom"):
        total = record["total_bytes"]
        if not total or any(f.subject.device == record["device"] for f in out):
            continue
        if any(c and abs(c - total) <= tolerance * c for c in cards.values()):
            continue
        fits = [m for m in instances if abs(m["total_bytes"] - total) <= tolerance * m["total_bytes"]]
        if not fits:
            continue
        near = min(fits, key=lambda m: abs(m["total_bytes"] - total))
        card = cards.get((near["source"], near["key"]))
        whole = f", not the card's {size(card)}" if card else ""
        values = {"instance_bytes": near["total_bytes"], "total_bytes": total,
                  "card_bytes": None if card is None else int(card)}  # fmt: skip
        out.append(
            Finding(
                id="smi.mig_limit",
                severity="info",
                confidence=0.93,
                claim=(
                    f"The process runs in a MIG instance of {size(near['total_bytes'])}{whole}: the record's "
                    f"total of {size(total)} is the instance's, and all shares refer to it."
                ),
                subject=Subject(rank=record["rank"], device=record["device"]),
                value=float(near["total_bytes"]),
                limit=card,
                unit="bytes",
                evidence=(
                    Evidence(near["source"], near["where"], pairs(values)),
                    Evidence(record["source"], record["where"], record["text"] or ""),
                ),
                remedies=(remedy("larger-mig-profile", bytes=size(near["total_bytes"])),),
            )
        )
    return out


def throttled(_run: Run, limits: Limits, found: Sequence[Device]) -> list[Finding]:
    """smi.throttled: power or thermal slowdowns under load, with lower clocks than in the other samples."""
    out = []
    for device in found:
        t = throttling(device, limits.gpu.load_ratio)
        finding = _series(device, t, limits) if len(device) > 1 else _one_sample(device, limits)
        if finding:
            out.append(finding)
    return out


def _series(device: Device, t: Throttling, limits: Limits) -> Finding | None:
    g = limits.gpu
    if not t.flagged or t.first is None or t.flagged < g.slowdown_ratio * t.loaded:
        return None
    names = ", ".join(sorted(t.reasons, key=lambda n: -t.reasons[n]))
    reference, kind = t.free_mhz, "in its other samples under load"
    if reference is None:
        reference, kind = device.last("sm_max_mhz"), "at its highest clock"
    if reference is None or t.flagged_mhz is None or not reference:
        return None
    drop = 1 - t.flagged_mhz / reference
    if drop < g.clock_drop_ratio:
        return None
    proven = t.free_mhz is not None
    values = {
        "throttled_samples": t.flagged,
        "samples": t.loaded,
        "throttled_ratio": t.flagged / t.loaded,
        "throttled_mhz": t.flagged_mhz,
        "reference_mhz": reference,
        "clock_drop_ratio": drop,
    }
    return Finding(
        id="smi.throttled",
        severity="warn" if proven else "info",
        confidence=0.88 if proven else 0.45,
        claim=(
            f"{_title(device)} lowered its clocks under load: {names} active in {t.flagged} of {t.loaded} "
            f"samples under load ({100 * t.flagged / t.loaded:.0f} %), with a median SM clock of "
            f"{t.flagged_mhz:.0f} MHz against {reference:.0f} MHz {kind} (-{100 * drop:.0f} %)."
        ),
        subject=Subject(device=device.device),
        value=drop,
        limit=g.clock_drop_ratio,
        unit="ratio",
        evidence=(
            Evidence(device.source, device.where(t.first), pairs(values)),
            Evidence(device.source, device.where(t.first), _sample(device, t.first)),
        ),
        remedies=(remedy("cool-or-cap"),),
        settle_with=() if proven else ("samples of the same device under load before the slowdown began",),
        cost=drop,
    )


def _one_sample(device: Device, limits: Limits) -> Finding | None:
    """One sample shows a slowdown, and no other tells whether the clock fell."""
    active = SLOWDOWNS.intersection(device.words["flags"][0].split())
    util = device.numbers["util_ratio"][0]
    clock, top = device.numbers["sm_mhz"][0], device.numbers["sm_max_mhz"][0]
    if not active or util < limits.gpu.load_ratio:
        return None
    slow = clock <= (1 - limits.gpu.clock_drop_ratio) * top  # False where a clock is unknown
    if not slow and not active & HARD:
        return None
    clocks = f" at {clock:.0f} of {top:.0f} MHz" if slow else ""
    return Finding(
        id="smi.throttled",
        severity="info",
        confidence=0.45,
        claim=(
            f"{_title(device)} reports {', '.join(sorted(active))}{clocks} in the one sample there is: "
            "whether its clocks fall under load for longer needs a series."
        ),
        subject=Subject(device=device.device),
        evidence=(Evidence(device.source, device.where(0), _sample(device, 0)),),
        remedies=(remedy("cool-or-cap"),),
        settle_with=(SERIES,),
    )


def _sample(device: Device, i: int) -> str:
    n = device.numbers
    known = {k: n[k][i] for k in ("util_ratio", "sm_mhz", "sm_max_mhz", "power_w", "temp_c", "t_s")}
    values: dict[str, object] = {k: v for k, v in known.items() if not math.isnan(v)}
    flags = device.words["flags"][i]
    return pairs({"device": device.device, **values}) + (f" active: {flags}" if flags.strip("?") else "")


def _title(device: Device) -> str:
    label = device.label
    return label[0].upper() + label[1:]


def gpu_lost(run: Run, _limits: Limits, found: Sequence[Device]) -> list[Finding]:
    """smi.gpu_lost: messages, and fields of a device that answered before and then no longer."""
    out = [f for d in found if (f := _lost(d))]
    seen: set[tuple[str, str | None]] = set()
    for row in run.rows("gpu_event"):
        place = (row["kind"], row["bus"])
        if place in seen or row["kind"] == "mismatch":
            continue
        seen.add(place)
        certain = row["kind"] in ("lost", "reset_needed")
        if certain and any(f.severity == "error" for f in out):
            continue
        said = {
            "lost": f"The driver no longer reaches the GPU {row['bus'] or ''}".rstrip() + ".",
            "reset_needed": f"The GPU {row['bus'] or ''}".rstrip()
            + " must be reset before it answers again.",
            "no_devices": "nvidia-smi finds no device: whether one was there before is not known.",
            "no_driver": "nvidia-smi cannot talk to the driver: lost GPU or driver not loaded, is not known.",
        }[row["kind"]]
        out.append(
            Finding(
                id="smi.gpu_lost",
                severity="error" if certain else "info",
                confidence=0.93 if certain else 0.4,
                claim=said,
                subject=Subject(device=row["device"]),
                evidence=(Evidence(row["source"], row["where"], row["text"]),),
                remedies=(remedy("drain-node"),),
                settle_with=("kernel log (Xid messages)", "lspci -d 10de:"),
            )
        )
    return out


def _lost(device: Device) -> Finding | None:
    errors = device.words["errors"]
    bad = [i for i, e in enumerate(errors) if e]
    if not bad:
        return None
    said = "gpu_lost" in errors[bad[-1]].split()
    ends = bad[-1] == len(errors) - 1
    first = bad[0]
    while ends and first > 0 and errors[first - 1]:
        first -= 1
    fields = sorted({w for e in errors[first:] for w in e.split()} - {"gpu_lost"})
    before = first > 0 and any(_had(device, f, first) for f in fields)
    if not said and not (ends and before) and len(device) > 1:
        return None
    answering = sum(not math.isnan(device.numbers[n][bad[-1]]) for n in ("used_bytes", *OTHERS))
    certain = said or (ends and before and len(fields) > answering)
    answered = len(errors) - len(bad)
    claim = (
        f"{_title(device)} answers in {answered} of {len(errors)} samples, then "
        f"{'the driver says that the GPU is lost' if said else 'its fields hold only errors'} "
        f"({', '.join(fields)}) in {len(bad)}."
        if len(errors) > 1
        else f"{_title(device)} shows errors in place of {', '.join(fields)}"
        + (
            ": the driver says that the GPU is lost."
            if said
            else "; whether it answered before is not known."
        )
    )
    return Finding(
        id="smi.gpu_lost",
        severity="error" if certain else "info",
        confidence=(0.95 if said else 0.85) if certain else 0.4,
        claim=claim,
        subject=Subject(device=device.device),
        value=float(len(bad)),
        unit="count",
        evidence=(
            Evidence(
                device.source,
                device.where(first),
                pairs({"device": device.device, "answered_samples": answered, "lost_samples": len(bad)})
                + f" fields: {errors[first]}",
            ),
        ),
        remedies=(remedy("drain-node"),),
        settle_with=("kernel log (Xid messages)",),
    )


def _had(device: Device, field: str, before: int) -> bool:
    """The field had a value in a sample before; of a field that is not kept, any value counts."""
    names = [n for n in device.numbers if n in (field, f"{field}_bytes")] or list(OTHERS)
    return any(not math.isnan(v) for n in names for v in device.numbers[n][:before])


def driver_share(run: Run, limits: Limits, found: Sequence[Device]) -> list[Finding]:
    """Rules out another process where the totals of nvidia-smi and torch differ by the driver's part."""
    out: list[Finding] = []
    for record in run.rows("oom"):
        total = record["total_bytes"]
        if not total or out:
            continue
        for d in found:
            smi = d.last("total_bytes")
            if smi is None or d.mig or (record["device"] not in (d.device, None) and d.device is not None):
                continue
            gap = smi - total
            if not 0 < gap <= limits.gpu.driver_share_bytes:
                continue
            reserved = d.last("reserved_bytes")
            own = f" (nvidia-smi shows {size(reserved)} as reserved)" if reserved else ""
            values = {
                "smi_total_bytes": int(smi),
                "smi_total_mib": int(smi) >> 20,
                "torch_total_bytes": total,
                "driver_reserved_bytes": int(gap),
            }
            out.append(
                Finding(
                    id="not:mem.other_process",
                    severity="info",
                    confidence=0.9,
                    claim=(
                        f"The total of nvidia-smi ({int(smi) >> 20} MiB) exceeds torch's ({size(total)}) by "
                        f"{size(gap)}: the driver reserves that{own}, it is no error and no other process."
                    ),
                    subject=Subject(rank=record["rank"], device=record["device"]),
                    value=gap,
                    unit="bytes",
                    evidence=(Evidence(d.source, d.where(len(d) - 1), pairs(values)),),
                )
            )
            break
    return out
