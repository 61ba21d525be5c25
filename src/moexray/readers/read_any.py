"""Reads whatever the user has: files, folders, archives, standard input -> one Run."""

from __future__ import annotations

import gc
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from moexray.core.errors import EmptyError, LimitError, ReadError, UnsafeError, UsageError
from moexray.core.file_name import printable
from moexray.core.run import Reading, Run, Skipped, build_run, merge
from moexray.core.source import HEAD_BYTES, MAX_FILES, MAX_LOAD_BYTES, Problem, Source, walk
from moexray.core.store import is_saved, load
from moexray.readers import READERS, nsys_parquet, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from moexray.readers import Reader

__all__ = ["read_any", "read_sources"]

BINARY = ("torch", "npz", "nsys", "nsys parquet", "safetensors", "pickle")
FOREIGN = (".png", ".jpg", ".jpeg", ".gif", ".pdf", ".zip", ".html", ".xlsx", ".docx", ".exe", ".so", ".mp4")
MINOR = ("input.encoding", "input.json_repaired", "input.dialect", "input.missing_values")
REASON = 240  # characters of the reason why a file is skipped

MAGIC = (
    (b"\x89PNG", "an image (PNG)"),
    (b"\xff\xd8\xff", "an image (JPEG)"),
    (b"GIF8", "an image (GIF)"),
    (b"%PDF", "a PDF document"),
    (b"\x7fELF", "a program (ELF)"),
    (b"PK\x03\x04", "a zip archive that holds nothing known"),
)


def read_any(paths: Iterable[str], progress: Callable[[str], None] | None = None) -> Run:
    """Reads files, folders and standard input ("-") into one Run.

    Args:
        paths: As given on the command line; files below a folder are named relative to it, where
            it is the only path, and as given otherwise.
        progress: Called with the name of each file before it is read.

    Returns:
        The Run; files that gave nothing are in `skipped` with a reason, never an exception.

    Raises:
        UsageError: a path is empty, or standard input is closed.
    """
    sources: list[Source] = []
    skipped: list[Skipped] = []
    saved: list[Run] = []
    paths = list(paths)
    for given in paths:
        if given == "-":
            sources.append(Source("<stdin>", content=_stdin()))
            continue
        if not given:  # "$UNSET" is not the folder that one happens to be in
            raise UsageError("a path is empty", hint="'.' is this folder")
        path = Path(given)
        if is_saved(path):
            saved.append(load(path))
            continue
        files, bad = walk(path)
        folder = path.is_dir()
        top = "" if len(paths) == 1 else f"{given.rstrip('/')}/"
        sources += [Source(top + name if folder else given, file) for name, file in files]
        skipped += [Skipped(printable(top + name if folder and name else given), why) for name, why in bad]
    return merge([*saved, read_sources(sources, skipped, progress)])


def _stdin() -> bytes:
    if sys.stdin is None:
        raise UsageError("standard input is closed", hint="give a file, or pipe something in")
    return sys.stdin.buffer.read(MAX_LOAD_BYTES)


def read_sources(
    sources: Iterable[Source],
    skipped: Iterable[Skipped] = (),
    progress: Callable[[str], None] | None = None,
) -> Run:
    """Reads sources in order; see read_any."""
    readings: list[tuple[str, Reading]] = []
    left_out = list(skipped)
    for source in _exports(_members(sources, left_out, readings)):
        if progress:
            progress(source.path)
        reading, reason = read_one(source)
        readings.append((source.path, reading))
        if reason:
            left_out.append(Skipped(source.path, " ".join(reason.split())[:REASON]))
        source.release()
    return build_run(readings, left_out)


def read_one(source: Source) -> tuple[Reading, str]:
    """Reads one source.

    Returns:
        (reading, reason): reason is "" if it gave rows, else why it is skipped.
    """
    out = Reading("")
    collecting = gc.isenabled()
    gc.disable()  # parsing makes millions of live objects; the cyclic collector costs 25-60 %
    try:
        reader = _choose(source)
        if reader is None:
            return out, _unknown(source)
        out.reader = reader.name
        reader.read(source, out)
        _check_name(source, reader, out)
    except EmptyError:
        if source.problems:  # damaged before its first byte, not empty
            out.problems.extend(source.problems)
            return out, f"nothing of it can be used: {source.problems[0].text}"
        out.problem("input.empty", "the file holds nothing", lost=None)
        return out, "the file holds nothing"
    except UnsafeError as why:
        out.problem("input.unsafe_pickle", why.what, where=why.where, lost=None)
        return out, f"refused: {why.what}"
    except LimitError as why:
        out.problem("input.huge", f"{why.what}; it was not read", lost=None)
        return out, f"refused: {why.what}; {why.hint}"
    except ReadError as why:
        out.problems.extend(source.problems)
        return out, f"{why.what}{'; ' + why.hint if why.hint else ''}"
    except (MemoryError, RecursionError) as why:
        return out, f"too deep or too large to read ({type(why).__name__})"
    except Exception as why:  # noqa: BLE001  # the edge: a fault of a reader must not end the run
        return out, _failed(why, out)
    finally:
        if not out.rows:  # of a file that gives nothing only the reason is told
            out.problems[:] = [p for p in out.problems if p.id not in MINOR]
        if collecting:
            gc.enable()
    out.problems.extend(source.problems)
    if out.rows:
        return out, ""
    reason = out.notes[0] if out.notes else "nothing of a known form in it"
    return out, reason


def _failed(why: Exception, out: Reading) -> str:
    """Why a reader gave up that should not have; a number without measure is the file's own fault."""
    if isinstance(why, OverflowError) or str(why).startswith("Exceeds the limit"):
        out.problem("input.dirty_table", "it holds a number too large for any measure", lost=None)
        return "a number too large for any measure in it"
    out.problem("input.unreadable", f"a reader failed on it ({type(why).__name__}: {why})", lost=None)
    return f"the {out.reader} reader failed on it ({type(why).__name__}); please report this"


def _choose(source: Source) -> Reader | None:
    head = source.head
    if not head.strip(b" \t\r\n\0"):
        if source.disk_bytes > len(head):
            head = _look_further(source)  # a log that was cut while it was written begins with zeros
            return next((r for r in READERS if r.read is text.read and r.sniff(head)), None)
        raise EmptyError("the file holds nothing", where=source.path)
    return next((r for r in READERS if r.sniff(head)), None)


def _look_further(source: Source) -> bytes:
    """The first content behind a head of blanks or zeros; says empty if all of the file is so."""
    for piece in source.chunks():
        if found := piece.strip(b" \t\r\n\0"):
            return found[:HEAD_BYTES]
    raise EmptyError("the file holds nothing", where=source.path)


def _unknown(source: Source) -> str:
    known = next((text for magic, text in MAGIC if source.head.startswith(magic)), None)
    return f"{known}, not an artefact" if known else "not a format that moexray knows"


def _check_name(source: Source, reader: Reader, out: Reading) -> None:
    """Notes a name that promises another content than the one that was believed."""
    name = source.name.lower()
    packed = {"gzip": (".gz", ".gzip", ".tgz"), "zstd": (".zst", ".zstd")}
    stem = name
    for kind, endings in packed.items():
        ending = next((e for e in endings if name.endswith(e)), None)
        if ending:
            stem = name[: -len(ending)]
            if source.compression != kind:
                text = f"the name says {kind}, the content is {source.compression or reader.name}"
                out.problem("input.name_mismatch", text, values={"expected": kind})
        elif source.compression == kind and out.rows and "." in name:
            out.problem("input.name_mismatch", f"the content is {kind}, the name does not say so")
    claims = [r.name for r in reversed(READERS) for s in r.suffixes if stem.endswith(s)]
    claims = claims or [e[1:] for e in FOREIGN if stem.endswith(e)][:1]
    shared = {"text"} if reader.name not in BINARY else set()  # any text may be called .log or .txt
    shared |= {"csv", "text"} if reader.name in ("csv", "text") else set()
    if claims and out.rows and not shared.union((reader.name,)).intersection(claims):
        out.problem("input.name_mismatch", f"the name says {claims[0]}, the content is {reader.name}")


def _members(
    sources: Iterable[Source], skipped: list[Skipped], readings: list[tuple[str, Reading]]
) -> Iterator[Source]:
    """Yields sources; a zip or tar archive of artefacts is replaced by its members."""
    for source in sources:
        try:
            kind = _archive(source)
        except ReadError as why:
            skipped.append(Skipped(source.path, f"{why.what}; {why.hint}"))
            continue
        if not kind:
            yield source
            continue
        import tarfile

        damage = (tarfile.TarError, ReadError, NotImplementedError, RuntimeError)
        try:
            yield from _unzip(source, skipped, readings) if kind == "zip" else _untar(source)
        except damage as why:
            reading = Reading(kind)
            reading.problem("input.truncated", f"the {kind} archive is damaged ({why})", lost=None)
            readings.append((source.path, reading))
            skipped.append(Skipped(source.path, f"the {kind} archive is damaged ({why})"))


def _exports(sources: Iterable[Source]) -> Iterator[Source]:
    """Yields sources; the Parquet tables of one folder are put together as one."""
    folders: dict[str, list[Source]] = {}
    for source in sources:
        if nsys_parquet.sniff(source.head):
            folders.setdefault(source.path.rpartition("/")[0], []).append(source)
        else:
            yield source
    for folder, tables in folders.items():
        first = tables[0]
        if len(tables) == 1:
            yield first
            continue
        own = first.file.resolve().parent.name if first.file is not None else first.name
        whole = Source(folder or own, first.file, None if first.file is not None else first.data())
        whole.parts = tuple(tables)
        yield whole


def _archive(source: Source) -> str:
    """"zip", "tar" (compressed or not), or "" for an artefact itself."""
    if source.head[257:265] in (b"ustar\x0000", b"ustar  \0"):
        return "tar"
    if source.compression != "zip":
        return ""
    reader = next((r for r in READERS if r.sniff(source.head)), None)
    mixed = reader is not None and reader.name == "npz" and not _only_arrays(source)
    return "zip" if reader is None or mixed else ""


def _only_arrays(source: Source) -> bool:
    import zipfile

    try:
        with zipfile.ZipFile(io.BytesIO(source.data())) as archive:
            return all(name.endswith(".npy") for name in archive.namelist())
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
        return True  # cut: the npz reader says what is left


def _untar(source: Source) -> Iterator[Source]:
    """The regular files in a tar; links and devices are left out, nothing is written to disk."""
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(source.data()), mode="r:") as archive:
        for count, info in enumerate(archive):
            if count >= MAX_FILES:
                raise LimitError(f"the archive holds more than {MAX_FILES} members", where=source.path)
            content = archive.extractfile(info) if info.isreg() else None
            if content is not None:
                member = Source(f"{source.path}/{info.name.removeprefix('./')}", content=content.read())
                member.problems += [Problem(p.id, p.text, p.where) for p in source.problems]
                yield member


def _unzip(source: Source, skipped: list[Skipped], readings: list[tuple[str, Reading]]) -> Iterator[Source]:
    """The files in a zip; a damaged one is told, the others are used."""
    from moexray.readers.zip_file import members

    for name, content, damage in members(source.data(), source.path):
        path = f"{source.path}/{name}"
        said = f"{name} is damaged in the zip archive ({damage})"
        if content is None:
            reading = Reading("zip")
            reading.problem("input.truncated", said, lost=None)
            readings.append((path, reading))
            skipped.append(Skipped(path, said))
            continue
        member = Source(path, content=bytes(content))
        member.problems += [Problem("input.truncated", said, lost=None)] if damage else []
        member.problems += [Problem(p.id, p.text, p.where) for p in source.problems]
        yield member
