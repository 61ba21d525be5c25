"""`moexray logs`: lines of a log to OTLP or Loki."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from moexray.core.errors import UsageError
from moexray.faces.cli.refuse import check_paths, refusing
from moexray.faces.cli.say import say
from moexray.faces.numbers import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["command"]

LONGEST = 1 << 20  # characters of a line; a longer one is taken in parts, so that memory stays bounded


@click.command("logs")
@click.argument("file", metavar="FILE | -")
@click.option("--otlp", metavar="URL", help="Send there by OTLP: http://HOST:4318, or grpc://HOST:4317.")
@click.option("--loki", metavar="URL", help="Push there instead.")
@click.option("--pick", "picks", multiple=True, metavar="NAME=PATH",
              help="Attribute from a JSONPath, e.g. request=$.request.id; may be given again.")
@click.option("--prompts", is_flag=True, help="Send what users typed and were told; else only its length.")
@click.option("--service", default="moexray", show_default=True, help="service.name of the records.")
@click.option("--tee", is_flag=True, help="Print each line as it came, too.")
def command(file: str, otlp: str | None, loki: str | None, picks: tuple[str, ...], service: str,
            **flags: bool) -> None:  # fmt: skip
    """Send the lines of FILE, or of standard input as they come, in OpenTelemetry's log model.

    JSON lines keep their shape; secrets are redacted, prompts replaced by their length. A pipe:
    python serve.py 2>&1 | moexray logs - --tee --otlp http://127.0.0.1:4318. Token: MOEXRAY_LOGS_TOKEN.
    """
    from moexray.live.logs import Logs
    from moexray.live.otlp import Outbox
    from moexray.live.page import Page

    with refusing():
        check_paths([file])
        make = Logs(_picks(picks), prompts=flags["prompts"])
        page = Page()
        box = Outbox(_send(otlp, loki, service), page, "logs")
        total, tee = 0, _Tee(on=flags["tee"])
        is_pipe = file == "-"
        with click.open_file(file, encoding="utf-8", errors="replace") as lines, _patient(on=is_pipe):
            for line in iter(partial(lines.readline, LONGEST), ""):
                total += 1
                tee(line)
                box.put(make(line), wait_s=0.0 if is_pipe else 30.0)  # a pipe must not stop its program
        box.close(60.0)
    if tee.lost:
        say(f"  {counted(tee.lost, 'line')} could not be printed", err=True)
    say(f"sent {counted(box.sent, 'line')} of {total:,}", err=True)
    if box.sent < total:
        say("  the others were refused or nobody answered: check the address", err=True)
        sys.exit(1)


class _Tee:
    """Prints lines as long as it can: a full disk or a reader that is gone must not end the program."""

    def __init__(self, *, on: bool) -> None:
        self.on, self.lost = on, 0

    def __call__(self, line: str) -> None:
        if self.lost:
            self.lost += 1
        elif self.on:
            try:
                click.echo(line, nl=False)
            except OSError as why:
                self.lost = 1
                say(f"lines are not printed any more ({why.strerror}), but sent", err=True)
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered goes there


@contextmanager
def _patient(*, on: bool) -> Iterator[None]:
    """Ctrl-C reaches the program before the pipe, too: its last lines are read to the end; twice ends us."""
    before: Any = None

    def first(*_: object) -> None:
        signal.signal(signal.SIGINT, before)

    if on:
        before = signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        if on:
            signal.signal(signal.SIGINT, before)


def _picks(picks: tuple[str, ...]) -> dict[str, str]:
    pairs = [pick.partition("=") for pick in picks]
    if wrong := next((name for name, equals, path in pairs if not (name and equals and path)), None):
        raise UsageError(f"--pick {wrong} is no NAME=PATH", hint="e.g. --pick request=$.request.id")
    return {name: path for name, _, path in pairs}


def _send(otlp: str | None, loki: str | None, service: str) -> Callable[[list[Any]], bool]:
    from moexray.live.logs import loki_sender, otlp_sender

    token = os.environ.get("MOEXRAY_LOGS_TOKEN", "")
    if bool(otlp) == bool(loki):
        raise UsageError("one place to send to is needed", hint="--otlp URL or --loki URL")
    return otlp_sender(otlp, service, token) if otlp else loki_sender(loki or "", service, token)
