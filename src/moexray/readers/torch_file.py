"""torch.save files (.pt, .pth, .bin) read without torch and without running anything from them.

A file is a zip of `data.pkl` (the object, tensors as references) and raw storages `data/0`, ...
The unpickler knows tensors, ordered dicts, sizes and dtypes, and refuses every other name. The
older form (five pickles in a row, then storages) is read, too.
"""

from __future__ import annotations

import collections
import io
import pickle
import struct
import zlib
from typing import TYPE_CHECKING, Any

from moexray.core.errors import LimitError, ReadError, UnsafeError
from moexray.core.source import MAX_LOAD_BYTES

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Callable

    import numpy as np

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["load", "read", "sniff"]

LEGACY_MAGIC = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the pickled magic number of the older form
STORAGES = {
    "DoubleStorage": "f8", "FloatStorage": "f4", "HalfStorage": "f2", "BFloat16Storage": "bf16",
    "LongStorage": "i8", "IntStorage": "i4", "ShortStorage": "i2", "CharStorage": "i1",
    "ByteStorage": "u1", "BoolStorage": "?",
}  # fmt: skip
DTYPES = {
    "float64": "f8", "float32": "f4", "float16": "f2", "bfloat16": "bf16", "int64": "i8", "int32": "i4",
    "int16": "i2", "int8": "i1", "uint8": "u1", "uint16": "u2", "uint32": "u4", "uint64": "u8", "bool": "?",
}  # fmt: skip
SIZES = {"f8": 8, "f4": 4, "f2": 2, "bf16": 2, "i8": 8, "i4": 4, "i2": 2, "i1": 1, "u1": 1, "u2": 2,
         "u4": 4, "u8": 8, "?": 1}  # fmt: skip


class _Dict(dict[Any, Any]):
    """An ordered or default dict; whatever state hangs on it is dropped."""

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        """Ignores the metadata that state dicts carry."""


class _Name:
    """A name of torch that stands for itself: a storage class or a dtype; calling it gives nothing."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


class _Storage:
    """Raw numbers of one storage; filled at once (zip) or after the pickle (older form)."""

    def __init__(self, kind: str, data: bytes = b"", order: str = "<") -> None:
        self.kind, self.data, self.order = kind, data, order

    def array(self) -> np.ndarray:
        import numpy as np

        if self.kind == "bf16":
            bits = np.frombuffer(self.data, self.order + "u2").astype(np.uint32) << 16
            return bits.view(np.float32)
        whole = len(self.data) // SIZES[self.kind] * SIZES[self.kind]
        return np.frombuffer(self.data[:whole], self.order + self.kind)


class _Tensor:
    """A view of a storage; made into an array when the whole file has been read."""

    def __init__(self, storage: Any, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
        self.storage, self.offset, self.size, self.stride = storage, offset, size, stride

    def array(self) -> np.ndarray:
        """The numbers.

        Raises:
            ReadError: the view leaves its storage.
        """
        import numpy as np

        flat = self.storage.array()
        sizes, strides = [int(n) for n in self.size], [int(n) for n in self.stride]
        last = self.offset + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        if min(sizes, default=1) == 0:
            return np.zeros(sizes, flat.dtype)
        if min([*strides, self.offset, *sizes], default=0) < 0 or last >= len(flat) or len(sizes) > 16:
            raise ReadError(f"a tensor of shape {sizes} leaves its storage of {len(flat)} numbers")
        step = flat.dtype.itemsize
        view = np.lib.stride_tricks.as_strided(flat[self.offset :], sizes, [s * step for s in strides])
        if view.size > 4 * max(len(flat), 1 << 20):
            raise ReadError(f"a tensor of shape {sizes} repeats a storage of {len(flat)} numbers")
        return np.array(view)


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> _Tensor:
    if not isinstance(storage, _Storage):
        raise ReadError("a tensor without a storage")
    return _Tensor(storage, int(offset), tuple(size), tuple(stride))


def _tensor_v3(storage: Any, offset: Any, size: Any, stride: Any, grad: Any, dtype: Any, *_: Any) -> _Tensor:
    if isinstance(storage, _Storage) and isinstance(dtype, _Name):
        storage = _Storage(dtype.kind, storage.data, storage.order)
    return _tensor(storage, offset, size, stride, grad)


def _parameter(data: Any, *_: Any) -> Any:
    return data


ALLOWED: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_v3,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("collections", "OrderedDict"): _Dict,
    ("collections", "defaultdict"): _Dict,
    ("collections", "deque"): lambda *a: list(*a[:1]),
    ("torch", "Size"): tuple,
    ("builtins", "set"): list,
    ("builtins", "complex"): complex,
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: io.BytesIO, storage: Callable[[Any], _Storage]) -> None:
        super().__init__(data)
        self._storage = storage

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ALLOWED:
            return ALLOWED[module, name]
        if module == "torch" and name in STORAGES:
            return _Name(STORAGES[name])
        if module == "torch.storage" and name in ("UntypedStorage", "_UntypedStorage"):
            return _Name("u1")
        if module == "torch" and name in DTYPES:
            return _Name(DTYPES[name])
        raise UnsafeError(f"the pickle asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> _Storage:
        return self._storage(pid)


def sniff(head: bytes) -> bool:
    """A zip with data.pkl near its start, or the magic number of the older form."""
    if len(head) > 30 and head[:4] == b"PK\x03\x04":
        name = head[30 : 30 + head[26] + 256 * head[27]]
        return name.endswith((b"data.pkl", b"/byteorder", b".format_version", b"/version")) or (
            b"/data.pkl" in head and b"/data/" in head
        )
    return LEGACY_MAGIC in head[:32]


def read(source: Source, out: Reading) -> None:
    """Loads the object and hands it to the routing shapes.

    Raises:
        ReadError: damaged, or nothing about routing inside.
        UnsafeError: the pickle names anything but tensors and containers.
    """
    from moexray.readers.shapes.routing_objects import take_document

    document = load(source)
    if not take_document(document, "torch file", source, out):
        keys = ", ".join(str(k) for k in list(document)[:8]) if isinstance(document, dict) else type(document)
        raise ReadError(
            f"a torch file of no known shape ({keys})",
            where=source.path,
            hint="recordings of expert counts, router choices or router logits are known",
        )


def load(source: Source) -> Any:
    """The object of a torch file, tensors as numpy arrays (bfloat16 as float32).

    Raises:
        ReadError: damaged.
        UnsafeError: a global outside the allow-list.
        LimitError: the storages pass the memory bound.
    """
    import zipfile

    data = source.data()
    try:
        document = _from_zip(data, source) if data[:2] == b"PK" else _from_stream(data)
        return _arrays(document, 0)
    except (UnsafeError, LimitError):
        raise
    except ReadError as why:
        raise ReadError(why.what, where=source.path, hint="save it again, or copy it again") from why
    except (
        pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, TypeError, AttributeError,
        zipfile.BadZipFile, zlib.error, struct.error, OverflowError, MemoryError, RuntimeError,
    ) as why:  # fmt: skip
        text = f"the torch file is damaged ({why})"
        raise ReadError(text, where=source.path, hint="copy it again") from why


def _from_zip(data: bytes, source: Source) -> Any:
    import zipfile

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        total = sum(i.file_size for i in archive.infolist())
        if total > MAX_LOAD_BYTES:
            raise LimitError(f"its tensors pass {MAX_LOAD_BYTES >> 20} MiB", where=source.path,
                             hint="save counts only, or fewer steps")  # fmt: skip
        name = next((n for n in archive.namelist() if n.rsplit("/", 1)[-1] == "data.pkl"), None)
        if name is None:
            raise ReadError("no data.pkl in it")
        folder = name[: -len("data.pkl")]
        order = ">" if _member(archive, folder + "byteorder").strip() == b"big" else "<"
        known: dict[str, _Storage] = {}

        def storage(pid: Any) -> _Storage:
            kind, key = pid[1].kind, str(pid[2])
            if key not in known:
                known[key] = _Storage(kind, archive.read(f"{folder}data/{key}"), order)
            return known[key]

        return _Unpickler(io.BytesIO(archive.read(name)), storage).load()


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    try:
        return archive.read(name)
    except KeyError:
        return b""


def _from_stream(data: bytes) -> Any:
    """The older form: magic, protocol, system, object, storage keys, then size and bytes of each."""
    stream = io.BytesIO(data)
    known: dict[str, _Storage] = collections.OrderedDict()

    def storage(pid: Any) -> _Storage:
        return known.setdefault(str(pid[2]), _Storage(pid[1].kind))

    for _ in range(3):
        _Unpickler(stream, storage).load()
    document = _Unpickler(stream, storage).load()
    for key in _Unpickler(stream, storage).load():
        (count,) = struct.unpack("<q", stream.read(8))
        entry = known[str(key)]
        entry.data = stream.read(max(count, 0) * SIZES[entry.kind])
    return document


def _arrays(value: Any, depth: int) -> Any:
    """The object with arrays in place of tensors.

    Raises:
        ReadError: it is nested too deeply.
    """
    if depth > 50:
        raise ReadError("nested more than 50 levels deep")
    if isinstance(value, _Tensor):
        return value.array()
    if isinstance(value, dict):
        return {k: _arrays(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_arrays(v, depth + 1) for v in value]
    return value
