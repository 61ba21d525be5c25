"""Make double_fault.json: an invented incident on four ranks, as the diagnosis document tells it.

Two faults feed each other on rank 2: its experts are hot, so its dispatch buffer grows; the
allocator's memory is in pieces, so each growth frees and takes memory anew; the others wait.
All figures are invented and agree with each other. Run from the project root:

    python tests/data/report/make_double_fault.py
"""

import json
import math
import random
from pathlib import Path

GIB = 1024**3
RANKS, LAYERS, STEPS, HOT = 4, 24, 600, 2
STALL_STEPS = (212, 305, 391, 470, 548)


def finding(rule, severity, confidence, claim, **rest):
    subject = dict.fromkeys(
        ("rank", "device", "stream", "layer", "expert", "step_from", "step_to", "t_from_ns", "t_to_ns")
    )
    subject.update(rest.pop("subject", {}))
    empty = {"value": None, "limit": None, "unit": None, "evidence": [], "implied_by": [],
             "remedies": [], "settle_with": []}  # fmt: skip
    head = {"id": rule, "severity": severity, "confidence": confidence, "claim": claim}
    return {**head, "subject": subject, **empty, **rest}


def quote(source, where, text):
    return {"source": source, "where": str(where), "text": text}


def findings():
    return [
        finding(
            "mem.fragmentation", "error", 0.95,
            "On rank 2 PyTorch holds 5.11 GiB in pieces too small to hand out; the 3.80 GiB "
            "that failed would fit into them, and only 1.20 GiB is free in one hole.",
            subject={"rank": 2, "device": 2},
            value=5486788608, limit=4080218931, unit="bytes",
            evidence=[
                quote("logs/rank2.log", 18841,
                      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.80 GiB. GPU 2 has a "
                      "total capacity of 79.11 GiB of which 1.20 GiB is free. Process 4117 has 77.90 GiB "
                      "memory in use. Of the allocated memory 69.32 GiB is allocated by PyTorch, with "
                      "2.10 GiB allocated in private pools (e.g., CUDA Graphs), and 5.11 GiB is reserved "
                      "by PyTorch but unallocated."),
                quote("memory/rank2.pickle", "device=2 pool=default",
                      "request_bytes=4080218931 fragments_bytes=5486788608 free_bytes=1288490188 "
                      "largest_hole_bytes=1288490188 segments=611 fragmentation_ratio=0.77"),
            ],
            remedies=[
                {"id": "expandable-segments",
                 "action": "Set `PYTORCH_ALLOC_CONF=expandable_segments:True` on every rank and restart.",
                 "undo": "Unset the variable and restart.",
                 "caveats": "Not together with custom all-reduce or sleep mode; this launch line has "
                            "`--disable-custom-all-reduce`, so it is safe here."},
                {"id": "max-split-size",
                 "action": "If that is not possible: `PYTORCH_ALLOC_CONF=max_split_size_mb:512`.",
                 "undo": "Unset the variable and restart.",
                 "caveats": "Blocks above 512 MiB are no longer split: the peak may rise."},
            ],
        ),
        finding(
            "ep.skew", "warn", 0.97,
            "Layer 17: rank 2 receives 2.31 times the mean of the ranks (balancedness 0.43 < 0.80).",
            subject={"rank": 2, "layer": 17, "step_from": 200, "step_to": 600},
            value=0.43, limit=0.80, unit="ratio",
            evidence=[quote("routing/counts.csv", "layer=17",
                            "tokens_rank0=71202 tokens_rank1=68114 tokens_rank2=271544 tokens_rank3=59480 "
                            "balancedness_ratio=0.43")],
            remedies=[
                {"id": "rebalance", "action": "Place the experts anew: `moexray plan routing/counts.csv`; "
                 "predicted balancedness 0.91 without extra memory.",
                 "undo": "Load the former placement file.", "caveats": "Moves 11.4 GiB of weights once."},
                {"id": "replicate-expert", "action": "Or start with `--num-redundant-experts=4`.",
                 "undo": "Start without the flag.", "caveats": "Costs 3.80 GiB a rank: first mend the fragmentation."},
            ],
        ),
        finding(
            "mem.alloc_stall", "warn", 0.9,
            "Rank 2 spends 18 % of five slow steps in cudaFree and cudaMalloc while its GPU idles.",
            subject={"rank": 2, "device": 2, "step_from": 212, "step_to": 548},
            value=0.18, limit=0.05, unit="ratio", implied_by=["mem.fragmentation"],
            evidence=[quote("traces/rank2.json.gz", "ts 4412.1 to 4412.2 s",
                            "cudaFree_calls=38 cudaMalloc_calls=11 stall_s=0.147 step_s=0.328")],
        ),
        finding(
            "comm.straggler_wait", "warn", 0.92,
            "Ranks 0, 1 and 3 wait 147 ms for rank 2 in the dispatch of layer 17; the transfer itself takes 6 ms.",
            subject={"rank": 2, "layer": 17}, value=0.147, limit=0.0056, unit="s",
            implied_by=["mem.alloc_stall", "ep.skew"],
            evidence=[quote("traces/rank0.json.gz", "row 88214", "lateness_s=0.147 transfer_s=0.006"),
                      quote("traces/rank3.json.gz", "row 88190", "lateness_s=0.146 transfer_s=0.006")],
        ),
        finding(
            "snapshot.history_incomplete", "warn", 0.85,
            "The event history of rank 2 begins 41 s after the start, so its sums are no totals.",
            subject={"rank": 2}, evidence=[quote("memory/rank2.pickle", "device_traces[2]",
                                                 "events=100000 frees_without_alloc=8121")],
            remedies=[{"id": "longer-history",
                       "action": "Call `torch.cuda.memory._record_memory_history(max_entries=1000000)` before the spike.",
                       "undo": "`torch.cuda.memory._record_memory_history(None)`", "caveats": ""}],
        ),
        finding(
            "comm.slow_transfer", "info", 0.4,
            "Whether the link of rank 3 is slow cannot be told: only one collective of its size was seen.",
            subject={"rank": 3}, settle_with=["a trace of 20 steps of ranks 0 and 3", "NCCL_DEBUG=INFO lines"],
        ),
    ]  # fmt: skip


def ruled_out():
    return [
        finding("mem.capacity", "info", 0.98,
                "Not a plain lack of memory: free memory and fragments together exceed the request 1.66 times.",
                subject={"rank": 2}, value=6775278796, limit=4080218931, unit="bytes",
                evidence=[quote("logs/rank2.log", 18841,
                                "free_bytes=1288490188 fragments_bytes=5486788608 request_bytes=4080218931")]),
        finding("host.gc_pause", "info", 0.9,
                "Not the garbage collector: no collector record overlaps any of the five stalls.",
                evidence=[quote("traces/rank2.json.gz", "name=Python GC", "gc_events=14 overlaps=0")]),
    ]  # fmt: skip


def ledger():
    shares = {
        0: (63.9, 4.1, 2.1, 1.3, 0.0, 0.4, 7.3),
        1: (63.6, 4.4, 2.1, 1.3, 0.0, 0.4, 7.3),
        2: (67.2, 5.1, 2.1, 1.4, 1.7, 0.4, 1.2),
        3: (63.2, 4.6, 2.1, 1.3, 0.0, 0.4, 7.5),
    }
    owners = ("torch allocated", "torch cached", "graph pools", "non-torch", "other processes", "unknown", "free")
    out = []
    for rank, sizes in shares.items():
        for owner, size in zip(owners, sizes, strict=True):
            note = "held in pieces" if owner == "torch cached" and rank == HOT else ""
            if owner == "other processes" and rank == HOT:
                note = "pid 9120, python (a notebook)"
            if size:
                out.append({"device": rank, "rank": rank, "owner": owner, "bytes": round(size * GIB),
                            "source": "gpu/nvidia-smi.txt" if owner in owners[3:] else f"memory/rank{rank}.pickle",
                            "where": str(14 + 4 * rank) if owner in owners[3:] else "", "note": note})  # fmt: skip
    return out


def series(rng):
    steps = list(range(STEPS))
    slow = [0.112 + rng.gauss(0, 0.003) + (0.21 if s in STALL_STEPS else 0) for s in steps]
    reserved = [round((70.4 + 5.6 * (1 - math.exp(-s / 180)) + rng.random() * 0.1) * GIB) for s in steps]
    skew = [0.91 - 0.48 / (1 + math.exp(-(s - 200) / 12)) + rng.gauss(0, 0.01) for s in steps]
    marks = [{"x": s, "text": f"allocator stall on rank 2, step {s}", "finding": "mem.alloc_stall"}
             for s in STALL_STEPS]  # fmt: skip
    drift = [{"x": 200, "text": "the routing changes", "finding": "ep.skew"}]
    lines = (
        ("Step time, slowest rank", "s", [round(y, 5) for y in slow], "latency/steps.csv", marks),
        ("Memory of PyTorch, rank 2", "bytes", reserved, "metrics/rank2.prom", []),
        ("Balancedness over ranks, layer 17", "ratio", [round(y, 4) for y in skew], "routing/counts.csv", drift),
    )
    out = [{"name": name, "unit": unit, "x_unit": "step", "x": steps, "y": y, "source": source, "marks": m}
           for name, unit, y, source, m in lines]  # fmt: skip
    out[1] |= {"label": "reserved", "also": [{"label": "live", "y": [y - 3 * GIB - s * 2**20 for s, y in enumerate(reserved)]}]}
    return out


def memory_map():
    """Twelve segments of rank 2: four of weights, six in pieces, a cached one, a small one."""
    mib = 1024**2
    layout = [[(512, 0, 0)]] * 4 + [[(64, 0, 1), (180, 2, -1), (12, 0, 1), (256, 2, -1)]] * 6
    layout += [[(256, 3, -1)], [(1, 1, 1), (1, 2, -1)]]
    sums = [[sum(n for n, kind, _ in seg if kind in kinds) * mib for kinds in ((0, 1), (2,), (3,))] for seg in layout]
    return [{
        "name": "rank 2, device 2", "source": "memory/rank2.pickle", "rank": 2, "device": 2,
        "segments_total": 611, "total_bytes": round(72.3 * GIB), "blocks": 4021, "merged_below_bytes": 65536,
        "kinds": ["live", "pending", "stuck", "cached"],
        "sites": [{"site": "loader.py:311 load_weights", "bytes": 2048 * mib},
                  {"site": "layers/moe.py:88 dispatch", "bytes": 457 * mib}],
        "segments": [
            {"address": 0x7F0000000000 + i * GIB, "pool": "default", "stream": 0,
             "kind": "small" if i == 11 else "large", "bytes": sum(sums[i]), "active_bytes": sums[i][0],
             "free_bytes": sums[i][1] + sums[i][2], "largest_free_bytes": max([n for n, k, _ in seg if k > 1], default=0) * mib,
             "stuck_bytes": sums[i][1], "live_blocks": sum(k < 2 for _, k, _ in seg),
             "held_by": "loader.py:311 load_weights" if i < 4 else "layers/moe.py:88 dispatch" if i != 10 else ""}
            for i, seg in enumerate(layout)
        ],
        "runs": [[i, n * mib, kind, site] for i, seg in enumerate(layout) for n, kind, site in seg],
    }]  # fmt: skip


def balance(rng):
    values, scores = [], []
    for layer in range(LAYERS):
        hot = 1 + 1.3 * math.exp(-(((layer - 17) / 2.2) ** 2))
        row = [round(70_000 * rng.uniform(0.9, 1.1) * (hot if rank == HOT else 1))
               for rank in range(RANKS)]  # fmt: skip
        if layer == 17:
            row = [71202, 68114, 271544, 59480]
        values.append(row)
        scores.append(round(sum(row) / RANKS / max(row), 3))
    return [{"source": "routing/counts.csv", "unit": "tokens", "layers": list(range(LAYERS)),
             "columns": [str(rank) for rank in range(RANKS)], "axis": "rank", "values": values,
             "balancedness": scores}]  # fmt: skip


def spans(rng):
    out, start = [], 4411.9
    for step in range(6):
        stalled = step == 3
        ends = []
        for rank in range(RANKS):
            at = start
            for name, length in (("attention", 0.014), ("experts", 0.021 * (2.3 if rank == HOT else 1))):
                length *= rng.uniform(0.95, 1.05)
                out.append((rank, "stream 7", at, length, name, "compute"))
                at += length
            if rank == HOT and stalled:
                out.append((rank, "host", at, 0.147, "cudaFree, cudaMalloc", "alloc"))
                at += 0.147
            else:
                out.append((rank, "host", start, 0.011, "launch", "host"))
            ends.append(at)
        last = max(ends)
        for rank, end in enumerate(ends):
            if last - end > 0.0005:
                out.append((rank, "stream 20", end, last - end, "wait for rank 2", "wait"))
            out.append((rank, "stream 20", last, 0.006, "dispatch all-to-all, layer 17", "comm"))
        start = last + 0.0075
    keys = ("rank", "lane", "start_s", "dur_s", "name", "kind")
    return [dict(zip(keys, (*s[:2], round(s[2], 6), round(s[3], 6), *s[4:]), strict=True)) for s in out]


def document():
    rng = random.Random(7)
    found = findings()
    return {
        "schema": "moexray.diagnosis/1",
        "verdict": found[0]["id"],
        "findings": found,
        "inputs": [
            {"path": "logs/rank2.log", "reader": "torch OOM message", "rows": 1, "notes": []},
            {"path": "memory/rank2.pickle", "reader": "torch memory snapshot", "rows": 100611,
             "notes": ["history wrapped: the oldest event is 41 s after the start"]},
            {"path": "routing/counts.csv", "reader": "expert counts", "rows": 57600, "notes": []},
            {"path": "traces/rank0.json.gz", "reader": "Kineto trace", "rows": 88931, "notes": []},
            {"path": "traces/rank2.json.gz", "reader": "Kineto trace", "rows": 90217, "notes": ["clock shifted by 1.9 ms to rank 0"]},
            {"path": "traces/rank3.json.gz", "reader": "Kineto trace", "rows": 88904, "notes": ["clock shifted by 0.4 ms to rank 0"]},
            {"path": "gpu/nvidia-smi.txt", "reader": "nvidia-smi table", "rows": 4, "notes": []},
        ],
        "skipped": [{"path": "routing/default-counters.csv", "reason": "a configuration, no counts"},
                    {"path": "traces/rank1.json.gz", "reason": "truncated gzip after 0 bytes"}],
        "ledger": ledger(),
        "waits": [
            {"rank": 0, "late_s": 0.004, "waited_s": 0.981, "collectives": 144, "source": "traces/rank0.json.gz"},
            {"rank": 2, "late_s": 0.977, "waited_s": 0.003, "collectives": 144, "source": "traces/rank2.json.gz"},
            {"rank": 3, "late_s": 0.006, "waited_s": 0.969, "collectives": 144, "source": "traces/rank3.json.gz"},
        ],
        "balance": balance(rng),
        "series": series(rng),
        "memory_map": memory_map(),
        "spans": spans(rng),
        "chain": [
            {"from": "mem.fragmentation", "to": "mem.alloc_stall",
             "text": "no hole fits the grown buffer, so memory is freed and taken anew: 38 cudaFree in 147 ms"},
            {"from": "mem.alloc_stall", "to": "comm.straggler_wait",
             "text": "rank 2 enters dispatch 147 ms late; the others wait inside it"},
            {"from": "ep.skew", "to": "comm.straggler_wait",
             "text": "rank 2 computes 2.31 times the mean tokens of layer 17: 28 ms of the wait"},
        ],
        "ruled_out": ruled_out(),
    }  # fmt: skip


if __name__ == "__main__":
    target = Path(__file__).with_name("double_fault.json")
    target.write_text(json.dumps(document(), separators=(",", ":")) + "\n", encoding="utf-8")
