"""Lifetimes and reuse plans of the document `moexray.memory/1`, as JSON rows and as text."""

from __future__ import annotations

import textwrap
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from moexray.faces.numbers import human, human_seconds
from moexray.faces.numbers import human_bytes as size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from moexray.analyse.tensors import Tensors
    from moexray.core.run import Run

__all__ = ["HOST", "head", "lines", "rows"]

HOST = -1  # the device of tensors in host memory
KINDS = {"snapshot": "snapshot", "profile": "profile", "log": "log of allocations"}
SHOWN = 8
WIDTH = 110
LEAST_SHARE = 0.005  # of the peak; less is not named in the first line


def rows(run: Run) -> dict[str, list[dict[str, Any]]]:
    """The parts `tensors`, `lifetimes` and `reuse_plans` of the document.

    Returns:
        `tensors` has a row for each device with an allocation history; the other two have rows for
        each of its groups and plans.
    """
    from moexray.analyse.lifetimes import groups
    from moexray.analyse.reuse import plans
    from moexray.analyse.tensors import tensors

    out: dict[str, list[dict[str, Any]]] = {"tensors": [], "lifetimes": [], "reuse_plans": []}
    for one in tensors(run):
        place = {"source": one.source, "rank": one.rank, "device": one.device}
        out["tensors"].append({**place, **_summary(one)})
        out["lifetimes"] += [{**place, **asdict(g)} for g in groups(one)]
        out["reuse_plans"] += [
            {**place, **asdict(p), "over_bound": p.over_bound, "saved_bytes": p.saved_bytes}
            for p in plans(one)
        ]
    return out


def _summary(one: Tensors) -> dict[str, Any]:
    from moexray.algorithms.intervals import peak
    from moexray.analyse.lifetimes import unattributed

    return {
        "kind": one.kind,
        "tensors": len(one.size),
        "open": int(one.is_open.sum()),
        "bytes": int(one.size.sum()),
        "live_peak_bytes": peak(one.start, one.end, one.size)[0],
        "unattributed_share": unattributed(one),
        "steps": one.steps or None,
        "notes": list(one.notes),
    }


def head(place: Mapping[str, Any]) -> str:
    """The first line for a device that no snapshot describes."""
    rank = "" if place["rank"] is None else f", rank {place['rank']}"
    device = place["device"]
    where = "" if device is None else ", host memory" if device == HOST else f", device {device}"
    return f"{place['source']}{rank}{where}: {KINDS[place['kind']]}"


def lines(d: Mapping[str, Any], _: int) -> list[str]:
    """The text for one device: who holds the peak, for how long; what the plans would take."""
    if not d["tensors"]:
        return []
    one = d["tensors"][0]
    still = f" ({one['open']:,} not freed)" if one["open"] else ""
    peak = size(one["live_peak_bytes"])
    first = f"tensors of the history: {one['tensors']:,}{still}, most alive at once {peak}"
    known = f"{1 - one['unattributed_share']:.1%} of all bytes allocated have a layer, expert or scope"
    out = [f"{first};", f"  {known}", *_who(d["lifetimes"], one), *_plans(d["reuse_plans"])]
    for note in one["notes"]:
        out += textwrap.wrap(f"note: {note}", WIDTH, subsequent_indent="  ")
    return out


def _who(groups: list[dict[str, Any]], one: Mapping[str, Any]) -> list[str]:
    if one["unattributed_share"] >= 1:
        return ["no name around them tells layers or experts; see docs/capture.md, layers and experts"]
    top = one["live_peak_bytes"]
    by = [_shares(groups, top, _layer), _shares(groups, top, lambda g: g["scope"] or "unknown scope")]
    titles = "".join(f"{t:>12}" for t in ("at the peak", "own peak", "allocated", "median life", "longest"))
    out = [
        *textwrap.wrap(f"at that peak: {by[0]}; by scope: {by[1]}", WIDTH, subsequent_indent="  "),
        f"{'layer':>7}{'expert':>8}  {'scope':<9}{'count':>9}{titles}",
    ]
    for g in groups[:SHOWN]:
        sizes = "".join(f"{size(g[k]):>12}" for k in ("at_peak_bytes", "peak_bytes", "bytes"))
        who = f"{_known(g['layer']):>7}{_known(g['expert']):>8}  {g['scope'] or '-':<9}"
        out.append(f"{who}{g['count']:>9,}{sizes}{_life(g, 'median'):>12}{_life(g, 'max'):>12}")
    more = len(groups) - SHOWN
    return [*out, f"  ... and {more:,} more (--format json)"] if more > 0 else out


def _layer(group: Mapping[str, Any]) -> str:
    return "no layer" if group["layer"] is None else f"layer {group['layer']}"


def _shares(
    groups: Iterable[Mapping[str, Any]], top: int, name: Callable[[Mapping[str, Any]], str]
) -> str:
    held: Counter[str] = Counter()
    for group in groups:
        held[name(group)] += group["at_peak_bytes"]
    named = [f"{who} {share / top:.0%}" for who, share in held.most_common(4) if share > LEAST_SHARE * top]
    return ", ".join(named)


def _known(value: int | None) -> str:
    return "-" if value is None else str(value)


def _life(group: Mapping[str, Any], which: str) -> str:
    """In time where the history has times, else in events."""
    if group[f"{which}_ns"] is not None:
        return human_seconds(group[f"{which}_ns"] * 1e-9)
    events = group[f"{which}_events"]
    return "-" if events is None else f"{human(events, '')} ev"


def _plans(plans: list[dict[str, Any]]) -> list[str]:
    if not plans:
        return []
    titles = f"{'covers':>8}{'takes':>12}{'bound':>12}{'above':>8}{'saves':>12}{'calls saved':>13}"
    out = ["", f"{'plan for reuse':<28}{titles}"]
    for p in plans:
        saved = size(p["saved_bytes"]) if p["saved_bytes"] else "-"
        out.append(
            f"{p['plan']:<28}{p['covered']:>8.0%}{size(p['peak_bytes']):>12}{size(p['lower_bound_bytes']):>12}"
            f"{p['over_bound']:>8.1%}{saved:>12}{p['saved_calls']:>13,}"
        )
    out += [f"  {line}" for p in plans for line in textwrap.wrap(f"{p['plan']}: {p['how']}", WIDTH - 2)]
    saving = [p for p in plans[1:] if p["saved_bytes"] > 0]
    best = max(saving, key=lambda p: p["saved_bytes"], default=None)
    if best is None:
        out.append("no plan takes less memory than the allocator did; what is left to gain are calls")
    else:
        share = best["saved_bytes"] / best["as_allocated_bytes"]
        out.append(f"most memory is saved by {best['plan']}: {size(best['saved_bytes'])}, {share:.1%}")
    return [
        *out,
        "bound: peak of live bytes of the tensors covered, no plan takes less; saves: against all tensors as",
        "allocated, where those that a plan leaves out keep their addresses (below 0 it takes more)",
    ]
