"""What kernels, container runtimes and schedulers say of a process that the host's memory killed."""

from __future__ import annotations

import re
from typing import Any

from moexray.core.pattern import lazy

__all__ = ["host_event"]

_KILLED = lazy(
    r"(?:Memory cgroup |Out of memory|memory cgroup )[^\n]{0,40}?(?:Killed|Kill) process (\d+),?"
    r" ?\(?([^),]{0,40})\)?"
    r"|\bKilled process (\d+),? ?\(([^)]{1,40})\)"
)
_CONSTRAINT = lazy(r"\boom-kill:constraint=(\w+)")
_LIMIT = lazy(r"\bmemory: usage (\d+) ?kB, limit (\d+) ?kB")
_KB = {
    "anon_rss_bytes": lazy(r"\banon-rss: ?(\d+) ?kB"),
    "shmem_rss_bytes": lazy(r"\bshmem-rss: ?(\d+) ?kB"),
    "total_vm_bytes": lazy(r"\btotal-vm: ?(\d+) ?kB"),
}
_UNIT_KILLED = lazy(
    r"(?i)has been killed by the OOM killer|killed by the oom[- ]killer|failed with result '?oom-kill"
    r"|result=oom-kill"
    r"|detected [1-9]\d* oom[-_ ]?kill|some of the step tasks have been oom killed|memory cgroup out of"
    r" memory"
    r"|\bTaskOOM\b|/tasks/oom\b|\bkilled \S+ due to memory (?:used|pressure)"
)
_CLAUSE = lazy(r"[{}\[\]\";,]|[.:] ")
# Sentences about such kills: conditions, denials, advice.
_SPOKEN = lazy(
    r"(?i)\b(?:if|when|whenever|whether|unless|not|never|without|no|avoid|prevents?|may|might|could|would"
    r"|should|e\.g\.|example|such as|looks? like|typical\w*)\b|n't\b"
)
_OOMKILLED = lazy(r"\bOOMKilled\b(?!\"?'?\s*[:=]\s*\"?(?:false|0|no)\b)", re.IGNORECASE)
_RAY = lazy(
    r"killed due to memory pressure|was killed due to the node running low on memory|OutOfMemoryError:"
    r" Task was killed"
)
_COUNTER = lazy(r"\boom_kill[ =:]+([1-9]\d*)\b")
_SIGKILL = lazy(
    r"(?i)\bexit(?:ed)?[ _]?(?:with )?(?:exit )?(?:code|status)?[ :=]*\(?(?:code:? ?)?(-9|137)\b|\bSIGKILL\b"
    r"|signal(?: number)? 9\b|\bsignal: killed"
)
_DIED = lazy(r"(?i)died|unexpected|crash|terminated|was killed|failed|exited|last state|lost")
_XID = lazy(r"\bXid \(([^)]+)\): (\d+)(?:,\s*pid=['\"]?(\d+|<unknown>)['\"]?)?(?:,\s*name=([^,\s]+))?")


def host_event(text: str, low: str) -> tuple[str, dict[str, Any]] | None:
    """(kind, fields) of a line about a killed process or a GPU fault of the driver; see memory_events."""
    if "xid" in low and (m := _XID.search(text)):
        pid = int(m[3]) if m[3] and m[3].isdigit() else None
        return "gpu.xid", {"xid": int(m[2]), "pci": m[1], "pid": pid, "name": m[4]}
    if "kill" in low or "oom" in low or "memory:" in low:
        found = _kernel(text) or _runtime(text)
        if found:
            return "host.oom_kill", found
    if "oomkilled" in low and _NOT_OOM.search(text):
        return "host.not_oom", {}
    if m := _CONTAINER_EXIT.search(text):
        return "host.killed", {"exit_code": m[1]}
    if ("137" in low or "-9" in low or "kill" in low or "signal" in low) and _DIED.search(text):
        m = _SIGKILL.search(text)
        if m and not _ORDERLY.search(text):
            return "host.killed", {"exit_code": m[1]}
    return None


_NOT_OOM = lazy(r"\bOOMKilled\"?'?\s*[:=]\s*\"?false\b", re.IGNORECASE)
_CONTAINER_EXIT = lazy(r"^\W*exit[ _]?code\"?\s*[:=]\s*(137)\b", re.IGNORECASE)
_ORDERLY = lazy(r"(?i)graceful|on request|by user|shutting down|stopping|scale|preempt|drain|requested")


def _spoken(lead: str) -> bool:
    """Whether the clause in front of the words makes a sentence of them that reports nothing."""
    return lead.lstrip().startswith("#") or bool(_SPOKEN.search(_CLAUSE.split(lead)[-1]))


def _kernel(text: str) -> dict[str, Any] | None:
    m = _KILLED.search(text)
    if m and _spoken(text[: m.start()]):
        return None
    sizes = {k: int(n[1]) * 1024 for k, p in _KB.items() if (n := p.search(text))}
    if m:
        pid, name = (m[1], m[2]) if m[1] else (m[3], m[4])
        return {"by": "kernel", "pid": int(pid), "name": name.strip() or None, **sizes}
    if m := _CONSTRAINT.search(text):
        out: dict[str, Any] = {"by": "kernel", "memcg": "MEMCG" in m[1]}
        for key in ("task", "pid"):
            if n := re.search(rf"\b{key}=([^,\s]+)", text):
                out["name" if key == "task" else "pid"] = n[1] if key == "task" else int(n[1])
        return out
    if m := _LIMIT.search(text):
        return {"by": "limit", "usage_bytes": int(m[1]) * 1024, "limit_bytes": int(m[2]) * 1024}
    return None


def _runtime(text: str) -> dict[str, Any] | None:
    for pattern, by in ((_OOMKILLED, "container"), (_UNIT_KILLED, "service")):
        m = pattern.search(text)
        if m and not _spoken(text[: m.start()]):
            return {"by": by}
    if _RAY.search(text):
        return {"by": "ray"}
    if m := _COUNTER.search(text):
        return {"by": "counter", "count": int(m[1])}
    return None
