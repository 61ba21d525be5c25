"""PYTORCH_ALLOC_CONF: the text and the Settings it stands for, both ways.

Source: the options of PyTorch 2.13, checked as its parsers check them (the shared one and the CUDA one).
Stricter than these in punctuation, trailing text and negative numbers, which they let pass or misread.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from moexray.algorithms.blocks import Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["VARIABLES", "parse", "recorded", "text"]

MIB = 1 << 20
UNLIMITED = 1 << 62  # bytes; PyTorch's "unlimited" is the largest size, give or take rounding to MiB
# Where the settings stand, in a launch line and in a snapshot; the first one set wins.
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
INTERVALS = 16  # of roundup_power2_divisions: 1 MiB, 2 MiB, ... 32 GiB and above
LEAST_LARGE_SEGMENT = 10  # MiB; a large segment must be larger
MOST_REGISTER_THREADS = 128
SPACE = str.maketrans("", "", " \t\n\r\v\f")


def recorded(settings: Any) -> str:
    """The configuration string in the settings of a snapshot; "" where there is none."""
    words = [settings.get(name) for name in VARIABLES] if isinstance(settings, dict) else []
    return next((word for word in words if isinstance(word, str) and word), "")


def parse(
    conf: str, base: Settings | None = None, *, strict: bool = True
) -> tuple[Settings, tuple[str, ...]]:
    """Reads a configuration string.

    Args:
        conf: "key:value,key:value"; lists in brackets; white space does not matter.
        base: Settings that the string changes; PyTorch's defaults where None.
        strict: Refuse unknown options, as PyTorch does. A string that some PyTorch has accepted (a
            recorded one) may have options of a later release: not strict, they become notes.

    Returns:
        (settings, notes): notes name options that do not change where device memory goes.

    Raises:
        ValueError: what PyTorch would refuse; the message names it and the range.
    """
    settings, notes, table = base or Settings(), [], None
    pairs = _pairs(conf)
    for key, value in pairs:  # it is the least of two others: PyTorch reads it first wherever it stands
        if key == "large_segment_size_mb":
            size = _at_least(key, value, LEAST_LARGE_SEGMENT + 1) * MIB
            settings = replace(settings, large_segment=size, max_non_split_rounding=size)
    least = -(-settings.large_segment // MIB)
    for key, value in pairs:
        if key == "expandable_segments":
            settings = replace(settings, expandable=_boolean(key, value))
        elif key == "max_split_size_mb":
            size = UNLIMITED if value == "-1" else _at_least(key, value, least) * MIB
            settings = replace(settings, max_split=size if size < UNLIMITED else None)
        elif key == "max_non_split_rounding_mb":
            settings = replace(settings, max_non_split_rounding=_at_least(key, value, least) * MIB)
        elif key == "garbage_collection_threshold":
            settings = replace(settings, gc_threshold=_share(key, value, ends=False))
        elif key == "per_process_memory_fraction":
            settings = replace(settings, fraction=_share(key, value, ends=True))
        elif key == "throw_on_cudamalloc_oom":
            settings = replace(settings, throw_on_oom=_boolean(key, value))
        elif key == "roundup_power2_divisions":
            table = _divisions(key, value, table or [0] * INTERVALS)
            settings = replace(settings, roundup=tuple(table))
        elif key == "backend":
            _backend(value)
        elif key in ELSEWHERE:
            ELSEWHERE[key](key, value)
            notes.append(f"{key} does not change where device memory goes")
        elif key != "large_segment_size_mb":
            if strict:
                raise ValueError(f"{key} is no option of PyTorch 2.13's allocator")
            notes.append(f"{key} is not known")
    return settings, tuple(notes)


def text(settings: Settings) -> str:
    """The string that sets these settings; "" for PyTorch's defaults."""
    default, parts = Settings(), []
    if settings.large_segment != default.large_segment:
        parts.append(f"large_segment_size_mb:{settings.large_segment // MIB}")
    if settings.expandable:
        parts.append("expandable_segments:True")
    if settings.max_split is not None:
        parts.append(f"max_split_size_mb:{settings.max_split // MIB}")
    if settings.max_non_split_rounding != settings.large_segment:
        parts.append(f"max_non_split_rounding_mb:{settings.max_non_split_rounding // MIB}")
    if settings.gc_threshold:
        parts.append(f"garbage_collection_threshold:{settings.gc_threshold!r}")
    if any(settings.roundup):
        one = settings.roundup[0] if len(set(settings.roundup)) == 1 else _list(settings.roundup)
        parts.append(f"roundup_power2_divisions:{one}")
    if settings.fraction < 1:
        parts.append(f"per_process_memory_fraction:{settings.fraction!r}")
    if settings.throw_on_oom:
        parts.append("throw_on_cudamalloc_oom:True")
    return ",".join(parts)


def _list(table: tuple[int, ...]) -> str:
    """The shortest list for a table: the first key also fills what is below it, `>` what is above."""
    last = next(i for i, d in enumerate(table) if d != table[0]) - 1
    entries = [f"{1 << last}:{table[0]}"]
    for i in range(last + 1, len(table)):
        if last == i - 1 and len(set(table[i:])) == 1 and table[i] and i + 1 < len(table):
            return f"[{','.join([*entries, f'>:{table[i]}'])}]"
        if table[i]:
            entries.append(f"{1 << i}:{table[i]}")
            last = i
    return f"[{','.join(entries)}]"


def _pairs(conf: str) -> list[tuple[str, str]]:
    """Splits at commas outside brackets; one comma may stand at the end."""
    conf = conf.translate(SPACE)
    parts = re.findall(r"[^,\[\]]*(?:\[[^\[\]]*\])?(?:,|$)", conf)
    if "".join(parts) != conf:
        raise ValueError("a bracket is not closed, or something stands behind a list")
    out = []
    for part in [p.removesuffix(",") for p in parts if p]:
        key, colon, value = part.partition(":")
        if not key or not colon or not value:
            raise ValueError(f"{part or 'an empty part'} is no key:value")
        out.append((key, value))
    return out


def _boolean(key: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise ValueError(f"{key}:{value} must be True or False, with a capital")
    return value == "True"


def _number(key: str, value: str) -> int:
    """A C size: ASCII digits, below 2^64."""
    if not re.fullmatch(r"\+?[0-9]{1,20}", value) or int(value) >= 1 << 64:
        raise ValueError(f"{key}:{value} must be a whole number, from 0 to 2^64 - 1")
    return int(value)


def _at_least(key: str, value: str, least: int) -> int:
    """A number of MiB; more than fit 64 bits of bytes counts as the most that does."""
    size = _number(key, value)
    if size < least:
        raise ValueError(f"{key}:{value} must be at least {least}")
    return min(size, (1 << 44) - 1)


def _share(key: str, value: str, *, ends: bool) -> float:
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", value):
        raise ValueError(f"{key}:{value} must be a number")
    share = float(value)
    if not (0 <= share <= 1 if ends else 0 < share < 1) or math.isnan(share):
        where = "0 and 1" if ends else "0 and 1, exclusive"
        raise ValueError(f"{key}:{value} must lie between {where}")
    return share


def _power(key: str, value: str) -> int:
    number = _number(key, value)
    if number == 0 or number & (number - 1):
        raise ValueError(f"{key}: {value} is no power of two")
    return number


def _backend(value: str) -> None:
    if value == "cudaMallocAsync":
        raise ValueError(f"backend:{value} is another allocator; only native can be replayed")
    if value != "native":
        raise ValueError(f"backend:{value} must be native or cudaMallocAsync")


def _divisions(key: str, value: str, table: list[int]) -> list[int]:
    """The table of 16; in a list the first key also fills what is below it, `>` what is above.

    `>` without a key before it begins at the second entry, as in PyTorch 2.13.
    """
    if not value.startswith("["):
        return [_power(key, value)] * INTERVALS
    if not value.endswith("]"):
        raise ValueError(f"{key}:{value} is no list in brackets")
    table, last, first = list(table), 0, True
    for entry in value[1:-1].removesuffix(",").split(",") if value != "[]" else ():
        start, colon, number = entry.partition(":")
        if not colon:
            raise ValueError(f"{key} entry {entry} is no size:divisions")
        division = 0 if _number(key, number) == 0 else _power(key, number)
        if start == ">":
            table[last + 1 :] = [division] * (INTERVALS - 1 - last)
            continue
        last = min(_power(key, start).bit_length() - 1, INTERVALS - 1)
        if first:
            table[:last] = [division] * last
        table[last], first = division, False
    return table


def _threads(key: str, value: str) -> None:
    if _power(key, value) > MOST_REGISTER_THREADS:
        raise ValueError(f"{key}:{value} must be at most {MOST_REGISTER_THREADS}")


def _positive(key: str, value: str) -> None:
    _at_least(key, value, 1)


# Options that concern locking, captures or host memory: checked, without effect on device memory.
ELSEWHERE: dict[str, Callable[[str, str], object]] = {
    "release_lock_on_cudamalloc": _boolean,
    "release_lock_on_hipmalloc": _boolean,
    "graph_capture_record_stream_reuse": _boolean,
    "pinned_use_cuda_host_register": _boolean,
    "pinned_use_hip_host_register": _boolean,
    "pinned_use_background_threads": _boolean,
    "pinned_free_catch_all": _boolean,
    "pinned_num_register_threads": _threads,
    "pinned_reserve_segment_size_mb": _positive,
    "pinned_max_round_threshold_mb": _number,
    "pinned_max_cached_size_mb": _number,
}
