"""`moexray whatif routing`: other routers on the recorded scores."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from moexray.core.errors import UsageError
from moexray.core.json_text import json_text
from moexray.faces.cli.refuse import refusing
from moexray.faces.cli.say import say
from moexray.faces.numbers import counted

if TYPE_CHECKING:
    from moexray.algorithms.placement import Shape
    from moexray.core.run import Run
    from moexray.whatif.router import Scores

__all__ = ["routing"]


@click.command("routing")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--policy", "policies", multiple=True, metavar="NAME[:key=value,...]",
              help="E.g. salted:salt=17,precision=e4m3; repeatable; absent: a set of all.")  # fmt: skip
@click.option("--top-k", type=click.IntRange(1), help="Experts per token, where the file does not tell.")
@click.option("--groups", type=click.IntRange(1), help="Groups of experts (n_group), for DeepSeek routing.")
@click.option("--topk-groups", type=click.IntRange(1), help="Groups that a token may use (topk_group).")
@click.option("--gpus", "--ep", "gpus", type=click.IntRange(1), help="EP ranks: balance is then over them.")
@click.option("--slots", type=click.IntRange(1), help="Physical experts in all; redundant ones are planned.")
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Nodes of the GPUs.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def routing(paths: tuple[str, ...], policies: tuple[str, ...], form: str, **options: Any) -> None:
    """Try router policies on the scores in PATH: load before and after, choices flipped, output changed.

    Policies: plain, salted, temperature, soft-mask, bias, capacity, sticky. Effect is that on the load of
    the experts: none below 1 % of its standard deviation, small below 10 %. A policy that flips choices
    changes the model's answers: the last columns say how much.
    """
    from moexray.readers.read_any import read_any

    with refusing():
        document = describe(read_any(paths), policies, **options)
    say(json_text(document) if form == "json" else _text(document))


def describe(
    run: Run, policies: tuple[str, ...], *, top_k: int | None = None, groups: int | None = None,
    topk_groups: int | None = None, gpus: int | None = None, slots: int | None = None, nodes: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """The document `moexray.whatif.routing/1`.

    Raises:
        UsageError: nothing to try policies on, or options that do not fit.
    """
    from moexray.whatif.router import DEFAULTS, Groups, parse_policy, recorded_scores, try_policy

    if (groups is None) != (topk_groups is None):
        raise UsageError("--groups and --topk-groups belong together", hint="give both or none")
    if slots and not gpus:
        raise UsageError("--slots without --gpus", hint="say over how many GPUs the slots lie")
    limited = Groups(groups, topk_groups) if groups and topk_groups else None
    asked = [parse_policy(text) for text in policies or DEFAULTS]
    rows: list[dict[str, Any]] = []
    sources = []
    for scores in recorded_scores(run, top_k, limited):
        shape = _shape(scores, gpus, slots, nodes) if gpus else None
        sources.append(_source(scores, shape))
        for policy in asked:
            try:
                effect = asdict(try_policy(scores, policy, shape))
            except UsageError as why:
                if policies:
                    raise
                sources[-1]["not_tried"].append(str(why.args[0]))
                continue
            rows.append({"source": scores.source, "policy": policy.text, **effect})
    problems = [{"source": path, "text": problem.text} for path, problem in run.problems]
    return {
        "schema": "moexray.whatif.routing/1", "sources": sources, "policies": rows, "problems": problems,
    }  # fmt: skip


def _shape(scores: Scores, gpus: int, slots: int | None, nodes: int) -> Shape:
    from moexray.algorithms.placement import Shape

    experts = scores.logits[0].shape[1]
    return Shape(experts, slots or experts, gpus, nodes)


def _source(scores: Scores, shape: Shape | None) -> dict[str, Any]:
    return {
        "source": scores.source,
        "layers": len(scores.layers),
        "tokens": sum(map(len, scores.logits)) // max(len(scores.layers), 1),
        "experts": scores.logits[0].shape[1],
        "top_k": scores.k,
        "top_k_from": scores.k_from,
        "precision": scores.precision or None,
        "recorded_choices_reproduced": scores.agree,
        "balancedness_over": "experts" if shape is None
        else f"{counted(shape.gpus, 'GPU')}, {counted(shape.slots, 'slot')}",
        "choices_only": scores.choices_only,
        "not_tried": [],
    }


def _text(d: dict[str, Any]) -> str:
    out: list[str] = []
    for s in d["sources"]:
        rows = [r for r in d["policies"] if r["source"] == s["source"]]
        precision = f" in {s['precision']}" if s["precision"] else ""
        out.append(
            f"{s['source']}: {counted(s['layers'], 'layer')}, {counted(s['tokens'], 'token')}, "
            f"top-{s['top_k']} of {counted(s['experts'], 'expert')} ({s['top_k_from']}){precision}"
        )
        if s["recorded_choices_reproduced"] is not None:
            share = s["recorded_choices_reproduced"]
            out.append(f"  the plain top-k of the scores gives {share:.2%} of the recorded choices")
        width = max([len(r["policy"]) for r in rows] + [6]) + 2
        titles = ("effect", "load std", "after", "balanced", "after", "flipped", "dropped", "ties", "output")
        out += ["", "policy".ljust(width) + "".join(f"{x:>10}" for x in titles)]
        out += [r["policy"].ljust(width) + _cells(r) for r in rows]
        if left := len(s["not_tried"]):
            many = counted(left, "policy", "policies")
            out.append(f"  {many} not tried: without router scores the next best expert is unknown")
        out.append("")
    for s in d["sources"]:
        name = f" for {s['source']}" if len(d["sources"]) > 1 else ""
        rows = [r for r in d["policies"] if r["source"] == s["source"]]
        out.append(f"conclusion{name}: {_conclusion(rows)}")
    out += [f"problem: {p['source']}: {p['text']}" for p in d["problems"]]
    over = d["sources"][0]["balancedness_over"]
    out.append(f"load std: of choices per expert; balanced: mean / max over {over}")
    out.append("flipped: choices that change; ties: tokens with equal scores at place k; output: part of")
    out.append("the gate weight that moves to other experts or is lost (0: same output). Means over layers.")
    return "\n".join(out)


def _conclusion(rows: list[dict[str, Any]]) -> str:
    """One line: what evens the load most and what it costs, what does nothing, what harms."""
    felt = [r for r in rows if r["effect"] != "none"]
    better = [r for r in felt if r["load_std_after"] < r["load_std_before"]]
    none = [r["policy"] for r in rows if r["effect"] == "none" and r["policy"] != "plain"]
    worse = [r["policy"] for r in felt if r["load_std_after"] >= r["load_std_before"]]
    if better:
        best = min(better, key=lambda r: r["load_std_after"])
        even = f"balancedness {best['balancedness_before']:.3f} -> {best['balancedness_after']:.3f}"
        cost = f"{best['output_change']:.1%} of the output changes: test the answers"
        out = [f"{best['policy']} evens the load most ({even}; {cost})"]
    else:
        out = ["no policy that was tried evens the load"]
    out += [f"no effect on the load: {', '.join(none)}"] * bool(none)
    out += [f"less even: {', '.join(worse)}"] * bool(worse)
    return "; ".join(out)


def _cells(r: dict[str, Any]) -> str:
    keys = ("flipped_share", "dropped_share", "ties_share", "output_change")
    shares = "".join(f"{r[k]:>10.2%}" for k in keys)
    load = f" {r['load_std_before']:>9.1f} {r['load_std_after']:>9.1f}"
    even = f"{r['balancedness_before']:>10.3f}{r['balancedness_after']:>10.3f}"
    return f"{r['effect']:>10}{load}{even}{shares}"
