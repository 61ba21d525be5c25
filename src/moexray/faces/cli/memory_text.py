"""The document `moexray.memory/1` as text: per device what is held, what is stuck, and who does it."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from moexray.faces.cli import memory_tensors
from moexray.faces.numbers import counted
from moexray.faces.numbers import human_bytes as size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["as_text"]

WIDTH = 110
SHOWN = 10
NO_SITE = "(no stack)"
NEXT = "next: moexray diagnose, on the same files and the logs beside them, names cause and remedy"
REPLAY = "next: moexray whatif memory tries other settings on this history; moexray diagnose names the cause"
# The kinds of `moexray.analyse.snapshot_history.History` in words.
PAST = {
    "absent": "without history, the file has no place for one",
    "never": "without history, recording was never switched on",
    "state": "without history, only the state was recorded",
    "wrapped": "the end of a history, its oldest events are overwritten",
    "late": "a history that began midway",
    "unknown": "a history that may have begun midway",
    "broken_off": "a history that breaks off",
    "endless": "a history without the state that it ends in",
    "contradiction": "a history that contradicts itself",
    "complete": "the whole history",
}


def as_text(document: Mapping[str, Any], depth: int) -> str:
    """Every device of the document in turn.

    Args:
        document: The document `moexray.memory/1`.
        depth: Frames that are shown of each call site.
    """
    snapshots = [_place(device) for device in document["devices"]]
    others = [one for one in document["tensors"] if _place(one) not in snapshots]
    devices = [_of_device(document, one, depth) for one in (*document["devices"], *others)]
    replayed = any(device["events"] > 1 for device in document["devices"])
    return "\n\n".join([*devices, REPLAY if replayed else NEXT])


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[k] for k in ("source", "rank", "device"))


def _of_device(document: Mapping[str, Any], device: Mapping[str, Any], depth: int) -> str:
    mine = {
        name: [row for row in rows if _place(row) == _place(device)]
        for name, rows in document.items()
        if isinstance(rows, list)
    }
    sections = (section({**document, **mine}, depth) for section in SECTIONS)
    return "\n\n".join([_head(device), *("\n".join(lines) for lines in sections if lines)])


def _head(d: Mapping[str, Any]) -> str:
    if "history" not in d:
        return memory_tensors.head(d)
    rank = "" if d["rank"] is None else f", rank {d['rank']}"
    peaks = ""
    if d["peak_reserved_bytes"] is not None:
        peaks = f"; peak reserved {size(d['peak_reserved_bytes'])}, live {size(d['peak_live_bytes'])}"
    past = PAST[d["history"]] + (f", {counted(d['events'], 'event')}" if d["events"] else "")
    return f"{d['source']}{rank}, device {d['device']}: {past}{peaks}"


def _pools(d: Mapping[str, Any], _: int) -> list[str]:
    if not d["pools"]:
        return []
    titles = "".join(f"{t:>13}" for t in ("reserved", "active", "free", "largest free", "stuck"))
    out = [f"{'pool':<30}{'segments':>9}{titles}{'ratio':>9}{'over all':>9}"]
    for p in d["pools"]:
        stream = f", stream {p['stream']}" if p["stream"] else ""
        out.append(_pool_line(p["name"].removeprefix("the ") + stream, p))
        if p["small"]["segments"] and p["large"]["segments"]:
            out += [_pool_line(f"  {kind} segments", p[kind]) for kind in ("small", "large")]
    if len(d["pools"]) > 1:
        out += [_pool_line("all", device) for device in d["devices"]]
    unsound = sum(device["unsound_segments"] for device in d["devices"])
    if unsound:
        out.append(f"left out, they contradict themselves: {counted(unsound, 'segment')} (faults below)")
    out.append("stuck: free beside live blocks, empty_cache cannot give it back; ratio: 1 - largest / free")
    return out


def _pool_line(name: str, p: Mapping[str, Any]) -> str:
    keys = ("reserved_bytes", "active_bytes", "free_bytes", "largest_free_bytes", "stuck_bytes")
    cells = "".join(f"{size(p[k]):>13}" for k in keys)
    return f"{name:<30}{p['segments']:>9}{cells}{p['fragmentation_ratio']:>9.3f}{p['ratio_of_all']:>9.3f}"


def _servability(d: Mapping[str, Any], _: int) -> list[str]:
    """Only the part of the curve that falls."""
    rows = d["servability"]
    if not any(row["share"] for row in rows):
        return []
    first = max((i for i, row in enumerate(rows) if row["share"] > 0.9995), default=0)
    last = min((i for i, row in enumerate(rows) if not row["share"]), default=len(rows) - 1)
    falls = rows[first : last + 1]
    curve = ", ".join(f"{size(r['size_bytes'])} {r['share']:.1%} ({r['count']:,})" for r in falls)
    head = "share of the free bytes in blocks that can serve a request (and how many fit): "
    return textwrap.wrap(head + curve, WIDTH, subsequent_indent="  ")


def _segments(d: Mapping[str, Any], _: int) -> list[str]:
    rows = [row for row in d["segments"] if row["stuck_bytes"]]
    if not rows:
        return []
    out = [f"segments with stuck bytes (first {len(rows[:SHOWN])} of {len(rows):,}; largest live block by):"]
    for row in rows[:SHOWN]:
        what = f"{size(row['total_bytes'])} {row['kind']}" + (", expandable" if row["expandable"] else "")
        held = f"{counted(row['live_blocks'], 'live block')} of {size(row['active_bytes'])}"
        head = f"  {size(row['stuck_bytes']):>10} stuck in {row['address']:#x} ({what}; {held}): "
        out.append(head + (row["largest_block_site"] or NO_SITE))
    return out


def _zones(d: Mapping[str, Any], depth: int) -> list[str]:
    rows = d["hot_zones"]
    if not rows:
        return []
    titles = "".join(f"{t:>12}" for t in ("live", "pins stuck", "alone"))
    out = [
        f"hot zones, call sites by the stuck bytes they pin (first {len(rows[:SHOWN])} of {len(rows):,}):",
        f"{'count':>9}{'mean':>12}{'live blocks':>13}{titles}{'index':>7}  call site",
    ]
    for z in rows[:SHOWN]:
        sizes = "".join(f"{size(z[k]):>12}" for k in ("live_bytes", "stuck_bytes", "alone_bytes"))
        head = f"{z['count']:>9,}{size(z['mean_bytes']):>12}{z['live_blocks']:>13,}{sizes}"
        out.append(f"{head}{z['fragmentation_index']:>7.2f}  {_site(z, depth)}")
    return [
        *out,
        "index: stuck bytes of the segments that hold a live block of the site / all stuck bytes (several",
        "sites may pin one segment); alone: of the segments where all live blocks are its own",
    ]


def _site(z: Mapping[str, Any], depth: int) -> str:
    frames = z["stack"].split(" < ")
    at = frames.index(z["site"]) if z["site"] in frames else 0
    shown = " < ".join(frames[at : at + depth]) if depth > 1 else z["site"]
    return (shown or NO_SITE) + (f" [{z['operator']}]" if z["operator"] else "")


def _small_blocks(d: Mapping[str, Any], depth: int) -> list[str]:
    rows = sorted((z for z in d["hot_zones"] if z["small_blocks"]), key=lambda z: -z["small_allocs"])
    if not rows:
        return []
    limits = d["limits"]
    head = f"below {limits['small_request_bytes']} B, alloc:free above {limits['small_alloc_free_ratio']:g}:1"
    out = [f"small blocks that stay ({head}; first {len(rows[:SHOWN])} of {len(rows):,} call sites):"]
    return out + [f"  {z['small_allocs']:,}:{z['small_frees']:,} at {_site(z, depth)}" for z in rows[:SHOWN]]


def _churn(d: Mapping[str, Any], _: int) -> list[str]:
    rows = d["churn"]
    if not rows:
        return []
    by = rows[0]["marked_by"]
    steps = f"steps marked by {by}" if by else "no marked steps: by regular repeats of a call site"
    calls, buffers = (sum(r[k] for r in rows) for k in ("calls_saved", "buffer_bytes"))
    device = sum(r["device_allocs"] + r["device_frees"] for r in rows)
    out = [f"churn ({steps}): buffers of {size(buffers)} that are kept would save"]
    out.append(f"{calls:,} calls of the allocator and {device:,} of the device:")
    for r in rows[:SHOWN]:
        device = r["device_allocs"] + r["device_frees"]
        often = f"in {r['steps_with']:,} of {r['steps']:,} steps" if by else f"{r['allocs']:,} times"
        many = f" ({r['together']} at once)" if r["together"] > 1 else ""
        paid = f" and {device:,} of the device" if device else ""
        saved = f"{r['calls_saved']:,} calls{paid}, {size(r['bytes_saved'])} in sum"
        out.append(f"  {size(r['size_bytes']):>10}{many} {often}: {saved}: {r['site'] or NO_SITE}")
    if len(rows) > SHOWN:
        out.append(f"  ... and {len(rows) - SHOWN} more (--format json)")
    return out


def _faults(d: Mapping[str, Any], _: int) -> list[str]:
    shown = [f"fault: {f['where']}: {f['what']}" for f in d["faults"][:SHOWN]]
    more = len(d["faults"]) - len(shown)
    return [*shown, f"fault: ... and {more} more (--format json)"] if more else shown


# In the order of the text; each takes the rows of one device and how many frames to show.
SECTIONS: tuple[Callable[[Mapping[str, Any], int], list[str]], ...] = (
    _pools,
    _servability,
    _segments,
    _zones,
    _small_blocks,
    _churn,
    memory_tensors.lines,
    _faults,
)
