"""Files behind a URL (s3://, gs://, az://, http://, ...), through fsspec and its drivers.

What is read is copied to a temporary folder first, file by file, so that all readers work as they do here.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from moexray.core.errors import UsageError
from moexray.core.source import MAX_DISK_BYTES, MAX_FILES, Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["find", "is_url", "local", "version"]

# Best first: a store may tell times of a listing and of a file differently.
VERSIONS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "md5", "created")


def is_url(path: str) -> bool:
    """Whether a path names a file behind a driver of fsspec."""
    return "://" in path


def find(url: str) -> list[tuple[str, str]]:
    """All files below a URL, or the one that it names.

    Returns:
        Pairs (name relative to the URL, URL of the file), sorted.

    Raises:
        UsageError: no driver, no access, or nothing there.
    """
    files = _open(url)
    try:
        root = files._strip_protocol(url).rstrip("/")  # noqa: SLF001  # fsspec has no public name for it
        found = sorted(files.find(root))
    except Exception as why:  # drivers raise what their libraries raise
        raise _refused(url, why) from why
    if not found:
        hint = "check bucket and prefix; a web server that does not answer looks the same"
        raise UsageError("there is nothing at this URL", where=url, hint=hint)
    names = [f[len(root) :].strip("/") or f.rpartition("/")[2] for f in found[:MAX_FILES]]
    return [(name, files.unstrip_protocol(f)) for name, f in zip(names, found, strict=False)]


def version(url: str) -> tuple[Any, ...]:
    """What changes when the file does: its size and what the store tells besides.

    Raises:
        UsageError: the store does not answer.
    """
    try:
        info = _open(url).info(url)
    except Exception as why:
        raise _refused(url, why) from why
    return info.get("size"), next((str(info[key]) for key in VERSIONS if info.get(key)), None)


@contextmanager
def local(files: Iterable[tuple[str, str]]) -> Iterator[list[Source]]:
    """Sources of files here and behind URLs; copies live until the end of the block.

    Args:
        files: Pairs (name to report, path or URL).

    Raises:
        UsageError: a file cannot be fetched.
    """
    with TemporaryDirectory(prefix="moexray-") as folder:
        sources = []
        for i, (name, path) in enumerate(files):
            here = Path(path)
            if is_url(path):
                here = Path(folder) / f"{i}-{name.rpartition('/')[2]}"
                _fetch(path, here)
            sources.append(Source(name, here))
        yield sources


def _fetch(url: str, here: Path) -> None:
    files = _open(url)
    try:
        size = files.info(url).get("size") or 0
        if size <= MAX_DISK_BYTES:
            files.get_file(url, str(here))
    except Exception as why:
        raise _refused(url, why) from why
    if size > MAX_DISK_BYTES:
        hint = "give a shorter capture"
        raise UsageError(f"it is larger than {MAX_DISK_BYTES >> 30} GiB", where=url, hint=hint)


def _open(url: str) -> Any:
    """The file system of a URL."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as why:
        raise UsageError("URLs need fsspec", where=url, hint="pip install 'moexray[remote]'") from why
    try:
        return url_to_fs(url)[0]
    except ImportError as why:
        hint = "pip install what it names"
        raise UsageError(f"no driver for this URL ({why})", where=url, hint=hint) from why
    except ValueError as why:
        hint = "such as s3://bucket/prefix"
        raise UsageError(f"this is no URL that fsspec knows ({why})", where=url, hint=hint) from why


def _refused(url: str, why: Exception) -> UsageError:
    hint = "check the address and the credentials, as the store's own client takes them"
    return UsageError(f"the store refused ({type(why).__name__}: {why})", where=url, hint=hint)
