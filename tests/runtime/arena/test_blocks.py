"""The arena: no overlap, no lost byte, aligned, within its memory; blocks move only as a last resort."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from moexray.core.errors import UsageError
from moexray.runtime import guard as guards
from moexray.runtime.arena import Arena, ExpertSlots, Memory
from moexray.runtime.arena import memory as memories
from moexray.runtime.arena.blocks import USABLE
from steady import taken

PAGE = 256
SPACES = [p for p in USABLE if p not in ("buddy", "segregated")]


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(guards, "_said", set())
    monkeypatch.setattr(guards, "_off", set())
    monkeypatch.delenv(guards.VARIABLE, raising=False)


def filled(arena, size, value):
    block = arena.allocate(size)
    with block as view:
        view[:] = value
    return block


def value_of(block):
    with block as view:
        values = {int(v) for v in view}
    return values.pop() if len(values) == 1 else values


def checkered(arena, count=8):
    """`count` blocks of one page fill the arena; every other one is freed."""
    blocks = [filled(arena, PAGE, i) for i in range(count)]
    for block in blocks[::2]:
        arena.free(block)
    return blocks[1::2]


@pytest.mark.parametrize("policy", SPACES)
def test_what_fits_only_after_a_move_is_served_by_one(policy):
    arena = Arena(8 * PAGE, policy=policy)
    kept = checkered(arena)
    big = arena.allocate(2 * PAGE)
    assert big.offset is not None
    figures = arena.figures()
    assert figures.compactions == 1
    assert figures.moved_bytes == PAGE  # the cheapest run: one block between two holes
    assert [value_of(b) for b in kept] == [1, 3, 5, 7]
    rest = arena.allocate(2 * PAGE)
    assert rest.offset is not None
    assert arena.figures().free_bytes == 0
    assert arena.figures().plain == 0


@pytest.mark.parametrize("policy", USABLE)
def test_a_whole_compaction_leaves_one_hole(policy):
    arena = Arena(16 * PAGE, policy=policy)
    kept = checkered(arena, 16)
    assert arena.compact() > 0
    assert [value_of(b) for b in kept] == list(range(1, 16, 2))
    assert arena.figures().largest_free_bytes == 8 * PAGE
    assert sorted(b.offset for b in kept) == [i * PAGE for i in range(8)]


def test_nothing_moves_where_it_would_not_help():
    arena = Arena(8 * PAGE, policy="first-fit", spill=False)
    checkered(arena)
    assert arena.allocate(5 * PAGE) is None
    assert arena.figures().compactions == 0


def test_a_pinned_block_never_moves():
    arena = Arena(8 * PAGE, policy="first-fit", spill=False)
    kept = checkered(arena)
    with kept[1] as view:  # at page 3
        assert arena.allocate(3 * PAGE) is None
        assert arena.figures().compactions == 0  # with page 3 pinned, two pages at most
        two = arena.allocate(2 * PAGE)
        assert two.offset is not None
        assert kept[1].offset == 3 * PAGE
        assert (view == 3).all()
        with pytest.raises(UsageError, match="is pinned"):
            arena.free(kept[1])
    assert [value_of(b) for b in kept] == [1, 3, 5, 7]


def test_what_does_not_fit_gets_plain_memory():
    arena = Arena(4 * PAGE)
    block = filled(arena, 5 * PAGE, 9)
    assert block.offset is None
    assert value_of(block) == 9
    assert arena.figures().plain == 1
    arena.free(block)
    with pytest.raises(UsageError, match="freed twice"):
        arena.free(block)
    with pytest.raises(UsageError, match="has been freed"), block:
        pass


def test_switched_off_or_broken_the_host_still_gets_memory(monkeypatch):
    arena = Arena(4 * PAGE, spill=False)
    monkeypatch.setattr(arena, "_place", lambda size: 1 // 0)
    assert arena.allocate(PAGE) is None
    assert arena.guard.figures().fallbacks == 1
    monkeypatch.setenv(guards.VARIABLE, "arena")
    arena = Arena(4 * PAGE, spill=False)
    assert value_of(filled(arena, PAGE, 4)) == 4
    assert arena.figures().used_bytes == 0


def test_what_cannot_be_is_refused():
    with pytest.raises(UsageError, match="one of tlsf"):
        Arena(1 << 20, policy="scope")
    with pytest.raises(UsageError, match="no power of two"):
        Arena(1 << 20, alignment=100)
    with pytest.raises(UsageError, match="dense row"):
        Memory(np.zeros((4, 4), np.uint8))
    raw = np.zeros((1 << 12) + 1, np.uint8)
    start = 1 - raw.ctypes.data % 2
    with pytest.raises(UsageError, match="multiple of 256"):
        Arena(Memory(raw[start:]))
    with pytest.raises(UsageError, match="at least 1 byte"):
        Arena(1 << 12).allocate(0)
    with pytest.raises(UsageError, match="not one of this arena"):
        Arena(1 << 12).free(Arena(1 << 12).allocate(1))


def test_tensors_and_the_way_through_scratch(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(memories, "SCRATCH_BYTES", 100)
    for through_scratch in (False, True):
        memory = Memory.take(8 * PAGE, device="cpu")
        if through_scratch:
            memory._bytes = None
        arena = Arena(memory, policy="first-fit")
        kept = []
        first = arena.allocate(PAGE // 2)
        for i in range(3):
            block = arena.allocate(2 * PAGE)
            with block as view:
                assert view.data_ptr() % PAGE == 0
                view.copy_((torch.arange(2 * PAGE) + i) % 251)
            kept.append(block)
        arena.free(first)
        assert arena.compact() == 6 * PAGE  # each overlaps the place it came from
        for i, block in enumerate(kept):
            with block as view:
                assert torch.equal(view.long(), (torch.arange(2 * PAGE) + i) % 251)


def test_views_can_be_written_in_any_grad_mode():
    torch = pytest.importorskip("torch")
    with torch.inference_mode():
        arena = Arena(Memory.take(4 * PAGE, device="cpu"))
        block = arena.allocate(PAGE)
        with block as view:
            view.fill_(1)
    with block as view:
        view.fill_(2)


def test_pinning_in_a_steady_state_takes_no_memory():
    arena = Arena(64 * PAGE)
    blocks = [arena.allocate(PAGE) for _ in range(32)]

    def step(number):
        with blocks[number % 32] as view:
            view[0] = 1

    for number in range(64):
        step(number)
    left, peak = taken(step)
    assert left < 1024
    assert peak < 16 * 1024


class Blocks(RuleBasedStateMachine):
    """Random requests, frees, pins and compactions over one small arena."""

    blocks = Bundle("blocks")

    @initialize(
        policy=st.sampled_from(USABLE), spill=st.booleans(), tensor=st.booleans(), pages=st.integers(5, 40)
    )
    def begin(self, policy, spill, tensor, pages):
        self.capacity = pages * PAGE
        memory = Memory.take(self.capacity, device="cpu" if tensor else None)
        self.arena = Arena(memory, policy=policy, spill=spill)
        self.alive, self.pinned, self.count = {}, {}, 0

    @rule(target=blocks, size=st.integers(1, 9 * PAGE))
    def ask(self, size):
        block = self.arena.allocate(size)
        self.count += 1
        if block is not None:
            value = self.count % 251
            with block as view:
                view[:] = value
            self.alive[self.count] = (block, value)
        elif self.arena._policy.name in SPACES and not self.pinned:
            free = self.capacity - self.arena.figures().used_bytes
            assert free < -(-size // PAGE) * PAGE  # it fails only where no compaction could help
        return self.count

    @rule(number=consumes(blocks))
    def free(self, number):
        if number in self.alive and number not in self.pinned:
            self.arena.free(self.alive.pop(number)[0])

    @rule(number=blocks)
    def pin(self, number):
        if number in self.alive and number not in self.pinned:
            block = self.alive[number][0]
            self.pinned[number] = (block.__enter__(), block.offset)

    @rule(number=blocks)
    def unpin(self, number):
        if number in self.pinned:
            del self.pinned[number]
            self.alive[number][0].__exit__(None, None, None)

    @rule()
    def compact(self):
        self.arena.compact()

    @invariant()
    def no_overlap_no_lost_byte_aligned_within_the_plan(self):
        if not hasattr(self, "arena"):
            return
        for number, (block, value) in self.alive.items():
            assert value_of(block) == value
            if number in self.pinned:
                view, offset = self.pinned[number]
                assert block.offset == offset
                assert all(int(v) == value for v in view)
        inside = [b for b, _ in self.alive.values() if b.offset is not None]
        spans = sorted((b.offset, b.offset + b.size) for b in inside)
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        assert all(at % PAGE == 0 for at, _ in spans)
        assert all(stop <= self.capacity for _, stop in spans)
        figures = self.arena.figures()
        assert figures.used_bytes >= sum(b.size for b in inside)
        assert figures.used_bytes <= figures.peak_bytes <= self.capacity
        assert figures.high_water_bytes <= self.capacity
        assert {b.offset for b in inside} == set(self.arena._policy.used)


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(
    max_examples=30, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.soak
def test_blocks_for_long():
    machine = type("Long", (Blocks.TestCase,), {})
    machine.settings = settings(max_examples=400, stateful_step_count=60, deadline=None,
                                suppress_health_check=[HealthCheck.too_slow])
    machine().runTest()


# ---- moves that raise


def check(arena, alive):
    """Each block alive has its bytes, none overlap, and policy and blocks agree."""
    for block, value in alive:
        assert value_of(block) == value
    inside = [b for b, _ in alive if b.offset is not None]
    spans = sorted((b.offset, b.offset + b.given) for b in inside)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert {b.offset: b.given for b in inside} == arena._policy.used
    assert set(arena._blocks) == {b.offset for b in inside}


@settings(max_examples=150, deadline=None)
@given(
    policy=st.sampled_from(USABLE), interrupt=st.booleans(), data=st.data(),
    steps=st.lists(st.tuples(st.sampled_from("aaaffc"), st.integers(1, 6 * PAGE), st.booleans()), max_size=60),
)  # fmt: skip
def test_a_move_that_raises_costs_nothing(policy, interrupt, data, steps):
    arena, alive, error = Arena(20 * PAGE, policy=policy), [], None
    arena.guard.patience = 1 << 30
    move = arena.memory.move

    def broken(source, target, size):
        if error and data.draw(st.booleans()):
            if target + size <= source:  # apart: some of it may be written by then
                arena.memory.raw[target : target + size // 2] = 255
            raise error("no scratch")
        move(source, target, size)

    arena.memory.move = broken
    for number, (what, size, fails) in enumerate(steps):
        error = (KeyboardInterrupt if interrupt else MemoryError) if fails else None
        try:
            if what == "a":
                alive.append((filled(arena, size, number), number))
            elif what == "c":
                arena.compact()
            elif alive:
                arena.free(alive.pop(size % len(alive))[0])
        except KeyboardInterrupt:
            assert interrupt
        check(arena, alive)
    error = None
    arena.compact()
    check(arena, alive)
    for block, _ in alive:
        arena.free(block)
    assert arena.figures().used_bytes == 0
    assert arena.figures().largest_free_bytes >= 16 * PAGE


def test_a_move_that_tore_a_block_takes_the_arena_out_of_use(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(memories, "SCRATCH_BYTES", 100)
    memory = Memory.take(8 * PAGE, device="cpu")
    memory._bytes = None  # as on a device
    arena = Arena(memory, policy="first-fit", spill=False)
    first, torn, whole = filled(arena, PAGE, 1), filled(arena, 3 * PAGE, 2), filled(arena, PAGE, 3)
    arena.free(first)
    copies = []

    class Broken(torch.Tensor):
        def copy_(self, other):
            copies.append(1)
            if len(copies) == 3:
                raise RuntimeError("device fault")
            return super().copy_(other)

    memory._scratch = memory._scratch.as_subclass(Broken)
    assert arena.compact() == 0
    assert "device fault" in arena.fault
    with pytest.raises(UsageError, match="out of use"), torn:
        pass
    assert value_of(whole) == 3
    arena.free(torn)
    assert arena.allocate(PAGE).offset is None  # plain, although there is room
    assert arena.compact() == 0
    assert value_of(whole) == 3
    with pytest.raises(UsageError) as told:
        ExpertSlots(arena, slots=1, slot_bytes=PAGE)
    assert told.value.hint == arena.fault


def test_moves_on_a_device_take_no_memory():
    pytest.importorskip("torch")
    memory = Memory.take(8 * PAGE, device="cpu")
    memory._bytes = None  # as on a device
    arena = Arena(memory, policy="first-fit")
    scratch = memory._scratch.data_ptr()
    kept = checkered(arena)
    assert arena.compact() > 0
    assert memory._scratch.data_ptr() == scratch
    assert [value_of(b) for b in kept] == [1, 3, 5, 7]


def test_switched_off_nothing_is_compacted():
    arena = Arena(8 * PAGE)
    checkered(arena)
    guards.switch("arena", on=False)
    assert arena.compact() == 0
    guards.switch("arena", on=True)
    assert arena.compact() > 0


@pytest.mark.parametrize("size", [float("nan"), 1.5, "3", None, 0, -1])
def test_a_size_that_cannot_be_is_the_callers_error_and_no_fallback(size):
    arena = Arena(1 << 16)
    with pytest.raises(UsageError, match="a request of"):
        arena.allocate(size)
    with pytest.raises(UsageError, match="an arena of"):
        Arena(size)
    assert arena.guard.figures().calls == 0
    assert arena.allocate(np.int64(100)).size == 100
    with pytest.raises(UsageError, match="not one of this arena"):
        arena.free(None)
