"""All-to-all of two ranks on this host: shared memory beside gloo, in the same run, same buffers.

    python benchmarks/exchange.py [--pin] [--rings] [--times N]

Both are `torch.distributed.all_to_all_single` to the caller: plain, and attached with rungs ("shm", "ring").
The two take turns; before each timed call the ranks meet (an exchange of nothing), else a call would wait for
a peer that still does the other one. Sizes are of the buffer of a rank, half of which goes to the peer. One
thread a rank; `--pin` gives each its own core, as engines do; with `--rings` no rank reads in another's
memory. Expected: 1.7 to 3 times the speed of gloo from 16 KiB to 16 MiB on two quiet cores; on busy ones only
p10 and CPU time mean something. Without torch it says so and ends.
"""

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Bytes of a rank's buffer; rounds of one call each way, the first tenth as warm-up.
CASES = {1 << 14: 400, 1 << 16: 400, 1 << 18: 200, 1 << 20: 160, 1 << 22: 100, 1 << 24: 40, 1 << 25: 30}
WORLD = 2


def measure(rank: int, store: str, times: int, *, direct: bool) -> None:
    """One rank; rank 0 prints the table."""
    import torch
    from torch import distributed

    from moexray.runtime.exchange import Exchange, Options, attach

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    plain = distributed.all_to_all_single
    with (
        Exchange.open(f"benchmark {Path(store).parent.name}", rank, WORLD) as meeting,
        attach(options=Options(rungs=("shm", "ring"), direct=direct)) as handle,
    ):
        ways = (plain, distributed.all_to_all_single)
        if rank == 0:
            print(f"load {os.getloadavg()[0]:.1f} at the start, {os.cpu_count()} cores, rung {handle.rung}")
            print("KiB of a rank | gloo us p10, p50, CPU | shm us p10, p50, CPU | gloo over shm, each")
        for size, rounds in CASES.items():
            send = torch.randint(0, 255, (size,), dtype=torch.uint8)
            out = torch.zeros_like(send)
            wall: tuple[list[float], list[float]] = ([], [])
            cpu: tuple[list[float], list[float]] = ([], [])
            for turn in range(rounds * times):
                for way in (0, 1) if turn % 2 else (1, 0):
                    meeting.all_to_all(b"", [0] * WORLD)
                    spent, began = time.process_time(), time.perf_counter()
                    ways[way](out, send)
                    ended = time.perf_counter()
                    if turn >= rounds * times // 10:
                        wall[way].append(ended - began)
                        cpu[way].append(time.process_time() - spent)
            if rank == 0:
                _row(size, wall, cpu)
        distributed.barrier()


def _row(size: int, wall: tuple[list[float], list[float]], cpu: tuple[list[float], list[float]]) -> None:
    rows = []
    for times, spent in zip(wall, cpu, strict=True):
        tenths = statistics.quantiles(times, n=10)
        rows.append([1e6 * us for us in (tenths[0], tenths[4], statistics.mean(spent))])
    gloo, shm = rows
    cells = [f"{size >> 10:13d}"]
    cells += [f"{a:7.0f} {b:7.0f} {c:6.0f}" for a, b, c in rows]
    cells.append("  ".join(f"{a / b:.2f}" for a, b in zip(gloo, shm, strict=True)))
    print(" | ".join(cells), flush=True)


def main() -> int:
    """Starts the ranks."""
    parser = argparse.ArgumentParser(description="All-to-all: shared memory beside gloo.")
    parser.add_argument("--pin", action="store_true", help="one core a rank")
    parser.add_argument("--rings", action="store_true", help="large parts go through the rings, too")
    parser.add_argument("--times", type=int, default=1, help="this many times the rounds")
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--store", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("benchmarks/exchange.py: skipped, torch is not installed here")
        return 0
    if args.rank >= 0:
        if args.pin:
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[args.rank % len(cores)]})
        measure(args.rank, args.store, args.times, direct=not args.rings)
        return 0
    env = {"GLOO_SOCKET_IFNAME": "lo", **os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, *sys.argv[1:], "--store", str(Path(folder) / "store"), "--rank"]
        ranks = [subprocess.Popen([*command, str(rank)], env=env) for rank in range(WORLD)]
        return max(abs(rank.wait()) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
