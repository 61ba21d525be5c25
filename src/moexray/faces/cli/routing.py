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
    from moexray.analyse.routing_drift import Effect, Stretch
    from moexray.analyse.routing_figures import Figures
    from moexray.analyse.routing_windows import Drift
    from moexray.core.run import Run

__all__ = ["command", "describe"]

SHOWN = 10  # layers, changes in the text
DISTANCES = ("kl", "js", "psi", "noise_floor")
PH_NEAR = 8  # windows from the start of a change within which an alarm of Page-Hinkley is of it
TITLES = (
    f"{'layer':>7}{'choices':>12}{'balanced':>10}{'max/mean':>10}{'cv':>7}{'gini':>7}{'entropy':>9}"
    f"{'top-1':>8}{'top-3':>8}{'active':>8}{'hot':>6}"
)
LEGEND = (
    "balanced: mean / max over EP ranks or experts as stated; 1 is even for it and entropy, 0 for gini;",
    "cv: standard deviation / mean; top-k: share of choices; active: experts with any; hot: the busiest;",
    "KL, JS: nats (JS at most 0.693); effect: what a change does to the busiest rank, under 1 % none, under",
    "10 % small, else clear, by the placement in force and by a plan made on the mix before (the worse)",
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
    compared = [*(c for f, d in pairs for c in _within(f, d)), *_between(every)]
    return {
        "schema": "moexray.routing/1",
        "sources": [_source(run, f, d) for f, d in pairs],
        "layers": [{"source": _name(f.load), **_layer(asdict(x))} for f in every for x in f.layers],
        "drift": [row for c in compared for row in c.pop("rows")],
        "comparisons": compared,
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
    for c in d["comparisons"]:
        if c["from_source"] != c["to_source"]:
            out.append(f"{_from_to(c['from_source'], c['to_source'])}: {_apart(c)}")
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
    lines = [line for c in found[:SHOWN] for line in _change_text(c, s)]
    if not any(c["lasts"] for c in found):
        halves = [c for c in d["comparisons"] if c["from_source"] == c["to_source"] == s["source"]]
        lasting = "lasting change" if found else "change"
        lines.append(f"no {lasting} of the mix in {len(s['windows']['js'])} windows")
        lines += [f"first half against second: {_apart(c)}" for c in halves]
    if link := s["relation"]:
        ends = f"({link['low']:+.2f} to {link['high']:+.2f})"
        lines.append(
            f"drift and balance: {link['slope']:+.2f} balancedness per nat of JS {ends}, explains "
            f"{link['r2']:.0%} of it over {link['windows']} windows"
        )
    return lines


def _change_text(c: dict[str, Any], s: dict[str, Any]) -> list[str]:
    names = ", ".join(map(str, c["layers"][:SHOWN]))
    which = "the layer" if c["layers"] == [-1] else f"layer {names}" if len(c["layers"]) == 1 else (
        f"{len(c['layers'])} layers ({names}{', ...' if len(c['layers']) > SHOWN else ''})"
    )  # fmt: skip
    head = (
        f"change of the mix at step {c['step']}: {which}, JS {c['js']:.3f} against {c['js_quiet']:.3f} when "
        f"quiet, seen after {counted(c['windows_until_found'], 'window')}"
    )
    if not c["lasts"]:
        return [f"{head}; a burst, it did not last"]
    return [head, f"  effect on the balance: {_effect_text(c, s['ep_size'])}"]


def _effect_text(c: dict[str, Any], ep: int | None) -> str:
    """The size of an effect and the figures behind it."""
    parts = []
    if c["balancedness_before"] is not None:
        parts.append(f"placement in force {c['balancedness_before']:.3f} -> {c['balancedness_after']:.3f}")
    if c["plan_before"] is not None:
        gpus = f"{c['plan_gpus']} GPUs{'' if ep else ' assumed'}"
        parts.append(
            f"a plan made before ({gpus}) keeps {c['plan_after']:.3f}, {c['plan_before']:.3f} in its own time"
        )
    return f"{c['effect']}; {'; '.join(parts)}" if parts else "cannot tell (no EP size, one window)"


def _apart(c: dict[str, Any]) -> str:
    """How far two stretches are apart, and what that does."""
    if not c["layers"]:
        return "no layer has tokens in both"
    above = max(c["mean_kl"] - c["mean_noise_floor"], 0)
    figures = (
        f"KL {c['mean_kl']:.4f} ({above:.4f} above the noise floor), JS {c['mean_js']:.4f}, PSI "
        f"{c['mean_psi']:.3f}, mean of {counted(c['layers'], 'layer')}"
    )
    if not c["layers_changed"]:
        return f"no layer differs by more than chance ({figures})"
    many = f"{c['layers_changed']} of {counted(c['layers'], 'layer')} differ by more than chance ({figures})"
    return f"{many}; effect on the balance: {_effect_text(c, c['balancedness_before'] and c['plan_gpus'])}"
