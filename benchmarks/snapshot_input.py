"""A PyTorch memory snapshot of any length, with a history that fits its end state."""

import pickle
import random
from pathlib import Path
from typing import Any

MIB = 1 << 20
BASE = 0x7F20_0000_0000
START_US = 1_793_000_000_000_000
POOL = (0, 0)
FILES = ("layers/moe.py", "layers/attention.py", "worker/runner.py", "worker/loop.py", "engine/core.py")

# What a viewer does at least: unpickle (which runs what the file says) and look at every event once.
LOAD_AND_WALK = """
import pickle, sys
document = pickle.load(open(sys.argv[1], "rb"))
live, peak = 0, 0
for event in document["device_traces"][0]:
    if event["action"] == "alloc":
        live += event["size"]
    elif event["action"] == "free_completed":
        live -= event["size"]
    peak = max(peak, live)
print(peak)
"""


def _stacks(count: int, rng: random.Random) -> list[list[dict[str, Any]]]:
    """Call stacks that share their outer frames, as those of one program do."""
    outer = [{"name": f"f{i}", "filename": f"/srv/engine/{f}", "line": 40 + i} for i, f in enumerate(FILES)]
    return [
        [{"name": f"op_{i}", "filename": "/srv/engine/ops.py", "line": 100 + i}, *outer[: rng.randint(2, 5)]]
        for i in range(count)
    ]


def snapshot_document(entries: int, seed: int = 1) -> dict[str, Any]:
    """A snapshot of a server whose steps allocate and free temporaries out of the cache.

    Args:
        entries: Events of the history, about.
        seed: Of sizes and stacks.
    """
    rng = random.Random(seed)  # noqa: S311  # sizes for a benchmark
    stacks = _stacks(64, rng)
    sizes = [rng.randrange(2, 40) * MIB for _ in stacks]
    trace: list[dict[str, Any]] = []
    segments: list[dict[str, Any]] = []
    address = BASE

    def event(action: str, at: int, size: int, stack: int) -> None:
        trace.append(
            {
                "action": action, "addr": at, "size": size, "stream": 0,
                "time_us": START_US + 7 * len(trace), "compile_context": "N/A", "user_metadata": "",
                "pool_id": POOL, "frames": stacks[stack],
            }
        )  # fmt: skip

    def segment(size: int, live: int, stack: int) -> int:
        nonlocal address
        at, address = address, address + size + 2 * MIB
        blocks = [(at, live, "active_allocated")] if live else []
        blocks += [(at + live, size - live, "inactive")] if size > live else []
        segments.append(
            {
                "device": 0, "address": at, "total_size": size, "allocated_size": live, "active_size": live,
                "requested_size": live, "stream": 0, "segment_type": "large", "segment_pool_id": POOL,
                "is_expandable": False, "frames": stacks[stack],
                "blocks": [
                    {"address": a, "size": n, "requested_size": n, "state": state, "frames": stacks[stack]}
                    for a, n, state in blocks
                ],
            }
        )  # fmt: skip
        event("segment_alloc", at, size, stack)
        return at

    for i in range(200):
        at = segment(256 * MIB, 256 * MIB, i % len(stacks))
        event("alloc", at, 256 * MIB, i % len(stacks))
    homes = [segment(size, 0, i) for i, size in enumerate(sizes)]
    while len(trace) < entries:
        for i, at in enumerate(homes):
            event("alloc", at, sizes[i], i)
            event("free_requested", at, sizes[i], i)
            event("free_completed", at, sizes[i], i)
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "expandable_segments": False}
    return {
        "segments": segments,
        "device_traces": [trace],
        "allocator_settings": settings,
        "external_annotations": [],
    }


def snapshot_million(path: Path) -> None:
    """Write a snapshot with 1,000,000 events, about 80 MB."""
    with path.open("wb") as out:
        pickle.dump(snapshot_document(1_000_000), out, protocol=4)
