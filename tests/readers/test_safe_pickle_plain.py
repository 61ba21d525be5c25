"""The quick way through plain pickles: the same objects as the interpreter, and only for what is on its list."""

import pickle
import pickletools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moexray.readers import safe_pickle_plain
from moexray.readers.safe_pickle import loads, salvage
from moexray.readers.safe_pickle_plain import NOT_PLAIN, plain

ENTRIES = [
    {"seq": i, "group": ("0", "world"), "sizes": [[4096, i]], "state": "completed", "at": 1_790_000_000_000_000_000 + i,
     "f": 0.5, "x": None, "y": i % 2 == 0, "big": -(2**40)}
    for i in range(300)
]  # fmt: skip
ascii_text = st.text(st.characters(max_codepoint=127), max_size=300)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | ascii_text,
    lambda inner: st.lists(inner) | st.dictionaries(ascii_text | st.integers(0, 2**40), inner),
    max_leaves=30,
)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_records_go_the_quick_way(protocol):
    assert plain(pickle.dumps(ENTRIES, protocol)) == ENTRIES


def test_more_than_a_run_and_wide_memo():
    long = [{"k": [str(i)]} for i in range(5000)]
    assert plain(pickle.dumps(long, 2)) == long


@given(values, st.integers(2, 5))
def test_the_same_as_the_interpreter(value, protocol):
    data = pickle.dumps(value, protocol)
    assert plain(data) == value == loads(data)


@given(values, st.data())
def test_damage_is_left_to_the_interpreter_or_gives_an_object(value, more):
    data = bytearray(pickle.dumps(value, 4))
    data[more.draw(st.integers(0, len(data) - 1))] = more.draw(st.integers(0, 255))
    plain(bytes(data))


def test_no_opcode_beyond_the_list():
    """Each opcode of pickle, alone before the end: nothing that names, calls or refers outside is let through."""
    forbidden = {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "PERSID", "BINPERSID",
                 "EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER", "DUP", "LONG4", "BINUNICODE8", "BINBYTES8",
                 "BYTEARRAY8", "FROZENSET", "EMPTY_SET", "ADDITEMS", "POP", "POP_MARK"}  # fmt: skip
    seen = set()
    for op in pickletools.opcodes:
        data = b"\x80\x04" + op.code.encode("latin-1") + b"\0" * 16 + b"."
        if op.name in forbidden:
            seen.add(op.name)
            assert plain(data) is NOT_PLAIN, op.name
    assert seen == forbidden


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02]r\xff\xff\xff\xff.",  # a memo of 32 GiB
        b"\x80\x02X\xff\xff\xff\x7fabc.",  # text beyond the data
        b"\x80\x04\x95\0\0\0\0\0\x01\0\0]q\0.",  # a frame of a TiB
        b"\x80\x02\x8a\x09" + b"\1" * 9 + b".",  # an integer that can be made to collide
        b"\x80\x02}" + b"(" * 3 + b"\x85" * 12_000 + b".",  # a hash that recurses
        b"\x80\x02)q\0" + b"".join(b"h%ch%c\x86q%c" % (i, i, i + 1) for i in range(40)) + b".",  # doubles 40 times
        b"\x80\x02(" + b"K\1" * 500 + b"t\x85q\0h\0.",  # a long tuple that is fetched again
        pickle.dumps(["é"], 2),
        pickle.dumps([1], 0),
        b"\x80\x02]",
        b"",
    ],
)
def test_left_to_the_interpreter(data):
    assert plain(data) is NOT_PLAIN


def test_a_long_pickle_is_not_built(monkeypatch):
    monkeypatch.setattr(safe_pickle_plain, "BUDGET_BYTES", 1000)
    assert plain(pickle.dumps(ENTRIES)) is NOT_PLAIN


def test_salvage_takes_either_way():
    whole = pickle.dumps(ENTRIES, 2)
    assert salvage(whole) == (ENTRIES, None)
    part, offset = salvage(whole[:-200])
    assert offset == len(whole) - 200
    assert part == ENTRIES[: len(part)]
    assert len(part) >= 290


@pytest.mark.parametrize("call", ["find_class", "persistent_load"])
def test_the_unpickler_refuses_by_itself(call):
    args = ("os", "system") if call == "find_class" else ("x",)
    import io

    with pytest.raises(safe_pickle_plain.UnsafeError):
        getattr(safe_pickle_plain._Refusing(io.BytesIO(b"")), call)(*args)
