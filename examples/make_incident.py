"""Makes examples/incident/: a double fault on four ranks, small enough to read. Deterministic.

Run: python examples/make_incident.py [FOLDER]

What happens in it: rank 0 holds the busiest experts (skew), so its expert buffer grows step by
step; its memory is cut up by long-lived blocks (fragmentation), so each larger buffer finds no
hole, and the allocator must give a segment back and take a new one (stall); meanwhile the other
ranks wait in dispatch for rank 0. The figures are this simulation's own.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import pickle
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RANKS, STEPS, LAYERS, EXPERTS = 4, 60, 2, 32
GIB, MIB = 1 << 30, 1 << 20
EPOCH_NS = 1_793_000_000_000_000_000  # 2026-10-26, the clock of every file
STALLS = {step: 3.0 + 0.1 * i for i, step in enumerate(range(12, STEPS, 6))}  # step -> buffer, GiB
FREE_US, MALLOC_US = 96_000.0, 45_000.0
SHARE = (0.40, 0.20, 0.20, 0.20)  # of the tokens, per rank
TOTAL = 81_559 * MIB


@dataclass
class Rank:
    """One rank's events and its host clock, microseconds."""

    rank: int
    events: list[dict[str, Any]] = field(default_factory=list)
    host: float = 0.0
    gpu: float = 0.0
    correlation: int = 0

    def slice(self, cat: str, name: str, start: float, dur: float, **args: Any) -> None:
        """Adds one complete event; times in microseconds."""
        lane = args.get("stream", 7) if cat == "kernel" else 1000 + self.rank
        self.events.append({
            "ph": "X", "cat": cat, "name": name, "pid": 0 if cat == "kernel" else 1000 + self.rank,
            "tid": lane, "ts": round(start, 3), "dur": round(dur, 3), "args": args,
        })  # fmt: skip

    def launch(self) -> int:
        """Launches a kernel; returns the correlation id."""
        self.correlation += 1
        self.slice("cuda_runtime", "cudaLaunchKernel", self.host, 4.0, correlation=self.correlation)
        self.host += 8.0
        return self.correlation

    def kernel(self, name: str, start: float, end: float, stream: int, correlation: int) -> None:
        """Adds a kernel that the launch with `correlation` started."""
        self.slice("kernel", name, start, end - start, device=0, stream=stream, correlation=correlation)
        self.gpu = max(self.gpu, end)

    def call(self, name: str, dur: float) -> None:
        """Adds a runtime call that blocks the host thread."""
        self.correlation += 1
        self.slice("cuda_runtime", name, self.host, dur, correlation=self.correlation)
        self.host += dur


def exchange(ranks: list[Rank], name: str, transfer: float, dice: random.Random) -> None:
    """A collective: everyone leaves when the last one has arrived and the bytes are over."""
    marks = []
    for r in ranks:
        correlation = r.launch()
        marks.append((max(r.gpu, r.host), correlation))
    end = max(start for start, _ in marks) + transfer
    for r, (start, correlation) in zip(ranks, marks, strict=True):
        r.kernel(f"void deep_ep::internode_ll::{name}", start, end + dice.random(), 27, correlation)


def step(ranks: list[Rank], index: int, dice: random.Random) -> tuple[float, float]:
    """One engine step of all ranks; returns its start and duration, microseconds."""
    begin = max(max(r.host, r.gpu) for r in ranks) + 300.0
    for r in ranks:
        r.host = r.gpu = begin + dice.random() * 5
    for layer in range(LAYERS):
        for r in ranks:
            correlation = r.launch()
            start = max(r.host, r.gpu)
            r.kernel("flash::attention_fwd", start, start + 1500 + dice.random() * 20, 7, correlation)
        if layer == 0 and index in STALLS:
            stall(ranks[0])
        exchange(ranks, "dispatch", 180.0, dice)
        for r in ranks:
            correlation = r.launch()
            work = 9000.0 * SHARE[r.rank] * (1 + 0.01 * dice.random())
            r.kernel("deep_gemm::grouped_gemm", r.gpu, r.gpu + work, 7, correlation)
        exchange(ranks, "combine", 220.0, dice)
    end = max(r.gpu for r in ranks)
    for r in ranks:
        r.call("cudaStreamSynchronize", max(end - r.host, 5.0))
        r.slice("user_annotation", f"ProfilerStep#{index}", begin, r.host - begin)
    return begin, end - begin


def stall(r: Rank) -> None:
    """The allocator fails to grow, frees a cached segment and grows again."""
    begin = r.host
    r.call("cudaMalloc", 350.0)
    r.call("cudaFree", FREE_US)
    r.call("cudaMalloc", MALLOC_US)
    r.slice("cpu_op", "aten::empty", begin - 5, r.host - begin + 10)


def traces(folder: Path) -> list[tuple[float, float]]:
    """Writes one trace per rank; returns (start, duration) of each step, microseconds."""
    dice = random.Random(7)  # noqa: S311  # repeatable, not secret
    ranks = [Rank(i) for i in range(RANKS)]
    spans = [step(ranks, i, dice) for i in range(STEPS)]
    group = {"pg_name": "ep", "pg_desc": "expert_parallel", "pg_size": RANKS, "ranks": list(range(RANKS))}
    for r in ranks:
        names = [
            {"ph": "M", "name": "process_name", "pid": 1000 + r.rank, "tid": 0, "args": {"name": "python"}}
        ]
        document = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": TOTAL}],
            "distributedInfo": {
                "backend": "nccl", "rank": r.rank, "world_size": RANKS, "pg_count": 1, "pg_config": [group],
            },
            "baseTimeNanoseconds": EPOCH_NS,
            "displayTimeUnit": "ms",
            "traceEvents": names + sorted(r.events, key=lambda e: e["ts"]),
        }  # fmt: skip
        put(folder / f"traces/rank{r.rank}.pt.trace.json.gz", json.dumps(document).encode())
    return spans


class Allocator:
    """Writes the snapshot of a cut-up heap together with a history that leads to it."""

    def __init__(self) -> None:
        self.history: list[dict[str, Any]] = []
        self.segments: list[dict[str, Any]] = []
        self.base, self.clock = 0x7F20_0000_0000, EPOCH_NS // 1000 - 90_000_000

    def note(self, action: str, addr: int, size: int, call: str) -> None:
        """Adds one entry of the history."""
        self.clock += 900
        frames = [{"name": call, "filename": "engine/moe.py", "line": 120 + len(call)}]
        self.history.append({
            "action": action, "addr": addr, "size": size, "stream": 0, "time_us": self.clock,
            "frames": frames,
        })  # fmt: skip

    def segment(self, size: int, call: str) -> int:
        """Takes a segment from the device and allocates all of it."""
        addr, self.base = self.base, self.base + size + 64 * MIB
        self.note("segment_alloc", addr, size, call)
        self.note("alloc", addr, size, call)
        return addr

    def free(self, addr: int, size: int, call: str) -> None:
        """Frees a block."""
        self.note("free_requested", addr, size, call)
        self.note("free_completed", addr, size, call)

    def keep(self, addr: int, blocks: list[tuple[int, bool, str]]) -> None:
        """Adds a segment of the end state, from its blocks (size, live, call)."""
        active = sum(size for size, live, _ in blocks if live)
        out, at = [], addr
        for size, live, call in blocks:
            frames = [{"name": call, "filename": "engine/moe.py", "line": 120 + len(call)}] if live else []
            state = "active_allocated" if live else "inactive"
            block = {"address": at, "size": size, "requested_size": size, "state": state}
            out.append({**block, "frames": frames})
            at += size
        self.segments.append({
            "device": 0, "address": addr, "total_size": at - addr, "allocated_size": active,
            "active_size": active, "requested_size": active, "stream": 0, "segment_type": "large",
            "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": out,
        })  # fmt: skip


def snapshot() -> dict[str, Any]:
    """Weights, then big temporaries cut up by long-lived blocks, then an expert buffer that grows."""
    heap = Allocator()
    for _ in range(46):
        heap.keep(heap.segment(GIB, "load_weights"), [(GIB, True, "load_weights")])
    cuts = [(0.30, True), (1.20, False), (0.35, True), (1.10, False), (0.30, True), (0.75, False)]
    places = [heap.segment(4 * GIB, "profile_run") for _ in range(7)]
    for addr in places:
        heap.free(addr, 4 * GIB, "profile_run")
    for addr in places:
        at, blocks = addr, []
        for gib, live in cuts:
            size = int(gib * 1024) * MIB if blocks or live else 0
            blocks.append((size, live, "kv_block_table" if live else "chunked_prefill"))
        blocks[-1] = (4 * GIB - sum(size for size, _, _ in blocks[:-1]), *blocks[-1][1:])
        for size, _, call in blocks:
            heap.note("alloc", at, size, call)
            at += size
        heap.keep(addr, blocks)
    for segment in heap.segments[46:]:
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                heap.free(block["address"], block["size"], "chunked_prefill")
    old = None
    start = EPOCH_NS // 1000
    for index, gib in STALLS.items():
        heap.clock = start + index * 17_000
        if old:
            heap.note("segment_free", *old, "expert_buffer")
        size = int(gib * 1024) * MIB
        size += size % (2 * MIB)
        old = (heap.segment(size, "expert_buffer"), size)
        heap.free(*old, "expert_buffer")
    if old:
        heap.keep(old[0], [(old[1], False, "expert_buffer")])
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "expandable_segments": False,
                "garbage_collection_threshold": 0.0}  # fmt: skip
    return {"segments": heap.segments, "device_traces": [heap.history], "allocator_settings": settings,
            "external_annotations": []}  # fmt: skip


def counts() -> dict[str, Any]:
    """Tokens per expert, layer and window, in the layout of vLLM's expert load dump."""
    dice = random.Random(3)  # noqa: S311  # repeatable, not secret
    snapshots = []
    for window in range(6):
        loads = []
        for _ in range(LAYERS):
            load = []
            for expert in range(EXPERTS):
                mean = 4096 * 8 * SHARE[expert * RANKS // EXPERTS] / (EXPERTS / RANKS)
                load.append(int(mean * (0.9 + 0.2 * dice.random())))
            loads.append(load)
        snapshots.append({"step": 10 * window + 9, "latest_expert_load": loads,
                          "physical_to_logical_map": [list(range(EXPERTS))] * LAYERS})  # fmt: skip
    return {"model": "MODEL", "world_size": RANKS, "num_moe_layers": LAYERS, "num_logical_experts": EXPERTS,
            "num_physical_experts": EXPERTS, "num_redundant_experts": 0, "window_size": 10,
            "snapshots": snapshots}  # fmt: skip


def logs(spans: list[tuple[float, float]]) -> str:
    """The engine's log: start-up, throughput lines, and warnings of failed allocations on rank 0."""
    out = ["(Worker_EP0 pid=1000) INFO 10-26 07:31:50 [launcher.py:29] Application startup complete."]
    for index, (begin, _) in enumerate(spans):
        seconds = 33 + begin / 1e6
        stamp = f"07:33:{int(seconds - 33) + 20:02d}.{int(seconds % 1 * 1000):03d}"
        if index in STALLS:
            size = int(STALLS[index] * 1024) * MIB
            out.append(
                f"[rank0]:[W1026 {stamp}000000 CUDACachingAllocator.cpp:3933] memory allocation failed "
                f"with OOM on device 0 while trying to allocate {size} bytes (free: {612 * MIB}, "
                f"total: {TOTAL})."
            )
        if index % 20 == 19:
            out.append(
                f"(Worker_EP0 pid=1000) INFO 10-26 {stamp} [loggers.py:127] Engine 000: Avg prompt "
                "throughput: 0.0 tokens/s, Avg generation throughput: 61241.0 tokens/s, Running: 512 reqs, "
                "Waiting: 0 reqs, GPU KV cache usage: 43.1%, Prefix cache hit rate: 0.0%"
            )
    return "\n".join(out) + "\n"


def table(header: list[str], rows: list[list[Any]]) -> bytes:
    """A CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue().encode()


def smi() -> bytes:
    """nvidia-smi at 1 Hz: the card looks full and busy, which says nothing about holes."""
    header = ["timestamp", "index", "name", "memory.total [MiB]", "memory.used [MiB]", "memory.free [MiB]",
              "utilization.gpu [%]", "clocks.sm [MHz]"]  # fmt: skip
    rows = []
    for second in range(20, 24):
        for gpu in range(RANKS):
            used = 80_400 if gpu == 0 else 62_310
            busy = 58 if gpu == 0 else 97
            free = TOTAL // MIB - used - 547
            sizes = [f"{mib} MiB" for mib in (TOTAL // MIB, used, free)]
            stamp = f"2026/10/26 07:33:{second}.000"
            rows.append([stamp, gpu, "NVIDIA H100 80GB HBM3", *sizes, f"{busy} %", "1755 MHz"])
    return table(header, rows).replace(b",", b", ")


def put(path: Path, content: bytes) -> None:
    """Writes a file; .gz without a time stamp, so that two runs give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 9, mtime=0) if path.suffix == ".gz" else content)


def main(folder: Path) -> None:
    """Writes the bundle."""
    spans = traces(folder)
    put(folder / "memory/snapshot_rank0.pickle.gz", pickle.dumps(snapshot(), protocol=4))
    stats = {"allocated_bytes.all.current": int(52.65 * GIB), "reserved_bytes.all.current": int(77.8 * GIB),
             "num_alloc_retries": len(STALLS), "num_ooms": 0}  # fmt: skip
    put(folder / "memory/memory_stats_rank0.json", json.dumps(stats, indent=1).encode())
    put(folder / "routing/expert_load.json", json.dumps(counts()).encode())
    put(folder / "logs/server.log", logs(spans).encode())
    launch = (
        "vllm serve MODEL --data-parallel-size 4 --enable-expert-parallel "
        "--all2all-backend deepep_low_latency --enforce-eager --gpu-memory-utilization 0.95\n"
    )
    put(folder / "logs/launch.txt", launch.encode())
    put(folder / "gpu/nvidia_smi.csv", smi())
    steps = [[round((b + d) / 1e6, 4), round(d / 1e3, 2)] for b, d in spans]
    put(folder / "latency/itl.csv", table(["t_s", "itl_ms"], steps))
    files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    manifest = {
        "schema": "moexray.bundle/1",
        "made_by": "examples/make_incident.py",
        "ranks": RANKS,
        "files": [f for f in files if f != "manifest.json"],
        "clocks": {"traces": "epoch", "memory": "epoch", "gpu": "local, no zone", "latency": "relative"},
    }
    put(folder / "manifest.json", json.dumps(manifest, indent=1).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "incident")
