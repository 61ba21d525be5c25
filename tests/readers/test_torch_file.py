"""torch.save files without torch: the writer here makes what torch makes, byte layout and globals."""

import collections
import io
import pickle
import struct
import sys
import types
import zipfile

import numpy as np
import pytest

from moexray.core.errors import ReadError, UnsafeError
from moexray.core.run import Reading
from moexray.core.source import Source
from moexray.readers import torch_file

KINDS = {"<i4": "IntStorage", "<i8": "LongStorage", "<f4": "FloatStorage", "<f2": "HalfStorage",
         "|u1": "ByteStorage", "bf16": "BFloat16Storage", "|b1": "BoolStorage"}


class FakeTensor:
    def __init__(self, array, kind=None, size=None, stride=None, offset=0):
        self.array, self.kind = array, kind or array.dtype.str
        self.size = size or array.shape
        item = array.dtype.itemsize
        self.stride = stride or tuple(s // item for s in array.strides)
        self.offset = offset


@pytest.fixture
def torch_save(monkeypatch):
    """A function (object, legacy=False) -> bytes."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in KINDS.values():
        setattr(torch, name, type(name, (), {"__module__": "torch", "__qualname__": name}))

    def _rebuild_tensor_v2():
        raise AssertionError

    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)

    class Storage:
        def __init__(self, tensor, key):
            self.tensor, self.key = tensor, key

    class Pickler(pickle.Pickler):
        def __init__(self, file):
            super().__init__(file, 2)
            self.storages = []

        def persistent_id(self, item):
            if isinstance(item, Storage):
                kind = getattr(torch, KINDS[item.tensor.kind])
                return ("storage", kind, item.key, "cpu", item.tensor.array.size)
            return None

        def reducer_override(self, item):
            if isinstance(item, FakeTensor):
                self.storages.append(item)
                storage = Storage(item, str(len(self.storages) - 1))
                arguments = (storage, item.offset, item.size, item.stride, False, collections.OrderedDict())
                return _rebuild_tensor_v2, arguments
            return NotImplemented

    def save(item, legacy=False):
        body = io.BytesIO()
        pickler = Pickler(body)
        pickler.dump(item)
        out = io.BytesIO()
        if legacy:
            for head in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}):
                pickle.dump(head, out, 2)
            out.write(body.getvalue())
            pickle.dump([str(i) for i in range(len(pickler.storages))], out, 2)
            for tensor in pickler.storages:
                out.write(struct.pack("<q", tensor.array.size) + tensor.array.tobytes())
            return out.getvalue()
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("archive/data.pkl", body.getvalue())
            archive.writestr("archive/byteorder", "little")
            for i, tensor in enumerate(pickler.storages):
                archive.writestr(f"archive/data/{i}", tensor.array.tobytes())
            archive.writestr("archive/version", "3")
        return out.getvalue()

    return save


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("dtype", ["<i4", "<i8", "<f4", "<f2", "|u1", "|b1"])
def test_numbers_come_back(torch_save, dtype, legacy):
    array = (np.arange(12) % 2).astype(dtype).reshape(3, 4)
    content = torch_save({"x": FakeTensor(array), "n": 3, "list": [FakeTensor(array)]}, legacy)
    assert torch_file.sniff(content[: 1 << 16])
    loaded = torch_file.load(Source("a.pt", content=content))
    assert loaded["n"] == 3
    assert np.array_equal(loaded["x"], array)
    assert loaded["x"].dtype == array.dtype
    assert np.array_equal(loaded["list"][0], array)


def test_bfloat16_becomes_float32(torch_save):
    exact = np.array([1.0, -2.5, 0.0078125], np.float32)
    bits = (exact.view(np.uint32) >> 16).astype(np.uint16)
    loaded = torch_file.load(Source("a.pt", content=torch_save(FakeTensor(bits, "bf16"))))
    assert loaded.dtype == np.float32
    assert np.array_equal(loaded, exact)


def test_a_transposed_view_and_an_offset(torch_save):
    base = np.arange(12, dtype=np.int32)
    view = FakeTensor(base, size=(4, 2), stride=(1, 4), offset=4)
    loaded = torch_file.load(Source("a.pt", content=torch_save(view)))
    assert np.array_equal(loaded, base[4:].reshape(2, 4).T)


@pytest.mark.parametrize(
    ("size", "stride", "offset"), [((13,), (1,), 0), ((12,), (1,), 1), ((4, 4), (-1, 1), 0), ((2**40,), (0,), 0)]
)
def test_a_view_outside_its_storage_is_refused(torch_save, size, stride, offset):
    view = FakeTensor(np.arange(12, dtype=np.int32), size=size, stride=stride, offset=offset)
    with pytest.raises(ReadError):
        torch_file.load(Source("a.pt", content=torch_save(view)))


def test_a_global_is_refused_and_nothing_runs(tmp_path):
    class Evil:
        def __reduce__(self):
            return (exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",))

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps({"a": Evil()}, 2))
        archive.writestr("x/data/0", b"")
    with pytest.raises(UnsafeError, match="exec"):
        torch_file.load(Source("a.pt", content=out.getvalue()))
    assert not (tmp_path / "ran").exists()


def test_damage_is_a_read_error(torch_save):
    content = torch_save({"x": FakeTensor(np.arange(1000, dtype=np.int64))})
    for cut in (50, len(content) // 2, len(content) - 10):
        with pytest.raises(ReadError):
            torch_file.load(Source("a.pt", content=content[:cut]))


def test_per_pass_records_with_a_map(torch_save):
    slots = np.array([[0, 1, 2, 0], [1, 2, 0, 1]], np.int64)
    records = [
        {"forward_pass_id": 100 + i, "rank": 1, "gatherer_key": "primary",
         "global_physical_count": FakeTensor(np.full((2, 4), i + 1, np.int32))}
        for i in range(3)
    ]
    content = torch_save({"records": records, "last_physical_to_logical_map": FakeTensor(slots)})
    out = Reading("torch")
    torch_file.read(Source("expert_distribution_recorder_1.5_1.pt", content=content), out)
    (counts,) = [b for b in out.batches if b.table == "counts"]
    assert counts.attrs["axis"] == "physical"
    assert counts.attrs["rank"] == 1
    assert counts.columns["step"].tolist() == [100, 100, 101, 101, 102, 102]
    assert counts.columns["tokens"].sum() == 8 * (1 + 2 + 3)
    (placement,) = [b for b in out.batches if b.table == "placement"]
    assert np.array_equal(placement.columns["slots"], slots)


def test_a_ring_buffer_tells_whether_it_is_in_order(torch_save):
    cube = np.ones((4, 2, 8), np.int32)
    full = {"rank": 0, "logical_count": FakeTensor(cube), "average_utilization_rate_over_window": None}
    out = Reading("torch")
    torch_file.read(Source("a.pt", content=torch_save(full)), out)
    assert out.batches[0].attrs["ordered"] is False
    assert "ring buffer" in " ".join(out.notes)
    cube[2:] = 0
    out = Reading("torch")
    torch_file.read(Source("a.pt", content=torch_save(full)), out)
    assert out.batches[0].attrs["ordered"] is True
    assert out.rows == 4


def test_per_token_ids_lose_their_padding(torch_save):
    ids = np.full((2, 5, 8), -1, np.int32)
    ids[:, :, :2] = [[3, 1]]
    record = {"forward_pass_id": 7, "rank": 0, "input_ids": [1, 2, 3, 4, 5], "topk_ids_of_layer": FakeTensor(ids)}
    out = Reading("torch")
    torch_file.read(Source("a.pt", content=torch_save({"records": [record, dict(record)]})), out)
    (routes,) = [b for b in out.batches if b.table == "routes"]
    assert routes.columns["ids"].shape == (2 * 10, 2)
    assert routes.attrs["tokens"] == 10


def test_a_file_without_routing_is_named(torch_save):
    content = torch_save({"state_dict": {"w": FakeTensor(np.ones((2, 2), np.float32))}})
    with pytest.raises(ReadError, match="no known shape"):
        torch_file.read(Source("a.pt", content=content), Reading("torch"))
