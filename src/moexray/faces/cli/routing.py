"""`moexray routing`: how even the experts and ranks are, since when, without judgement."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

from moexray.core.errors import UsageError
from moexray.core.json_text import json_text
from moexray.faces.cli.refuse import refusing
from moexray.faces.cli.routing_words import routing_text
from moexray.faces.cli.say import say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moexray.analyse.routing import Load
    from moexray.analyse.routing_drift import Effect, Stretch
    from moexray.analyse.routing_figures import Figures
    from moexray.analyse.routing_windows import Drift
    from moexray.core.run import Run

__all__ = ["command", "describe"]

DISTANCES = ("kl", "js", "psi", "noise_floor")
PH_NEAR = 8  # windows from the start of a change within which an alarm of Page-Hinkley is of it


@click.command("routing")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--ep", "--gpus", "ep", type=click.IntRange(1, 65536),
              help="Expert-parallel size, where no file states it.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(paths: tuple[str, ...], ep: int | None, form: str) -> None:
    """Load of experts and ranks in PATH (recorder dumps, router choices, counts), layer by layer.

    Balancedness is mean / max over EP ranks (over experts where the EP size is unknown): 1 is even.
    Shares are of the choices (token-expert pairs) of a layer. Warm-up and padding rows are set aside
    and named. Several files are also compared with each other, in the order given.
    """
    from moexray.readers.read_any import read_any

    with refusing():
        run = read_any(paths)
        document = describe(run, ep)
    say(json_text(document) if form == "json" else routing_text(document))


def describe(run: Run, ep: int | None = None) -> dict[str, Any]:
    """The document `moexray.routing/1`.

    Raises:
        UsageError: no counts or choices of experts were read, or `ep` does not fit them.
    """
    from moexray.analyse.engine_figures import engine_figures
    from moexray.analyse.routing import loads, over_senders
    from moexray.analyse.routing_figures import figures
    from moexray.analyse.routing_windows import MOST, drift
    from moexray.core.limits.routing import RoutingLimits

    found, mismatches = loads(run, RoutingLimits().dummy_run, windows=MOST)
    routed = [over_senders(load) for load in found if load.what == "routed"]
    gates = _gates(run)
    if not routed and not gates:
        told = [m.text for m in mismatches] + [f"{p['source']}: {p['text']}" for p in _problems(run)]
        reasons = "; ".join(list(dict.fromkeys([*told, *(f"{s.path}: {s.reason}" for s in run.skipped)]))[:3])
        logged = any(row["kind"] == "eplb.balance" for row in run.rows("log"))
        raise UsageError(
            "no counts or choices of experts to look at",
            where=reasons
            or ("only the engine's own balancedness" if logged else "nothing of the kind in what was given"),
            hint="`moexray diagnose` says what the logged figure is worth; counts per expert tell the balance"
            if logged else
            "an expert-distribution dump, router choices, or counts per expert; see docs/capture.md",
        )
    for load in routed:
        if ep and load.axis != "rank" and ep > load.tokens.shape[-1]:
            raise UsageError(f"--ep {ep} ranks for {load.tokens.shape[-1]} experts", where=load.source,
                             hint="EP size is the number of ranks that share the experts")  # fmt: skip
    every = [figures(run, load, ep) for load in routed]
    for f in every if ep else ():
        _check_ep(f)
    drifts = [drift(f) for f in every]
    pairs = list(zip(every, drifts, strict=True))
    within = [list(_within(f, d)) for f, d in pairs]
    compared = [*(c for part in within for c in part), *_between(every)]
    return {
        "schema": "moexray.routing/1",
        "sources": [_source(run, f, d, part) for (f, d), part in zip(pairs, within, strict=True)],
        "layers": [{"source": _name(f.load), **_layer(asdict(x))} for f in every for x in f.layers],
        "drift": [row for c in compared for row in c.pop("rows")],
        "comparisons": compared,
        "not_compared": list(_not_compared(every)),
        "change_points": [row for f, d in pairs for row in _change_points(f, d)],
        "gates": gates,
        "set_aside": [
            {"source": _name(x), "what": what, "rows": rows} for x in routed for what, rows in _aside(x)
        ],
        "engine_figures": [asdict(x) for x in engine_figures(run, every)],
        "warnings": _warnings(run, found),
        "problems": [*({"source": m.sources[0], "text": m.text} for m in mismatches), *_problems(run)],
    }


def _warnings(run: Run, found: list[Load]) -> list[dict[str, str]]:
    """Verdicts on the numbers themselves: a figure over the wrong axis, counts that are multiplied."""
    from moexray.core.limits import Limits
    from moexray.diagnose.routing.metric import counts_multiplied, wrong_axis

    said = [*wrong_axis(run, found, Limits()), *counts_multiplied(run, found)]
    return [{"id": f.id, "text": f.claim} for f in said]


def _name(load: Load) -> str:
    """The file, and the part of it where it holds several loads."""
    label = load.attrs.get("label") or load.attrs.get("arm")
    return f"{load.source} ({label})" if label else load.source


def _problems(run: Run) -> list[dict[str, Any]]:
    return [{"source": path, "text": problem.text} for path, problem in run.problems]


def _layer(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "skew_index": row["gini"]}


def _aside(load: Load) -> Iterable[tuple[str, int]]:
    if load.set_aside:
        unit = "tokens of identical rows" if load.from_routes else "steps equal to their neighbour"
        yield f"{unit} (warm-up or dummy batches)", load.set_aside
    if zero := int(load.attrs.get("zero_rows") or 0):
        yield "rows without any token (dense layers, buffer not filled)", zero


def _check_ep(f: Figures) -> None:
    """Experts of which each rank holds as many; a recorded placement says itself where they lie."""
    units = f.tokens.shape[-1]
    known = not f.load.from_routes or f.load.attrs.get("num_experts")
    if f.ranks is None or f.ranks.given or f.load.axis == "rank" or not known:
        return
    count = f.ranks.tokens.shape[-1]
    if units % count:
        what = "slots" if f.axis == "physical" else "experts"
        hint = "--ep that divides them; with redundant experts, give the placement, too"
        told = f"{units} {what} are no multiple of {count} EP ranks"
        raise UsageError(told, where=f.load.source, hint=hint)


def _source(run: Run, f: Figures, d: Drift, halves: list[dict[str, Any]]) -> dict[str, Any]:
    from moexray.analyse.routing_windows import relation

    # without a change the distances are noise, and so is what balance owes to them
    moved = bool(d.found) or any(c["layers_changed"] for c in halves)
    link = relation(f) if moved else None
    mean = sum(x.balancedness for x in f.layers) / len(f.layers) if f.layers else None
    return {
        "source": _name(f.load),
        "files": list(f.load.sources),
        "axis": f.axis,
        "balancedness_over": f.over,
        "ep_size": None if f.ranks is None else int(f.ranks.tokens.shape[-1]),
        "mapping": None if f.ranks is None else f.ranks.mapping,
        "steps": len(f.load.steps),
        "mean_balancedness": mean,
        "balancedness_of_time": f.of_time if f.layers else None,
        "layers_without_tokens": list(f.dense),
        "notes": [*f.load.notes, *(n for i in run.inputs if i.path in f.load.sources for n in i.notes)],
        "windows": {
            "first_step": [int(s) for s in d.steps],
            "js": [round(float(v), 6) for v in d.signal],
            "js_floor": d.floor,
        },
        "drift_unknown": d.reason or None,
        "page_hinkley_steps": [int(d.steps[i]) for i in d.hinkley],
        "relation_unknown": None if moved or d.reason else "the mix does not move by more than chance",
        "relation": None if link is None else {**asdict(link), "unit": "balancedness per nat of JS"},
    }


def _change_points(f: Figures, d: Drift) -> Iterable[dict[str, Any]]:
    from moexray.analyse.routing_drift import Stretch, around, effect

    labels = [x.layer for x in f.layers]
    used = [y for y, label in enumerate(f.load.layers) if int(label) in labels]
    whole = Stretch.of(f)
    for c in d.found:
        first, end = around(d, c)
        layers = [y for y, moved in zip(used, c.layers, strict=True) if moved]
        yield {
            "source": _name(f.load),
            "step": int(d.steps[c.start]),
            "found_step": int(d.steps[c.found]),
            "windows_until_found": c.found - c.start + 1,
            "layers": [y for y, moved in zip(labels, c.layers, strict=True) if moved],
            "js": c.distance,
            "js_quiet": c.quiet,
            "lasts": c.lasts,
            "page_hinkley": any(abs(h - c.start) <= PH_NEAR for h in d.hinkley),
            **_effect(effect(whole.part(first, c.start), whole.part(c.start, end), layers)),
        }


def _effect(e: Effect) -> dict[str, Any]:
    return {
        "effect": e.size,
        "busiest_growth": e.growth,
        "balancedness_before": e.before,
        "balancedness_after": e.after,
        "plan_gpus": e.gpus,
        "plan_before": e.plan_before,
        "plan_after": e.plan_after,
    }


def _within(f: Figures, d: Drift) -> Iterable[dict[str, Any]]:
    """Stretches between lasting changes, one against the next; the halves where there is no change."""
    from moexray.analyse.routing_drift import Stretch

    if not f.load.ordered:
        return
    whole = Stretch.of(f)
    count = len(whole.units)
    inner = sorted({c.start for c in d.found if c.lasts}) or [count // 2]
    edges = [0, *inner, count]
    for a, b, c in zip(edges, edges[1:], edges[2:], strict=False):
        if a < b < c:
            ends = int(d.steps[a]), int(d.steps[b])
            yield _compared((f, f), ends, (whole.part(a, b), whole.part(b, c)))


def _between(every: list[Figures]) -> Iterable[dict[str, Any]]:
    """Each load against the one before it, where their shapes agree."""
    from moexray.analyse.routing_drift import Stretch

    for f, g in pairwise(every):
        if f.tokens.shape[1:] == g.tokens.shape[1:] and f.axis == g.axis:
            ends = int(f.load.steps[0]), int(g.load.steps[0])
            yield _compared((f, g), ends, (Stretch.of(f), Stretch.of(g)))


def _not_compared(every: list[Figures]) -> Iterable[dict[str, str]]:
    """Neighbours of different shapes, which are not of one model or one kind of count."""
    for f, g in pairwise(every):
        (layers, units), (others, more) = f.tokens.shape[1:], g.tokens.shape[1:]
        words = [
            f"{a} against {b} {what}"
            for a, b, what in (
                (units, more, "experts"), (layers, others, "layers"), (f.axis, g.axis, "counts")
            )
            if a != b
        ]  # fmt: skip
        if words:
            yield {"from_source": _name(f.load), "to_source": _name(g.load),
                   "text": f"not compared: {', '.join(words)}"}  # fmt: skip


def _compared(
    loads: tuple[Figures, Figures], ends: tuple[int, int], parts: tuple[Stretch, Stretch]
) -> dict[str, Any]:
    """One stretch against another: its layers under `rows`, and all of them together."""
    from moexray.analyse.routing_drift import effect
    from moexray.analyse.routing_windows import compare

    names = {"from_source": _name(loads[0].load), "to_source": _name(loads[1].load),
             "from": ends[0], "to": ends[1]}  # fmt: skip
    labels = loads[0].load.layers
    rows = compare(labels, parts[0].units, parts[1].units)
    index = {int(label): y for y, label in enumerate(labels)}
    layers = [index[x.layer] for x in rows]
    means = {f"mean_{k}": sum(getattr(x, k) for x in rows) / max(len(rows), 1) for k in DISTANCES}
    return {
        **names,
        "layers": len(rows),
        "layers_changed": sum(x.changed for x in rows),
        **means,
        **_effect(effect(*parts, layers)),
        "rows": [
            {**names, **asdict(x), **_effect(effect(*parts, [y]))} for x, y in zip(rows, layers, strict=True)
        ],
    }


def _gates(run: Run) -> list[dict[str, Any]]:
    """Changes of the mean gate probabilities, where router scores were recorded."""
    from moexray.algorithms.drift import changes
    from moexray.analyse.routing import MIN_WINDOW
    from moexray.analyse.routing_windows import compare, gate_window, gate_windows

    out = []
    for batch in run.batches("logits"):
        tokens = gate_window(batch, MIN_WINDOW)
        counts, labels = gate_windows(batch, tokens)
        if not len(counts):
            continue
        middle = len(counts) // 2
        halves = compare(labels, counts[:middle], counts[middle:]) if middle else []
        out.append(
            {
                "source": batch.source,
                "window_tokens": tokens,
                "change_tokens": [c.start * tokens for c in changes(counts) if c.lasts],
                "halves": [asdict(x) for x in halves],
            }
        )
    return out
