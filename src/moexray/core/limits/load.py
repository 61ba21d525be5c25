"""Limits from a TOML file: one table a subject, one key a limit, in the units of the defaults."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from moexray.core.errors import UsageError
from moexray.core.limits import Limits

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["load_limits"]


def load_limits(file: Path) -> Limits:
    """The defaults, with what the file overrides.

    Raises:
        UsageError: the file cannot be read, or names a subject or limit that does not exist, or
            gives it a value of another type.
    """
    import tomllib

    try:
        given = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as why:
        hint = "check the path of --limits"
        raise UsageError(f"the limits cannot be read ({why.strerror})", where=str(file), hint=hint) from why
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as why:
        hint = "write TOML: a line [routing], below it balancedness = 0.7"
        raise UsageError(f"the limits are not TOML ({why})", where=str(file), hint=hint) from why
    limits = Limits()
    for subject, values in given.items():
        part = getattr(limits, subject, None)
        if part is None or not isinstance(values, dict):
            names = ", ".join(f.name for f in fields(limits))
            raise UsageError(f"there is no subject [{subject}]", where=str(file), hint=f"one of {names}")
        for key, value in values.items():
            _check(file, subject, key, value, part)
        limits = replace(limits, **{subject: replace(part, **values)})
    return limits


def _check(file: Path, subject: str, key: str, value: Any, part: Any) -> None:
    if key not in {f.name for f in fields(part)}:
        names = ", ".join(f.name for f in fields(part))
        raise UsageError(f"[{subject}] has no limit {key}", where=str(file), hint=f"one of {names}")
    default = getattr(part, key)
    same = isinstance(value, type(default)) or (isinstance(default, float) and isinstance(value, int))
    if not same or isinstance(value, bool) != isinstance(default, bool):
        what = f"[{subject}] {key} = {value!r} must be of the kind of its default {default!r}"
        raise UsageError(what, where=str(file))
