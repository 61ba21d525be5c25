"""What lies beside the traces: logs, latencies, expert counts, allocator state, recorder dumps."""

from __future__ import annotations

import io
import pickle
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.verify.incidents.machine import MOVE
from moexray.verify.incidents.plan import FREES
from moexray.verify.incidents.traces import BASE_NS, START_US

if TYPE_CHECKING:
    from moexray.verify.incidents.machine import Noise, Story
    from moexray.verify.incidents.plan import Plan

__all__ = ["counts", "dumps", "latency", "memory", "nccl_log", "server_log"]

GIB, MIB = 1 << 30, 1 << 20
TOTAL = 81_559 * MIB
TOKENS = 2048  # of an expert in a step, on average
STUCK_AT = 30_000  # seq of the hang
TIMEOUT_S = 600.0


def server_log(plan: Plan, story: Story) -> str:
    """The engine's log: start-up, one line per few steps, and what the causes leave behind."""
    log = _Log(plan)
    if "old_watchdog" in plan.decoys:
        log.watchdog(-90_000.0, 0, 511, 2)
        log.add(-80_000.0, 0, "ERROR", "Engine core died, shutting down.")
    log.add(-70_000.0, 0, "INFO", "Initializing a V1 LLM engine (v0.11.0) with config: model='MODEL'")
    for r in range(plan.ranks):
        place = f"DP rank {r}, PP rank 0, TP rank 0, EP rank {r}"
        text = f"rank {r} in world size {plan.ranks} is assigned as {place}"
        log.add(-60_000.0 + r, r, "INFO", text)
        if "jit_before_ready" in plan.decoys:
            log.add(
                -20_000.0 + r, r, "INFO", "Triton kernel JIT compilation during warm-up: _moe_kernel (M=64)"
            )
    if "quoted_watchdog" in plan.decoys:
        log.add(-9_000.0, 0, "INFO", "TORCH_NCCL_DUMP_ON_TIMEOUT is set: on 'Watchdog caught collective "
                "operation timeout', look for the dumps of all ranks first.")  # fmt: skip
    if "gc_elsewhere" in plan.decoys:
        other = next((r for r in range(plan.ranks) if r not in plan.guilty), None)
        if other is not None:
            log.pause("gc", other, story.end[plan.steps // 2] / 1e3, 90.0, 0)
    log.add(-2_000.0, 0, "INFO", "Application startup complete.")
    if "moves_behind" in plan.decoys:  # asynchronous: no step waits for them
        for start in story.moves_behind():
            log.pause("rearrange", 0, (start + MOVE) / 1e3, MOVE / 1e3, 0)
    for step in range(0, plan.steps, 10):
        text = "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 61241.0 tokens/s"
        text += ", Running: 64 reqs"
        log.add(
            story.end[step] / 1e3,
            0,
            "INFO",
            f"Engine 000: {text}, Waiting: 0 reqs, GPU KV cache usage: 43.1%",
        )
    if "lines" not in plan.withheld:
        for cause, step, start, length in story.pauses:
            log.pause(cause.kind, cause.rank, (start + length) / 1e3, length / 1e3, step)
        log.hang(story.end[-1] / 1e3)
    return "\n".join(text for _, text in sorted(log.lines, key=lambda line: line[0])) + "\n"


class _Log:
    """Lines of one server; times in ms of the machine's clock."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.lines: list[tuple[float, str]] = []

    def _moment(self, rank: int, at: float) -> tuple[time.struct_time, float]:
        clock = self.plan.offset_us[rank] / 1e6
        seconds = BASE_NS / 1e9 + START_US / 1e6 + clock + at / 1e3
        return time.gmtime(seconds), seconds % 1

    def add(self, at: float, rank: int, level: str, text: str) -> None:
        """A line of a worker."""
        when, part = self._moment(rank, at)
        if self.plan.notes == "sglang":
            stamp = f"{time.strftime('%Y-%m-%d %H:%M:%S', when)}.{int(part * 1000):03d}"
            stamp = f"[{stamp} DP{rank} TP{rank} EP{rank}]"
            line = f"{stamp} {text}" if level == "INFO" else f"{stamp} {level} {text}"
        else:
            stamp = f"{time.strftime('%m-%d %H:%M:%S', when)}.{int(part * 1000):03d}"
            line = f"(EngineCore_DP{rank} pid={2200 + rank}) {level} {stamp} [core.py:61] {text}"
        self.lines.append((at, line))

    def torch(self, at: float, rank: int, level: str, text: str) -> None:
        """A line of torch itself."""
        when, part = self._moment(rank, at)
        stamp = f"{level}{time.strftime('%m%d %H:%M:%S', when)}.{int(part * 1e9):09d}"
        self.lines.append((at, f"[rank{rank}]:[{stamp} {text}"))

    def pause(self, kind: str, rank: int, at: float, length: float, step: int) -> None:
        """What a pause that ends at `at` leaves in the log."""
        if kind == "gc":
            took = f"Duration: {length / 1e3:.4f}s | # Objects: 4108253"
            text = f"LONG GARBAGE COLLECTION DETECTED | Generation 2 | {took}"
            self.add(at, rank, "WARNING", text)
        if kind == "jit":
            text = f"Triton kernel JIT compilation during inference: _moe_kernel (M={64 + step})"
            self.add(at - length, rank, "WARNING", text)
        if kind == "rearrange":
            self.add(at - length, rank, "INFO", "Rearranging experts...")
            self.add(at, rank, "INFO", f"Rearranged experts in {length / 1e3:.2f} seconds.")
        if kind == "alloc":
            size = (900 + 8 * step) * MIB
            text = (
                "CUDACachingAllocator.cpp:3933] memory allocation failed with OOM on device 0 while trying "
                f"to allocate {size} bytes (free: {512 * MIB}, total: {TOTAL})."
            )
            self.torch(at - length, rank, "W", text)

    def hang(self, at: float) -> None:
        """Watchdog lines of the ranks that wait."""
        for cause in self.plan.causes:
            if cause.kind == "hang":
                for rank in range(self.plan.ranks):
                    if rank != cause.rank:
                        self.watchdog(at + TIMEOUT_S * 1e3 + 7 * rank, rank, STUCK_AT, self.plan.ranks)
                    elif cause.layer == 1:
                        self.watchdog(at + TIMEOUT_S * 1e3 + 7 * rank, rank, STUCK_AT - 3, self.plan.ranks)

    def watchdog(self, at: float, rank: int, seq: int, ranks: int) -> None:
        """The two lines of a rank that gives up."""
        sizes = f"NumelIn={ranks}, NumelOut={ranks}, Timeout(ms)=600000"
        work = f"WorkNCCL(SeqNum={seq}, OpType=ALLTOALL_BASE, {sizes})"
        caught = f"[Rank {rank}] Watchdog caught collective operation timeout: {work}"
        ran = f"ran for {600_000 + 7 * rank} milliseconds before timing out."
        self.torch(at, rank, "E", f"ProcessGroupNCCL.cpp:685] {caught} {ran}")
        group = f"[PG ID 3 PG GUID 21(ep) Rank {rank}] failure detected by watchdog"
        status = f"last enqueued work: {seq}, last completed work: {seq - 1}"
        text = f"{group} at work sequence id: {seq} PG status: {status}"
        self.torch(at + 1, rank, "E", f"ProcessGroupNCCL.cpp:2252] {text}")


def latency(plan: Plan, story: Story) -> str:
    """Inter-token latency per step, CSV; Unix time."""
    base = BASE_NS / 1e9 + START_US / 1e6
    rows = [
        f"{base + story.end[i] / 1e6:.4f},{(story.end[i] - story.end[i - 1]) / 1e3:.3f}"
        for i in range(1, plan.steps)
    ]
    return "unix_time_s,itl_ms\n" + "\n".join(rows) + "\n"


def counts(plan: Plan, noise: Noise, story: Story) -> bytes:
    """Tokens per step, layer and expert as .npz; the load of a rank is that of its experts."""
    rng = np.random.default_rng([plan.seed, 11])
    here = plan.experts // plan.ranks
    shape = noise.shape.reshape(plan.ranks, here)
    shape = shape / shape.mean(axis=1, keepdims=True)
    load = story.load
    if "warm_up_counts" in plan.decoys:  # dummy batches: the same uneven row again and again
        load = load.copy()
        load[:3] = np.linspace(0.4, 1.6, plan.ranks)
    mean = (load[..., None] * shape * TOKENS).reshape(plan.steps, plan.layers, plan.experts)
    tokens = rng.poisson(mean).astype(np.int32)
    if "warm_up_counts" in plan.decoys:
        tokens[:3] = tokens[0]
    table = io.BytesIO()
    np.savez_compressed(
        table,
        logical_count=tokens,
        steps=np.arange(plan.steps),
        ep_size=plan.ranks,
        physical_to_logical_map=np.tile(np.arange(plan.experts), (plan.layers, 1)),
    )
    return table.getvalue()


def memory(plan: Plan, rank: int) -> dict[str, Any]:
    """{file: content} of one rank's allocator: statistics and, of a culprit, a snapshot."""
    stalls = sum(len(c.steps) for c in plan.causes if c.kind == "alloc" and c.rank == rank)
    out: dict[str, Any] = {}
    if "stats" not in plan.withheld:
        out[f"memory_stats_rank{rank}.json"] = {
            "allocated_bytes.all.current": int((47 if stalls else 66) * GIB),
            "reserved_bytes.all.current": int(76.5 * GIB), "reserved_bytes.all.peak": int(76.9 * GIB),
            "num_alloc_retries": stalls, "num_ooms": 0, "segment.all.current": 70 + FREES,
        }  # fmt: skip
    cached = "cached_snapshot" in plan.decoys and rank == plan.seed % plan.ranks
    if (stalls or cached) and "snapshot" not in plan.withheld:
        out[f"snapshot_rank{rank}.pickle"] = pickle.dumps(_snapshot(cut=bool(stalls)), protocol=4)
    return out


def _snapshot(*, cut: bool) -> dict[str, Any]:
    """Weights, then segments that are cut up by small live blocks, or that are wholly free."""
    segments, at = [], 0x7F20_0000_0000
    layouts = [[(GIB, True)]] * 40
    stuck = [(300 * MIB, True), (1400 * MIB, False), (200 * MIB, True), (2196 * MIB, False)]
    layouts += [stuck if cut else [(4096 * MIB, False)]] * 8
    for layout in layouts:
        blocks, start = [], at
        for size, live in layout:
            state = "active_allocated" if live else "inactive"
            blocks.append({"address": at, "size": size, "requested_size": size, "state": state, "frames": []})
            at += size
        active = sum(size for size, live in layout if live)
        segments.append({
            "device": 0, "address": start, "total_size": at - start, "allocated_size": active,
            "active_size": active, "requested_size": active, "stream": 0, "segment_type": "large",
            "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks,
        })  # fmt: skip
        at += 64 * MIB
    return {"segments": segments, "device_traces": [], "allocator_settings": {"expandable_segments": False}}


def nccl_log(plan: Plan) -> str:
    """Transport lines: InfiniBand everywhere, but sockets for the ranks whose link is slow."""
    slow = {c.rank for c in plan.causes if c.kind == "slow_link"}
    lines = ["NCCL version 2.27.5+cuda12.8"]
    for rank in range(plan.ranks):
        who = f"node{rank}:{2200 + rank}:{2290 + rank} [0] NCCL INFO"
        comm = f"comm 0x55d0c00{rank}0000 rank {rank} nranks {plan.ranks}"
        lines.append(
            f"{who} ncclCommInitRank {comm} cudaDev 0 nvmlDev 0 busId 18000 commId 0x5d9cf78374ef3dbb "
            "- Init COMPLETE"
        )
        via = "NET/Socket/0" if rank in slow else "NET/IB/0/GDRDMA"
        to = (rank + 1) % plan.ranks
        lines += [f"{who} Channel {n:02d}/0 : {rank}[0] -> {to}[0] [send] via {via}" for n in range(2)]
    return "\n".join(lines) + "\n"


def dumps(plan: Plan, story: Story) -> dict[str, bytes]:
    """Flight-recorder dumps of a hang: of every rank but one that is silent."""
    out: dict[str, bytes] = {}
    start = BASE_NS + int(START_US * 1000)
    for cause in plan.causes:
        for rank in range(plan.ranks):
            if cause.kind != "hang" or (rank == cause.rank and cause.layer == 0):
                continue
            last = STUCK_AT - 3 if rank == cause.rank else STUCK_AT
            entries = [
                _entry(plan, seq, last, start + int(story.end[-1] * 1000))
                for seq in range(last - 8, last + 1)
            ]
            status = {"last_enqueued_collective": last, "last_started_collective": last,
                      "last_completed_collective": last - 1}  # fmt: skip
            config = {"name": "3", "desc": "ep", "ranks": str(list(range(plan.ranks)))}
            dump = {"version": "2.10", "comm_lib_version": "2.27.5", "entries": entries,
                    "pg_config": {"3": config}, "pg_status": {"3": status}}  # fmt: skip
            out[f"comm_lib_trace_rank_{rank}"] = pickle.dumps(dump, protocol=2)
    return out


def _entry(plan: Plan, seq: int, last: int, end_ns: int) -> dict[str, Any]:
    created = end_ns - (STUCK_AT - seq) * 2_000_000
    done = seq < last
    return {
        "record_id": seq, "pg_id": 3, "process_group": ("3", "ep"), "collective_seq_id": seq, "p2p_seq_id": 0,
        "op_id": seq, "profiling_name": "nccl:all_to_all", "time_created_ns": created,
        "time_discovered_started_ns": created + 20_000,
        "time_discovered_completed_ns": created + 900_000 if done else None,
        "input_sizes": [[plan.ranks, 64]], "output_sizes": [[plan.ranks, 64]], "input_dtypes": ["Long"],
        "output_dtypes": ["Long"], "state": "completed" if done else "started", "retired": done,
        "timeout_ms": 600_000, "is_p2p": False, "frames": [],
    }  # fmt: skip
