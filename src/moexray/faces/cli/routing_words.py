"""The document of `moexray routing` as text."""

from __future__ import annotations

from typing import Any

from moexray.faces.numbers import counted

__all__ = ["routing_text"]

SHOWN = 10  # layers, changes in the text
BETTER = 1.01  # balancedness after / before from which on a change is one for the better
TITLES = (
    f"{'layer':>7} {'choices':>11}{'balanced':>10}{'max/mean':>10}{'cv':>7}{'gini':>7}{'entropy':>9}"
    f"{'top-1':>8}{'top-3':>8}{'active':>8}{'hot':>6}"
)
LEGEND = (
    "balanced: mean / max over EP ranks or experts as stated; 1 is even for it and entropy, 0 for gini;",
    "cv: standard deviation / mean; top-k: share of choices; active: experts with any; hot: the busiest;",
    "KL: of the later against the earlier; KL, JS: nats (JS at most 0.693); effect: how much more the",
    "busiest rank carries after a change, under 1 % none, under 10 % small, else clear, by the placement in",
    "force and by a plan made on the mix before (the worse of both)",
    "next: moexray plan, with --gpus N, for a placement; moexray diagnose for cause and remedy",
)


def routing_text(d: dict[str, Any]) -> str:
    """The document as text."""
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
    out += [f"{_from_to(c['from_source'], c['to_source'])}: {c['text']}" for c in d["not_compared"]]
    out += [line for g in d["gates"] for line in _gate(g)]
    out += [_engine(x) for x in d["engine_figures"]]
    out += [f"warning: {w['text']}" for w in d["warnings"]]
    out += [f"set aside: {a['rows']:,} {a['what']} in {a['source']}" for a in d["set_aside"]]
    out += [f"problem: {p['source']}: {p['text']}" for p in d["problems"]]
    return "\n".join([*out, *LEGEND])


def _gate(g: dict[str, Any]) -> list[str]:
    """Router scores: what moved, and where their load is to be had."""
    at = ", ".join(map(str, g["change_tokens"]))
    what = f"the mean gate probabilities change at token {at}" if at else \
        "no change of the mean gate probabilities"  # fmt: skip
    if halves := g["halves"]:
        moved = sum(x["changed"] for x in halves)
        what += f"; first half against second: {_differing(moved, len(halves))}"
    return [
        f"{g['source']}: router scores, no choices: {what}",
        f"  their load: moexray whatif routing {g['source']} (--top-k K if the file lacks it)",
    ]


def _engine(x: dict[str, Any]) -> str:
    """The engine's own figure beside ours."""
    lines = counted(x["lines"], "line")
    same = "they agree" if x["agree"] else "they disagree: believe the counts"
    return (
        f"the engine's own balancedness in {x['source']}: {x['logged']:.3f} (median of {lines}), "
        f"{x['recomputed']:.3f} from the counts of the same steps; {same}"
    )


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
        f"{label:>7} {x['tokens']:>11,}{x['balancedness']:>10.3f}{x['max_over_mean']:>10.2f}{x['cv']:>7.2f}"
        f"{x['gini']:>7.2f}{x['entropy']:>9.3f}{x['top1_share']:>8.3f}{x['top3_share']:>8.3f}"
        f"{x['active_experts']:>8} {x['hot_expert']:>5}"
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
        ends = f"(95 % interval {link['low']:+.2f} to {link['high']:+.2f})"
        lines.append(
            f"drift and balance: per nat of JS between a window and all others, balancedness changes by "
            f"{link['slope']:+.2f} {ends}; that distance explains {link['r2']:.0%} of the variance of "
            f"balancedness over {link['windows']} windows"
        )
    elif s["relation_unknown"]:
        lines.append(f"drift and balance: cannot tell, {s['relation_unknown']}")
    return lines


def _change_text(c: dict[str, Any], s: dict[str, Any]) -> list[str]:
    names = ", ".join(map(str, c["layers"][:SHOWN]))
    which = "the layer" if c["layers"] == [-1] else f"layer {names}" if len(c["layers"]) == 1 else (
        f"{len(c['layers'])} layers ({names}{', ...' if len(c['layers']) > SHOWN else ''})"
    )  # fmt: skip
    head = (
        f"change of the mix at step {c['step']}: {which}, JS {c['js']:.4f} against {c['js_quiet']:.4f} when "
        f"quiet, seen after {counted(c['windows_until_found'], 'window')}"
    )
    if not c["lasts"]:
        return [f"{head}; a burst, it did not last"]
    return [head, f"  effect on the balance: {_effect_text(c, s['ep_size'])}"]


def _effect_text(c: dict[str, Any], ep: int | None) -> str:
    """The size of an effect and the figures behind it."""
    parts, pairs = [], []
    if c["balancedness_before"] is not None:
        pairs.append((c["balancedness_before"], c["balancedness_after"]))
        parts.append("balancedness of the placement in force {:.3f} -> {:.3f}".format(*pairs[-1]))
    if c["plan_before"] is not None:
        pairs.append((c["plan_before"], c["plan_after"]))
        gpus = f"{counted(c['plan_gpus'], 'GPU')}{'' if ep else ' assumed'}"
        parts.append(f"that of a plan made before ({gpus}) {{:.3f}} -> {{:.3f}}".format(*pairs[-1]))
    if not parts:
        return "cannot tell without an EP size or experts"
    size = c["effect"]
    if size != "none":
        size = f"{size}, for the worse (the busiest rank carries {c['busiest_growth']:.0%} more)"
    elif all(after > before * BETTER for before, after in pairs):
        size = "for the better"
    return f"{size}; {'; '.join(parts)}"


def _differing(changed: int, layers: int) -> str:
    return f"{changed} of {counted(layers, 'layer')} differ{'s' * (changed == 1)} by more than chance"


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
    many = f"{_differing(c['layers_changed'], c['layers'])} ({figures})"
    return f"{many}; effect on the balance: {_effect_text(c, c['balancedness_before'] and c['plan_gpus'])}"
