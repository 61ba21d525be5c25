"""The stress generator on a real arena: what it reports happened to real bytes."""

from __future__ import annotations

import pytest

from moexray.runtime.arena import Arena
from moexray.verify.stress import MIXES, ArenaHeap, Spec, drive

MIB = 1 << 20


def stressed(policy="first-fit", *, size=96 * MIB, **changes):
    spec = Spec(**{"seed": 1, "events": 2000, "live_bytes": 64 * MIB, "mix": "kv", **changes})
    heap = ArenaHeap(Arena(size, policy=policy, spill=False, name="stress"), policy)
    return heap, drive(heap, spec)


@pytest.mark.parametrize("policy", ["tlsf", "first-fit", "buddy"])
@pytest.mark.parametrize("mix", ["moe", "kv", "uniform"])
def test_the_target_is_reached_and_no_byte_is_lost(policy, mix):
    heap, outcome = stressed(policy, mix=mix)
    figures = heap.arena.figures()
    assert heap.damaged == 0
    assert abs(outcome.error) <= 0.02
    assert (outcome.used_bytes, outcome.free_bytes) == (figures.used_bytes, figures.free_bytes)
    assert outcome.largest_free_bytes >= figures.largest_free_bytes  # buddy serves less than the hole holds
    for handle in list(heap._blocks):
        heap.free(handle)
    assert heap.damaged == 0
    assert heap.arena.figures().used_bytes == 0


def test_the_history_tells_every_block_and_every_move():
    heap, outcome = stressed(size=72 * MIB)
    snapshot = heap.snapshot()
    [trace], [segment] = snapshot["device_traces"], snapshot["segments"]
    live = {}
    for entry in trace:
        if entry["action"] == "alloc":
            assert entry["addr"] not in live
            live[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_completed":
            assert live.pop(entry["addr"]) == entry["size"]
    held = {b["address"]: b["size"] for b in segment["blocks"] if b["state"] != "inactive"}
    assert held == live
    assert len(trace) == outcome.events
    assert heap.arena.figures().compactions > 0
    assert sum(e["action"] == "oom" for e in trace) == outcome.failures
    assert {b["frames"][0]["name"] for b in segment["blocks"] if b["frames"]} & {"allocate_blocks", "grow_blocks"}


@pytest.mark.parametrize("mix", MIXES)
def test_the_same_seed_gives_the_same_snapshot(mix):
    assert stressed(mix=mix)[0].snapshot() == stressed(mix=mix)[0].snapshot()


def test_bytes_that_changed_are_counted():
    heap, _ = stressed()
    at, block = next((at, block) for block, at in heap._blocks.values())
    heap.arena.memory.view(at, block.given)[0] ^= 1
    for handle in list(heap._blocks):
        heap.free(handle)
    assert heap.damaged == 1
