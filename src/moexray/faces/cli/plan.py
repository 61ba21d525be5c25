"""`moexray plan`: where experts should lie, from recorded traffic."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moexray.core.errors import UsageError
from moexray.core.json_text import json_text
from moexray.faces.cli.new_file import check_new
from moexray.faces.cli.refuse import check_paths, refusing
from moexray.faces.cli.say import say
from moexray.faces.cli.size_option import SizeOption
from moexray.faces.numbers import human

if TYPE_CHECKING:
    from moexray.algorithms.placement import Shape
    from moexray.whatif.placement import Layer, Payback, Plan
    from moexray.whatif.traffic import Traffic

__all__ = ["command"]

ENGINES = ("sglang", "vllm", "vllm-ascend", "trtllm", "eplb")
SHOWN = 8  # layers in the text, those with most to gain first
NOTES = 6
NOTHING = 5e-4  # a part of the busiest GPU's load that is shown as 0.0 %


@click.command("plan")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--gpus", "--ep", "gpus", type=click.IntRange(1, 1 << 16), required=True, help="EP ranks.")
@click.option("--slots", type=click.IntRange(1, 1 << 20), help="Physical experts per layer, redundant ones "
              "included.  [default: one per expert]")  # fmt: skip
@click.option("--nodes", type=click.IntRange(1, 1 << 16), default=1, show_default=True,
              help="Nodes of the ranks; replicas of an expert are spread over them.")  # fmt: skip
@click.option("--mode", type=click.Choice(["global", "node-limited"]), default="global", show_default=True,
              help="node-limited: a group of experts stays on one node.")  # fmt: skip
@click.option("--groups", type=click.IntRange(1, 1 << 20), help="Expert groups of the model (n_group), for "
              "node-limited.  [default: each expert is a group]")  # fmt: skip
@click.option("--decode", is_flag=True, help="Balance active experts per recorded step instead of tokens.")
@click.option("--split", type=click.Choice(["equal", "unequal"]), default="equal", show_default=True,
              help="How the dispatcher splits tokens over replicas; engines split equally.")  # fmt: skip
@click.option("--current", type=click.Path(), help="Placement in force: move few experts.")
@click.option("--slack", type=click.FloatRange(0, 1), default=0.01, show_default=True,
              help="Balance that may be given up to move less.")  # fmt: skip
@click.option("--experts", type=click.IntRange(1, 1 << 20), help="Experts of the model, if some never occur.")
@click.option("--expert-bytes", type=SizeOption(), help="Weights of one expert of one layer, e.g. 42MiB.")
@click.option("--step-ms", type=click.FloatRange(0), help="MoE time of one step in ms, for the payback.")
@click.option("--bandwidth", type=click.FloatRange(0, min_open=True), help="A GPU gets weights at GB/s.")
@click.option("--stall-ms", type=click.FloatRange(0), help="Stall of a rearrangement in ms, if measured.")
@click.option("--for", "engine", type=click.Choice(ENGINES), help="Write -o as this engine takes it.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(paths: tuple[str, ...], output: Path | None, form: str, **options: Any) -> None:
    """Plan where the experts of each layer lie, and say what that can gain at most.

    PATH holds counts per expert, router choices or dumps of an engine (several files of one model are
    planned as one mix). Each score stands beside the bound of any plan, and beside the same method tried
    on the second half of the record: a plan made on other traffic is worth little.
    """
    with refusing():
        _check(paths, output, options)
        seen, made = _make(paths, options)
        paid = _payback(made, seen, options)
        document = _document(seen, made, paid, options)
        if output:
            _write(output, (seen, made), document, options)
    if form == "json":
        say(json_text(document, indent=None))
    else:
        say(_text(seen, made, document, output, options))


def _check(paths: tuple[str, ...], output: Path | None, options: dict[str, Any]) -> None:
    read = (*paths, *([options["current"]] if options["current"] else []))
    check_paths(read)
    if options["engine"] and not output:
        raise UsageError("--for needs a file to write", where="--for", hint="-o FILE")
    check_new(output, force=options["force"], read=read)
    if options["groups"] and options["mode"] == "global":
        raise UsageError("groups matter in one mode only", where="--groups", hint="--mode node-limited")


def _make(paths: tuple[str, ...], options: dict[str, Any]) -> tuple[Traffic, Plan]:
    from moexray.algorithms.placement import Shape
    from moexray.readers.read_any import read_any
    from moexray.whatif.placement import Options, plan
    from moexray.whatif.traffic import current_placement, traffic

    seen = traffic(read_any(paths), options["experts"])
    gpus = options["gpus"]
    slots = options["slots"] or -(-seen.experts // gpus) * gpus
    groups = (options["groups"] or seen.experts) if options["mode"] == "node-limited" else 0
    shape = Shape(seen.experts, slots, gpus, options["nodes"], groups)
    now = current_placement(options["current"], seen.layers) if options["current"] else None
    how = Options(options["decode"], options["split"] == "unequal", now, options["slack"])
    return seen, plan(seen, shape, how)


def _payback(made: Plan, seen: Traffic, options: dict[str, Any]) -> Payback | None:
    from moexray.whatif.placement import payback

    if options["step_ms"] is None:
        return None
    stall = options["stall_ms"]
    if stall is None:
        size = options["expert_bytes"] or seen.expert_bytes
        fetched, rate = made.fetched, options["bandwidth"]
        if not size or fetched is None or not rate:
            raise UsageError(
                "the payback needs the stall of a rearrangement", where="--step-ms",
                hint="--stall-ms, or all of --current, --expert-bytes and --bandwidth",
            )  # fmt: skip
        stall = fetched * size / (rate * 1e9) * 1e3
    return payback(made, options["step_ms"] / 1e3, stall / 1e3)


def _document(seen: Traffic, made: Plan, paid: Payback | None, options: dict[str, Any]) -> dict[str, Any]:
    shape, later = made.shape, made.later
    size = options["expert_bytes"] or seen.expert_bytes
    moved = made.moved_slots
    return {
        "schema": "moexray.plan/1",
        "sources": list(seen.sources),
        "experts": shape.experts,
        "slots": shape.slots,
        "gpus": shape.gpus,
        "nodes": shape.nodes,
        "mode": options["mode"],
        "groups": shape.groups or None,
        "balances": "active experts" if options["decode"] else "tokens",
        "split": options["split"],
        "layers": [_layer(y) for y in made.layers],
        "mean_balancedness": made.mean("balancedness"),
        "mean_bound": made.mean("bound"),
        "mean_trivial": made.mean("trivial"),
        "mean_current": made.mean("before"),
        "later": None if later is None else {
            "balancedness": later.balancedness, "trivial": later.trivial,
            "time_saved": later.time_saved, "ordered": later.ordered,
        },
        "time_saved": made.time_saved,
        "moved_slots": moved,
        "moved_bytes": None if moved is None or not size else int(moved * size),
        "payback": None if paid is None else {
            "gain_seconds_per_step": paid.gain_s, "stall_seconds": paid.stall_s, "steps": paid.steps,
            "on_later_traffic": paid.later,
        },
        "plan_seconds": made.seconds,
        "physical_to_logical": [y.slots.tolist() for y in made.layers],
        "replica_parts": [y.parts.tolist() if y.parts is not None else None for y in made.layers]
        if options["split"] == "unequal" else None,
        "notes": list(seen.notes),
    }  # fmt: skip


def _layer(y: Layer) -> dict[str, Any]:
    scores = {k: getattr(y, k) for k in ("balancedness", "bound", "trivial")}
    return {"layer": y.layer, **scores, "current": y.before}


def _write(
    output: Path, found: tuple[Traffic, Plan], document: dict[str, Any], options: dict[str, Any]
) -> None:
    from moexray.whatif.placement_files import engine_file

    engine, (seen, made) = options["engine"], found
    text = engine_file(made, engine, seen.lost) if engine else json_text(document, indent=None) + "\n"
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as why:
        raise UsageError(f"cannot write {output} ({why.strerror})", where="-o") from why


def _text(
    seen: Traffic, made: Plan, document: dict[str, Any], output: Path | None, options: dict[str, Any]
) -> str:
    d, current = document, document["mean_current"] is not None
    what = f"{d['balances']} per GPU"
    out = [_head(made.shape, d), *_from(seen), ""]
    titles = ("trivial", *(["current"] if current else []), "this plan", "bound")
    out.append(f"{'balancedness: ' + what:<36}" + "".join(f"{t:>11}" for t in titles))
    names = ("trivial", *(["current"] if current else []), "balancedness", "bound")
    means = [d[f"mean_{n}"] for n in names]
    out.append(f"{'mean of ' + _count(len(d['layers']), 'layer'):<36}" + "".join(map(_cell, means)))
    if made.later:
        name = f"{'later' if made.later.ordered else 'other'} half, planned on the first"
        cells = [made.later.trivial, *([None] if current else []), made.later.balancedness, None]
        out.append(f"{name:<36}" + "".join(map(_cell, cells)))
    known = [y for y in d["layers"] if y["balancedness"] is not None]
    known.sort(key=lambda y: y["current" if current else "trivial"])
    for y in known[:SHOWN] if len(known) > 1 else []:
        label = f"layer {y['layer']}"
        out.append(f"{label:<36}" + "".join(_cell(y["current" if n == "current" else n]) for n in names))
    if len(known) > SHOWN:
        out.append(f"({_count(len(known) - SHOWN, 'more layer')} in --format json)")
    out.append("trivial: slot i holds expert i modulo their number, as engines start; bound: of any plan")
    told = [*_verdict(made, d), *_notes(seen, made), *_files(made, output, options)]
    return "\n".join([*(line.rstrip() for line in out), "", *told])


def _head(shape: Shape, d: dict[str, Any]) -> str:
    nodes = f" on {shape.nodes} nodes" if shape.nodes > 1 else ""
    groups = f", {shape.groups} groups" if shape.groups else ""
    extra = f" ({shape.slots - shape.experts} redundant)" if shape.slots > shape.experts else ""
    what = f"{_count(shape.experts, 'expert')} in {_count(shape.slots, 'slot')}{extra}, "
    what += f"{_count(shape.gpus, 'GPU')}{nodes}"
    return f"plan: {what}, {d['mode']}{groups}, {d['split']} split over replicas"


def _from(seen: Traffic) -> list[str]:
    more = f" and {_count(len(seen.sources) - 1, 'more file')}" if len(seen.sources) > 1 else ""
    steps = sum(len(cube) for cube in seen.cubes)
    choices = sum(float(cube.sum()) for cube in seen.cubes)
    return [f"from: {seen.sources[0]}{more}: {_count(steps, 'step')}, {human(choices, 'count')} choices"]


def _verdict(made: Plan, d: dict[str, Any]) -> list[str]:
    """What it can gain, what it moves, when that has paid."""
    out = [f"conclusion: {_conclusion(made, d)}"]
    if d["moved_slots"] is not None:
        size = "" if d["moved_bytes"] is None else f", {human(d['moved_bytes'], 'bytes')} of weights"
        total = _count(made.shape.slots * len(d["layers"]), "slot")
        out.append(f"moves: {d['moved_slots']} of {total}{size}; {made.fetched} on the busiest GPU")
    paid = d["payback"]
    if paid:
        gain, stall = human(paid["gain_seconds_per_step"], "s"), human(paid["stall_seconds"], "s")
        if paid["steps"] is None:
            out.append(f"payback: never; a stall of {stall} for no gain")
        else:
            steps = f"{math.ceil(paid['steps']):,}"
            out.append(f"payback: after {steps} steps ({stall} of stall, {gain} saved per step)")
    return out


def _conclusion(made: Plan, d: dict[str, Any]) -> str:
    """One line: whether to take the plan, and for what."""
    current = made.options.current is not None
    than = "the current placement" if current else "the trivial plan"
    best = made.later.time_saved if made.later else made.time_saved
    on = "on traffic that was not planned on"
    if made.later is None:
        on = "on the same traffic (there is no later half)"
    if d["moved_slots"] == 0:
        return "keep the current placement: a new one is no better within --slack"
    if best <= NOTHING:
        more = f"{-best:.1%} more" if best < -NOTHING else "as much"
        keep = "keep the current placement" if current else "no gain"
        return f"{keep}: {on}, the busiest GPUs would carry {more}"
    gain = f"at most {best:.1%} of MoE time saved against {than}, {on}"
    paid = d["payback"]
    if paid is None:
        return gain
    when = "never paid" if paid["steps"] is None else f"paid after {math.ceil(paid['steps']):,} steps"
    return f"{gain}; {when}"


def _files(made: Plan, output: Path | None, options: dict[str, Any]) -> list[str]:
    from moexray.whatif.placement_files import filled, handover

    if not output:
        return ["next: -o FILE --for sglang|vllm|vllm-ascend|trtllm|eplb writes it for an engine"]
    if not options["engine"]:
        return [f"written: {output}"]
    engine, out = options["engine"], [f"written: {output}"]
    if gaps := filled(made, engine):
        out.append(f"note: {gaps}")
    if engine == "trtllm" and output.suffix.lower() not in (".yaml", ".yml"):
        out.append(f"note: {output.name} holds YAML, as TensorRT-LLM reads it, whatever its name says")
    return [*out, f"use: {handover(made, engine, str(output))}"]


def _notes(seen: Traffic, made: Plan) -> list[str]:
    more = len(seen.notes) - NOTES
    out = [f"note: {n}" for n in seen.notes[:NOTES]] + ([f"note: {more} more in --format json"] * (more > 0))
    now = made.options.current
    if now is not None and (now < 0).any():
        names = [str(y.layer) for y, row in zip(made.layers, now, strict=True) if (row < 0).any()]
        many = _count(int((now < 0).sum()), "empty slot")
        out.append(f"note: the current placement has {many} (-1), in layer {', '.join(names[:SHOWN])}")
    held = made.shape.slots if now is None else len(now[0])
    if held != made.shape.slots:
        out.append(f"note: the current placement has {held} slots a layer; --slots {held} plans for as many")
    return out


def _cell(value: float | None) -> str:
    return f"{'' if value is None else format(value, '.3f'):>11}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
