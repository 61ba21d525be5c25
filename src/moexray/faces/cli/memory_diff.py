"""`moexray memory BEFORE AFTER --diff`: two snapshots side by side, as JSON rows and as text.

Every change is after - before: what grew is positive.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from moexray.analyse.snapshot import figures
from moexray.analyse.snapshot_diff import leak_candidates, paired_pools, same_process, site_changes
from moexray.core.errors import UsageError
from moexray.faces.cli.memory_document import sizes_of
from moexray.faces.numbers import counted, human_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moexray.analyse.snapshot import Figures, Shot
    from moexray.core.limits.snapshot import SnapshotLimits

__all__ = ["as_text", "compare"]

SHOWN = 12
NOTHING = {"segments": 0, "reserved_bytes": 0, "active_bytes": 0, "free_bytes": 0, "largest_free_bytes": 0,
           "fragmentation_ratio": 0.0, "ratio_of_all": 0.0, "stuck_bytes": 0}  # fmt: skip


def compare(
    before: Sequence[Shot], after: Sequence[Shot], limits: SnapshotLimits
) -> list[dict[str, Any]]:
    """One entry for each device that both sides hold.

    Args:
        before: Devices of the first snapshot, or of a folder of them: the last one of each device counts.
        after: The same of the second one.
        limits: Thresholds of the leak candidates.

    Raises:
        UsageError: no rank and device is in both; a single device on each side always pairs.
    """
    first, second = ({(s.rank, s.device): s for s in side} for side in (before, after))
    pairs = [(shot, second[key]) for key, shot in first.items() if key in second]
    if not pairs and len(first) == len(second) == 1:
        pairs = list(zip(first.values(), second.values(), strict=True))
    if not pairs:
        names = [", ".join(f"rank {r}, device {d}" for r, d in side) or "none" for side in (first, second)]
        raise UsageError(
            f"no device is in both snapshots (before: {names[0]}; after: {names[1]})",
            hint="compare two snapshots of the same rank",
        )
    return [_pair(*pair, limits) for pair in pairs]


def _pair(before: Shot, after: Shot, limits: SnapshotLimits) -> dict[str, Any]:
    changes = site_changes(before, after)
    leaks = leak_candidates(changes, least_bytes=limits.leak_bytes, gone_ratio=limits.leak_gone_ratio)
    same, why = same_process(before, after)
    return {
        "rank": after.rank,
        "device": after.device,
        "before": before.source,
        "after": after.source,
        "sign": "after - before",
        "same_process": same,
        "same_process_why": why,
        "total": _change(figures(before, before.sound), figures(after, after.sound)),
        "pools": [
            {
                "pool": None if known.id is None else list(known.id),
                "name": known.name,
                "stream": known.stream,
                **_change(pair.before, pair.after),
            }
            for pair in paired_pools(before, after)
            for known in [pair.after or pair.before]
            if known is not None
        ],
        "sites": [{**asdict(c), "change_bytes": c.change_bytes} for c in changes],
        "leak_candidates": [c.site for c in leaks],
    }


def _change(before: Figures | None, after: Figures | None) -> dict[str, Any]:
    first, second = (NOTHING if side is None else sizes_of(side) for side in (before, after))
    return {k: {"before": first[k], "after": second[k], "change": second[k] - first[k]} for k in NOTHING}


def as_text(entries: Sequence[Mapping[str, Any]]) -> str:
    """The entries of compare, for a terminal or a log."""
    return "\n\n".join(_entry(e) for e in entries)


def _entry(e: Mapping[str, Any]) -> str:
    rank = "" if e["rank"] is None else f"rank {e['rank']}, "
    titles = ("reserved", "active", "free", "stuck", "largest free", "ratio")
    out = [
        f"{rank}device {e['device']}: {e['before']} -> {e['after']} (after - before; + has grown)",
        "",
        f"{'pool':<30}" + "".join(f"{t:>14}" for t in titles),
    ]
    rows = [(_name(p), p) for p in e["pools"]]
    for name, p in [*rows, ("all", e["total"])] if len(rows) != 1 else rows:
        keys = ("reserved_bytes", "active_bytes", "free_bytes", "stuck_bytes", "largest_free_bytes")
        cells = "".join(f"{_signed(p[k]['change']):>14}" for k in keys)
        out.append(f"{name:<30}{cells}{p['fragmentation_ratio']['change']:>+14.3f}")
    count = "one process" if e["same_process"] else "different processes (new and gone cannot be told)"
    taken = f"taken as {count}: {e['same_process_why']}"
    return "\n".join([*out, "", *_sites(e), *_leaks(e), "", taken])


def _name(pool: Mapping[str, Any]) -> str:
    stream = f", stream {pool['stream']}" if pool["stream"] else ""
    return str(pool["name"]).removeprefix("the ") + stream


def _leaks(e: Mapping[str, Any]) -> list[str]:
    leaks = [s for s in e["sites"] if s["site"] in e["leak_candidates"]]
    if not leaks:
        return ["", "leak candidates: none"] if e["same_process"] else []
    out = ["", "leak candidates (grew and let go of next to nothing; a cache that still fills looks alike,"]
    out.append("a third snapshot tells them apart):")
    for s in leaks[:SHOWN]:
        blocks = f"{counted(s['new_blocks'], 'new block')}, {s['gone_blocks']:,} gone"
        out.append(f"  {_signed(s['change_bytes']):>12} in {blocks}: {s['site'] or '(no stack)'}")
    return out


def _sites(e: Mapping[str, Any]) -> list[str]:
    changed = [s for s in e["sites"] if s["change_bytes"] or s["new_blocks"] or s["gone_blocks"]]
    if not changed:
        return ["live blocks by call site: no change"]
    grown = sorted(changed, key=lambda s: -abs(s["change_bytes"]))
    out = [f"live blocks by call site ({min(len(changed), SHOWN)} of {len(changed)} that changed):"]
    for s in grown[:SHOWN]:
        blocks = f"{s['before_blocks']:,} -> {s['after_blocks']:,} blocks"
        if s["new_blocks"] is not None:
            blocks += f" ({s['new_blocks']:,} new, {s['gone_blocks']:,} gone)"
        out.append(f"  {_signed(s['change_bytes']):>12}  {blocks}: {s['site'] or '(no stack)'}")
    return out


def _signed(value: int) -> str:
    return f"+{human_bytes(value)}" if value > 0 else human_bytes(value)
