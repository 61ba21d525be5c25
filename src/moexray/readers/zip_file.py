"""Members of a zip archive within bounds; of a damaged one those that are whole."""

from __future__ import annotations

import io
import struct
import zlib
from typing import TYPE_CHECKING

from moexray.core.errors import LimitError
from moexray.core.source import MAX_LOAD_BYTES

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterator

__all__ = ["members"]

LOCAL = b"PK\x03\x04"
FIXED = 30  # bytes of a local header before its name
WIDE = 0xFFFFFFFF  # sizes that stand in the zip64 field instead
MAX_RATIO = 1000  # arrays of zeros shrink that far
FREE_COPY = 16 << 20  # a member up to this size is simply copied
FREE_BYTES = 256 << 20  # a member up to this size is no bomb


def members(data: bytes, path: str) -> Iterator[tuple[str, bytes | memoryview | None, str]]:
    """Yields (name, content, damage) of each file in the archive.

    Where `damage` is not empty the content is what comes before it, None for nothing.

    Args:
        data: The archive.
        path: Its name, for errors.

    Raises:
        LimitError: it expands past the memory bound.
    """
    import zipfile

    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, struct.error) as why:
        yield from _salvage(data, path, str(why))
        return
    total = 0
    with archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            total += info.file_size
            _check(info.file_size, info.compress_size, total, path)
            stored = _stored(data, info)
            yield info.filename, *((stored, "") if stored is not None else _read(archive, info))


def _stored(data: bytes, info: zipfile.ZipInfo) -> memoryview | None:
    """A member that is stored as it is, without a copy; None if it is packed, or not whole."""
    at = info.header_offset
    if info.compress_type or info.flag_bits & 1 or info.file_size < FREE_COPY or data[at : at + 4] != LOCAL:
        return None
    long, extra = struct.unpack_from("<HH", data, at + 26)
    body = at + FIXED + long + extra
    content = memoryview(data)[body : body + info.file_size]
    whole = len(content) == info.file_size and zlib.crc32(content) == info.CRC
    return content if whole else None


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[bytes | None, str]:
    import zipfile

    damage = (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError, EOFError, ValueError, OSError)
    try:
        return archive.read(info), ""
    except damage as why:  # RuntimeError: encrypted, or a method that is not implemented
        return None, str(why) or type(why).__name__


def _check(size: int, packed: int, total: int, path: str) -> None:
    if total > MAX_LOAD_BYTES or size > MAX_RATIO * max(packed, 1) + FREE_BYTES:
        raise LimitError(
            f"the archive expands past {MAX_LOAD_BYTES >> 20} MiB", where=path, hint="unpack what you need"
        )


def _salvage(data: bytes, path: str, why: str) -> Iterator[tuple[str, bytes | None, str]]:
    """Walks the local headers from the start; the table of contents at the end is lost."""
    at = total = 0
    while data[at : at + 4] == LOCAL and at + FIXED <= len(data):
        flags, method, packed = *struct.unpack_from("<HH", data, at + 6), _packed(data, at)
        long, extra = struct.unpack_from("<HH", data, at + 26)
        name = data[at + FIXED : at + FIXED + long].decode("utf-8", "replace")
        body = at + FIXED + long + extra
        content, end, whole = _body(data, body, method, packed if not flags & 8 or packed else None)
        if flags & 1 or not whole:
            yield name, content if content and not flags & 1 else None, why
            return
        total += len(content)
        _check(len(content), end - body, total, path)
        if not name.endswith("/"):
            yield name, content, ""
        at = data.find(b"PK", end, end + 64)  # a descriptor may stand between
        if data[at : at + 4] == b"PK\x07\x08":
            at = data.find(LOCAL, at, at + 64)
    yield "the end of the archive", None, why


def _packed(data: bytes, at: int) -> int:
    """Bytes of a member as its local header gives them."""
    packed, size, long, extra = struct.unpack_from("<IIHH", data, at + 18)
    if packed != WIDE:
        return int(packed)
    wide = data.find(b"\x01\x00", at + FIXED + long, at + FIXED + long + extra)
    skip = 4 + 8 * (size == WIDE)
    return int.from_bytes(data[wide + skip : wide + skip + 8], "little") if wide >= 0 else 0


def _body(data: bytes, body: int, method: int, packed: int | None) -> tuple[bytes, int, bool]:
    """(content, end, whole) of a stored or deflated member; what there is of it where it is cut."""
    if method == 0 and packed is not None:
        end = body + packed
        return data[body:end], end, end <= len(data)
    engine = zlib.decompressobj(-15)
    try:
        content = engine.decompress(memoryview(data)[body:], FREE_BYTES) if method == zlib.DEFLATED else b""
    except zlib.error:
        return b"", len(data), False
    return content, len(data) - len(engine.unused_data), engine.eof
