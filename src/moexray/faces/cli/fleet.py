"""`diagnose --executor`: units in a pool of processes or on Ray, with progress, failures and resumption."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moexray.core.errors import UsageError
from moexray.diagnose.fleet import Summary, Unit, conclude, summarise, units
from moexray.faces.cli.say import say
from moexray.readers.remote import find, is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from moexray.core.limits import Limits
    from moexray.diagnose.engine import Diagnosis

__all__ = ["diagnose_fleet", "on_processes", "on_ray"]

Outcome = tuple[Unit, Summary | str]  # a text says why a unit failed
TRIES = 2  # of a unit whose process was killed
AHEAD = 2  # units handed to a worker before it asks


def diagnose_fleet(
    paths: Sequence[str], limits: Limits | None, *, executor: str, workers: int | None, work: Path | None,
    secrets: bool, quiet: bool,
) -> Diagnosis:  # fmt: skip
    """Summarises every rank below the paths, wherever the executor runs, and concludes here.

    Args:
        paths: Folders, files or URLs with one set of artefacts a rank.
        limits: Thresholds.
        executor: "processes" or "ray".
        workers: How many at a time; as many as there are cores where None.
        work: Folder of the summaries; one below the user's cache where None.
        secrets: Quote without redaction.
        quiet: No progress.

    Raises:
        UsageError: nothing to read, or no Ray.
    """
    folder = work or _cache(paths)
    files, left_out = _files(paths)
    ours = folder.resolve()  # below the folder that is read, summaries would be summarised in their turn
    found = units((n, f) for n, f in files if is_url(f) or not Path(f).resolve().is_relative_to(ours))
    if not found:
        hint = "give the folder of the traces"
        raise UsageError("there is no file to read", where=", ".join(paths), hint=hint)
    folder.mkdir(parents=True, exist_ok=True)
    run = on_ray if executor == "ray" else on_processes
    done: list[Summary] = []
    failed = [(Unit(name, None, ()), why) for name, why in left_out]
    with _progress(len(found), quiet=quiet) as tell:
        for unit, outcome in run(found, str(folder), limits, workers or os.cpu_count() or 1, secrets=secrets):
            if isinstance(outcome, str):
                failed.append((unit, outcome))
            else:
                done.append(outcome)
            tell(outcome)
    if not quiet:
        again = sum(s.again for s in done)
        known = f", {again:,} of them known from before" if again else ""
        say(f"summarised {len(done):,} of {len(found):,} ranks{known}; kept in {folder}", err=True)
    return conclude(done, failed, limits, secrets=secrets)


def on_processes(
    found: Sequence[Unit], folder: str, limits: Limits | None, workers: int, *, secrets: bool = False
) -> Iterator[Outcome]:
    """Yields the outcome of every unit as it comes; a killed process costs its unit one try, no more."""
    tries = dict.fromkeys(found, 0)
    todo = list(reversed(found))
    while todo:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            running: dict[Any, Unit] = {}
            try:
                while todo or running:
                    while todo and len(running) < AHEAD * workers:
                        running[_submitted(pool, todo[-1], folder, limits, secrets)] = todo[-1]
                        todo.pop()  # not before: a pool that breaks here refuses it
                    ready, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in ready:
                        outcome = future.result()
                        yield running.pop(future), outcome
            except BrokenProcessPool:
                _end(pool)
                # Nobody knows whose process it was: those that ran go on alone, one after the other.
                for unit in running.values():
                    tries[unit] += 1
                yield from _alone(list(running.values()), folder, limits, tries, secrets=secrets)


def _submitted(pool: ProcessPoolExecutor, *of: Any) -> Future[Summary | str]:
    """A unit handed over; a pool that breaks while it starts the process for it says so as ever."""
    try:
        return pool.submit(_guarded, *of)
    except OSError as why:  # a pipe that the breaking pool has closed
        if getattr(pool, "_broken", False):
            raise BrokenProcessPool(str(why)) from why
        raise


def _end(pool: ProcessPoolExecutor) -> None:
    """Ends what is left of a broken pool: a process that just started while it broke would be waited for."""
    for process in list((getattr(pool, "_processes", None) or {}).values()):
        process.kill()


def _alone(
    found: Sequence[Unit], folder: str, limits: Limits | None, tries: dict[Unit, int], *, secrets: bool
) -> Iterator[Outcome]:
    """Each unit in a process of its own, so that the one that kills it is known."""
    for unit in found:
        outcome: Summary | str = "its process was killed (out of memory?) twice"
        while tries[unit] < TRIES + 1:
            tries[unit] += 1
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                try:
                    outcome = _submitted(pool, unit, folder, limits, secrets).result()
                except BrokenProcessPool:
                    _end(pool)
                    continue
                break
        yield unit, outcome


def on_ray(
    found: Sequence[Unit], folder: str, limits: Limits | None, workers: int, *, secrets: bool = False
) -> Iterator[Outcome]:
    """The same on Ray: the cluster of RAY_ADDRESS, else a local one with `workers` cores.

    The folder and the files must be visible under the same paths on every node.

    Raises:
        UsageError: Ray is not installed.
    """
    try:
        import ray
    except ImportError as why:
        hint = "pip install 'moexray[ray]', or --executor processes"
        raise UsageError("Ray is not installed", hint=hint) from why
    if not ray.is_initialized():
        joined = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": workers}
        ray.init(logging_level="error", log_to_driver=False, include_dashboard=False, **joined)
    remote = ray.remote(max_retries=TRIES)(_guarded)
    todo = list(reversed(found))
    running: dict[Any, Unit] = {}
    while todo or running:
        while todo and len(running) < AHEAD * workers:
            unit = todo.pop()
            running[remote.remote(unit, folder, limits, secrets)] = unit
        ready, _ = ray.wait(list(running))
        for reference in ready:
            unit = running.pop(reference)
            try:
                outcome = ray.get(reference)
            except ray.exceptions.RayError as why:
                outcome = f"its process was lost ({type(why).__name__})"
            yield unit, outcome


def _guarded(unit: Unit, folder: str, limits: Limits | None, secrets: bool) -> Summary | str:
    """In the worker: what one unit raises is its own failure, not that of the fleet."""
    try:
        return summarise(unit, folder, limits, secrets=secrets)
    except Exception as why:  # noqa: BLE001  # the edge of a worker
        return f"{type(why).__name__}: {why}"


def _files(paths: Sequence[str]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Files as (name, path or URL), and what cannot be opened as (name, why)."""
    from moexray.core.file_name import printable
    from moexray.core.source import walk

    out: list[tuple[str, str]] = []
    left_out: list[tuple[str, str]] = []
    for given in paths:
        top = "" if len(paths) == 1 else f"{given.rstrip('/')}/"
        if is_url(given):
            out += [(top + name, url) for name, url in find(given)]
            continue
        path = Path(given)
        files, bad = walk(path)
        out += [(printable(top + name if path.is_dir() else given), str(file)) for name, file in files]
        left_out += [(printable(top + name if name else given), why) for name, why in bad]
    return out, left_out


def _cache(paths: Sequence[str]) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "moexray" / "fleet"
    whole = "\0".join(p if is_url(p) else str(Path(p).resolve()) for p in paths)
    return base / hashlib.sha256(os.fsencode(whole)).hexdigest()[:16]


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Callable[[Summary | str], None]]:
    """A line on a terminal: how many of how many, and the time left at the pace so far."""
    shown = not quiet and sys.stderr.isatty()
    begin, count, made = time.monotonic(), 0, 0

    def tell(outcome: Summary | str) -> None:
        nonlocal count, made
        count += 1
        made += not (isinstance(outcome, Summary) and outcome.again)
        if shown:
            left = (time.monotonic() - begin) / max(1, made) * (total - count)
            click.echo(f"\r\x1b[K{count:,} of {total:,} ranks, about {left:.0f} s left", nl=False, err=True)

    try:
        yield tell
    finally:
        if shown:
            click.echo("\r\x1b[K", nl=False, err=True)
