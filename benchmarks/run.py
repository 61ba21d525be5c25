"""Timings against budgets and peers: `make bench`, on a quiet machine.

Each row is a command, timed as a user feels it: a fresh process, wall clock and peak memory. Rows and
their peers run interleaved, round after round, so that a drifting machine hurts them alike; the median
counts. Add a row to ROWS; an input is made once by a function of benchmarks/inputs.py.

    python benchmarks/run.py [-n ROUNDS] [-k WORD] [--strict]
"""

import argparse
import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import inputs
import snapshot_input
import trace_input

MOEXRAY = str(Path(sys.executable).with_name("moexray"))
PYTHON = sys.executable
INPUT = "{input}"


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One command, its budget and, where there is one, a peer that does the same job.

    Attributes:
        name: what the table calls it.
        argv: the command; "{input}" stands for the path of the input.
        make: writes the input to the given path; None where none is needed.
        stdin: the input comes through standard input.
        budget_s: median wall time allowed, in seconds.
        budget_mib: peak resident memory allowed, in MiB.
        codes: exit codes that count as success (1 is "findings").
        peer: another command for the same input; skipped, with a note, where it fails.
    """

    name: str
    argv: Sequence[str]
    make: Callable[[Path], None] | None = None
    stdin: bool = False
    budget_s: float | None = None
    budget_mib: float | None = None
    codes: frozenset[int] = frozenset({0})
    peer: Sequence[str] = ()


FINDINGS = frozenset({0, 1})

ROWS = (
    Row("python -c pass", (PYTHON, "-c", "pass")),
    Row("import moexray", (PYTHON, "-c", "import moexray"), budget_s=0.1),
    Row("moexray --version", (MOEXRAY, "--version"), budget_s=0.1),
    Row("moexray --help", (MOEXRAY, "--help"), budget_s=0.2),
    Row(
        "one OOM line, stdin",
        (MOEXRAY, "diagnose", "-"),
        make=inputs.oom_line,
        stdin=True,
        budget_s=0.3,
        codes=FINDINGS,
    ),
    Row(
        "snapshot, 1 M events",
        (MOEXRAY, "diagnose", INPUT, "--format", "json"),
        make=snapshot_input.snapshot_million,
        budget_s=5.0,
        budget_mib=600,
        codes=FINDINGS,
        peer=(PYTHON, "-c", snapshot_input.LOAD_AND_WALK, INPUT),
    ),
    Row(
        "Kineto trace of 60 MB, open",
        (PYTHON, "-c", trace_input.OPEN_COLUMNS, INPUT),
        make=trace_input.kineto_trace,
        budget_s=0.8,
        budget_mib=240,
        peer=(PYTHON, "-c", trace_input.PEER, INPUT),
    ),
    Row(
        "Kineto trace of 60 MB, diagnose",
        (MOEXRAY, "diagnose", INPUT, "--format", "json"),
        make=trace_input.kineto_trace,
        budget_s=1.8,
        budget_mib=320,
        codes=FINDINGS,
    ),
)


@dataclasses.dataclass(slots=True)
class Timing:
    """What the rounds measured of one command."""

    seconds: list[float] = dataclasses.field(default_factory=list)
    peak_mib: float = 0.0
    failure: str = ""

    @property
    def median_s(self) -> float:
        """Median wall time; NaN where the command failed."""
        return statistics.median(self.seconds) if self.seconds and not self.failure else float("nan")


def run_once(argv: Sequence[str], stdin: Path | None, codes: frozenset[int]) -> tuple[float, float]:
    """Run one command in a fresh process.

    Returns:
        Wall time in seconds and peak resident memory in MiB (of this process alone).

    Raises:
        RuntimeError: it could not start, or ended with another exit code.
    """
    source = stdin if stdin is not None else Path(os.devnull)
    with source.open("rb") as text, tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        try:
            process = subprocess.Popen(argv, stdin=text, stdout=subprocess.DEVNULL, stderr=errors)
        except OSError as error:
            raise RuntimeError(str(error)) from error
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in codes:
            errors.seek(0)
            last = errors.read().decode("utf-8", "replace").strip().splitlines()[-1:]
            raise RuntimeError(f"exit {process.returncode}: {''.join(last)}")
    return seconds, usage.ru_maxrss / 1024


def measure(rows: Sequence[Row], rounds: int, folder: Path) -> Mapping[tuple[str, str], Timing]:
    """Time all rows and peers, interleaved; the first round only warms the caches.

    Returns:
        (row name, "moexray" or "peer") -> Timing.
    """
    jobs = []
    for index, row in enumerate(rows):
        path = folder / f"input-{index}"
        if row.make is not None:
            row.make(path)
        stdin = path if row.stdin else None
        jobs.append((row.name, "moexray", row.argv, path, stdin, row.codes))
        if row.peer:
            jobs.append((row.name, "peer", row.peer, path, stdin, frozenset({0})))
    timings: dict[tuple[str, str], Timing] = {(name, who): Timing() for name, who, *_ in jobs}
    for number in range(rounds + 1):
        for name, who, argv, path, stdin, codes in jobs:
            timing = timings[name, who]
            if timing.failure:
                continue
            command = [part.replace(INPUT, str(path)) for part in argv]
            try:
                seconds, peak_mib = run_once(command, stdin, codes)
            except RuntimeError as error:
                timing.failure = str(error)
                continue
            if number:
                timing.seconds.append(seconds)
                timing.peak_mib = max(timing.peak_mib, peak_mib)
    return timings


def judge(row: Row, timing: Timing) -> str:
    """Say "ok", "OVER" or "FAILED" of one row; empty where it has no budget."""
    if timing.failure:
        return "FAILED"
    over = (row.budget_s is not None and timing.median_s > row.budget_s) or (
        row.budget_mib is not None and timing.peak_mib > row.budget_mib
    )
    if row.budget_s is None and row.budget_mib is None:
        return ""
    return "OVER" if over else "ok"


def print_table(rows: Sequence[Row], timings: Mapping[tuple[str, str], Timing]) -> bool:
    """Print one line a row.

    Returns:
        True where every row ran and kept its budget.
    """
    head = ("median s", "budget s", "peak MiB", "", "peer s", "peer MiB", "peer / ours")
    print(f"{'':24}" + "".join(f"{h:>12}" for h in head))
    good = True
    notes = []
    for row in rows:
        ours = timings[row.name, "moexray"]
        peer = timings.get((row.name, "peer"))
        verdict = judge(row, ours)
        good = good and verdict in ("ok", "")
        cells = [
            f"{ours.median_s:.3f}",
            "" if row.budget_s is None else f"{row.budget_s:.3f}",
            f"{ours.peak_mib:.0f}",
            verdict,
        ]
        if peer is not None and not peer.failure:
            ratio = peer.median_s / ours.median_s
            cells += [f"{peer.median_s:.3f}", f"{peer.peak_mib:.0f}", f"{ratio:.1f}x"]
        print(f"{row.name:24}" + "".join(f"{c:>12}" for c in cells))
        if ours.failure:
            notes.append(f"{row.name}: {ours.failure}")
        if peer is not None and peer.failure:
            notes.append(f"{row.name}: no peer ({peer.failure})")
    for note in notes:
        print(f"  {note}")
    return good


def main() -> int:
    """Run the chosen rows; with --strict, exit 1 where one fails or is over its budget."""
    parser = argparse.ArgumentParser(description="Timings against budgets and peers.")
    parser.add_argument("-n", "--rounds", type=int, default=11, help="measured rounds (11)")
    parser.add_argument("-k", "--only", default="", help="rows whose name contains this word")
    parser.add_argument("--strict", action="store_true", help="exit 1 on a miss")
    args = parser.parse_args()
    rows = [row for row in ROWS if args.only in row.name]
    load = os.getloadavg()[0]
    print(f"{args.rounds} rounds, {os.cpu_count()} cores, load {load:.1f}", end="")
    print(" (not quiet: times are upper bounds)" if load > 1 else "")
    with tempfile.TemporaryDirectory(prefix="moexray-bench-") as folder:
        timings = measure(rows, args.rounds, Path(folder))
    good = print_table(rows, timings)
    return 1 if args.strict and not good else 0


if __name__ == "__main__":
    sys.exit(main())
