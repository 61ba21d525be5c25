"""The safe unpickler: what it reads, what it refuses, what a broken file still gives."""

import collections
import contextlib
import io
import pickle
import pickletools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moexray.core.errors import LimitError, ReadError, UnsafeError
from moexray.core.run import Reading
from moexray.core.source import Source
from moexray.readers import safe_pickle_machine
from moexray.readers.safe_pickle import load, loads, loads_at, salvage

PLAIN = {
    "none": None, "yes": True, "no": False, "int": [0, 1, 255, 256, 65536, -1, 2**31, 2**40, -(2**40), 2**70],
    "float": [0.5, -1e300, float("inf")], "text": ["", "é\n\\", "x" * 300], "bytes": [b"", b"\0" * 300, bytearray(b"a")],
    "nest": {"t": (), "t1": (1,), "t2": (1, 2), "t3": (1, 2, 3), "t9": tuple(range(9)), 5: {1, 2}, (1, 2): frozenset({3})},
}
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@pytest.mark.parametrize("protocol", range(6))
def test_plain_containers_of_every_protocol(protocol):
    known = {**PLAIN, "nest": {k: v for k, v in PLAIN["nest"].items() if protocol >= 4 or not isinstance(v, (set, frozenset))}}
    if protocol < 5:
        known["bytes"] = known["bytes"][:2]
    if protocol < 3:
        known["bytes"] = []  # written through a global
    again = loads(pickle.dumps(known, protocol))
    assert again == known


@given(values, st.integers(3, 5))
def test_what_pickle_writes_is_read_back(value, protocol):
    assert loads(pickle.dumps(value, protocol)) == value


def test_identity_is_kept():
    frame = {"name": "f"}
    a, b = loads(pickle.dumps([[frame], [frame]]))
    assert a[0] is b[0]


def test_bytearray_opcode():
    assert loads(pickle.dumps(bytearray(b"abc"), 5)) == b"abc"


class Evil:
    def __reduce__(self):
        return (print, ("EVIL RAN",))


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_called(protocol, capsys):
    for bad in (Evil(), collections.OrderedDict(a=1), collections.deque, Evil):
        with pytest.raises(UnsafeError):
            loads(pickle.dumps({"x": bad}, protocol))
    assert "EVIL" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "data",
    [
        b"(ios\nsystem\n(S'true'\n.",  # INST
        b"(cos\nsystem\nS'true'\no.",  # OBJ
        b"\x80\x02\x82\x01.",  # EXT1
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x04]\x94Q.",  # BINPERSID
        b"Pkey\n.",
        b"\x80\x05\x97.",  # NEXT_BUFFER
    ],
)
def test_every_way_to_a_name_is_refused(data):
    with pytest.raises(UnsafeError):
        loads(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04N)R.",  # call of None
        b"\x80\x04N}b\xff.",
        b"\x80\x09N.",  # protocol 9
        b"\x80\x04e.",
        b"\x80\x04h\x07.",  # memo miss
        b"\x80\x04NNa.",
        b"\x80\x04}(Nu.",
        b"\x80\x04N(N\x90.",
        b"\x80\x04\x86.",
        b"Sabc\n.",
        b"Ixyz\n.",
        b".",
        b"\x80\x04}(((((NttttttNu.",
        b"\x80\x04\x8f(]\x90.",  # a list as a member
    ],
)
def test_damage_has_an_offset(data):
    with pytest.raises(ReadError, match="byte"):
        loads(data)


def test_deep_keys_are_not_hashed():
    deep = b"\x80\x04}N" + b"\x85" * 200_000 + b"Ns."
    with pytest.raises(ReadError, match="too deep"):
        loads(deep)


def test_colliding_integer_keys_are_refused():
    with pytest.raises(ReadError, match="60 bits"):
        loads(pickle.dumps({(2**61 - 1) * k: 0 for k in range(1, 9)}))


def test_deep_nesting_is_built_without_recursion():
    value = loads(b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".")
    assert isinstance(value, list)


def test_bombs_cost_nothing(monkeypatch):
    with pytest.raises(ReadError):  # a memo index of 4 billion, then nothing
        loads(b"\x80\x02Nr\xff\xff\xff\xff")
    with pytest.raises(ReadError):  # 2^60 bytes announced
        loads(b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"abc.")
    monkeypatch.setattr(safe_pickle_machine, "BUDGET_BYTES", 1 << 20)
    with pytest.raises(LimitError):
        loads(b"\x80\x04" + b"\x8f" * 40_000 + b".")


def test_find_global_gives_the_caller_its_own_functions():
    made = loads(pickle.dumps(collections.OrderedDict(a=1), 2), find_global=lambda m, n: dict if n == "OrderedDict" else None)
    assert made == {"a": 1}


def test_state_goes_to_the_hook():
    class Mine:
        def pickle_state(self, state):
            self.state = state

    class Theirs:
        def __init__(self):
            self.a = 1

    Theirs.__qualname__ = "Theirs"
    data = b"\x80\x02cx\ny\n)R}X\x01\x00\x00\x00aK\x01sb."
    assert loads(data, find_global=lambda *_: Mine).state == {"a": 1}
    assert loads(data, find_global=lambda *_: dict) == {}


def test_persistent_ids_and_offsets():
    class Writer(pickle.Pickler):
        def persistent_id(self, obj):
            return ("storage", 7) if obj == "key" else None

    out = io.BytesIO()
    Writer(out, 2).dump(["key"])
    data = b"junk" + out.getvalue() + b"more"
    assert loads_at(data, 4, persistent=lambda key: key[0]) == (["storage"], len(data) - 4)


def test_a_cut_file_gives_its_whole_records():
    records = {"rows": [{"i": i, "s": "x" * i} for i in range(40)], "tail": [[{"a": 1}, {"b": 2}]]}
    data = pickle.dumps(records, 4)
    for cut in range(3, len(data) - 1):
        value, offset = salvage(data[:cut])
        assert offset == cut
        if isinstance(value, dict) and "rows" in value:
            assert value["rows"] == records["rows"][: len(value["rows"])]
    assert salvage(data) == (records, None)


def test_load_notes_where_a_file_breaks_off():
    data = pickle.dumps([{"a": i} for i in range(100)], 4)
    out = Reading("pickle")
    rows = load(Source("x", content=data[:-40]), out)
    assert 80 < len(rows) < 100
    assert [(p.id, p.where) for p in out.problems] == [("input.truncated", f"offset {len(data) - 40}")]


@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_value_or_in_our_error(data):
    for start in (b"", b"\x80\x02", b"\x80\x04"):
        with contextlib.suppress(ReadError):
            loads(start + data)


def test_all_opcodes_are_known():
    from moexray.readers.safe_pickle_opcodes import _TABLE

    missing = [o.name for o in pickletools.opcodes if o.name != "STOP" and _TABLE[ord(o.code)] is None]
    assert missing == []


def test_a_gzipped_pickle_gives_the_same_tables(tmp_path):
    """The pickle reader needs bytes, whatever the inflater returns."""
    import gzip

    from moexray.readers.read_any import read_any

    block = {"address": 0, "size": 512, "requested_size": 8, "state": "active_allocated", "frames": []}
    segment = {"device": 0, "address": 0, "total_size": 2 << 20, "allocated_size": 512, "active_size": 512,
               "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0), "is_expandable": False,
               "frames": [], "blocks": [block]}  # fmt: skip
    content = pickle.dumps({"segments": [segment], "device_traces": [[]], "allocator_settings": {}})
    (tmp_path / "a.pickle").write_bytes(content)
    (tmp_path / "b.pickle.gz").write_bytes(gzip.compress(content))
    plain, packed = (read_any([str(tmp_path / n)]) for n in ("a.pickle", "b.pickle.gz"))
    assert plain.present == packed.present
    assert "snapshot" in packed.present
