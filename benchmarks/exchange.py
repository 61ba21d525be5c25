"""All-to-all of two ranks on this host: shared memory beside gloo, interleaved, same buffers.

    python benchmarks/exchange.py

Both are `torch.distributed.all_to_all_single` to the caller: plain, and attached with rungs ("shm", "ring").
Expected: 1.7 to 3 times the speed of gloo on two quiet cores; on busy ones only p10 and CPU time mean
something. One thread a rank. Without torch it says so and ends.
"""

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Bytes to each peer; rounds of one call each way, the first tenth as warm-up.
CASES = ((1 << 14, 400), (1 << 16, 400), (1 << 18, 200), (1 << 20, 120), (1 << 22, 60), (1 << 24, 30))
WORLD = 2


def measure(rank: int, store: str) -> None:
    """One rank; rank 0 prints the table."""
    import torch
    from torch import distributed

    from moexray.runtime.exchange import Options, attach

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    plain = distributed.all_to_all_single
    with attach(options=Options(rungs=("shm", "ring"))) as handle:
        ways = (plain, distributed.all_to_all_single)
        if rank == 0:
            print(f"load {os.getloadavg()[0]:.1f} at the start, {os.cpu_count()} cores, rung {handle.rung}")
            print("KiB to peer | gloo us p10, p50 | shm us p10, p50 | MB/s | ratio p10, p50 | of CPU")
        for size, rounds in CASES:
            send = torch.randint(0, 255, (WORLD * size,), dtype=torch.uint8)
            out = torch.zeros_like(send)
            wall: tuple[list[float], list[float]] = ([], [])
            cpu = [0.0, 0.0]
            for turn in range(rounds):
                for way in (0, 1) if turn % 2 else (1, 0):
                    spent, began = time.process_time(), time.perf_counter()
                    ways[way](out, send)
                    if turn >= rounds // 10:
                        wall[way].append(time.perf_counter() - began)
                        cpu[way] += time.process_time() - spent
            if rank == 0:
                _row(size, wall, cpu)
        distributed.barrier()


def _row(size: int, wall: tuple[list[float], list[float]], cpu: list[float]) -> None:
    gloo, shm = (statistics.quantiles(times, n=10) for times in wall)
    cells = (
        f"{size >> 10:11d}",
        f"{gloo[0] * 1e6:7.0f} {gloo[4] * 1e6:8.0f}",
        f"{shm[0] * 1e6:6.0f} {shm[4] * 1e6:8.0f}",
        f"{WORLD * size / shm[0] / 1e6:4.0f}",
        f"{gloo[0] / shm[0]:8.2f} {gloo[4] / shm[4]:5.2f}",
        f"{cpu[0] / cpu[1]:.2f}",
    )
    print(" | ".join(cells))


def main() -> int:
    """Starts the ranks."""
    if importlib.util.find_spec("torch") is None:
        print("benchmarks/exchange.py: skipped, torch is not installed here")
        return 0
    if len(sys.argv) == 3:
        measure(int(sys.argv[1]), sys.argv[2])
        return 0
    env = {"GLOO_SOCKET_IFNAME": "lo", **os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        command = [sys.executable, __file__]
        ranks = [subprocess.Popen([*command, str(rank), store], env=env) for rank in range(WORLD)]
        return max(abs(rank.wait()) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main())
