"""A trace of 60 MB to full gap attribution, in process after imports: medians of five, one core.

    python benchmarks/timeline.py [TRACE...]

Without a trace one is made (benchmarks/trace_input.py). Bars: 1.0 s and 250 MiB for a trace of 62 MB.
"""

import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import trace_input

from moexray.analyse.gaps import attribute
from moexray.analyse.timeline import profiles
from moexray.readers.read_any import read_any

ROUNDS = 5


def measure(path: str) -> None:
    """Prints one line of figures for a trace."""
    opened, attributed = [], []
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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    read, gaps = statistics.median(opened[1:]), statistics.median(attributed[1:])
    print(
        f"{Path(path).name}: {slices} slices, open {read:.2f} s, gaps {gaps:.2f} s, "
        f"together {read + gaps:.2f} s CPU, peak {peak:.0f} MiB"
    )


def main() -> None:
    """Measures the traces given, or one that is made."""
    if paths := sys.argv[1:]:
        for path in paths:
            measure(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "trace.json.gz"
        trace_input.kineto_trace(made)
        measure(str(made))


if __name__ == "__main__":
    main()
