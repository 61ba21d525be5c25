"""Packing of lives into one buffer: CPU time and distance to the bound, by how many there are and how long.

Lives have heavy-tailed lengths and sizes of 512 B to 64 MiB; warm, one run each.

    python benchmarks/intervals.py [LIVES ...]
"""

import sys
import time

import numpy as np

from moexray.algorithms.intervals import aligned, meetings, peak
from moexray.kernels.intervals import pack, pack_in_time

LENGTHS = (20, 200)  # scale of the lengths, in events


def lives(count: int, length: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Starts, ends and sizes; the starts are in order."""
    rng = np.random.default_rng(seed)
    start = np.sort(rng.permutation(2 * count)[:count])
    end = np.minimum(start + 1 + (rng.pareto(1.5, count) * length).astype(np.int64), 2 * count + 1)
    return start, end, aligned((2 ** rng.uniform(9, 26, count)).astype(np.int64))


def main() -> None:
    """Prints a line for each case and order."""
    counts = [int(n) for n in sys.argv[1:]] or [20_000, 100_000, 500_000]
    pack(*lives(100, 5), np.arange(100))
    pack_in_time(*lives(100, 5))
    print(f"{'lives':>8}{'pairs that meet':>17}  {'order':<10}{'CPU s':>8}{'above the bound':>17}")
    for count in counts:
        for length in LENGTHS:
            start, end, size = lives(count, length)
            bound, pairs = peak(start, end, size)[0], meetings(start, end)
            for order in ("in time", "largest", "longest"):
                begin = time.process_time()
                if order == "in time":
                    offset = pack_in_time(start, end, size)
                else:
                    first = -size if order == "largest" else start - end
                    offset = pack(start, end, size, np.lexsort((start, first)))
                spent = time.process_time() - begin
                over = (offset + size).max() / bound - 1
                print(f"{count:>8,}{pairs:>17,}  {order:<10}{spent:>8.2f}{over:>17.1%}")


if __name__ == "__main__":
    main()
