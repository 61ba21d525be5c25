"""torch's own parser as the judge of configuration strings: the same ones refused, the same settings read.

The settings are read back from libc10, whose AcceleratorAllocatorConfig is plain data (header AllocatorConfig.h
of torch 2.13); hence the pin on the release.
"""

import ctypes
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st

from moexray.algorithms.blocks import Settings, round_size
from moexray.algorithms.conf import parse

torch = pytest.importorskip("torch", reason="torch is the oracle here")
LIBRARY = Path(torch.__file__).parent / "lib" / "libc10.so"
pytestmark = pytest.mark.skipif(
    not torch.__version__.startswith("2.13.") or not LIBRARY.is_file(),
    reason="the layout read here is that of torch 2.13 on Linux",
)
MIB = 1 << 20
CLASS = "_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig"
# Everything a later string would keep goes back to its default; the rest returns by itself.
RESET = "large_segment_size_mb:20,expandable_segments:False"


class Layout(ctypes.Structure):
    """The first members of AcceleratorAllocatorConfig, in their order."""

    _fields_ = [
        ("large_segment", ctypes.c_size_t),
        ("max_split", ctypes.c_size_t),
        ("max_non_split_rounding", ctypes.c_size_t),
        ("roundup", ctypes.POINTER(ctypes.c_size_t)),
        ("roundup_end", ctypes.c_void_p),
        ("roundup_capacity", ctypes.c_void_p),
        ("gc_threshold", ctypes.c_double),
        ("expandable", ctypes.c_bool),
    ]


class Oracle:
    """torch's parser; None where it refuses."""

    def __init__(self):
        library = ctypes.CDLL(str(LIBRARY))
        instance = getattr(library, f"{CLASS}8instanceEv")
        instance.restype = ctypes.c_void_p
        self.values = Layout.from_address(instance())
        self.divisions = getattr(library, f"{CLASS}24roundup_power2_divisionsEm")
        self.divisions.argtypes, self.divisions.restype = [ctypes.c_size_t], ctypes.c_size_t

    def settings(self, conf):
        torch._C._accelerator_setAllocatorSettings(RESET)
        try:
            torch._C._accelerator_setAllocatorSettings(conf)
        except (ValueError, IndexError, RuntimeError):
            return None
        v = self.values
        unlimited = v.max_split >= 1 << 62  # all bits, or the largest number of MiB
        return Settings(
            max_split=None if unlimited else v.max_split,
            max_non_split_rounding=v.max_non_split_rounding,
            roundup=tuple(v.roundup[:16]),
            gc_threshold=v.gc_threshold,
            expandable=v.expandable,
            large_segment=v.large_segment,
        )


def ours(conf):
    try:
        return parse(conf)[0]
    except ValueError:
        return None


@pytest.fixture(scope="module")
def oracle():
    before = torch._C._accelerator_getAllocatorSettings()
    judge = Oracle()
    assert judge.settings("") == Settings(), "another layout than the one written down here"
    yield judge
    judge.settings(before)


# ---- strings whose grammar is right; values may be out of range

number = st.sampled_from([-1, 0, 1, 8, 10, 11, 12, 19, 20, 21, 25, 32, 40, 41, 64, 100, 512, 4096, 1 << 20])
size = number.filter(lambda n: n >= 0).map(str)
share = st.sampled_from(["0", "1", "0.5", ".5", "1e-3", "0.999", "1.0", "-0.5", "2", "nan", "inf", "x"])
division = st.sampled_from([0, 1, 2, 4, 8, 64, 3, 6]).map(str)
interval = st.sampled_from([1, 2, 4, 64, 256, 1024, 1 << 14, 1 << 15, 1 << 16, 1 << 17, 3, 100, 0]).map(str) | st.just(">")
entries = st.lists(st.tuples(interval, division).map(":".join), min_size=1, max_size=5)
OPTIONS = {
    "max_split_size_mb": size | st.just("-1"),
    "max_non_split_rounding_mb": size,
    "large_segment_size_mb": size,
    "garbage_collection_threshold": share,
    "expandable_segments": st.sampled_from(["True", "False", "True", "False", "true", "1", "TRUE"]),
    "roundup_power2_divisions": division | entries.map(lambda e: f"[{','.join(e)}]"),
    "pinned_use_background_threads": st.sampled_from(["True", "False"]),
    "backend": st.just("native"),
}
option = st.sampled_from(sorted(OPTIONS)).flatmap(lambda key: OPTIONS[key].map(lambda value: (key, value)))
space = st.sampled_from(["", "", "", " ", "\t", "\n"])


@st.composite
def strings(draw):
    # Each option once: a second list of divisions continues torch's table instead of beginning anew.
    options = draw(st.lists(option, min_size=1, max_size=4, unique_by=lambda o: o[0]))
    return ",".join(f"{draw(space)}{k}{draw(space)}:{v}{draw(space)}" for k, v in options) + draw(st.sampled_from(["", "", ","]))


@budget(max_examples=700)
@given(conf=strings())
def test_the_same_strings_are_refused_and_the_same_settings_read(oracle, conf):
    assert ours(conf) == oracle.settings(conf)


def test_of_a_repeated_option_the_last_counts(oracle):
    conf = "max_split_size_mb:64,expandable_segments:True,max_split_size_mb:128,expandable_segments:False"
    assert ours(conf) == oracle.settings(conf) == Settings(max_split=128 * MIB)


@st.composite
def damaged(draw):
    """A string with a piece cut out, doubled or replaced."""
    text = draw(strings())
    at = draw(st.integers(0, len(text) - 1))
    return text[:at] + draw(st.sampled_from(["", ",", ":", "[", "]", ">", "0", text[at] * 2, "_", "é"])) + text[at + 1 :]


@budget(max_examples=700)
@given(conf=damaged())
def test_what_torch_refuses_is_never_accepted(oracle, conf):
    """The converse does not hold: torch does not check punctuation, see TORCH_IS_LAXER."""
    mine, theirs = ours(conf), oracle.settings(conf)
    assert mine is None or mine == theirs


TORCH_IS_LAXER = {
    "any mark stands for the colon": "max_split_size_mb,128",
    "marks behind a list": "roundup_power2_divisions:[1:2]]",
    "text behind a number": "max_split_size_mb:128MB",
    "a fraction of a MiB": "large_segment_size_mb:20.5",
    "text behind a share": "garbage_collection_threshold:0.8f",
    "negative sizes wrap around": "max_non_split_rounding_mb:-1",
    "an empty option hides the next one": "max_split_size_mb:64,,expandable_segments:True",
}


@pytest.mark.parametrize("conf", TORCH_IS_LAXER.values(), ids=TORCH_IS_LAXER)
def test_what_we_refuse_although_torch_takes_it(oracle, conf):
    assert oracle.settings(conf) is not None
    assert ours(conf) is None


# The CPU build knows only the options that all accelerators share; a CUDA build refuses these.
ONLY_CUDA_CHECKS = ["backend:cudaMallocAsync", "per_process_memory_fraction:2", "throw_on_cudamalloc_oom:maybe"]


@pytest.mark.skipif(torch.version.cuda is not None, reason="a CUDA build checks these")
@pytest.mark.parametrize("conf", ONLY_CUDA_CHECKS)
def test_what_the_cpu_build_does_not_check(oracle, conf):
    assert oracle.settings(conf) is not None
    assert ours(conf) is None


def test_an_unknown_key_passes_on_a_cpu_but_not_unnoticed(oracle):
    assert oracle.settings("no_such_key:1") is not None
    try:
        _, notes = parse("no_such_key:1")
    except ValueError as why:
        notes = (str(why),)
    assert "no_such_key" in notes[0]


# ---- rounding

tables = st.lists(st.tuples(st.sampled_from([1, 2, 16, 256, 1 << 12, 1 << 15]).map(str) | st.just(">"), st.sampled_from("01248")), min_size=1, max_size=4)
requests = st.integers(1, 1 << 38) | st.builds(lambda i, d: max((1 << i) + d, 1), st.integers(0, 38), st.integers(-513, 513))


@budget(max_examples=400)
@given(table=tables, asked=st.lists(requests, min_size=5, max_size=20))
def test_rounding_uses_the_divisions_that_torch_looks_up(oracle, table, asked):
    """The rounding itself by its definition: up to the next part of a power of two, or of 512 bytes."""
    conf = f"roundup_power2_divisions:[{','.join(map(':'.join, table))}]"
    assert oracle.settings(conf) is not None
    settings, _ = parse(conf)
    for request in asked:
        divisions = oracle.divisions(request)
        step = 512
        if divisions > 1 and request > 512 * divisions:
            step = (1 << (request.bit_length() - 1)) // divisions
        assert round_size(request, settings) == max(512, -(-request // step) * step), (conf, request)
