"""NumPy files: .npz (a zip of arrays) and .npy, without pickles."""

from __future__ import annotations

import io
import math
import struct
import zlib
from typing import TYPE_CHECKING, Any

from moexray.core.errors import ReadError
from moexray.readers.zip_file import members

if TYPE_CHECKING:
    import numpy as np

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["read", "sniff"]

MAGIC = b"\x93NUMPY"
HEADER_BYTES = 1 << 17  # a header of format 1 is at most half of it



def _damage() -> tuple[type[Exception], ...]:
    """What a damaged archive or array may raise."""
    import zipfile

    zip_errors = (zipfile.BadZipFile, zlib.error, NotImplementedError)
    return (ReadError, *zip_errors, EOFError, RuntimeError, ValueError, IndexError, struct.error, OSError,
            SyntaxError, TypeError, MemoryError)  # fmt: skip


def sniff(head: bytes) -> bool:
    """The mark of .npy, or a zip whose first member is named *.npy."""
    if head.startswith(MAGIC):
        return True
    if len(head) < 31 or head[:4] != b"PK\x03\x04":
        return False
    return head[30 : 30 + head[26] + 256 * head[27]].endswith(b".npy")


def read(source: Source, out: Reading) -> None:
    """Loads the arrays and hands them to the routing shapes.

    Raises:
        ReadError: damaged, or nothing about routing inside.
        LimitError: the arrays expand past the memory bound.
    """
    from moexray.readers.shapes.routing_objects import take_document

    if source.head.startswith(MAGIC):
        try:
            bare = _array(source.data(), "the array", source)
        except ReadError as why:
            if "EOF" in why.what or "truncated" in why.what:
                out.problem("input.truncated", why.what, lost=None)
            raise
        arrays = {"array": bare}
        taken = take_document(bare, "npy", source, out)
    else:
        arrays = _members(source.data(), source, out)
        taken = take_document(arrays, "npz", source, out)
    if not taken:
        names = ", ".join(f"{k}{list(v.shape)}" for k, v in list(arrays.items())[:8])
        raise ReadError(
            f"arrays of no known meaning ({names})",
            where=source.path,
            hint="names such as logical_count, topk_ids, router_logits, physical_to_logical_map are known",
        )


def _members(data: bytes, source: Source, out: Reading) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    for name, content, damage in members(data, source.path):
        name = name.removesuffix(".npy")  # noqa: PLW2901
        try:
            arrays[name] = _array(content or b"", name, source)
        except ReadError as why:
            said = damage or why.what
            out.problem("input.truncated", f"{name} cannot be read ({said})", where=name, lost=None)
    return arrays


def _array(data: bytes | memoryview, name: str, source: Source) -> np.ndarray:
    try:
        return _over(data)
    except _damage() as why:
        raise ReadError(f"{name} is damaged or holds pickled objects ({why})", where=source.path) from why


def _over(data: bytes | memoryview) -> np.ndarray:
    """The array that the header promises, over the bytes behind it; nothing is copied.

    Raises:
        ValueError: fewer bytes than promised, objects, or no header.
    """
    import numpy as np

    content = io.BytesIO(data[:HEADER_BYTES])
    version = np.lib.format.read_magic(content)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in read_header:  # names of fields beyond ASCII: no array of ours
        raise ValueError(f"format {version[0]}.{version[1]} is not read")
    shape, by_columns, kind = read_header[version](content)
    if kind.hasobject:
        raise ValueError("object arrays are not read")
    needed, held = math.prod(shape) * kind.itemsize, len(data) - content.tell()
    if needed > held or min(shape, default=0) < 0:
        shown = " x ".join(map(str, shape))
        said = f"its header promises {shown} {kind}, {needed:,} bytes; {held:,} are there"
        raise ValueError(f"truncated: {said}")
    flat = np.frombuffer(data, kind, math.prod(shape), content.tell())
    return flat.reshape(shape[::-1]).transpose() if by_columns else flat.reshape(shape)
