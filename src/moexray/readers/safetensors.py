"""safetensors files: a JSON header of offsets, then raw numbers. Weights of a model are not read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from moexray.core.errors import ReadError

if TYPE_CHECKING:
    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["read", "sniff"]

TYPES = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "U16": "<u2", "U32": "<u4",
         "U64": "<u8", "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "?"}  # fmt: skip
MAX_HEADER = 100 << 20  # the format's own bound on its header


def sniff(head: bytes) -> bool:
    """Eight bytes of header length, then a JSON object."""
    size = int.from_bytes(head[:8], "little")
    return len(head) > 10 and 2 <= size <= MAX_HEADER and head[8:9] == b"{" and head[9:10] in b'"} '


def read(source: Source, out: Reading) -> None:
    """Reads the tensors and hands them to the routing shapes.

    Raises:
        ReadError: damaged, or nothing about routing inside (a model's weights).
    """
    from moexray.readers.shapes.routing_objects import take_document
    from moexray.readers.shapes.routing_words import role_of

    data = source.data()
    size = int.from_bytes(data[:8], "little")
    try:
        header: dict[str, Any] = json.loads(data[8 : 8 + size])
    except ValueError as why:
        raise ReadError(f"the safetensors header is damaged ({why})", where=source.path) from why
    meta = header.pop("__metadata__", {})
    document: dict[str, Any] = {k: _value(v) for k, v in meta.items()} if isinstance(meta, dict) else {}
    for name, entry in header.items():
        if not isinstance(entry, dict) or not (name.replace("_", "").isdigit() or role_of(name)):
            continue
        array = _tensor(data, 8 + size, name, entry, out)
        if array is not None:
            document[name] = array
    if not take_document(document, "safetensors", source, out):
        raise ReadError(
            f"{len(header)} tensors, none about routing (a model's weights?)",
            where=source.path,
            hint="expert statistics have keys such as 100_3 or expert_counts",
        )


def _value(text: Any) -> Any:
    """A value of the metadata, which the format keeps as text: a number, list or object where it is one."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


def _tensor(data: bytes, start: int, name: str, entry: dict[str, Any], out: Reading) -> Any:
    import numpy as np

    try:
        begin, end = (int(x) for x in entry["data_offsets"])
        kind, shape = TYPES[entry["dtype"]], tuple(int(x) for x in entry["shape"])
        array = np.frombuffer(data[start + begin : start + end], kind).reshape(shape)
    except (KeyError, TypeError, ValueError) as why:
        out.problem("input.truncated", f"tensor {name} cannot be read ({why})", where=name, lost=None)
        return None
    if entry["dtype"] == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array
