"""`moexray routing`: how even the experts and ranks are, since when, without judgement."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

from moexray.core.errors import UsageError
from moexray.core.json_text import json_text
from moexray.faces.cli.refuse import refusing
from moexray.faces.cli.say import say
from moexray.faces.numbers import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moexray.analyse.routing import Load
    from moexray.analyse.routing_figures import Figures
    from moexray.analyse.routing_windows import Drift
    from moexray.core.run import Run

__all__ = ["command", "describe"]

SHOWN = 10  # layers, changes in the text
PH_NEAR = 8  # windows from the start of a change within which an alarm of Page-Hinkley is of it
TITLES = (
    f"{'layer':>7}{'choices':>12}{'balanced':>10}{'max/mean':>10}{'cv':>7}{'gini':>7}{'entropy':>9}"
    f"{'top-1':>8}{'top-3':>8}{'active':>8}{'hot':>6}"
)
LEGEND = (
    "balanced: mean / max over EP ranks or experts as stated; 1 is even for it and entropy, 0 for gini;",
    "cv: standard deviation / mean; top-k: share of choices; active: experts with any; hot: the busiest;",
    "KL, JS: nats (JS at most 0.693); changed: layers that differ by more than chance",
    "next: moexray plan, with --gpus N, for a placement; moexray diagnose for cause and remedy",
)


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
    say(json_text(document) if form == "json" else _text(document))


def describe(run: Run, ep: int | None = None) -> dict[str, Any]:
    """The document `moexray.routing/1`.

    Raises:
        UsageError: no counts or choices of experts were read, or `ep` does not fit them.
    """
    from moexray.analyse.routing import loads, over_senders
    from moexray.analyse.routing_figures import figures
    from moexray.analyse.routing_windows import MOST, drift
    from moexray.core.limits.routing import RoutingLimits

    found, mismatches = loads(run, RoutingLimits().dummy_run, windows=MOST)
    routed = [over_senders(load) for load in found if load.what == "routed"]
    gates = _gates(run)
    if not routed and not gates:
        told = [m.text for m in mismatches] + [f"{p['source']}: {p['text']}" for p in _problems(run)]
        reasons = "; ".join([*told, *(f"{s.path}: {s.reason}" for s in run.skipped)][:3])
        raise UsageError(
            "no counts or choices of experts to look at",
            where=reasons or "nothing of the kind in what was given",
            hint="an expert-distribution dump, router choices, or counts per expert; see docs/capture.md",
        )
    for load in routed:
        if ep and load.axis != "rank" and ep > load.tokens.shape[-1]:
            raise UsageError(f"--ep {ep} ranks for {load.tokens.shape[-1]} experts", where=load.source,
                             hint="EP size is the number of ranks that share the experts")  # fmt: skip
    every = [figures(run, load, ep) for load in routed]
    drifts = [drift(f) for f in every]
    pairs = list(zip(every, drifts, strict=True))
    return {
        "schema": "moexray.routing/1",
        "sources": [_source(run, f, d) for f, d in pairs],
        "layers": [{"source": _name(f.load), **_layer(asdict(x))} for f in every for x in f.layers],
        "drift": [*(row for f, d in pairs for row in _within(f, d)), *_between(every)],
        "change_points": [row for f, d in pairs for row in _change_points(f, d)],
        "gates": gates,
        "set_aside": [
            {"source": _name(x), "what": what, "rows": rows} for x in routed for what, rows in _aside(x)
        ],
        "problems": [*({"source": m.sources[0], "text": m.text} for m in mismatches), *_problems(run)],
    }


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


def _source(run: Run, f: Figures, d: Drift) -> dict[str, Any]:
    from moexray.analyse.routing_windows import relation

    link = relation(f)
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
        "relation": None if link is None else {**asdict(link), "unit": "balancedness per nat of JS"},
    }


def _change_points(f: Figures, d: Drift) -> Iterable[dict[str, Any]]:
    labels = [x.layer for x in f.layers]
    for c in d.found:
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
        }


def _within(f: Figures, d: Drift) -> Iterable[dict[str, Any]]:
    """Stretches between lasting changes, one against the next; the halves where there is no change."""
    from moexray.analyse.routing_windows import compare, windows_of

    if not f.load.ordered:
        return
    counts, _ = windows_of(f)
    inner = [c.start for c in d.found if c.lasts] or [len(counts) // 2]
    edges = [0, *inner, len(counts)]
    for a, b, c in zip(edges, edges[1:], edges[2:], strict=False):
        if a < b < c:
            ends = {"from": int(d.steps[a]), "to": int(d.steps[b])}
            names = {"from_source": _name(f.load), "to_source": _name(f.load)}
            for x in compare(f.load.layers, counts[a:b], counts[b:c]):
                yield {**names, **ends, **asdict(x)}


def _between(every: list[Figures]) -> Iterable[dict[str, Any]]:
    """Each load against the one before it, where their shapes agree."""
    from moexray.analyse.routing_windows import compare, windows_of

    for f, g in pairwise(every):
        if f.tokens.shape[1:] == g.tokens.shape[1:] and f.axis == g.axis:
            ends = {"from": int(f.load.steps[0]), "to": int(g.load.steps[0])}
            names = {"from_source": _name(f.load), "to_source": _name(g.load)}
            for x in compare(f.load.layers, windows_of(f)[0], windows_of(g)[0]):
                yield {**names, **ends, **asdict(x)}


def _gates(run: Run) -> list[dict[str, Any]]:
    """Changes of the mean gate probabilities, where router scores were recorded."""
    from moexray.algorithms.drift import changes
    from moexray.analyse.routing import MIN_WINDOW
    from moexray.analyse.routing_windows import compare, gate_windows

    out = []
    for batch in run.batches("logits"):
        counts, labels = gate_windows(batch, MIN_WINDOW)
        if not len(counts):
            continue
        middle = len(counts) // 2
        halves = compare(labels, counts[:middle], counts[middle:]) if middle else []
        out.append(
            {
                "source": batch.source,
                "window_tokens": MIN_WINDOW,
                "change_tokens": [c.start * MIN_WINDOW for c in changes(counts) if c.lasts],
                "halves": [asdict(x) for x in halves],
            }
        )
    return out


def _text(d: dict[str, Any]) -> str:
    out: list[str] = []
    for s in d["sources"]:
        out += [*_head(s), ""]
        layers = [x for x in d["layers"] if x["source"] == s["source"]]
        worst = sorted(layers, key=lambda x: x["balancedness"])[:SHOWN]
        if worst:
            out += [TITLES, *map(_row, sorted(worst, key=lambda x: x["layer"]))]
        if len(layers) > SHOWN:
            out.append(f"  ({SHOWN} least balanced of {len(layers)} layers; --format json has all)")
        out += ["", *_drift_text(s, d), ""]
    between = [r for r in d["drift"] if r["from_source"] != r["to_source"]]
    for names in dict.fromkeys((r["from_source"], r["to_source"]) for r in between):
        pairs = [r for r in between if (r["from_source"], r["to_source"]) == names]
        out.append(f"{_from_to(*names)}: {_apart(pairs)}")
    for g in d["gates"]:
        at = ", ".join(map(str, g["change_tokens"])) or "none"
        out.append(f"{g['source']}: changes of the gate probabilities at token: {at}")
    out += [f"set aside: {a['rows']:,} {a['what']} in {a['source']}" for a in d["set_aside"]]
    out += [f"problem: {p['source']}: {p['text']}" for p in d["problems"]]
    return "\n".join([*out, *LEGEND])


def _from_to(before: str, after: str) -> str:
    """Both names; the file once where both are parts of it."""
    file, _, part = before.partition(" (")
    same = part and after.startswith(f"{file} (")
    return f"{before} -> {after.removeprefix(f'{file} ') if same else after}"


def _head(s: dict[str, Any]) -> list[str]:
    over = (
        f"over {s['ep_size']} EP ranks ({s['mapping']})"
        if s["ep_size"]
        else "over experts (EP size unknown; --ep states it)"
    )
    steps = "1 step or window" if s["steps"] == 1 else f"{s['steps']:,} steps or windows"
    head = [f"{s['source']}: {steps} of {s['axis']} counts"]
    if s["mean_balancedness"] is not None:
        head.append(
            f"  balancedness {s['mean_balancedness']:.3f} (mean of layers), "
            f"{s['balancedness_of_time']:.3f} (of their time) {over}"
        )
        if s["ep_size"]:
            saved = 1 - s["balancedness_of_time"]
            head.append(f"  perfect balance would save {saved:.1%} of the time in MoE layers at most")
    if s["layers_without_tokens"]:
        head.append(f"  layers without any token (dense, or not recorded): {s['layers_without_tokens']}")
    return head + [f"  {note}" for note in s["notes"]]


def _row(x: dict[str, Any]) -> str:
    label = "-" if x["layer"] < 0 else x["layer"]
    return (
        f"{label:>7}{x['tokens']:>12,}{x['balancedness']:>10.3f}{x['max_over_mean']:>10.2f}{x['cv']:>7.2f}"
        f"{x['gini']:>7.2f}{x['entropy']:>9.3f}{x['top1_share']:>8.3f}{x['top3_share']:>8.3f}"
        f"{x['active_experts']:>8}{x['hot_expert']:>6}"
    )


def _drift_text(s: dict[str, Any], d: dict[str, Any]) -> list[str]:
    if s["drift_unknown"]:
        return [f"drift: cannot tell, {s['drift_unknown']}"]
    found = [c for c in d["change_points"] if c["source"] == s["source"]]
    lines = [
        f"change of the mix at step {c['step']}: {len(c['layers'])} layers, JS {c['js']:.3f} against "
        f"{c['js_quiet']:.3f} when quiet, seen after {c['windows_until_found']} windows"
        f"{'' if c['lasts'] else '; a burst, it did not last'}"
        for c in found[:SHOWN]
    ]
    pairs = [r for r in d["drift"] if r["from_source"] == r["to_source"] == s["source"]]
    if not found:
        lines.append(f"no change of the mix in {len(s['windows']['js'])} windows; {_apart(pairs)}")
    if link := s["relation"]:
        ends = f"({link['low']:+.2f} to {link['high']:+.2f})"
        lines.append(
            f"drift and balance: {link['slope']:+.2f} balancedness per nat of JS {ends}, explains "
            f"{link['r2']:.0%} of it over {link['windows']} windows"
        )
    return lines


def _apart(pairs: list[dict[str, Any]]) -> str:
    if not pairs:
        return "too short to compare halves"
    mean = {k: sum(p[k] for p in pairs) / len(pairs) for k in ("kl", "js", "psi", "noise_floor")}
    moved = sum(p["changed"] for p in pairs)
    return (
        f"KL {mean['kl']:.4f} ({max(mean['kl'] - mean['noise_floor'], 0):.4f} above the noise floor), "
        f"JS {mean['js']:.4f}, PSI {mean['psi']:.3f}, mean of {counted(len(pairs), 'layer')}; {moved} changed"
    )
