"""`moexray check`: a budget as a gate for CI."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from moexray.core.json_text import json_text
from moexray.faces.cli.refuse import refusing
from moexray.faces.cli.say import say

__all__ = ["command"]


@click.command("check")
@click.argument("path", type=click.Path())
@click.option("--budget", "budget_file", required=True, type=click.Path(dir_okay=False, path_type=Path),
              help="TOML with [fragmentation], [skew] and [p99]; see docs/ab.md.")
@click.option("--baseline", type=click.Path(),
              help="Results that max_..._growth and max_..._loss compare with.")
@click.option("--strict", is_flag=True, help="An undecided line fails, too.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(path: str, budget_file: Path, baseline: str | None, strict: bool, form: str) -> None:
    """Fail where PATH breaks a budget of fragmentation, skew or P99.

    PATH and --baseline are files or folders, as of `moexray compare`. A line is undecided where the
    figure is beyond its limit, but not its whole interval.

    Exit code: 0 the budget holds, 1 it is broken, 2 bad usage, or figures that the budget asks for are
    missing.
    """
    from moexray.faces.cli.compare import read_side
    from moexray.verify.budget import check, load_budget

    with refusing():
        budget = load_budget(budget_file)
        document = check(budget, read_side(path), read_side(baseline) if baseline else None).to_json()
    document["passed"] = document["passed"] and not (strict and document["undecided"])
    if form == "json":
        say(json_text(document))
    else:
        from moexray.faces.cli.ab_text import check_text

        say(check_text(document))
    sys.exit(0 if document["passed"] else 1)
