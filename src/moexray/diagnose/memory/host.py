"""mem.host_oom: the host, not the GPU, ran out of memory and a process was killed for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moexray.core.finding import Evidence, Finding, pairs
from moexray.core.remedies import remedy
from moexray.diagnose.memory.oom_words import size

if TYPE_CHECKING:
    from moexray.core.limits import Limits
    from moexray.core.run import Row, Run

__all__ = ["host_oom"]

SHOWN = 8


def host_oom(run: Run, limits: Limits) -> list[Finding]:
    """One finding for all kills; a death by signal 9 that nothing explains is only a hypothesis."""
    rows = run.rows("log")
    kills = [r for r in rows if r["kind"] == "host.oom_kill" and r["fields"].get("by") != "limit"]
    if kills:
        return [
            _killed(
                kills, [r for r in rows if r["kind"] == "host.oom_kill" and r["fields"].get("by") == "limit"]
            )
        ]
    cleared = {r["source"] for r in rows if r["kind"] == "host.not_oom"}
    deaths = [r for r in rows if r["kind"] == "host.killed" and r["source"] not in cleared]
    errors = [r for r in run.rows("oom") if r["kind"] in ("record", "bare")]
    unexplained = [d for d in deaths if not any(_explains(e, d, limits.memory.host_near_s) for e in errors)]
    return [_cannot_tell(unexplained)] if unexplained else []


def _explains(error: Row, death: Row, near_s: float) -> bool:
    if error["t_s"] is None or death["t_s"] is None:
        return True
    return bool(abs(error["t_s"] - death["t_s"]) <= near_s)


def _killed(kills: list[Row], limits_seen: list[Row]) -> Finding:
    facts = _facts([*limits_seen, *kills])
    pids = sorted({r["fields"]["pid"] for r in kills if r["fields"].get("pid") is not None})
    who = f"process {facts['pid']}" if facts.get("pid") is not None else "a process"
    if facts.get("name"):
        who += f" ({facts['name']})"
    by = "Ray" if all(r["fields"]["by"] == "ray" for r in kills) else "the kernel"
    claim = f"The host ran out of memory and {by} killed {who}; the GPU's memory is not the cause."
    if len(pids) > 1:
        claim = (
            f"The host ran out of memory and {by} killed {len(pids)} processes, first {who}; the GPU is not "
            "the cause."
        )
    if facts.get("anon_rss_bytes"):
        claim += f" It held {size(facts['anon_rss_bytes'])} of anonymous memory"
        claim += f" of a limit of {size(facts['limit_bytes'])}." if facts.get("limit_bytes") else "."
    elif facts.get("limit_bytes"):
        claim += f" The limit of its group is {size(facts['limit_bytes'])}."
    claim += " Workers that lose a peer afterwards follow from it."
    shown = [r for r in kills if r["fields"].get("anon_rss_bytes")] + [
        r for r in kills if not r["fields"].get("anon_rss_bytes")
    ]
    evidence = [Evidence(r["source"], r["where"], r["text"]) for r in [*shown, *limits_seen][:SHOWN]]
    values = {k: v for k, v in facts.items() if k != "name"}
    evidence.insert(1, Evidence(kills[0]["source"], kills[0]["where"], pairs(values) or "kills=1"))
    in_group = bool(limits_seen) or any(
        r["fields"].get("memcg") or r["fields"]["by"] == "container" for r in kills
    )
    return Finding(
        id="mem.host_oom",
        severity="error",
        confidence=0.95,
        claim=claim,
        value=facts.get("anon_rss_bytes"),
        limit=facts.get("limit_bytes"),
        unit="bytes" if facts.get("anon_rss_bytes") else None,
        evidence=tuple(evidence),
        remedies=(remedy("smaller-host-buffers"), *((remedy("larger-container"),) if in_group else ())),
        settle_with=("memory of the process over time: which buffer grew",),
        cost=float(facts.get("anon_rss_bytes") or 0),
    )


def _facts(rows: list[Row]) -> dict[str, Any]:
    """Numbers of the first process killed, joined over the lines that speak of it."""
    first = next((r["fields"]["pid"] for r in rows if r["fields"].get("pid") is not None), None)
    facts: dict[str, Any] = {}
    for r in rows:
        if r["fields"].get("pid") in (None, first):
            for k, v in r["fields"].items():
                if k not in ("by", "memcg") and v is not None:
                    facts.setdefault(k, v)
    return facts


def _cannot_tell(deaths: list[Row]) -> Finding:
    return Finding(
        id="mem.host_oom",
        severity="info",
        confidence=0.3,
        claim=f"{len(deaths)} process(es) died by signal 9 and no line says who sent it: the kernel's "
        "memory killer would look like this, so would an operator or a supervisor.",
        evidence=tuple(Evidence(r["source"], r["where"], r["text"]) for r in deaths[:SHOWN]),
        settle_with=("kernel log of that time (dmesg, journalctl -k)", "container status with its reason"),
    )
