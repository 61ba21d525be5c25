"""`moexray ab`: two settings of a live server, interleaved, with a verdict and one rollback."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moexray.core.errors import UsageError
from moexray.core.json_text import json_text
from moexray.faces.cli.new_file import check_new
from moexray.faces.cli.refuse import refusing
from moexray.faces.cli.say import say
from moexray.faces.numbers import human

if TYPE_CHECKING:
    from collections.abc import Callable

    from moexray.verify.ab import Margin, Plan, Trial, Turn
    from moexray.verify.ab.served import Load
    from moexray.verify.load import Target

__all__ = ["command", "margin_of"]

MOST_BYTES = 64 << 20  # of a file of prompts
PATIENCE_S = 600  # of a switch: a server may reload its weights
EXIT = {"no change": 0, "better": 0, "worse": 1, "cannot tell": 2}


@click.command("ab")
@click.option("--a", "url_a", metavar="URL", help="Server with the present setting, e.g. http://host:8000.")
@click.option("--b", "url_b", metavar="URL", help="Server with the new setting.")
@click.option("--url", metavar="URL", help="One server with a live switch, in place of --a and --b.")
@click.option("--switch-a", metavar="COMMAND", help="Puts the server of --url into the present setting.")
@click.option("--switch-b", metavar="COMMAND", help="Puts it into the new one.")
@click.option("--rollback", metavar="COMMAND",
              help="Run once where B is worse; --switch-a where not given, nothing with --a and --b.")
@click.option("--figure", type=click.Choice(["ttft", "e2e", "itl"]), default="ttft", show_default=True,
              help="Latency to compare: first token, whole answer, between tokens.")
@click.option("--margin", default="5ms", show_default=True, metavar="TIME|SHARE",
              help="Difference that does not matter: 5ms, or 5% of A.")
@click.option("--alpha", type=click.FloatRange(0.0001, 0.5), default=0.05, show_default=True,
              help="Chance that an identical B is called better or worse.")
@click.option("--quads", type=click.IntRange(6, 10_000), default=24, show_default=True,
              help="Quads of turns (ABBA or BAAB) at most.")
@click.option("--turn", "turn_s", type=click.FloatRange(0.1, 600), default=5.0, show_default=True,
              help="Seconds of a turn.")
@click.option("--settle", "settle_s", type=click.FloatRange(0, 600), default=0.5, show_default=True,
              help="Seconds at the start of a turn that do not count.")
@click.option("--rate", type=click.FloatRange(0.01, 10_000), default=8.0, show_default=True,
              help="Requests per second, Poisson, sent when due however many are under way.")
@click.option("--prompts", type=click.Path(dir_okay=False, path_type=Path),
              help='A prompt a line, or JSON lines with "prompt"; made of random words if not given.')
@click.option("--model", default="", help="Its name; the first that the server lists if not given.")
@click.option("--max-tokens", type=click.IntRange(1, 100_000), default=16, show_default=True)
@click.option("--extra", default="{}", metavar="JSON", help="Further members of each request, as an object.")
@click.option("--log", type=click.Path(dir_okay=False, path_type=Path),
              help="Log of the server: rearrangements, compilations, snapshots in it mark their windows.")
@click.option("--early", is_flag=True, help='Stop at "no change" and "better", too; "worse" always stops.')
@click.option("--noisy", is_flag=True, help='On a noisy machine, too: figures, no verdict but "worse".')
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), help="Write the document here, too.")
@click.option("--force", is_flag=True, help="Overwrite an existing file of --save.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--quiet", is_flag=True, help="No progress on standard error.")
def command(form: str, save: Path | None, **options: Any) -> None:
    """Compare two settings of a live server, and roll back if the new one is worse.

    Either two servers (--a, --b), or one whose setting two commands switch (--url, --switch-a,
    --switch-b). Turns alternate, ABBA or BAAB by a coin; after each fourth quad comes one of A against A.
    After each quad an always-valid test looks; where B is worse by more than the margin, the rollback runs
    once. $OPENAI_API_KEY is sent as bearer token where set.

    Exit code: 0 no change or better, 1 worse, 2 bad usage, a noisy machine, or no verdict.
    """
    from moexray.verify.ab import document, result

    with refusing():
        check_new(save, force=options["force"])
        trial = _trial(options)
        d = {**document(trial, result(trial)), "what": _what(options)}
        if d["rollback"] and options["url_b"] and not options["rollback"]:
            d["rollback"] = None  # two servers have no switch to put back
            d["notes"].append("nothing was rolled back: with two servers only --rollback COMMAND can do that")
        if save:
            save.write_text(json_text(d) + "\n", encoding="utf-8")
    if form == "json":
        say(json_text(d))
    else:
        from moexray.faces.cli.ab_text import trial_text

        arms = [f"{arm.upper()}: {options[f'url_{arm}'] or options[f'switch_{arm}']}" for arm in "ab"]
        say("\n".join([*arms, "", trial_text(d)]))
    sys.exit(EXIT[d["verdict"]])


def margin_of(text: str) -> Margin:
    """5ms, 0.2s or 5%.

    Raises:
        UsageError: none of them.
    """
    from moexray.verify.ab import Margin

    found = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(us|ms|s|%)\s*", text)
    if not found:
        raise UsageError(f"--margin {text} is neither a time nor a share", hint="write 5ms, 0.2s or 5%")
    scale = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "%": 1e-2}[found[2]]
    return Margin(float(found[1]) * scale, is_share=found[2] == "%")


def _what(options: dict[str, Any]) -> dict[str, Any]:
    keys = ("url_a", "url_b", "url", "switch_a", "switch_b", "figure", "rate", "turn_s", "settle_s",
            "max_tokens")  # fmt: skip
    return {k: options[k] for k in keys}


def _trial(options: dict[str, Any]) -> Trial:
    from moexray.verify.ab import Plan, run_trial
    from moexray.verify.ab.log_marks import LogMarks
    from moexray.verify.ab.served import served

    targets = _targets(options)
    plan = Plan(
        quads=options["quads"], margin=margin_of(options["margin"]), alpha=options["alpha"],
        early=options["early"], seed=options["seed"], noisy="mark" if options["noisy"] else "refuse",
    )  # fmt: skip
    load = _load(options)
    commands = {"A": options["switch_a"], "B": options["switch_b"]}

    def switch(setting: str) -> None:
        if commands[setting]:
            _call(commands[setting])

    rollback = options["rollback"]
    watch = None if options["quiet"] else _progress(plan, load)
    with LogMarks(options["log"]) if options["log"] else nullcontext() as log:
        sample = served(targets, load, log.take if log else tuple)
        return run_trial(
            switch, sample, plan, rollback=(lambda _: _call(rollback)) if rollback else None, watch=watch
        )


def _targets(options: dict[str, Any]) -> dict[str, Target]:
    """The servers by setting.

    Raises:
        UsageError: neither form is complete, or both are given.
    """
    from moexray.verify.load import target

    two = (options["url_a"], options["url_b"])
    one = (options["url"], options["switch_a"], options["switch_b"])
    if not (all(two) and not any(one)) and not (all(one) and not any(two)):
        raise UsageError(
            "two settings are wanted",
            hint="--a URL --b URL, or --url URL --switch-a COMMAND --switch-b COMMAND",
        )
    try:
        extra = json.loads(options["extra"])
    except ValueError as why:
        raise UsageError(f"--extra is no JSON ({why})", hint="--extra '{\"ignore_eos\": true}'") from why
    if not isinstance(extra, dict):
        raise UsageError("--extra is no JSON object", hint="--extra '{\"ignore_eos\": true}'")
    key = os.environ.get("OPENAI_API_KEY")
    more = {
        "model": options["model"], "max_tokens": options["max_tokens"], "extra": extra,
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
    }  # fmt: skip
    first = target(two[0] or one[0], **more)
    return {"A": first, "B": target(two[1], **more) if two[1] else first}


def _load(options: dict[str, Any]) -> Load:
    from moexray.verify.ab.served import Load
    from moexray.verify.load import made_prompts

    file = options["prompts"]
    prompts = _read_prompts(file) if file else made_prompts(20_000, 48, options["seed"])
    keys = ("rate", "turn_s", "settle_s", "figure", "seed")
    return Load(prompts, **{k: options[k] for k in keys})


def _read_prompts(file: Path) -> list[str]:
    try:
        with file.open("rb") as stream:
            lines = [x for x in stream.read(MOST_BYTES).decode("utf-8").splitlines() if x.strip()]
        if lines and lines[0].startswith("{"):
            lines = [str(json.loads(x)["prompt"]) for x in lines]
    except (OSError, ValueError, KeyError, TypeError) as why:
        raise UsageError(f"the prompts cannot be read ({why})", where=str(file),
                         hint='a prompt a line, or JSON lines with "prompt"') from why  # fmt: skip
    if not lines:
        raise UsageError("the file of prompts is empty", where=str(file), hint="a prompt a line")
    return lines


def _call(text: str) -> None:
    """Runs a command of the user.

    Raises:
        UsageError: it cannot be run, fails, or does not return.
    """
    try:
        done = subprocess.run(  # noqa: S603 (the user's own command, without a shell)
            shlex.split(text), capture_output=True, timeout=PATIENCE_S, check=False
        )
    except (OSError, ValueError) as why:
        raise UsageError(f"the command cannot be run ({why})", where=text, hint="no shell is used; sh -c "
                         "'...' is one") from why  # fmt: skip
    except subprocess.TimeoutExpired as why:
        what = f"the command did not return within {PATIENCE_S} s"
        raise UsageError(what, where=text, hint="let it return when the setting is in force") from why
    if done.returncode:
        told = done.stderr.decode("utf-8", "replace").strip()[-300:]
        raise UsageError(f"the command failed (exit {done.returncode}): {told}", where=text,
                         hint="run it by hand")  # fmt: skip


def _progress(plan: Plan, load: Load) -> Callable[[Turn], None]:
    """Says what will be done, then each turn on one line where somebody watches."""
    controls = plan.quads // plan.control_every if plan.control_every else 0
    longest = human(4 * (plan.quads + controls) * load.turn_s, "s")
    say(f"{plan.quads} quads and {controls} of A against A: about {longest}, and what answers take", err=True)
    shown = sys.stderr.isatty()

    def watch(turn: Turn) -> None:
        if shown:
            values, place = sorted(turn.value_s), turn.place
            typical = human(float(values[len(values) // 2]), "s") if values else "no answer"
            of = "A of A/A" if place.control else place.arm
            click.echo(f"\r\x1b[Kquad {place.quad + 1}, {of}: {load.figure} {typical}", nl=False, err=True)

    return watch
