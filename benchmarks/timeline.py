"""Traces of 60 MB to full gap attribution, beside HolisticTraceAnalysis, and eight ranks on two processes.

    python benchmarks/timeline.py [--peer PYTHON] [TRACE...]

Without a trace one is made (benchmarks/trace_input.py). In process after imports, medians of five, CPU
time of one core. Bars for a trace of 62 MB: 1.0 s and 250 MiB, nine times less than the peer takes to load it
(PYTHON has HolisticTraceAnalysis installed; the two run in turns). Eight such ranks: 6 s by the clock.
"""

import argparse
import gzip
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trace_input

from moexray.analyse.gaps import attribute
from moexray.analyse.timeline import profiles
from moexray.readers.read_any import read_any

ROUNDS = 5
RANKS = 8
PEER = """
import logging, sys, time, warnings
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
for line in sys.stdin:
    began = time.process_time()
    TraceAnalysis(trace_files={0: line.strip()}, trace_dir="/")
    print("took", time.process_time() - began, flush=True)
"""


class Peer:
    """HolisticTraceAnalysis in a process of its own, imported before the clock starts."""

    def __init__(self, python: str) -> None:
        self.process = subprocess.Popen(
            [python, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip

    def load_s(self, path: str) -> float:
        """CPU seconds to load one trace."""
        if self.process.stdin and self.process.stdout:
            self.process.stdin.write(path + "\n")
            self.process.stdin.flush()
            for line in self.process.stdout:
                if line.startswith("took "):
                    return float(line.split()[1])
        raise SystemExit("the peer ended; has this Python HolisticTraceAnalysis?")


def measure(path: str, peer: Peer | None) -> None:
    """Prints one line of figures for a trace."""
    opened, attributed, loads = [], [], []
    slices = 0
    for _ in range(ROUNDS + 1):  # the first one warms up
        begin = time.process_time()
        run = read_any([path])
        middle = time.process_time()
        for profile in profiles(run):
            slices = len(profile.start)
            list(attribute(profile))
        opened.append(middle - begin)
        attributed.append(time.process_time() - middle)
        del run, profile
        if peer:
            loads.append(peer.load_s(path))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    read, gaps = statistics.median(opened[1:]), statistics.median(attributed[1:])
    print(
        f"{Path(path).name}: {slices} slices, open {read:.2f} s, gaps {gaps:.2f} s, "
        f"together {read + gaps:.2f} s CPU, peak {peak:.0f} MiB"
    )
    if loads:
        load = statistics.median(loads[1:])
        ratio = statistics.median(b / (o + a) for b, o, a in zip(loads, opened, attributed, strict=True))
        print(f"HolisticTraceAnalysis, load alone: {load:.2f} s CPU, {ratio:.1f} times as long")


def eight_ranks(trace: Path, folder: Path) -> None:
    """Prints the wall clock of `diagnose` over eight ranks with two processes, and over one process."""
    text = gzip.decompress(trace.read_bytes()).decode()
    ranks = folder / "ranks"
    ranks.mkdir()
    for rank in range(RANKS):
        facts = f'"rank": {rank}, "world_size": {RANKS}'
        of_rank = re.sub('"rank": 0, "world_size": 1', facts, text, count=1)
        (ranks / f"rank{rank}.json.gz").write_bytes(gzip.compress(of_rank.encode(), 3))
    moexray = str(Path(sys.executable).with_name("moexray"))
    pool = ["--executor", "processes", "--workers", "2", "--work"]
    took: dict[str, list[float]] = {"two processes": [], "one process": []}
    for round_ in range(ROUNDS):
        for name, more in (("two processes", [*pool, str(folder / f"work{round_}")]), ("one process", [])):
            begin = time.perf_counter()
            command = [moexray, "diagnose", str(ranks), "--format", "json", *more]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode not in (0, 1):
                raise SystemExit(f"{' '.join(command)} ended with code {done.returncode}: {done.stderr}")
            took[name].append(time.perf_counter() - begin)
    print(f"{RANKS} ranks: " + ", ".join(f"{k} {statistics.median(v):.2f} s" for k, v in took.items()))


def main() -> None:
    """Measures the traces given, or one that is made."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument("traces", nargs="*")
    given = parser.parse_args()
    peer = Peer(given.peer) if given.peer else None
    for path in given.traces:
        measure(path, peer)
    if not given.traces:
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "trace.json.gz"
            trace_input.kineto_trace(made)
            measure(str(made), peer)
            eight_ranks(made, Path(folder))


if __name__ == "__main__":
    main()
