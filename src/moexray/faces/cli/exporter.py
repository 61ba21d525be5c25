"""`moexray exporter`: metrics of running engines or of a recording, for Prometheus."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moexray.core.errors import UsageError
from moexray.faces.cli.refuse import refusing
from moexray.faces.cli.say import say
from moexray.faces.numbers import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moexray.live.alerts import AlertState
    from moexray.live.exporter import Source
    from moexray.live.page import Page
    from moexray.live.spans import StepSpans

__all__ = ["LISTEN", "command", "read_token", "serving", "stopping"]

LOOK_S = 0.2  # between two looks whether to end
SWITCH_S = 0.001  # a scrape gets its turn from the reading of rings; 5 ms is Python's own
LISTEN = "127.0.0.1:9464"  # the port that OpenTelemetry's Prometheus exporters use


def serving(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options of every command that serves a page of metrics."""
    options = (
        click.option("--token-file", type=click.Path(dir_okay=False, path_type=Path),
                     help="File with the bearer token; needed to listen beyond loopback."),
        click.option("--model", default="", help="Label model of all metrics."),
        click.option("--engine", default="", help="Label engine of all metrics."),
    )  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


@click.command("exporter")
@click.argument("folder", required=False, metavar="[DIR]", type=click.Path(path_type=Path))
@click.option("--attach", is_flag=True, help="Read the rings of running engines (the default without DIR).")
@click.option("--rings", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
              help="Where the rings are; else MOEXRAY_RINGS, else this user's folder in /dev/shm.")
@click.option("--listen", default=LISTEN, show_default=True, metavar="HOST:PORT", help="Where /metrics is.")
@click.option("--every", "every_s", type=click.FloatRange(0.05), default=5.0, show_default=True,
              help="Seconds between two looks at DIR.")
@click.option("--ep", "ep_size", type=click.IntRange(1, 65536), default=1,
              help="Expert-parallel size of attached engines, for moex_expert_balancedness_ratio.")
@click.option("--experts", "top", default="4", show_default=True, metavar="N|all",
              help="Busiest experts of a layer that are shown.")
@click.option("--ceiling", type=click.IntRange(1), default=2000, show_default=True,
              help="Most series of the page; more are refused and counted.")
@click.option("--remote-write", metavar="URL", help="Send the page there, too (token: MOEXRAY_REMOTE_TOKEN).")
@click.option("--remote-every", type=click.FloatRange(0.05), default=10.0, show_default=True,
              help="Seconds between two samples sent.")
@click.option("--otlp", metavar="URL", help="Send traces of kept steps there by OTLP: http://HOST:4318, or grpc://HOST:4317.")
@click.option("--slo", "slo_s", type=click.FloatRange(0), default=0.0, metavar="SECONDS",
              help="Keep steps above it; beside those above the rolling P99, and failed ones.")
@click.option("--keep-ratio", type=click.FloatRange(0, 1), default=0.0, show_default=True,
              help="Share of all steps that is kept in any case.")
@click.option("--alertmanager", metavar="URL", help="Keep every step while an alert of moexray fires there.")
@click.option("--rules", "rules_file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="YAML rules that set attributes of spans (docs/live.md).")
@click.option("--service", default="moexray", show_default=True, help="service.name of the spans.")
@serving
def command(
    folder: Path | None, listen: str, top: str, ceiling: int, remote_write: str | None, remote_every: float,
    token_file: Path | None, **more: Any,
) -> None:  # fmt: skip
    """Serve metrics to Prometheus until stopped: of running engines, or of DIR.

    Engines are those that moexray is attached to on this machine. DIR is the folder of a recording, also
    one that is still written; its spikes are diagnosed and counted as moexray watch does.
    docs/metrics.md lists the metrics; moexray export prometheus writes a configuration and rules for them.
    """
    from moexray.live.exporter import Exporter
    from moexray.live.page import Page
    from moexray.live.remote_write import RemoteWrite, Settings

    logging.basicConfig(format="%(levelname)s: %(message)s")
    sys.setswitchinterval(SWITCH_S)
    with refusing():
        page = Page(ceiling)
        remote = None
        if remote_write:
            token = os.environ.get("MOEXRAY_REMOTE_TOKEN", "")
            labels = (("job", "moexray"), ("instance", f"{platform.node()}:{os.getpid()}"))
            settings = Settings(remote_write, interval_s=remote_every, token=token, labels=labels)
            remote = RemoteWrite(page, settings)
        ends: list[Callable[[], None]] = []
        sources = list(_sources(page, folder, _count(top), more, ends))
        wait = stopping()
        exporter = Exporter(page, sources, listen=listen, token=read_token(token_file), remote=remote)
        exporter.start()
    where = exporter.server.url if exporter.server else ""
    say(f"serving {counted(page.series, 'series', 'series')} at {where}/metrics; Ctrl-C ends it", err=True)
    if not folder and page.series == page.own_series:
        say("no running engine has a ring yet; those that come are found (docs/live.md)", err=True)
    wait()
    exporter.close()
    for end in ends:
        end()


def _sources(
    page: Page, folder: Path | None, top: int, more: dict[str, Any], ends: list[Callable[[], None]]
) -> Iterator[Source]:
    """What the options ask for; `ends` gets what is to be called at the end."""
    from moexray.live.alerts import AlertState
    from moexray.live.drain import Drain
    from moexray.live.engines import Engines
    from moexray.live.folder import Folder, Names
    from moexray.live.watch import Watch

    names = Names(more["model"], more["engine"], top)
    if folder:
        yield Watch(Folder(page, folder, names), more["every_s"])
    if more["attach"] or more["rings"] or not folder:
        alerts = AlertState(more["alertmanager"]) if more["alertmanager"] else None
        if alerts:
            yield alerts
        trace = _spans(page, more, alerts, ends) if more["otlp"] else None
        yield Engines(page, Drain(more["rings"]), names, ep_size=more["ep_size"], trace=trace)
    elif more["otlp"]:
        raise UsageError("--otlp sends steps of running engines", hint="leave DIR out, or add --attach")


def _spans(
    page: Page, more: dict[str, Any], alerts: AlertState | None, ends: list[Callable[[], None]]
) -> StepSpans:
    from moexray.live.enrich import read_rules
    from moexray.live.otlp import provider
    from moexray.live.sampling import Decider, Keep
    from moexray.live.spans import StepSpans

    enrich = read_rules(more["rules_file"]) if more["rules_file"] else None
    made = provider(more["otlp"], page, more["service"])
    ends.append(made.shutdown)
    decide = Decider(Keep(ratio=more["keep_ratio"], slo_s=more["slo_s"]), alerts)
    return StepSpans(made.get_tracer("moexray"), page, decide, enrich=enrich)


def _count(top: str) -> int:
    if top != "all" and not (top.isdigit() and int(top)):
        raise UsageError(f"--experts {top}: a number from 1, or all")
    return 0 if top == "all" else int(top)


def read_token(file: Path | None) -> str:
    """The token of a file, white space around it left out; empty without a file.

    Raises:
        UsageError: the file cannot be read, or holds none.
    """
    if file is None:
        return ""
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as why:
        raise UsageError(f"{file} cannot be read", hint="a text file with the token in it") from why
    if not token:
        raise UsageError(f"{file} holds no token", hint="write a long random word into it")
    return token


def stopping() -> Callable[[], None]:
    """From now on SIGTERM only says that the command shall end: it ends in order also while it starts.

    Returns:
        Waits for that, or for Ctrl-C.
    """
    import signal

    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: told.append(number))

    def wait() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            while not told:
                time.sleep(LOOK_S)

    return wait
