from __future__ import annotations

import numpy as np
import pytest

from moexray.core.errors import UsageError
from moexray.runtime.arena import Memory
from moexray.verify.lab.pressure import Pressure, PressureSpec

MIB = 1 << 20
SPEC = PressureSpec(capacity=64 * MIB, births=4, seed=3)


def worked(layout: str, steps: int = 200, fill: float = 0.95, buffer: int = 2 * MIB) -> Pressure:
    pressure = Pressure(SPEC, layout, Memory.take(SPEC.capacity))
    pressure.fill = fill
    rng = np.random.default_rng(0)
    for _ in range(steps):
        pressure.step()
        block = pressure.take(int(buffer * rng.uniform(0.8, 1.0)) // 512 * 512)
        pressure.give(block)
    return pressure


def test_a_full_arena_that_all_share_has_to_move_and_a_split_one_never():
    shared, split = worked("shared"), worked("split")
    assert len(shared.compactions) >= 3
    assert not split.compactions
    assert split.largest_free >= 2 * MIB
    for move in shared.compactions:
        assert move.largest_free_bytes < move.request_bytes <= move.free_bytes
        assert move.moved_bytes > SPEC.capacity // 2


def test_an_arena_with_room_does_not_move():
    assert not worked("shared", fill=0.6).compactions


def test_both_layouts_hold_the_same_keys_and_values():
    shared, split = worked("shared"), worked("split")
    pages = split._pages
    assert pages is not None
    assert sum(size for _, size in shared.blocks()) == int(pages.length.sum())


@pytest.mark.parametrize("layout", ["shared", "split"])
def test_keys_and_values_use_their_memory_in_both_layouts(layout):
    memory = Memory.take(SPEC.capacity)
    memory.raw[:] = 0
    pressure = Pressure(SPEC, layout, memory)
    held = sum(size for *_, size, _ in pressure._kv.alive)
    assert memory.raw.sum() == held // (4 << 10)


def test_the_history_leads_to_the_last_failure():
    pressure = worked("shared")
    assert pressure.failed is not None
    blocks, upto = pressure.failed
    live: dict[int, int] = {}
    for _, action, offset, size in pressure.events[:upto]:
        if action == "alloc":
            assert offset not in live
            live[offset] = size
        elif action == "free":
            assert live.pop(offset) == size
    assert sorted(live.items()) == blocks
    assert pressure.events[upto - 1][1] == "oom"


def test_what_lies_in_the_arena_survives_a_move():
    pressure = Pressure(SPEC, "shared", Memory.take(SPEC.capacity))
    kept = pressure.take(MIB)
    with kept as view:
        view[:] = np.arange(MIB, dtype=np.uint64).astype(np.uint8)
    pressure.fill = 0.93
    while not pressure.compactions:
        pressure.step()
        pressure.give(pressure.take(2 * MIB))
    with kept as view:
        assert (view == np.arange(MIB, dtype=np.uint64).astype(np.uint8)).all()


def test_a_buffer_that_can_never_fit_is_refused():
    pressure = worked("shared", steps=1)
    with pytest.raises(UsageError, match="does not fit"):
        pressure.take(SPEC.capacity)


def test_an_unknown_layout_is_refused():
    with pytest.raises(UsageError, match="no memory layout"):
        Pressure(SPEC, "heap", Memory.take(MIB))
