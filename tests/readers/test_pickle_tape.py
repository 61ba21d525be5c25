"""Large pickles as flat arrays: the twin of the interpreter, and the same snapshot tables from both."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moexray.core.errors import LimitError, ReadError, UnsafeError
from moexray.core.run import Reading
from moexray.core.source import Source
from moexray.readers import pickle_file, safe_pickle_tape
from moexray.readers.safe_pickle_tape import load_tape
from moexray.readers.shapes.snapshot_tape import top_of
from snapshot_samples import GIB, MIB, document, event, segment, temporary, whole

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**54), 2**54) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner) | st.tuples(inner, inner, inner),
    max_leaves=20,
)


@settings(max_examples=60)
@given(values, st.integers(3, 5))
def test_the_tape_holds_what_was_written(value, protocol):
    tape = load_tape(pickle.dumps(value, protocol))
    assert tape.build(tape.root) == value


@settings(max_examples=200)
@given(st.binary(max_size=120))
def test_any_bytes_end_in_a_tape_or_in_our_error(data):
    for start in (b"", b"\x80\x04", b"\x80\x04](}(K\x01]"):
        try:
            tape = load_tape(start + data)
            if tape is not None:
                tape.build(tape.root)
        except ReadError:
            pass


def test_refusals(monkeypatch):
    monkeypatch.setattr(safe_pickle_tape, "MAX_PLAIN_BYTES", 0)
    with pytest.raises(UnsafeError):
        load_tape(pickle.dumps(print))
    with pytest.raises(ReadError, match="breaks off"):
        load_tape(pickle.dumps([1, 2, 3])[:-2])
    with pytest.raises(ReadError, match="damaged"):
        load_tape(b"\x80\x04\xff.")
    assert load_tape(pickle.dumps([1], 0)) is None
    monkeypatch.setattr(safe_pickle_tape, "MEMORY_BYTES", 2000)
    with pytest.raises(LimitError):
        load_tape(pickle.dumps(list(range(1000))))


def test_what_the_interpreter_can_name_is_left_to_it():
    assert load_tape(pickle.dumps(print)) is None
    assert load_tape(pickle.dumps([1])[:-1]) is None


def test_depth_is_bounded():
    tape = load_tape(b"\x80\x04" + b"]" * 200 + b"a" * 199 + b".")
    with pytest.raises(LimitError):
        tape.build(tape.root)


def odd_events():
    """Events as no release writes them, beside usual ones."""
    base = 0x7F0000000000
    usual = [e for i in range(50) for e in temporary(base, 2 * MIB, i % 3, 1_000_000 + 10 * i)]
    return [
        *usual,
        {"action": "oom", "device_free": 5, "size": 7, "stream": 0, "time_us": 9},
        {"action": "alloc"},
        {"size": 3},
        "no event",
        {"action": "teleport", "addr": 1, "size": 2, "stream": 0},
        {"action": "alloc", "addr": 1, "size": -2, "stream": 0},
        {"action": "alloc", "addr": 2**63, "size": 2, "stream": 0},
        {"action": "alloc", "addr": 1.0, "size": 2, "stream": None, "pool_id": (1, 2)},
        {"action": "alloc", "addr": base, "size": 9, "stream": 3, "pool_id": (0, 0), "frames": []},
        {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "frames": [{"name": "a::b(int)", "filename": "??", "line": 0}]},
        event("alloc", base, 2**40, 7, extra={str(i): i for i in range(80)}),
    ]


def tables(doc, monkeypatch, fast):
    monkeypatch.setattr(safe_pickle_tape, "FAST_BYTES", 0 if fast else 1 << 40)
    out = Reading("pickle")
    pickle_file.read(Source("x.pickle", content=pickle.dumps(doc, 4)), out)
    return out


@pytest.mark.parametrize(
    "doc",
    [
        whole([segment(0x7F0000000000, [(GIB, "a"), (GIB, "f")])]),
        document([segment(0x7F0000000000, [(2 * MIB, "f")])], odd_events()),
        {**document([segment(0x7F0000000000, [(2 * MIB, "f")])]), "device_traces": [[], odd_events(), []]},
    ],
)
def test_both_ways_fill_the_same_tables(doc, monkeypatch):
    fast, slow = tables(doc, monkeypatch, fast=True), tables(doc, monkeypatch, fast=False)
    assert fast.tables == slow.tables
    assert [b.table for b in fast.batches] == [b.table for b in slow.batches]
    stacks = {b.table: b.columns for b in slow.batches}["snapshot_stacks"]
    fast_stacks = {b.table: b.columns for b in fast.batches}["snapshot_stacks"]
    for a, b in zip(fast.batches, slow.batches, strict=True):
        for name in b.columns:
            if name == "stack":  # numbered in another order
                assert [fast_stacks["text"][i] for i in a.columns[name]] == [stacks["text"][i] for i in b.columns[name]]
            elif a.table != "snapshot_stacks" and name != "pool":
                assert np.array_equal(np.asarray(a.columns[name]), np.asarray(b.columns[name])), (a.table, name)
        if "pool" in b.columns:
            assert [a.attrs["pools"][i] for i in a.columns["pool"]] == [b.attrs["pools"][i] for i in b.columns["pool"]]


def test_a_large_pickle_of_another_kind_is_left_to_the_shapes(monkeypatch):
    monkeypatch.setattr(safe_pickle_tape, "FAST_BYTES", 0)
    with pytest.raises(ReadError, match="no known shape"):
        pickle_file.read(Source("x", content=pickle.dumps([1, 2, 3])), Reading("pickle"))


def test_segments_are_built_one_at_a_time():
    """Blocks of segments that were read are not kept; their frames, which others share, are."""
    frames = [{"name": "f", "filename": "a.py", "line": 1}]
    found = [segment(GIB * i, [(MIB, "a")] * 50) for i in range(40)]
    for one in found:
        for block in one["blocks"]:
            block["frames"] = frames
    tape = load_tape(pickle.dumps(document(found), 4))
    segments = top_of(tape)["segments"]
    assert len(segments) == 40
    seen = set()
    for built in segments:
        seen |= {id(b["frames"]) for b in built["blocks"]}
        assert len(tape._built) < 200
    assert len(seen) == 1
    assert [s["address"] for s in segments] == [s["address"] for s in found]


def test_sniff():
    for protocol in range(6):
        for value in ([1], {"a": 1}, {}, []):
            assert pickle_file.sniff(pickle.dumps(value, protocol))
    assert pickle_file.sniff(b"cbuiltins\nprint\n(S'x'\ntR.")
    assert not pickle_file.sniff(b"cuda error\nmore text\n")
    assert not pickle_file.sniff(b'{"a": 1}')
    assert not pickle_file.sniff(b"] closing line\n")
