"""Fleets: time and memory of `diagnose --executor processes` over more and more ranks; time grows linearly.

    python benchmarks/fleet.py [RANKS ...]        (default 100 300 1000)

Each trace holds about 11,000 slices, 2 MB before compression. Prints one line per size: seconds for making
the input (not counted), for the first diagnosis and for a second one that finds the summaries, the largest
resident memory of any process, and whether the planted rank was named. Exit 1 if it was not, or past a bar:
15 minutes and 2 GiB for any size, and twice the smallest size's time a rank.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from moexray.verify.incidents.fleet import Fleet, simulate, write

STEPS = 120
MOST_S, MOST_KIB, GROWTH = 900, 2 << 20, 2.0


def main(sizes: list[int]) -> None:
    """Makes, diagnoses twice and prints each size."""
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    missed, a_rank = False, 0.0
    for ranks in sizes:
        fleet = Fleet(ranks, STEPS, ranks * 2 // 3, tuple(range(7, STEPS, 11)), seed=ranks)
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            rounds = simulate(fleet)
            for rank in range(ranks):
                write(fleet, rounds, rank, Path(folder) / "in")
            made = time.perf_counter() - begin
            first, document, peak = _diagnose(folder)
            again, _, _ = _diagnose(folder)
        named = {f["subject"]["rank"] for f in document["findings"] if f["id"] == "comm.straggler_wait"}
        right = document["verdict"] == "mem.alloc_stall" and named == {fleet.guilty}
        print(
            f"{ranks:>6} ranks: made in {made:.0f} s; first {first:.1f} s ({first / ranks:.3f} s a rank), "
            f"again {again:.1f} s, peak {peak / 1024:.0f} MiB, {'named' if right else 'NOT NAMED'}",
            flush=True,
        )
        a_rank = a_rank or first / ranks
        missed |= not right or first > MOST_S or peak > MOST_KIB or first / ranks > GROWTH * a_rank
    sys.exit(missed)


def _diagnose(folder: str) -> tuple[float, dict, int]:
    begin = time.perf_counter()
    command = [sys.executable, "-m", "moexray", "diagnose", f"{folder}/in", "--executor", "processes",
               "--work", f"{folder}/work", "--format", "json", "--quiet"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 1:
        sys.exit(f"exit {done.returncode}: {done.stderr}")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return time.perf_counter() - begin, json.loads(done.stdout), peak


if __name__ == "__main__":
    main([int(n) for n in sys.argv[1:]] or [100, 300, 1000])
