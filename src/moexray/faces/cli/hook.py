"""`moexray hook`: an alert starts a diagnosis, and its report comes back."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moexray.core.errors import UsageError
from moexray.faces.cli.exporter import read_token, stopping
from moexray.faces.cli.refuse import refusing
from moexray.faces.cli.say import say

if TYPE_CHECKING:
    from moexray.live.runs import Runner

__all__ = ["command"]

LISTEN = "127.0.0.1:9465"


@click.command("hook")
@click.argument("bundles", required=False, metavar="[DIR]", type=click.Path(path_type=Path))
@click.option("--state", required=True, type=click.Path(file_okay=False, path_type=Path),
              help="Folder of the queue and the reports; made if need be.")
@click.option("--listen", default=LISTEN, show_default=True, metavar="HOST:PORT", help="Where alerts come.")
@click.option("--token-file", type=click.Path(dir_okay=False, path_type=Path),
              help="File with the bearer token; needed to listen beyond loopback.")
@click.option("--concurrency", type=click.IntRange(1, 16), default=1, show_default=True,
              help="Runs at a time.")
@click.option("--cooldown", "cooldown_s", type=click.FloatRange(0), default=300.0, show_default=True,
              help="Seconds in which the same alert is not run again.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(1), default=600.0, show_default=True,
              help="Seconds that a diagnosis may take.")
@click.option("--argo", metavar="URL", help="Post a workflow there instead (token: MOEXRAY_ARGO_TOKEN).")
@click.option("--namespace", default="default", show_default=True, help="Of the workflow.")
@click.option("--template", default="moexray-diagnose", show_default=True, help="Its WorkflowTemplate.")
@click.option("--grafana", metavar="URL", help="Post an annotation there (token: MOEXRAY_GRAFANA_TOKEN).")
@click.option("--public-url", metavar="URL", help="Address of this hook for readers; else where it listens.")
def command(
    bundles: Path | None, state: Path, listen: str, token_file: Path | None, grafana: str | None,
    public_url: str | None, **more: Any,
) -> None:  # fmt: skip
    """Wait for Alertmanager's webhooks; diagnose the newest recording in DIR for each new alert.

    Alerts come to POST /alerts (moexray export alertmanager writes the route), reports are at
    /reports. An alert that is sent again is not run again; its job is on disk before it is answered.
    """
    from moexray.live.hook import Hook, Options
    from moexray.live.jobs import Jobs
    from moexray.live.page import Page
    from moexray.live.runs import Grafana

    logging.basicConfig(format="%(message)s", level=logging.INFO)
    with refusing():
        runner = _runner(bundles, more)
        options = Options(more["concurrency"], more["cooldown_s"])
        told = _web(grafana) if grafana else ""
        hook = Hook(Jobs(state), runner, Page(), listen=listen, token=read_token(token_file), options=options)
        if told:
            reports = f"{public_url or hook.server.url}/reports"
            token = os.environ.get("MOEXRAY_GRAFANA_TOKEN", "")
            hook.publish = Grafana(told, token, reports)
        wait = stopping()
        hook.start()
    say(f"waiting for alerts at {hook.server.url}/alerts; reports at {hook.server.url}/reports", err=True)
    wait()
    hook.close()


def _runner(bundles: Path | None, more: dict[str, Any]) -> Runner:
    from moexray.live.runs import NAME, Argo, Local

    if more["argo"]:
        for option in ("namespace", "template"):
            if not NAME.fullmatch(more[option]):
                raise UsageError(f"--{option} {more[option]} is no name of Kubernetes",
                                 hint="lower-case letters, digits and -")  # fmt: skip
        token = os.environ.get("MOEXRAY_ARGO_TOKEN", "")
        return Argo(_web(more["argo"]), more["namespace"], more["template"], token)
    if bundles is None:
        raise UsageError("nothing to diagnose", hint="give the folder of recordings, or --argo URL")
    return Local(bundles, more["timeout_s"])


def _web(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url} is no address to send to", hint="http:// or https://")
    return url.rstrip("/")
