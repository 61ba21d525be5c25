"""Buffers: aligned, kept, never shared by two users, and no memory is taken once the steps repeat."""

import gc
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from moexray.core.errors import UsageError
from moexray.runtime import guard as guards
from moexray.runtime.buffers import BufferPool, aligned_empty, aligned_empty_like
from steady import taken

KIB = 1 << 10


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(guards, "_said", set())
    monkeypatch.setattr(guards, "_off", set())
    monkeypatch.delenv(guards.VARIABLE, raising=False)


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def lowest(x):
    return np.lib.array_utils.byte_bounds(x)[0]


# ---- helpers


@pytest.mark.parametrize("alignment", [1, 64, 256, 4096, 1 << 20])
def test_the_lowest_byte_is_aligned(alignment):
    for shape in (1, (3, 5), (7, 0, 2), ()):
        x = aligned_empty(shape, np.float32, alignment=alignment)
        assert x.shape == np.empty(shape).shape
        assert x.ctypes.data % alignment == 0
        assert x.flags.c_contiguous


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros((4, 6), np.float32),
        lambda: np.zeros((4, 6), np.float32).T,
        lambda: np.zeros((4, 6), np.float64)[:, ::2],  # gaps
        lambda: np.zeros((4, 6), np.int16)[::-1, ::-2],  # backwards
        lambda: np.zeros((2, 1, 3), np.int8).transpose(2, 0, 1),
    ],
)
def test_like_keeps_shape_and_strides(make):
    like = make()
    got = aligned_empty_like(like, alignment=128)
    assert (got.shape, got.strides, got.dtype) == (like.shape, like.strides, like.dtype)
    assert lowest(got) % 128 == 0
    got[...] = np.arange(got.size).reshape(got.shape)
    assert got.ravel().tolist() == list(range(got.size))


def test_like_is_dense_where_elements_share_memory():
    like = np.broadcast_to(np.float32(1), (3, 4))
    got = aligned_empty_like(like)
    assert got.shape == (3, 4)
    assert got.strides == (16, 4)
    windows = np.lib.stride_tricks.sliding_window_view(np.zeros(9), 4)
    assert aligned_empty_like(windows).strides == (32, 8)


def test_tensors_keep_shape_strides_and_type(torch):
    for dtype in (torch.bfloat16, torch.float32, torch.int64, torch.bool, torch.float8_e4m3fn):
        for like in (torch.empty(4, 6, dtype=dtype).T, torch.empty(4, 6, dtype=dtype)[:, ::2]):
            got = aligned_empty_like(like, alignment=4096)
            assert (got.shape, got.stride(), got.dtype) == (like.shape, like.stride(), like.dtype)
            assert got.data_ptr() % 4096 == 0
    assert aligned_empty_like(torch.zeros(1).expand(5)).stride() == (1,)


def test_what_cannot_be_is_refused():
    with pytest.raises(UsageError, match="no power of two"):
        aligned_empty(3, np.int8, alignment=48)
    with pytest.raises(UsageError, match="device cuda"):
        aligned_empty(3, np.int8, device="cuda")
    with pytest.raises(UsageError, match="no power of two"):
        BufferPool(alignment=3)


# ---- the pool


def test_a_buffer_serves_again_once_nothing_refers_to_it():
    pool = BufferPool()
    x = pool.empty((8, 16), np.float32)
    address = x.ctypes.data
    part = x[2:].T
    del x
    y = pool.empty((8, 16), np.float32)
    assert y.ctypes.data != address  # the slice is still in use
    del part
    assert pool.empty((8, 16), np.float32).ctypes.data == address


def test_what_autograd_keeps_is_not_reused(torch):
    pool = BufferPool()
    weight = torch.ones(16, requires_grad=True)
    x = pool.empty(16, torch.float32)
    x.fill_(3.0)
    loss = (weight * x).sum()
    del x
    pool.empty(16, torch.float32).fill_(7.0)
    loss.backward()
    assert weight.grad.tolist() == [3.0] * 16


def test_a_storage_that_is_held_is_in_use(torch):
    pool = BufferPool()
    x = pool.empty(4 * KIB, torch.uint8).fill_(7)
    address = x.data_ptr()
    storage = x.untyped_storage()
    del x
    y = pool.empty(4 * KIB, torch.uint8)
    assert y.data_ptr() != address
    del storage
    assert pool.empty(4 * KIB, torch.uint8).data_ptr() == address


@pytest.mark.parametrize("how", ["resize_", "out="])
@pytest.mark.parametrize("role", ["", "hidden"])
def test_a_buffer_whose_memory_was_swapped_serves_no_more(torch, how, role):
    pool = BufferPool(alignment=4 * KIB)
    for count in (16, 1000, 5000, 70_000):
        x = pool.empty(count, torch.float32, role=role)
        held = pool.figures().held_bytes
        if how == "resize_":
            x.resize_(2 * count + 4 * KIB)
        else:
            torch.ones(2 * count + 4 * KIB, out=x)
        del x
        reused = pool.figures().reused
        y = pool.empty(count, torch.float32, role=role)
        assert y.data_ptr() % (4 * KIB) == 0
        assert pool.figures().reused == reused
        assert pool.figures().held_bytes == held
        del y
        pool.empty(count, torch.float32, role=role)
        assert pool.figures().reused == reused + 1


def test_token_wise_other_token_counts_find_the_same_buffer():
    pool = BufferPool(classes=4)
    seen = set()
    for tokens in (65, 70, 79, 80, 66):
        x = pool.empty((tokens, 256), np.float16)
        assert x.shape == (tokens, 256)
        seen.add(x.ctypes.data)
        del x
    assert len(seen) == 1
    assert pool.figures().made == 1


def test_expert_wise_a_role_ends_with_one_buffer_of_the_largest_size():
    pool = BufferPool()
    for _ in range(3):
        for tokens in (10, 300, 40, 900, 1, 899):
            x = pool.empty((tokens, 64), np.float32, role="expert hidden")
            del x
    figures = pool.figures()
    assert figures.made == 3  # it grew twice: 10, 300, 900 tokens
    assert figures.held_bytes <= 1.25 * 900 * 64 * 4 + 256


def test_roles_devices_and_libraries_do_not_mix(torch):
    pool = BufferPool()
    pool.empty(100, np.float32)
    pool.empty(100, np.float32, role="a")
    pool.empty(100, torch.float32)
    assert pool.figures().made == 3


def test_the_limit_holds_and_what_is_over_it_is_plain():
    pool = BufferPool(limit_bytes=64 * KIB)
    kept = [pool.empty(16 * KIB, np.uint8) for _ in range(6)]
    assert pool.figures().held_bytes == 64 * KIB
    assert pool.figures().plain == 2
    assert all(x.ctypes.data % 256 == 0 for x in kept)
    del kept
    x = pool.empty(40 * KIB, np.uint8)  # idle buffers make room
    assert pool.figures().plain == 2
    assert pool.figures().peak_bytes == 64 * KIB
    del x
    assert pool.trim() == 56 * KIB  # one of 16 was left
    assert pool.figures().held_bytes == 0


def test_objects_never_come_from_a_buffer():
    pool = BufferPool()
    x = pool.empty(5, object)
    assert x.tolist() == [None] * 5
    assert pool.figures().plain == 1


def test_torch_compile_and_meta_get_plain_memory(torch):
    pool = BufferPool()
    assert pool.empty(4, torch.float32, device="meta").shape == (4,)
    assert pool.figures().plain == 1


def test_switched_off_it_allocates_plainly(monkeypatch):
    monkeypatch.setenv(guards.VARIABLE, "buffers")
    pool = BufferPool()
    x = pool.empty((3, 3), np.int32)
    assert x.ctypes.data % 256 == 0
    assert pool.figures().made == 0
    assert pool.guard.figures().skipped == 1


def test_a_fault_of_the_pool_falls_back(monkeypatch):
    pool = BufferPool()
    monkeypatch.setattr(pool, "_find", lambda key, need: 1 // 0)
    assert pool.empty((3, 3), np.int32).shape == (3, 3)
    assert pool.guard.figures().fallbacks == 1


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_ten_thousand_steady_steps_take_no_memory(library):
    module = np if library == "numpy" else pytest.importorskip("torch")
    pool = BufferPool()
    dtype = module.float32

    def step(number):
        tokens = 64 + number % 48
        x = pool.empty((tokens, 64), dtype)
        for expert in range(2):
            hidden = pool.empty((tokens >> expert, 128), dtype, role="hidden")
            hidden[0] = number
            del hidden
        x[0] = number

    for number in range(200):
        step(number)
    before = pool.figures()
    gc.collect()
    left, peak = taken(step)
    after = pool.figures()
    assert after.made == before.made
    assert after.plain == 0
    assert after.reused == before.reused + 10_001 * 3
    assert left < 4 * KIB  # nothing stays, but the last ints
    assert peak < 16 * KIB  # views come and go; the least buffer is 16 KiB


# ---- in the place of a host's call


def test_replacing_and_back(torch):
    made = []

    def make(shape, dtype=None, device=None, pin=False):
        made.append(shape)
        return torch.zeros(shape, dtype=dtype)

    host = SimpleNamespace(make=make)
    pool = BufferPool()
    handle = pool.replacing(host, "make")
    with handle:
        assert host.make((2, 3), dtype=torch.float32).shape == (2, 3)
        assert made == []
        host.make((2, 3), dtype=torch.float32, pin=True)  # not ours to answer
        host.make((2, 4))
        assert made == [(2, 3), (2, 4)]
        guards.switch("buffers", on=False)
        host.make((5,), dtype=torch.float32)
        assert made[-1] == (5,)
    assert host.make is make
    with pytest.raises(UsageError, match="itself calls torch"):
        pool.replacing(torch, "empty")
    with pytest.raises(UsageError, match="has no nothing"):
        pool.replacing(host, "nothing").attach()


# ---- laws


class Users(RuleBasedStateMachine):
    """Whatever is alive keeps its bytes, is aligned, and the pool holds no more than its limit."""

    arrays = Bundle("arrays")

    def __init__(self):
        super().__init__()
        self.pool = BufferPool(alignment=512, limit_bytes=256 * KIB)
        self.count = 0
        self.alive = {}

    @rule(target=arrays, size=st.integers(1, 60 * KIB), role=st.sampled_from(["", "", "a", "b"]))
    def take(self, size, role):
        x = self.pool.empty(size, np.uint8, role=role)
        assert x.ctypes.data % 512 == 0
        self.count += 1
        x[:] = self.count % 251
        self.alive[self.count] = (x, self.count % 251)
        return self.count

    @rule(key=consumes(arrays))
    def drop(self, key):
        del self.alive[key]

    @rule(target=arrays, key=consumes(arrays), data=st.data())
    def keep_a_slice(self, key, data):
        x, value = self.alive.pop(key)
        at = data.draw(st.integers(0, len(x) - 1))
        self.alive[key] = (x[at:], value)
        return key

    @rule()
    def trim(self):
        self.pool.trim()

    @invariant()
    def no_byte_is_lost(self):
        for x, value in self.alive.values():
            assert (x == value).all()
        figures = self.pool.figures()
        assert figures.held_bytes <= figures.peak_bytes <= 256 * KIB
        spans = sorted((x.ctypes.data, x.ctypes.data + len(x)) for x, _ in self.alive.values())
        assert all(a[1] <= b[0] for a, b in pairwise(spans))


TestUsers = Users.TestCase
TestUsers.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@given(
    shape=st.lists(st.integers(0, 5), max_size=4),
    order=st.randoms(use_true_random=False),
    step=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_any_permuted_strided_array_has_a_twin(shape, order, step):
    base = np.zeros([n * step for n in shape], np.int32)
    like = base[tuple(slice(None, None, step) for _ in shape)]
    axes = list(range(len(shape)))
    order.shuffle(axes)
    like = like.transpose(axes)
    got = BufferPool().empty_like(like)
    assert got.shape == like.shape
    if like.size:
        assert got.strides == like.strides
        assert lowest(got) % 256 == 0
    got[...] = 5
    assert (got == 5).all()


@pytest.mark.parametrize("shape", [-1, (2, -3), "3", None, 1.5, float("nan"), (1.5,)])
def test_a_shape_that_cannot_be_is_the_callers_error_and_no_fallback(shape):
    pool = BufferPool()
    with pytest.raises(UsageError, match="shape "):
        pool.empty(shape, np.float32)
    with pytest.raises(UsageError):
        pool.empty((2, 3), np.float32, strides=(4,))
    with pytest.raises(UsageError):
        pool.empty(3, "no such type")
    assert pool.guard.figures().fallbacks == 0
    assert pool.empty(np.int64(3), np.uint8).shape == (3,)
    assert pool.empty([np.int32(2), 3], np.uint8).shape == (2, 3)


def test_a_call_that_the_host_refuses_is_refused_by_the_host():
    def empty(shape, *, dtype):
        raise LookupError(f"no {shape}")

    host, pool = SimpleNamespace(empty=empty), BufferPool()
    with pool.replacing(host, "empty"), pytest.raises(LookupError, match="no -1"):
        host.empty(-1, dtype=np.uint8)
    assert pool.guard.figures() == guards.Figures(0, 0, 0, "")


def test_settings_of_a_pool_that_cannot_be():
    for options in ({"alignment": 256.0}, {"alignment": float("nan")}, {"classes": 0}, {"classes": 1.5}):
        with pytest.raises(UsageError):
            BufferPool(**options)
