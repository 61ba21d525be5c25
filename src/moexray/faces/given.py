"""What the Python API is given: checked where it comes in, so that a slip is named and not met far inside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from moexray.core.errors import UsageError
from moexray.readers.remote import is_url

__all__ = ["counts", "listed", "path_of", "texts"]


def listed(value: Any) -> Iterable[Any]:
    """What is given alone or as a list, as a list."""
    alone = isinstance(value, str | bytes | PathLike | Mapping) or not isinstance(value, Iterable)
    return (value,) if alone else value


def texts(value: Any) -> tuple[str, ...]:
    """The same as texts."""
    return tuple(str(v) for v in listed(value))


def path_of(value: object) -> str:
    """A path that exists.

    Raises:
        UsageError: it is none, or nothing is there.
    """
    if not isinstance(value, str | PathLike):
        raise UsageError(f"{type(value).__name__} is no path", hint='moexray.read("folder/")')
    path = str(fspath(value))
    try:
        there = Path(path).exists()
    except (OSError, ValueError):  # too long, a NUL in it
        there = False
    if not there:
        hint = "copy it here, or `moexray diagnose URL`" if is_url(path) else "check the path"
        raise UsageError(f"{path} does not exist", hint=hint)
    return path


def counts(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The options, those that count something as integers.

    Args:
        options: By name; None is left to the default.
        names: Which ones count something.

    Raises:
        UsageError: one is no whole number from 1 up.
    """
    out = dict(options)
    for name in names:
        value = out.get(name)
        if value is None:
            continue
        whole = value.is_integer() if isinstance(value, float) else type(value) is int
        if not whole or value < 1:
            hint = "a whole number from 1 up" + (", in bytes" if name == "capacity" else "")
            raise UsageError(f"{name} is {value!r}", hint=hint)
        out[name] = int(value)
    return out
