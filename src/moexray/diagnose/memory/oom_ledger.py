"""The memory ledger: who owns each byte of a device at the moment of a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moexray.diagnose.memory.oom import records_of
from moexray.diagnose.memory.oom_numbers import Figures

if TYPE_CHECKING:
    from moexray.core.run import Run

__all__ = ["ledger"]

DEVICES = 16  # more than these is no table that anybody reads


def ledger(run: Run) -> list[dict[str, Any]]:
    """One row per owner and device; the owners of a device add up to its total, the rest is unknown.

    Rows: device, rank, owner, bytes, source, where, note.
    """
    rows: list[dict[str, Any]] = []
    seen: set[tuple[Any, ...]] = set()
    for record in records_of(run):
        place = (record["source"], record["rank"], record["device"])
        if record["kind"] != "record" or place in seen or len(seen) >= DEVICES:
            continue
        seen.add(place)
        f = Figures.of(record)
        for owner, size, note in _owners(f, record["others"] or []):
            if size:
                rows.append(
                    {
                        "device": record["device"],
                        "rank": record["rank"],
                        "owner": owner,
                        "bytes": int(size),
                        "source": record["source"],
                        "where": record["where"],
                        "note": note,
                    }
                )
    return rows


def _owners(f: Figures, named: list[dict[str, int]]) -> list[tuple[str, int, str]]:
    out: list[tuple[str, int, str]] = []
    private = f.private or 0
    if f.allocated is not None:
        out.append(("torch allocated", max(f.allocated - private, 0), ""))
        out.append(("graph pools", min(private, f.allocated), "private pools, part of allocated"))
    if f.fragments is not None:
        out.append(("torch cached", max(f.fragments, 0), "reserved but unallocated"))
    if f.non_torch is not None:
        out.append(("non-torch", max(f.non_torch, 0), "this process - allocated - cached"))
    elif f.process is not None and f.allocated is None:
        out.append(("this process", f.process, "not split by the message"))
    listed = 0
    for p in named[:8]:
        out.append((f"process {p['pid']}", p["bytes"], "named in the message"))
        listed += p["bytes"]
    if f.other is not None and f.other - listed > 0:
        out.append(
            ("other processes", f.other - listed, "total - this process - free; includes driver reserve")
        )
    if f.free is not None:
        out.append(("free", f.free, ""))
    if f.total is not None:
        left = f.total - sum(size for _, size, _ in out)
        if left > 0:
            out.append(("unknown", left, "the message does not say who holds it"))
    return out
