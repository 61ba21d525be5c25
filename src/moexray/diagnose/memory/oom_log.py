"""mem.* from log lines beside the records: recovered retries, large graph pools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moexray.core.finding import Evidence, Finding, Subject, pairs
from moexray.core.remedies import remedy
from moexray.diagnose.memory.oom_remedies import settings_name
from moexray.diagnose.memory.oom_words import percent, size

if TYPE_CHECKING:
    from moexray.core.limits import Limits
    from moexray.core.run import Row, Run

__all__ = ["graph_pool_large", "retries_recovered"]

SHOWN = 6


def retries_recovered(run: Run, _limits: Limits) -> list[Finding]:
    """mem.alloc_retry_recovered: device allocations failed, no error followed on the same device."""
    warnings = [r for r in run.rows("oom") if r["kind"] == "warning"]
    errors = [r for r in run.rows("oom") if r["kind"] in ("record", "bare") and not r["earlier"]]
    held = [w for w in warnings if not any(_same_device(w, e) for e in errors)]
    counters = _counters(run) if not errors else []
    if not held and not counters:
        return []
    lines = sum(int(r["repeats"] or 1) for r in held)
    devices = sorted({r["device"] for r in (*held, *counters) if r["device"] is not None})
    ranks = sorted({r["rank"] for r in (*held, *counters) if r["rank"] is not None})
    evidence = [Evidence(r["source"], r["where"], r["text"]) for r in held[:SHOWN]]
    values: dict[str, Any] = {}
    claim = ""
    if held:
        values = {"lines": lines, "distinct_allocations": len(held), "final_oom": 0, "devices": len(devices)}
        smallest = min(held, key=lambda r: r["request_bytes"])
        values |= {f"{n}_bytes": smallest[f"{n}_bytes"] for n in ("request", "free", "total")}
        evidence.insert(0, Evidence(smallest["source"], smallest["where"], pairs(values)))
        where = f" on {len(devices)} devices" if len(devices) > 1 else ""
        claim = (
            f"{len(held)} device allocations failed at first ({lines} warning lines{where}) and succeeded "
            "after cached blocks were released: no error follows. Each one is costly (blocks given back, "
            "device synchronised), not fatal."
        )
    if counters:
        count = sum(c["num_alloc_retries"] for c in counters)
        claim += f"{' ' if claim else ''}The allocator counts {count} retries and no error."
        evidence += [
            Evidence(
                c["source"],
                c["where"],
                pairs({"num_alloc_retries": c["num_alloc_retries"], "num_ooms": c["num_ooms"]}),
            )
            for c in counters[:SHOWN]
        ]
    one = len(ranks) <= 1 and len(devices) <= 1
    return [
        Finding(
            id="mem.alloc_retry_recovered",
            severity="warn",
            confidence=0.9,
            claim=claim,
            subject=Subject(
                rank=ranks[0] if one and ranks else None, device=devices[0] if one and devices else None
            ),
            value=float(len(held) or sum(c["num_alloc_retries"] for c in counters)),
            unit="count",
            evidence=tuple(evidence),
            remedies=(remedy("leave-headroom", setting=settings_name(run)), remedy("quieten-log")),
            settle_with=("step times or a trace: whether the retries fall on the slow steps",),
        )
    ]


def _same_device(warning: Row, error: Row) -> bool:
    """An error on the same device; a place that one of them does not name may be the same."""
    if warning["source"] != error["source"] and error["kind"] == "bare":
        return False
    for name in ("device", "rank"):
        a, b = warning[name], error[name]
        if a is not None and b is not None:
            return bool(a == b)
    return True


def _counters(run: Run) -> list[Row]:
    """The last allocator statistics of each place that count retries but no error."""
    last: dict[tuple[Any, ...], Row] = {}
    for row in run.rows("memory_stats"):
        last[row["source"], row["rank"], row["device"]] = row
    return [r for r in last.values() if (r["num_alloc_retries"] or 0) > 0 and r["num_ooms"] == 0]


def graph_pool_large(run: Run, limits: Limits) -> list[Finding]:
    """mem.graph_pool_large: what graph capture took of what was left before it."""
    captures = _captures(run)
    large = [c for c in captures if c["share"] is not None and c["share"] >= limits.memory.graph_share_ratio]
    compared = [] if large else _compared(run, captures, limits.memory.graph_times)
    chosen = large or compared
    if not chosen:
        return []
    worst = max(chosen, key=lambda c: c["cost"])
    if large:
        claim = (
            f"Graph capture took {size(worst['cost'])}, {percent(worst['cost'], worst['before'])} of the "
            f"{size(worst['before'])} that were left before it."
        )
    else:
        claim = (
            f"Graph capture took {size(worst['cost'])}, {worst['times']:.1f} times what another engine took "
            "here."
        )
    others = [c for c in captures if c["source"] != worst["source"] and c["cost"] < worst["cost"]]
    if others:
        claim += f" Another log shows {size(others[0]['cost'])} for its capture."
    claim += " Who owns it, only a snapshot with private-pool ids can tell."
    evidence = [Evidence(c["source"], c["where"], c["text"]) for c in [*chosen[:SHOWN], *others[:2]]]
    values = {
        "capture_bytes": worst["cost"],
        "available_bytes": worst["before"],
        "available_after_bytes": worst["after"],
        "capture_s": worst["elapsed"],
        "capture_ratio": worst["share"],
    }
    evidence.append(Evidence(worst["source"], worst["where"], pairs(values)))
    return [
        Finding(
            id="mem.graph_pool_large",
            severity="warn",
            confidence=0.85 if large else 0.7,
            claim=claim,
            subject=Subject(rank=worst["rank"]) if len(chosen) == 1 else Subject(),
            value=worst["share"] if large else worst["times"],
            limit=limits.memory.graph_share_ratio if large else limits.memory.graph_times,
            unit="ratio",
            evidence=tuple(evidence),
            remedies=(remedy("fewer-captures"), remedy("compare-captures")),
            settle_with=("an allocator snapshot after the capture, with private-pool ids",),
            cost=float(worst["cost"]),
        )
    ]


def _captures(run: Run) -> list[dict[str, Any]]:
    """Each finished capture with what was available before it (from its begin line, or after + cost)."""
    begun: dict[tuple[Any, ...], int] = {}
    out = []
    for row in run.rows("log"):
        place, fields = (row["source"], row["rank"], row["worker"]), row["fields"]
        if row["kind"] == "mem.capture_begin" and "avail_bytes" in fields:
            begun[place] = fields["avail_bytes"]
        elif row["kind"] == "mem.capture_end" and fields.get("cost_bytes"):
            cost, after = fields["cost_bytes"], fields.get("avail_bytes")
            before = begun.pop(place, None)
            if before is None and after is not None:
                before = after + cost
            out.append(
                {
                    "source": row["source"],
                    "where": row["where"],
                    "text": row["text"],
                    "rank": row["rank"],
                    "cost": cost,
                    "before": before,
                    "after": after,
                    "elapsed": fields.get("elapsed_s"),
                    "share": cost / before if before else None,
                    "times": None,
                }
            )
    return out


def _compared(run: Run, captures: list[dict[str, Any]], times: float) -> list[dict[str, Any]]:
    """Captures that cost several times those of another engine that runs the same model."""
    models, engines = _said(run, "model"), _said(run, "")
    out = []
    for c in captures:
        for other in captures:
            same = models.get(c["source"]) is not None and models.get(c["source"]) == models.get(
                other["source"]
            )
            if (
                same
                and engines.get(c["source"]) != engines.get(other["source"])
                and c["cost"] >= times * other["cost"]
            ):
                out.append({**c, "times": c["cost"] / other["cost"]})
                break
    return out


def _said(run: Run, key: str) -> dict[str, str | None]:
    """File -> value of a setting, or the engine for ""."""
    rows = [r for r in run.rows("launch") if not key or r["key"] == key]
    return {r["source"]: r["value"] if key else r["engine"] for r in rows}
