"""`moexray`: the group of commands, loaded lazily."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from moexray import __version__
from moexray.faces.cli.say import say

__all__ = ["COMMANDS", "main", "run"]

# name, module (its function `command` is the click command), one line of help
COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("diagnose", "moexray.faces.cli.diagnose", "Say what broke, from whatever artefacts there are."),
    ("explain", "moexray.faces.cli.explain", "What a verdict means and how it is decided."),
    ("inspect", "moexray.faces.cli.inspect", "What was read into which tables."),
    ("memory", "moexray.faces.cli.memory", "Figures of an allocator snapshot, per device and pool."),
    ("timeline", "moexray.faces.cli.timeline", "Where the time of a device went; who came last."),
    ("routing", "moexray.faces.cli.routing", "Load of experts and ranks, its drift, layer by layer."),
    ("plan", "moexray.faces.cli.plan", "Where experts should lie, from recorded traffic."),
    ("whatif", "moexray.faces.cli.whatif", "Try other settings on your own history."),
    ("compare", "moexray.faces.cli.compare", "What changed between two sets of results."),
    ("check", "moexray.faces.cli.check", "Fail where a budget is broken (for CI)."),
    ("ab", "moexray.faces.cli.ab", "Compare two settings of a live server; roll back the worse."),
    ("precision", "moexray.faces.cli.ab_precision", "What FP8, FP16 or BF16 weights do to a model."),
    ("lab", "moexray.faces.cli.lab", "Make incidents on purpose."),
    ("record", "moexray.faces.cli.record", "Record a running engine into a folder for diagnose."),
    ("exporter", "moexray.faces.cli.exporter", "Serve metrics to Prometheus, live or of a recording."),
    ("watch", "moexray.faces.cli.watch", "Diagnose a recording while it grows."),
    ("serve", "moexray.faces.cli.serve", "Show a recording or running engines live in a browser."),
    ("top", "moexray.faces.cli.top", "The same in a terminal, for a server over SSH."),
    ("hook", "moexray.faces.cli.hook", "Diagnose by itself when an alert fires."),
    ("logs", "moexray.faces.cli.logs", "Send the lines of a log to OpenTelemetry or Loki."),
    ("export", "moexray.faces.cli.export", "Write what was read and found for other tools."),
    ("completion", "moexray.faces.cli.completion", "Print the shell completion script."),
)


class _Lazy(click.Group):
    """Imports a sub-command when it is called; lists them without importing any."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, _, _ in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for name, module, _ in COMMANDS:
            if name == cmd_name:
                found: click.Command = importlib.import_module(module).command
                return found
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, _, text in COMMANDS])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="moexray")
def main(**_: Any) -> None:
    """An X-ray for Mixture-of-Experts inference.

    Give `moexray diagnose` the logs, nvidia-smi screens, metrics, snapshots and traces you have.
    """


def run() -> None:
    """The program: what is left over is told without a traceback and exits 2, never 1."""
    try:
        main(prog_name="moexray")
    except Exception as why:  # the edge; MOEXRAY_TRACEBACK=1 shows where
        if os.environ.get("MOEXRAY_TRACEBACK"):
            raise
        if isinstance(why, OSError):  # without a name it is the standard output
            say(f"error: {why.filename or 'the output'}: {why.strerror}", err=True)
            say("  try:   check the path, the rights on it and the space left", err=True)
            sys.exit(2)
        say(f"error: moexray failed ({type(why).__name__}: {why})", err=True)
        say("  try:   MOEXRAY_TRACEBACK=1 shows where; please report it with that", err=True)
        sys.exit(2)
