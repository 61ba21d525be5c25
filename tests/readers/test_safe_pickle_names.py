"""Names that a pickle of plain data may hold, and all the others, which stay refused."""

import collections
import pickle

import numpy as np
import pytest

from moexray.core.errors import ReadError, UnsafeError
from moexray.core.run import Reading
from moexray.core.source import Source
from moexray.readers.safe_pickle import load


def read(data):
    out = Reading("")
    return load(Source("a.pickle", content=data), out), out


@pytest.mark.parametrize("protocol", range(6))
def test_containers_of_the_standard_library(protocol):
    kinds = collections.defaultdict(list, {"b": [1]})
    made, _ = read(pickle.dumps([collections.OrderedDict(a=1), kinds, collections.deque([1, 2]), {3}], protocol))
    assert [made[0], made[1], made[2], list(made[3])] == [{"a": 1}, {"b": [1]}, [1, 2], [3]]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "number",
    [np.int64(-5), np.uint64(1 << 63), np.int8(-1), np.float64(0.5), np.float32(0.25), np.float16(2), np.bool_(True)],
    ids=lambda n: n.dtype.name,
)
def test_numbers_of_numpy(number, protocol):
    [made], _ = read(pickle.dumps([number], protocol))
    assert made == number.item()
    assert type(made) is type(number.item())


def test_big_endian_numbers():
    swapped = np.array([7], ">i4")[0]
    raw = pickle.dumps(np.dtype(">i4"), 2)
    assert read(pickle.dumps(swapped, 2))[0] == 7
    with pytest.raises((ReadError, UnsafeError)):
        read(pickle.dumps(np.array([7]), 2))  # arrays are not among the plain data
    assert raw  # a dtype by itself is no value, but harmless
    read(raw)


class Call:
    def __init__(self, name, *args):
        self.name, self.args = name, args

    def __reduce__(self):
        return self.name, self.args


@pytest.mark.parametrize(
    "bad", [Call(print, "no"), Call(eval, "1"), Call(int, "9" * 50), Call(list, (1,)), Call(str, b"a"), Call(bytes, 10**9)]
)
def test_every_other_name_and_call_is_refused(bad):
    with pytest.raises((UnsafeError, ReadError)):
        read(pickle.dumps([bad], 2))


@pytest.mark.parametrize("protocol", range(6))
def test_an_integer_without_measure_is_unknown_and_told(protocol):
    made, out = read(pickle.dumps({"a": 10**400, "b": 5, "c": -(10**400)}, protocol))
    assert made == {"a": None, "b": 5, "c": None}
    [problem] = out.problems
    assert (problem.id, problem.values) == ("input.dirty_table", {"integers": 2})


def test_a_numpy_number_that_is_damaged():
    data = pickle.dumps(np.int64(5), 4)
    at = data.index(b"C\x08")
    with pytest.raises(ReadError, match="7 bytes"):
        read(data[:at] + b"C\x07" + data[at + 2 : at + 9] + data[at + 10 :])
