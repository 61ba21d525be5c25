"""`moexray lab run`: an incident, its diagnosis, its repair, and both sides measured."""

from __future__ import annotations

import tempfile
import textwrap
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moexray.core.errors import UsageError
from moexray.core.json_text import json_text
from moexray.faces.chains import paths
from moexray.faces.cli.refuse import refusing
from moexray.faces.cli.say import say
from moexray.faces.numbers import human

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["command", "text"]

INCIDENTS = ("frag", "skew", "both", "late")  # verify.lab, without importing it
ENGINES = ("hf", "ep", "vllm")
ROWS = (  # figure, words, unit
    ("p50_cpu_s", "P50 of a step, CPU", "s"),
    ("p99_cpu_s", "P99 of a step, CPU", "s"),
    ("p50_s", "P50 latency", "s"),
    ("p99_s", "P99 latency", "s"),
    ("largest_free_bytes", "largest free block", "bytes"),
    ("expert_load_std", "expert-load deviation", "ratio"),
    ("moves_per_step", "arena moves per step", "ratio"),
)


@click.command("run")
@click.option("--incident", type=click.Choice(INCIDENTS), default="both", show_default=True,
              help="A fragmented arena, hot experts on a rank, both, or a rank that is late.")  # fmt: skip
@click.option("--engine", type=click.Choice(ENGINES), default="ep", show_default=True,
              help="Ranks in one process, in two over gloo, or beside a vLLM server.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
              help="Of prompts, cache and order.")  # fmt: skip
@click.option("--model", default="skewed", show_default=True,
              help="skewed, balanced, or a folder of `lab train`.")  # fmt: skip
@click.option("--requests", type=click.IntRange(20, 100_000), default=1_000, show_default=True,
              help="Measured per arm; a P99 wants 1,000.")  # fmt: skip
@click.option("--vllm-python", type=click.Path(dir_okay=False, path_type=Path),
              help="Has vLLM and moexray; else this Python, or ./.venv-vllm/bin/python.")  # fmt: skip
@click.option("-o", "--output", "out", type=click.Path(file_okay=False, path_type=Path),
              help="New folder for artefacts/, truth.json, report.html, lab.json.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True,
              help="What is printed on standard output.")  # fmt: skip
@click.option("--quiet", is_flag=True, help="No progress on standard error.")
def command(out: Path | None, form: str, *, quiet: bool, **options: Any) -> None:
    """Make an incident with a real model, have it diagnosed, repair it, and measure both sides.

    A small trained MoE model serves requests until the incident begins; traces, memory snapshots, expert
    counts and latencies are recorded. `moexray diagnose` sees these alone, what was planted lies outside. The
    remedies for what it named are applied, then the broken and the repaired engine take turns on the same
    requests. Needs torch and transformers: pip install 'moexray[lab]'; about 3 GiB of memory. The engine vllm
    is a real server on this machine's CPU (make vllm-env, about 5 GiB) that ends with the command.
    """
    from moexray.verify.lab.incident import Setup, run

    with refusing(), ExitStack() as stack:
        if out and out.exists() and any(out.iterdir()):
            raise UsageError(f"{out} is not empty", hint="name a new folder")
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moexray-lab-")))
        document = run(Setup(**options), folder, partial(_progress, quiet=quiet))
    say(json_text(document) if form == "json" else text(document, out))


def _progress(line: str, *, quiet: bool) -> None:
    if not quiet:
        say(line, err=True)


def text(d: Mapping[str, Any], out: Path | None) -> str:
    """The before/after table, what was planted and what was named."""
    truth = d["truth"]
    planted = " and ".join(cause["cause"] for cause in truth["causes"])
    told = list(dict.fromkeys(f["id"] for f in d["diagnosis"]["findings"] if f["severity"] != "info"))
    also = f"; also {', '.join(told[1:])}" if told[1:] else ""
    hot = f" (hot domain: {truth['hot_domain']})" if truth["hot_domain"] else ""
    lines = [
        f"incident {d['incident']}, engine {d['engine']}, model {Path(d['model']).name}, seed {d['seed']}",
        f"  planted: {planted}{hot}",
        f"  named:   {told[0] if told else 'nothing'}{also}",
        *(f"  chain:   {' -> '.join(path)}" for path in _chains(d["diagnosis"])),
        f"  the diagnosis {'is right' if d['named_right'] else 'is not right: ' + '; '.join(d['wrong'])}",
        *(f"  remedy:  {r}" for r in d["remedies"]),
        "",
        f"  {'':24} {'broken':>12} {'repaired':>12}   change, 95 % interval",
    ]
    by_name = {o["figure"]: o for o in d["outcomes"]}
    lines += [_row(by_name[name], words, unit) for name, words, unit in ROWS]
    if d["machine"]["noisy"]:
        lines.append(f"  * no verdict: {d['machine']['noisy']}; CPU times hold")
    lines += ["", *textwrap.wrap(d["note"], 100, initial_indent="  ", subsequent_indent="  ")]
    if out:
        lines.append(f"next: moexray diagnose {out / 'artefacts'}; the truth is in {out / 'truth.json'}")
    return "\n".join(lines)


def _chains(diagnosis: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The longest way from a cause to its effects."""
    found = paths((edge["from"], edge["to"]) for edge in diagnosis.get("chain", ()))
    return sorted(found, key=len, reverse=True)[:1]


def _row(o: Mapping[str, Any], words: str, unit: str) -> str:
    before, after = (human(o[side]["value"], unit) for side in ("before", "after"))
    mark = "*" if "noisy" in o["reason"] else " "
    return f"{mark} {words:24} {before:>12} {after:>12}   {_change(o, unit)}: {o['verdict']}"


def _change(o: Mapping[str, Any], unit: str) -> str:
    """How many times smaller or larger, else the difference."""
    ratio = o["ratio"]
    if ratio is None or not ratio["value"]:
        gap = o["difference"]
        ends = "" if gap["low"] is None else f" [{human(gap['low'], unit)}, {human(gap['high'], unit)}]"
        return f"{human(gap['value'], unit)}{ends}"
    low, high = ratio["low"], ratio["high"]
    ends = "" if low is None else f" [{low:.2f}, {high:.2f}]"
    return f"x {ratio['value']:.2f}{ends}"
