"""`moexray memory`: the figures of an allocator snapshot, without judgement."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moexray.core.errors import MoexrayError
from moexray.faces.cli.say import say
from moexray.faces.numbers import human

if TYPE_CHECKING:
    from moexray.analyse.snapshot import Shot

__all__ = ["command"]

SIZES = tuple(1 << power for power in (20, 24, 27, 28, 29, 30, 31, 32, 33))  # requests, 1 MiB to 8 GiB
SHOWN = 12
TITLES = (
    f"{'pool':<24}{'segments':>9}{'reserved':>13}{'active':>13}{'free':>13}{'largest free':>14}"
    f"{'stuck':>13}{'ratio':>8}{'over all':>10}"
)


@click.command("memory")
@click.argument("paths", nargs=-1, required=True, metavar="SNAPSHOT...")
@click.option("--request", "requests", multiple=True, type=float, help="Request in GiB to test; repeatable.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(paths: tuple[str, ...], requests: tuple[float, ...], form: str) -> None:
    """Figures of the allocator snapshot in SNAPSHOT (a file or a folder), per device and pool.

    Fragmentation ratio: 1 - largest free block / free bytes, 0 when nothing is free; it exceeds
    0.9 on healthy snapshots. Stuck bytes, which empty_cache cannot give back, are the figure to
    judge by. The ratio over all blocks is the variant of some incident reports.
    """
    for path in paths:
        if path != "-" and not Path(path).exists():
            say(f"error: {path} does not exist\n  try:   check the path", err=True)
            sys.exit(2)
    from moexray.analyse.snapshot import shots
    from moexray.readers.read_any import read_any

    try:
        run = read_any(paths)
    except MoexrayError as why:
        say(f"error: {why}", err=True)
        sys.exit(2)
    found = shots(run)
    if not found:
        reasons = "; ".join(f"{s.path}: {s.reason}" for s in run.skipped[:3]) or "none in what was given"
        say(f"error: no allocator snapshot ({reasons})", err=True)
        say("  try:   torch.cuda.memory._dump_snapshot(); see docs/capture.md", err=True)
        sys.exit(2)
    sizes = tuple(int(g * (1 << 30)) for g in requests) or SIZES
    documents = [describe(shot, sizes) for shot in found]
    if form == "json":
        say(json.dumps(documents, indent=1))
    else:
        say("\n\n".join(_text(d) for d in documents))


def describe(shot: Shot, sizes: tuple[int, ...]) -> dict[str, Any]:
    """All figures of one device.

    Args:
        shot: One device of one snapshot.
        sizes: Requests in bytes; for each, how many the free blocks serve without growing.
    """
    from moexray.analyse.snapshot import INACTIVE, pools
    from moexray.analyse.snapshot_history import history
    from moexray.analyse.snapshot_sites import hot_zones, repeats
    from moexray.core.limits.snapshot import SnapshotLimits

    limits = SnapshotLimits()
    past = history(shot)
    free = shot.blocks["size_bytes"][shot.blocks["state"] == INACTIVE]
    again = repeats(
        shot,
        least_ratio=limits.churn_step_ratio,
        least_steps=limits.churn_steps,
        warmup_ratio=limits.churn_warmup_ratio,
    )
    line = past.line
    return {
        "schema": "moexray.memory/1",
        "source": shot.source,
        "rank": shot.rank,
        "device": shot.device,
        "pools": [{**asdict(p), "name": p.name} for p in pools(shot)],
        "served": [{"request_bytes": n, "served": int((free // n).sum())} for n in sizes],
        "history": past.kind,
        "events": past.events,
        "peak_reserved_bytes": line.peak_reserved if line else None,
        "peak_live_bytes": line.peak_active if line else None,
        "repeats": [asdict(r) for r in again],
        "small_blocks": [asdict(z) for z in hot_zones(shot, limits.small_request_bytes)],
        "faults": [{"where": where, "what": what} for where, what in shot.faults],
    }


def _text(d: dict[str, Any]) -> str:
    rank = "" if d["rank"] is None else f", rank {d['rank']}"
    peaks = ""
    if d["peak_reserved_bytes"] is not None:
        peaks = f"; peak reserved {_size(d['peak_reserved_bytes'])}, live {_size(d['peak_live_bytes'])}"
    out = [
        f"{d['source']}{rank}, device {d['device']}: history {d['history']}, {d['events']} events{peaks}",
        "",
        TITLES,
    ]
    for p in d["pools"]:
        cells = "".join(f"{_size(p[k]):>13}" for k in ("reserved_bytes", "active_bytes", "free_bytes"))
        out.append(
            f"{p['name']:<24}{p['segments']:>9}{cells}{_size(p['largest_free_bytes']):>14}"
            f"{_size(p['stuck_bytes']):>13}{p['ratio']:>8.3f}{p['ratio_of_all']:>10.3f}"
        )
    served = ", ".join(f"{_size(s['request_bytes'])}: {s['served']}" for s in d["served"])
    out += ["", f"requests that the free blocks serve without growing: {served}"]
    if d["repeats"]:
        out += ["", "temporaries that come back in every step (a buffer could be reused):"]
        out += [
            f"  {_size(r['size_bytes']):>10} at {r['site']}: {r['steps_with']} of {r['steps']} steps, "
            f"{r['device_allocs']} device allocations after warm-up"
            for r in d["repeats"][:SHOWN]
        ]
    if d["small_blocks"]:
        out += ["", "small blocks (hot zones by call site):"]
        out += [
            f"  {z['site']}: {z['allocs']} allocations, {z['frees']} frees, mean {z['mean_bytes']:.0f} B, "
            f"{z['live_blocks']} live, {_size(z['stuck_bytes'])} stuck in their segments"
            for z in d["small_blocks"][:SHOWN]
        ]
    out += [f"fault: {f['where']}: {f['what']}" for f in d["faults"][:SHOWN]]
    return "\n".join(out)


def _size(value: int) -> str:
    return human(value, "bytes")
