"""A Kineto trace of 60 MB raw, as a few decode steps with Python stacks give it, and what reads it."""

import gzip
import json
import random
from pathlib import Path

BASE_NS = 1_790_000_000_000_000_000
STEPS = 12
KERNELS = 760  # per step; with their launches, operators, frames and flow arrows some 22,000 events
NAMES = 1500
KERNEL_ARGS = {
    "queued": 0,
    "device": 0,
    "context": 1,
    "stream": 7,
    "registers per thread": 32,
    "shared memory": 136,
    "blocks per SM": 3.87879,
    "warps per SM": 108.606,
    "grid": [512, 1, 1],
    "block": [896, 1, 1],
    "est. achieved occupancy %": 87,
}
Event = dict[str, object]

OPEN_COLUMNS = """
import sys
from moexray.readers.read_any import read_any
run = read_any(sys.argv[1:])
assert sum(len(b.columns["ts_ns"]) for b in run.batches("trace")) > 150_000
"""

# HolisticTraceAnalysis reads a folder of one file per rank into a pandas frame.
PEER = """
import sys
from hta.common.trace import Trace
trace = Trace(trace_files={0: sys.argv[1]}, trace_dir="")
trace.parse_traces()
"""


def kineto_trace(path: Path) -> None:
    """Writes the trace, gzipped; events and arguments as torch 2.x writes them."""
    rng = random.Random(5)  # noqa: S311
    names = [
        f"void at::native::kernel_{i}<float, {i % 9}, std::array<char*, 3ul> >(int, float*)"
        for i in range(NAMES)
    ]
    frames = [f"vllm/model_executor/layers/file_{i % 90}.py({i}): function_{i}" for i in range(NAMES)]
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "GPU", "totalGlobalMem": 85_000_000_000}],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
        "with_stack": 1,
        "baseTimeNanoseconds": BASE_NS,
    }
    with gzip.open(path, "wt", compresslevel=3) as out:
        out.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        now, call = 5_106_936_000_000.0, 0
        for step in range(STEPS):
            events = []
            begin = now
            for _ in range(KERNELS):
                call += 1
                events += _launch(rng, names, frames, now, call)
                now += rng.uniform(20, 60)
            mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1}
            events.append(
                {**mark, "ts": round(begin, 3), "dur": round(now - begin, 3), "args": {"External id": step}}
            )
            out.write(",\n".join(json.dumps(e) for e in events))
            out.write(",\n" if step < STEPS - 1 else "\n")
        out.write('], "traceName": "trace.json"}\n')


def _launch(rng: random.Random, names: list[str], frames: list[str], now: float, call: int) -> list[Event]:
    """One kernel with its Python frames, operators, runtime calls and flow arrows."""
    host = {"pid": 4200, "tid": 4200}
    device = {"pid": 0, "tid": 7}
    arrow = {"id": call, "cat": "ac2g", "name": "ac2g"}
    kernel = {**KERNEL_ARGS, "External id": call, "correlation": call}
    shape = {
        "External id": call,
        "Input Dims": [[512, 7168], [], []],
        "Input type": ["c10::BFloat16", "Scalar", ""],
    }
    return [
        *(_frame(rng.choice(frames), now, call, depth) | host for depth in range(17)),
        *(_slice("cpu_op", f"aten::op_{d}", now + 18 + d, 12 - d, shape) | host for d in range(4)),
        *(
            _slice(
                "cuda_runtime",
                "cudaLaunchKernel",
                now + 22 + d,
                1.2,
                {"cbid": 211, "correlation": call * 4 + d},
            )
            | host
            for d in range(4)
        ),
        {"ph": "s", **arrow, **host, "ts": round(now + 22, 3)},
        {"ph": "f", **arrow, **device, "ts": round(now + 40, 3), "bp": "e"},
        _slice("kernel", rng.choice(names), now + 40, 18.5, kernel) | device,
    ]


def _frame(name: str, now: float, call: int, depth: int) -> Event:
    own = call * 20 + depth
    args = {"Python id": own, "Python parent id": own - 1, "Ev Idx": own}
    return _slice("python_function", name, now + depth, 40 - depth, args)


def _slice(category: str, name: str, ts: float, dur: float, args: dict[str, object]) -> Event:
    return {"ph": "X", "cat": category, "name": name, "ts": round(ts, 3), "dur": dur, "args": args}
