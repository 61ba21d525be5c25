"""What happened when, by the log: rearrangements, compilations, snapshot writes, as intervals.

Glossary: an *episode* is one happening on the clock of its file, from `start_s` to `end_s` (equal if
the log gives one moment). Lines that several workers write of one happening are one episode.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moexray.core.run import Row, Run

__all__ = ["Episode", "clock_of", "compilations", "is_relative", "rearrangements", "snapshots", "starts"]

SAME_S = 1.0  # s; lines of several workers within it are one happening (whole-second stamps)
YEARLESS_S = 366 * 86_400.0  # a stamp below counts from 1970 because its year is not known
RELATIVE_S = 30 * 86_400.0  # a time below is no date: seconds since a start


@dataclass(frozen=True, slots=True)
class Episode:
    """One happening.

    Args:
        kind: "rearrangement", "compilation", "snapshot", "collection", "start-up".
        source: File.
        start_s, end_s: On the clock of the file.
        row: The line that tells it best.
        seconds: Its duration as the log states it; None if it does not.
        serving: False if the file says that the engine was starting; None if it cannot tell.
        clock: Number of clock jumps before it.
        rows: All its lines.
    """

    kind: str
    source: str
    start_s: float
    end_s: float
    row: Row
    seconds: float | None = None
    serving: bool | None = None
    clock: int = 0
    rows: tuple[Row, ...] = field(default=(), repr=False)


def clock_of(rows: Iterable[Row]) -> str:
    """What the times of a file's log count from: "epoch", "year" (a date without a year), "relative"."""
    times = [r["t_s"] for r in rows if r["t_s"] is not None]
    return _clock(times)


def _clock(times: Sequence[float]) -> str:
    if not times:
        return "none"
    if max(times) > YEARLESS_S:
        return "epoch"
    return "year" if max(times) > RELATIVE_S else "relative"


def is_relative(times: Sequence[float]) -> bool:
    """Whether times are seconds since a start, not dates."""
    return _clock(times) == "relative"


def rearrangements(run: Run, *, serving: bool = True) -> list[Episode]:
    """Rearrangements of experts: a begin line with its end line, or an end line with its duration.

    Args:
        run: What was read.
        serving: Leave out those of profiling and start-up.
    """
    out: list[Episode] = []
    for source, rows in run.by_source("log"):
        begins: dict[tuple[str, int], Row] = {}
        found: list[Episode] = []
        for row in rows:
            if row["kind"] not in ("eplb.start", "eplb.done") or (serving and _is_setup(row)):
                continue
            key = (row["worker"] or "", row["clock"] or 0)
            if row["kind"] == "eplb.start":
                begins[key] = row
                continue
            begin = begins.pop(key, None)
            found.append(_moved(source, row, begin))
        found += [_moved(source, None, begin) for begin in begins.values()]
        out += merge(sorted((e for e in found if e.start_s == e.start_s), key=lambda e: (e.clock, e.start_s)))
    return out


def compilations(run: Run) -> list[Episode]:
    """Lines that say that a kernel or graph is being compiled, or was, with its duration."""
    out: list[Episode] = []
    for source, rows in run.by_source("log"):
        found = []
        for row in rows:
            if row["kind"] != "jit.compile" or row["t_s"] is None:
                continue
            seconds = row["fields"].get("seconds")
            warm = row["fields"].get("during") == "warm-up"
            serving = False if warm or row["phase"] == "startup" else row["phase"] == "serving" or None
            if serving is None and row["fields"].get("during") == "inference":
                serving = True
            start = row["t_s"] - (seconds or 0.0)
            found.append(
                Episode(
                    "compilation", source, start, row["t_s"], row, seconds, serving, row["clock"] or 0, (row,)
                )
            )
        out += merge(sorted(found, key=lambda e: (e.clock, e.start_s)))
    return out


def snapshots(run: Run) -> list[Episode]:
    """Writes of allocator snapshots; a begin line is used where no end line follows."""
    out: list[Episode] = []
    for source, rows in run.by_source("log"):
        begin: Row | None = None
        for row in rows:
            if row["kind"] != "mem.snapshot" or row["t_s"] is None:
                continue
            if row["fields"].get("state") == "begin":
                begin = row
                continue
            seconds = row["fields"].get("seconds")
            start = row["t_s"] - (seconds or 0.0)
            if begin is not None and begin["clock"] == row["clock"] and begin["t_s"] <= row["t_s"]:
                start, seconds = begin["t_s"], row["t_s"] - begin["t_s"]
            begin = None
            out.append(_point("snapshot", source, start, row, seconds))
        if begin is not None:
            out.append(_point("snapshot", source, begin["t_s"], begin, None))
    return out


def collections(run: Run, least_s: float) -> list[Episode]:
    """Runs of the garbage collector whose lines state at least that duration; they end at their line."""
    return [
        _point("collection", source, row["t_s"] - seconds, row, seconds)
        for source, rows in run.by_source("log")
        for row in rows
        if row["kind"] == "host.gc" and row["t_s"] is not None and row["phase"] != "startup"
        and (seconds := float(row["fields"].get("seconds") or 0.0)) >= least_s
    ]  # fmt: skip


def starts(run: Run) -> list[Episode]:
    """Starts of an engine up to its ready line."""
    out: list[Episode] = []
    for source, rows in run.by_source("log"):
        begin: Row | None = None
        for row in rows:
            if row["kind"] == "engine.start" and row["t_s"] is not None:
                begin = begin or row
            elif row["kind"] == "engine.ready" and row["t_s"] is not None:
                first = begin if begin is not None and begin["clock"] == row["clock"] else row
                out.append(_point("start-up", source, first["t_s"], row, None))
                begin = None
    return out


def merge(episodes: list[Episode]) -> list[Episode]:
    """Joins episodes, sorted by start, that overlap or that other workers tell within SAME_S."""
    out: list[Episode] = []
    for e in episodes:
        last = out[-1] if out else None
        workers = {r["worker"] for r in last.rows} if last else set()
        near = last is not None and last.clock == e.clock and e.start_s <= last.end_s + SAME_S
        if last is None or not near or (e.row["worker"] in workers and e.start_s >= last.end_s):
            out.append(e)
            continue
        out[-1] = Episode(
            last.kind,
            last.source,
            last.start_s,
            max(last.end_s, e.end_s),
            last.row,
            max((s for s in (last.seconds, e.seconds) if s is not None), default=None),
            last.serving if last.serving is not None else e.serving,
            last.clock,
            (*last.rows, *e.rows),
        )
    return out


def _is_setup(row: Row) -> bool:
    return bool(row["phase"] == "startup" or row["fields"].get("mode") == "profile")


def _point(kind: str, source: str, start: float, row: Row, seconds: float | None) -> Episode:
    return Episode(kind, source, start, row["t_s"], row, seconds, None, row["clock"] or 0, (row,))


def _moved(source: str, done: Row | None, begin: Row | None) -> Episode:
    row: dict[str, Any] = done or begin or {}
    seconds = row["fields"].get("seconds")
    end = row["t_s"]
    start = begin["t_s"] if begin else None
    if start is None and end is not None:
        start = end - (seconds or 0.0)
    if seconds is None and done is not None and begin is not None and end is not None and start is not None:
        seconds = end - start
    nan = float("nan")
    return Episode(
        "rearrangement",
        source,
        nan if start is None else start,
        nan if end is None else end,
        row,
        seconds,
        {"serving": True, "startup": False}.get(row["phase"] or ""),
        row["clock"] or 0,
        tuple(r for r in (begin, done) if r is not None),
    )
