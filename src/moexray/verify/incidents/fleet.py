"""A fleet with one late rank: traces of any number of ranks, one at a time, each on its own clock.

Glossary: a *round* is one all-to-all over all ranks; it ends on all of them when the last has come and the
data have moved. Times are microseconds of one true clock until a trace is written.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["Fleet", "simulate", "write"]

LAYERS, KERNELS = 3, 6
KERNEL_US, SPREAD, TRANSFER_US = 45.0, 0.03, 60.0
STALL_US = 18_000.0
BASE_NS = 1_790_857_026_000_000_000


@dataclass(frozen=True, slots=True)
class Fleet:
    """What happens.

    Args:
        ranks: Number of them.
        steps: Steps in each trace.
        guilty: Rank whose allocator stalls.
        stalls: Steps in which it does.
        seed: Of noise and clocks.
    """

    ranks: int
    steps: int
    guilty: int
    stalls: tuple[int, ...]
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Rounds:
    """When rounds begin on each rank, and end on all: arrays [ranks, rounds] and [rounds], us."""

    begin: NDArray[np.float64]
    end: NDArray[np.float64]
    kernel: NDArray[np.float64]  # [ranks, rounds] length of each compute kernel before the round


def simulate(fleet: Fleet) -> Rounds:
    """Runs the fleet: a rank begins a round when its kernels are done, a round ends for all together."""
    rng = np.random.default_rng(fleet.seed)
    rounds = fleet.steps * LAYERS * 2
    kernel = KERNEL_US * (1 + SPREAD * rng.standard_normal((fleet.ranks, rounds)))
    begin, end = np.empty((fleet.ranks, rounds)), np.empty(rounds)
    now = 0.0
    for i in range(rounds):
        work = KERNELS * kernel[:, i]
        if i % (2 * LAYERS) == 0 and i // (2 * LAYERS) in fleet.stalls:
            work[fleet.guilty] += STALL_US
        begin[:, i] = now + work
        now = end[i] = begin[:, i].max() + TRANSFER_US * rng.uniform(0.9, 1.1)
    return Rounds(begin, end, kernel)


def write(fleet: Fleet, rounds: Rounds, rank: int, folder: Path) -> Path:
    """Writes the trace of one rank below `folder`.

    Returns:
        The file, a gzipped Kineto trace of about 5 kB a step before compression.
    """
    clock = np.random.default_rng((fleet.seed, rank))
    shift, rate = 2.1e12 + clock.uniform(-9_000, 9_000), 1 + clock.uniform(-8e-6, 8e-6)
    events = [
        {**e, "ts": round(shift + e["ts"] * rate, 3), "dur": round(e["dur"] * rate, 3)}
        for e in _events(fleet, rounds, rank)
    ]
    document = {
        "schemaVersion": 1,
        "baseTimeNanoseconds": BASE_NS,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": fleet.ranks},
        "traceEvents": events,
    }
    file = folder / "traces" / f"rank{rank}.pt.trace.json.gz"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(json.dumps(document).encode(), 1))
    return file


def _events(fleet: Fleet, rounds: Rounds, rank: int) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    ends = [0.0, *rounds.end.tolist()]
    for i in range(fleet.steps * LAYERS * 2):
        step, start = i // (2 * LAYERS), ends[i]
        if i % (2 * LAYERS) == 0:
            whole = ends[i + 2 * LAYERS] - start - 1.0
            out.append(_host("user_annotation", f"ProfilerStep#{step}", start, whole))
            if rank == fleet.guilty and step in fleet.stalls:
                freed = 0.7 * STALL_US
                out.append(_host("cuda_runtime", "cudaFree", start + 1, freed))
                out.append(_host("cuda_runtime", "cudaMalloc", start + 2 + freed, STALL_US - freed - 4))
                start += STALL_US
        out.append(_host("cpu_op", "moe::experts", start, 12.0))
        length = float(rounds.kernel[rank, i])
        for k in range(KERNELS):
            out += _kernel("void grouped_gemm_kernel<128, 128>", 7, start + k * length, length, i * 10 + k)
        begin = float(rounds.begin[rank, i])
        meta = {"Collective name": "all_to_allv", "Process Group Name": "ep", "Seq": i,
                "Group size": fleet.ranks, "dtype": "BFloat16",
                "In msg nelems": 65536, "Out msg nelems": 65536}  # fmt: skip
        name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
        out += _kernel(name, 27, begin, ends[i + 1] - begin, i * 10 + KERNELS, meta)
    return out


def _host(category: str, name: str, start: float, length: float) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "pid": 1, "tid": 1}


def _kernel(
    name: str, stream: int, start: float, length: float, launch: int, more: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The launch and the kernel."""
    call = {**_host("cuda_runtime", "cudaLaunchKernel", start - 3.0, 2.5)}
    call["args"] = {"correlation": launch + 1}
    args = {"device": 0, "stream": stream, "correlation": launch + 1, **(more or {})}
    kernel = {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": length, "pid": 0, "tid": stream}
    return [call, {**kernel, "args": args}]
