"""Opens artefacts within bounds: sizes, compression ratios and content, never names.

Glossary: *head* is the first 64 KiB after decompression; *bomb* is a file whose decompressed
size passes the limits.
"""

from __future__ import annotations

import stat
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moexray.core.errors import EmptyError, LimitError, ReadError
from moexray.core.file_name import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["HEAD_BYTES", "Problem", "Source", "decode", "walk"]

HEAD_BYTES = 65_536
MAX_DISK_BYTES = 1 << 33  # a file on disk that we open at all: 8 GiB
MAX_LOAD_BYTES = 768 << 20  # what `data()` may hold in memory, decompressed (1 GiB in all is the bar)
MAX_RATIO = 200  # decompressed/compressed of real traces is 8-20, of sparse logs up to ~100
MAX_FILES = 20_000  # files below one folder
CHUNK = 1 << 20
SLICE = 1 << 14  # compressed bytes given to zlib at a time
ZSTD = b"\x28\xb5\x2f\xfd"
BOMS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with a file, as a reader met it; becomes a finding of the family `input`.

    Args:
        id: Verdict id, e.g. "input.truncated".
        text: What was seen and what was done about it, with numbers.
        where: Line, row or offset.
        lost: Records lost; None if unknown; 0 if nothing was lost.
        values: Numbers for the evidence, `name=value`.
        subject: Optional keys of core.finding.Subject.
    """

    id: str
    text: str
    where: str = ""
    lost: int | None = 0
    values: dict[str, object] = field(default_factory=dict)
    subject: dict[str, Any] = field(default_factory=dict)


class Source:
    """One artefact: a file, or bytes from standard input.

    Args:
        path: The name under which it is reported (as given, or relative to the given folder).
        file: The file on disk; None when `content` is given.
        content: The bytes themselves (standard input, tests).

    `problems` collects what was wrong on the way in (damaged gzip, encoding, ...). `parts` are the files
    of an artefact that is a folder (this one is their first).
    """

    def __init__(self, path: str, file: Path | None = None, content: bytes | None = None) -> None:
        self.path, self.file = printable(path), file
        self.problems: list[Problem] = []
        self.parts: tuple[Source, ...] = ()
        self._content = content
        self._data: bytes | None = None
        self._head: bytes | None = None

    @property
    def name(self) -> str:
        """The last part of the path; only for ranks in names and for name mismatches."""
        return self.path.rsplit("/", 1)[-1]

    @property
    def disk_bytes(self) -> int:
        """Size as it lies there, compressed or not, bytes."""
        if self._content is not None:
            return len(self._content)
        return 0 if self.file is None else self.file.stat().st_size

    @property
    def size_hint(self) -> int:
        """Bytes after decompression as the file itself tells them; at least the bytes on disk."""
        disk = self.disk_bytes
        if self.compression != "gzip":
            return disk
        tail = (self._content or b"")[-4:]
        if self.file is not None and self._content is None:
            with self.file.open("rb") as handle:
                handle.seek(max(0, disk - 4))
                tail = handle.read(4)
        return max(disk, int.from_bytes(tail, "little"))

    @property
    def head(self) -> bytes:
        """The first 64 KiB after decompression; b"" for an empty file."""
        if self._head is None:
            known = list(self.problems)
            self._head = b"".join(self.chunks(limit=HEAD_BYTES))[:HEAD_BYTES]
            self.problems = known  # damage is noted once, when the content is read
        return self._head

    @property
    def compression(self) -> str:
        """"gzip", "zstd", "zip" or ""; decided by magic bytes."""
        raw = self._raw_head()
        if raw[:2] == b"\x1f\x8b":
            return "gzip"
        if raw[:4] == ZSTD:
            return "zstd"
        return "zip" if raw[:4] in (b"PK\x03\x04", b"PK\x05\x06") else ""

    def data(self, limit: int = MAX_LOAD_BYTES) -> bytes:
        """The whole content, decompressed (a zip stays as it is; its reader opens it).

        Raises:
            EmptyError: nothing but white space.
            LimitError: more than `limit` bytes, or a compression ratio of a bomb.
            ReadError: the file cannot be opened.
        """
        if self._data is None:
            if self._content is not None and not self.compression:
                self._data = self._content
            else:
                self._data = self._load(limit)
        if len(self._data) < HEAD_BYTES and not self._data.strip():
            raise EmptyError("the file holds nothing", where=self.path, hint="check the recording")
        return self._data

    def release(self) -> None:
        """Forgets the loaded bytes once a reader is done with them."""
        self._data = None

    def chunks(self, limit: int = MAX_DISK_BYTES) -> Iterator[bytes]:
        """Yields decompressed pieces of about 1 MiB; ends early at damage, with a problem noted.

        Args:
            limit: Stop silently once this many bytes were given.

        Raises:
            LimitError: a bomb.
            ReadError: the file cannot be opened.
        """
        given = 0
        for piece in self._inflate(self._raw_chunks()):
            yield piece
            given += len(piece)
            if given >= limit:
                return

    def lines(self, longest: int) -> Iterator[bytes]:
        """Yields the lines without their ends; one of more than `longest` bytes loses its begin."""
        rest = b""
        for piece in self.chunks():
            whole, end, rest = (rest + piece).rpartition(b"\n")
            if end:
                yield from whole.split(b"\n")
            rest = rest[-longest:]
        if rest.strip():
            yield rest

    def _load(self, limit: int) -> bytes:
        if self.compression == "gzip" and (fast := self._libdeflate(limit)) is not None:
            return fast
        if self.compression in ("", "zip") and self.file is not None and self.disk_bytes <= limit:
            return self._read_file()  # in one piece: joining pieces would hold it twice
        out = bytearray()
        for piece in self.chunks():
            out += piece
            if len(out) > limit:
                raise LimitError(
                    f"the content passes {limit >> 20} MiB",
                    where=self.path,
                    hint="give a shorter capture, or split the file",
                )
        return bytes(out)

    def _libdeflate(self, limit: int) -> bytes | None:
        """One-shot inflate of a sound single-member gzip; None where the slow path must look."""
        raw = self._content if self._content is not None else self._read_file()
        size = int.from_bytes(raw[-4:], "little")
        if len(raw) < 18 or not 0 < size <= min(limit, MAX_RATIO * len(raw)):
            return None
        try:
            import deflate

            out = bytes(deflate.gzip_decompress(raw, size))
        except Exception:  # noqa: BLE001  # any doubt: the streaming path names the damage
            return None
        # The trailer's checksum is that of the last member: it fits only if there is just one.
        whole = deflate.crc32(out) == int.from_bytes(raw[-8:-4], "little")
        return out if whole and len(out) == size else None

    def _read_file(self) -> bytes:
        try:
            return b"" if self.file is None else self.file.read_bytes()
        except OSError as why:
            raise self._unreadable(why) from why

    def _raw_head(self) -> bytes:
        if self._content is not None:
            return self._content[:8]
        for piece in self._raw_chunks():
            return piece[:8]
        return b""

    def _raw_chunks(self) -> Iterator[bytes]:
        if self._content is not None:
            for i in range(0, len(self._content), CHUNK):
                yield self._content[i : i + CHUNK]
            return
        if self.file is None:
            return
        try:
            with self.file.open("rb") as handle:
                while piece := handle.read(CHUNK):
                    yield piece
        except OSError as why:
            raise self._unreadable(why) from why

    def _unreadable(self, why: OSError) -> ReadError:
        return ReadError(
            f"the file cannot be read ({why.strerror or why})",
            where=self.path,
            hint="check its permissions, or copy it here first",
        )

    def _inflate(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        kind = self.compression
        if kind == "gzip":
            yield from self._gunzip(pieces)
        elif kind == "zstd":
            yield from self._unzstd(pieces)
        else:
            yield from pieces

    def _check_ratio(self, taken: int, given: int) -> None:
        if given > (64 << 20) and given > MAX_RATIO * max(taken, 1):
            raise LimitError(
                f"the file expands more than {MAX_RATIO} times: refused as a decompression bomb",
                where=self.path,
                hint="decompress it yourself if you trust it",
            )

    def _gunzip(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Inflates member after member; damage ends it and is noted with its offset."""
        engine = zlib.decompressobj(31)
        taken = given = 0
        for rest in _slices(pieces):
            while rest:
                if engine.eof:
                    if not rest.strip(b"\0"):
                        break  # zero padding is legal
                    if not rest.startswith(b"\x1f\x8b"):
                        self._note("input.gzip_damaged", "bytes after the last gzip member", given)
                        return
                    engine = zlib.decompressobj(31)
                before = engine.copy()
                try:
                    piece = engine.decompress(rest, CHUNK)
                except zlib.error as why:
                    yield _salvage(before, rest)
                    self._note("input.gzip_damaged", f"the gzip data are damaged ({why})", given)
                    return
                taken += len(rest) - len(engine.unconsumed_tail) - len(engine.unused_data)
                given += len(piece)
                self._check_ratio(taken, given)
                if piece:
                    yield piece
                rest = engine.unused_data if engine.eof else engine.unconsumed_tail  # noqa: PLW2901
        if not engine.eof:
            self._note("input.truncated", "the gzip stream ends before its end mark", given)

    def _unzstd(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Inflates frame after frame; damage ends it and is noted with its offset."""
        import zstandard

        def fresh() -> zstandard.ZstdDecompressionObj:
            return zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()

        engine, taken, given = fresh(), 0, 0
        for rest in _slices(pieces, 4096):
            taken += len(rest)
            while rest:
                if engine.eof:
                    if not rest.startswith(ZSTD[: len(rest)]):
                        self._note("input.gzip_damaged", "bytes after the last zstd frame", given)
                        return
                    engine = fresh()
                try:
                    piece = engine.decompress(rest)
                except zstandard.ZstdError as why:
                    self._note("input.gzip_damaged", f"the zstd data are damaged ({why})", given)
                    return
                given += len(piece)
                self._check_ratio(taken, given)
                yield piece
                rest = engine.unused_data if engine.eof else b""  # noqa: PLW2901
        if not engine.eof:
            self._note("input.truncated", "the zstd stream ends before its end mark", given)

    def _note(self, id: str, text: str, offset: int) -> None:
        if not any(p.id == id for p in self.problems):
            where = f"offset {offset} of the decompressed content"
            self.problems.append(Problem(id, text, where=where, lost=None, values={"offset": offset}))


def _slices(pieces: Iterator[bytes], step: int = SLICE) -> Iterator[bytes]:
    """Small slices: what is lost around damage is at most one of them."""
    for raw in pieces:
        for i in range(0, len(raw), step):
            yield raw[i : i + step]


def _salvage(engine: zlib._Decompress, rest: bytes) -> bytes:
    """What a slice gives before its damage, byte by byte."""
    out = bytearray()
    try:
        for i in range(len(rest)):
            out += engine.decompress(rest[i : i + 1], CHUNK)
    except zlib.error:
        pass
    return bytes(out)


def decode(data: bytes) -> tuple[str, str]:
    """Decodes text of unknown encoding without ever failing.

    Returns:
        (text, encoding): encoding is "utf-8" for plain ASCII/UTF-8, else what was assumed:
        "utf-8-sig", "utf-16-le", "utf-16-be", "latin-1", with "+nul" where NUL bytes were dropped.
    """
    for bom, name in BOMS:
        if data.startswith(bom):
            text = data[len(bom) :].decode("utf-8" if name == "utf-8-sig" else name, "replace")
            return text, name
    if b"\0" in data[:4096] and data[1:4096:2].count(0) > 0.4 * len(data[1:4096:2]):
        return data.decode("utf-16-le", "replace"), "utf-16-le"
    suffix = ""
    if b"\0" in data:
        data, suffix = data.replace(b"\0", b""), "+nul"
    try:
        return data.decode("utf-8"), "utf-8" + suffix
    except UnicodeDecodeError as why:
        if why.reason == "unexpected end of data" and why.start > len(data) - 4:
            return data[: why.start].decode("utf-8"), "utf-8" + suffix
        return data.decode("latin-1"), "latin-1" + suffix


def walk(path: Path) -> tuple[list[tuple[str, Path]], list[tuple[str, str]]]:
    """Lists the regular files of a file or folder, sorted, links that loop left out.

    Returns:
        (files, skipped): files as (name relative to the folder, path), skipped as (name, reason). Names
        are those to report (see `printable`); paths are those to open.
    """
    files: list[tuple[str, Path]] = []
    skipped: list[tuple[str, str]] = []
    seen: set[tuple[int, int]] = set()

    def visit(item: Path, name: str) -> None:
        if len(files) >= MAX_FILES:
            return
        try:
            info = item.stat()
        except OSError as why:
            skipped.append((name, f"cannot be opened ({why.strerror or why})"))
            return
        key = (info.st_dev, info.st_ino)
        if stat.S_ISDIR(info.st_mode):
            if key in seen:
                skipped.append((name, "a link back to a folder that was read already"))
                return
            seen.add(key)
            try:
                children = sorted(child.name for child in item.iterdir())
            except OSError as why:
                skipped.append((name, f"cannot be opened ({why.strerror or why})"))
                return
            for child in children:
                shown = printable(child)
                visit(item / child, f"{name}/{shown}" if name else shown)
        elif not stat.S_ISREG(info.st_mode):
            skipped.append((name, "not a regular file"))
        elif info.st_size > MAX_DISK_BYTES:
            skipped.append((name, f"larger than {MAX_DISK_BYTES >> 30} GiB; give a shorter capture"))
        else:
            files.append((name or printable(item.name), item))

    visit(path, "")
    if len(files) >= MAX_FILES:
        skipped.append(("", f"only the first {MAX_FILES} files of the folder were read"))
    return files, skipped
