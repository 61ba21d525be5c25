"""`moexray record`: allocations, routing, times, gauges and metrics of a running engine, as one folder."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moexray.core.errors import UsageError
from moexray.faces.cli.refuse import refusing
from moexray.faces.cli.say import say
from moexray.faces.cli.size_option import SizeOption
from moexray.faces.numbers import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from moexray.live.record import Recorder

__all__ = ["command"]


@click.command("record", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[-- CMD...]")
@click.option("-o", "--output", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="A new folder for the recording; else moexray-TIME here.")
@click.option("--url", default="", metavar="URL", help="Server whose /metrics is read, every 5 s.")
@click.option("--attach", is_flag=True, help="Without CMD: read the rings of engines that already record.")
@click.option("--seconds", type=click.FloatRange(1), metavar="N",
              help="Without CMD: how long; else until Ctrl-C.")
@click.option("--max-bytes", type=SizeOption(), default="256MiB", show_default=True,
              help="Most that the folder takes; then the oldest goes.")
@refusing()
def command(
    program: tuple[str, ...], output: Path | None, url: str, attach: bool, seconds: float | None,
    max_bytes: int,
) -> None:  # fmt: skip
    """Record a program while it runs, or a server from outside, for `moexray diagnose`.

    \b
    moexray record -o DIR -- python serve.py       routing, step times and allocations of its models
    moexray record --url http://host:8000 --seconds 60        /metrics only
    moexray record --attach --url http://host:8000            engines that record already, and /metrics

    CMD runs as it would without us, with variables added to its environment: its Python processes record
    the models of transformers and vLLM that they load. Its exit status is ours. Kill us, and it goes on.
    """  # noqa: D301 - click's mark
    if not program and not url and not attach:
        raise UsageError("there is nothing to record", hint="give -- CMD, or --url URL, or --attach")
    if program and (attach or seconds):
        raise UsageError("--attach and --seconds go without CMD", hint="leave them out, or leave CMD out")
    if url and not url.startswith(("http://", "https://")):
        raise UsageError(f"{url!r} is no http:// or https:// address")
    from moexray.live.bundle import Bundle
    from moexray.live.record import Recorder, Wanted
    from moexray.runtime.ring_file import recording_folder, ring_folder

    if program and shutil.which(program[0]) is None:
        raise UsageError(f"there is no program {program[0]!r}", hint="check the name and PATH")
    folder = output or Path(f"moexray-{datetime.now().astimezone():%Y%m%d-%H%M%S}")
    bundle = Bundle(folder, max_bytes)
    rings = None
    if program:
        rings = recording_folder(ring_folder(make=True))
    elif attach:
        rings = ring_folder(make=True)
    recorder = Recorder(bundle, Wanted(rings, url, program))
    say(f"recording into {folder}", err=True)
    try:
        code, ended = _run(program, rings, recorder, folder) if program else _watch(recorder, seconds)
    finally:
        if program and rings is not None:
            shutil.rmtree(rings, ignore_errors=True)
    _tell(recorder, folder, recorder.close(ended))
    if program:
        sys.exit(code)
    sys.exit(0 if recorder.found else 2)


def _run(program: tuple[str, ...], rings: Path | None, recorder: Recorder, folder: Path) -> tuple[int, str]:
    """Runs CMD to its end; (exit status, how it ended)."""
    from moexray.runtime.inject import environment

    env = environment(os.environ, rings=rings or folder, bundle=folder.resolve())
    _launch_line(folder, program)
    process = subprocess.Popen(program, env=env)  # noqa: S603 - the user's own command
    with _passing(process):
        while process.poll() is None:
            recorder.tick()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_tick())
    recorder.tick()
    code = process.returncode
    return (code, f"exit {code}") if code >= 0 else (128 - code, f"killed by {signal.Signals(-code).name}")


def _watch(recorder: Recorder, seconds: float | None) -> tuple[int, str]:
    """Looks on for a time, or until it is told to stop."""
    end = time.monotonic() + (seconds or float("inf"))
    stopped: list[int] = []
    with _handling(lambda number, _frame: stopped.append(number)):
        while not stopped and time.monotonic() < end:
            recorder.tick()
            time.sleep(min(_tick(), max(end - time.monotonic(), 0)))
    return 0, "stopped" if stopped else "time is up"


def _tick() -> float:
    from moexray.live.record import TICK_S

    return TICK_S


def _launch_line(folder: Path, program: tuple[str, ...]) -> None:
    """The command as the engine's log would show it: rules read flags from it."""
    from moexray.core.redact import redact

    with contextlib.suppress(OSError):
        (folder / "logs").mkdir(exist_ok=True)
        (folder / "logs" / "launch.txt").write_text(redact(shlex.join(program)) + "\n", "utf-8")


@contextlib.contextmanager
def _passing(process: subprocess.Popen[bytes]) -> Any:
    """Ctrl-C reaches CMD by the terminal; what is sent to us alone is passed on."""

    def handle(number: int, _frame: Any) -> None:
        if number != signal.SIGINT or sys.stdin is None or not sys.stdin.isatty():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    with _handling(handle):
        yield


@contextlib.contextmanager
def _handling(handle: Callable[[int, Any], object]) -> Any:
    before = {n: signal.signal(n, handle) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _tell(recorder: Recorder, folder: Path, facts: dict[str, Any]) -> None:
    models = [e for e in facts["engines"] if e["role"] == "model"]
    names = ", ".join(sorted({f"{e['model']} ({e['engine']} {e['version']})" for e in models}))
    say(
        f"{folder}: {counted(facts['steps'], 'step')} of {names or 'no model'}, "
        f"{counted(facts['scrapes'], 'scrape')}, {facts['seconds']:.0f} s, {facts['ended']}",
        err=True,
    )
    lost = {k: v for k, v in facts["missed"].items() if v}
    lost |= {f"bytes of {k}": v for k, v in (recorder.bundle.lost + recorder.bundle.dropped).items()}
    if lost:
        say("  not in it: " + ", ".join(f"{v:,} {k}" for k, v in lost.items()), err=True)
    if recorder.bundle.error:
        say(f"  the disk did not take everything: {recorder.bundle.error}", err=True)
    if facts["command"] and not models:
        say("  no MoE model of a known engine was loaded in a Python that takes part", err=True)
        say("  try:   docs/attach.md says what takes part and why not", err=True)
    say(f"  next: moexray diagnose {shlex.quote(str(folder))}", err=True)
