"""PYTORCH_ALLOC_CONF: the text and the Settings it stands for, both ways.

Source: the keys that PyTorch 2.13 takes; ranges as its parser checks them.
"""

from __future__ import annotations

from dataclasses import replace

from moexray.algorithms.blocks import Settings

__all__ = ["parse", "text"]

MIB = 1 << 20
# Options that change concurrency or host memory, not where device memory goes.
IGNORED = frozenset({"release_lock_on_cudamalloc", "graph_capture_record_stream_reuse"})


def parse(conf: str, base: Settings | None = None) -> tuple[Settings, tuple[str, ...]]:
    """Reads a configuration string.

    Args:
        conf: "key:value,key:value"; lists in brackets; white space does not matter.
        base: Settings that the string changes; PyTorch's defaults where None.

    Returns:
        (settings, notes): notes name options that do not change placement or are unknown.

    Raises:
        ValueError: a value that PyTorch would refuse; the message names it and the range.
    """
    settings, notes = base or Settings(), []
    for key, value in _pairs(conf):
        if key == "expandable_segments":
            settings = replace(settings, expandable=_boolean(key, value))
        elif key == "max_split_size_mb":
            settings = replace(settings, max_split=_split(value, settings.large_segment))
        elif key == "max_non_split_rounding_mb":
            size = _number(key, value)
            settings = replace(settings, max_non_split_rounding=size * MIB)
        elif key == "garbage_collection_threshold":
            settings = replace(settings, gc_threshold=_share(key, value))
        elif key == "roundup_power2_divisions":
            settings = replace(settings, roundup=_divisions(value))
        elif key == "large_segment_size_mb":
            size = _number(key, value)
            if size <= 10:
                raise ValueError(f"{key}:{value} must be above 10")
            settings = replace(settings, large_segment=size * MIB)
        elif key == "backend" and value != "native":
            raise ValueError(f"backend:{value} is another allocator; only native can be replayed")
        elif key != "backend":
            why = "does not change where device memory goes" if _harmless(key) else "is not known"
            notes.append(f"{key} {why}")
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
    if settings.max_non_split_rounding != default.max_non_split_rounding:
        parts.append(f"max_non_split_rounding_mb:{settings.max_non_split_rounding // MIB}")
    if settings.gc_threshold:
        parts.append(f"garbage_collection_threshold:{settings.gc_threshold:g}")
    if any(settings.roundup):
        if len(set(settings.roundup)) == 1:
            parts.append(f"roundup_power2_divisions:{settings.roundup[0]}")
        else:
            entries = ",".join(f"{1 << i}:{d}" for i, d in enumerate(settings.roundup))
            parts.append(f"roundup_power2_divisions:[{entries}]")
    return ",".join(parts)


def _pairs(conf: str) -> list[tuple[str, str]]:
    """Splits at commas outside brackets."""
    out, depth, part = [], 0, ""
    for char in "".join(conf.split()) + ",":
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            if part:
                key, colon, value = part.partition(":")
                if not colon or not value:
                    raise ValueError(f"{part} is no key:value")
                out.append((key, value))
            part = ""
        else:
            part += char
    if depth:
        raise ValueError("a bracket is not closed")
    return out


def _harmless(key: str) -> bool:
    return key in IGNORED or key.startswith("pinned_")


def _boolean(key: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise ValueError(f"{key}:{value} must be True or False, with a capital")
    return value == "True"


def _number(key: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{key}:{value} must be a whole number") from None


def _split(value: str, large_segment: int) -> int | None:
    size = _number("max_split_size_mb", value)
    if size == -1:
        return None
    if size * MIB < large_segment:
        raise ValueError(f"max_split_size_mb:{size} must be at least {large_segment // MIB}")
    return size * MIB


def _share(key: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        raise ValueError(f"{key}:{value} must be a number") from None
    if not 0 < share < 1:
        raise ValueError(f"{key}:{value} must lie between 0 and 1")
    return share


def _divisions(value: str) -> tuple[int, ...]:
    """The table of 16; in a list the first key also fills what is below it, `>` what is above."""
    if not value.startswith("["):
        return (_power("roundup_power2_divisions", value, zero=False),) * 16
    table, last = [0] * 16, -1
    for entry in value.strip("[]").split(","):
        key, colon, number = entry.partition(":")
        if not colon:
            raise ValueError(f"roundup_power2_divisions entry {entry} is no size:divisions")
        division = _power("roundup_power2_divisions", number, zero=True)
        if key == ">":
            table[last + 1 :] = [division] * (15 - last)
            continue
        at = min(_power("roundup_power2_divisions", key, zero=False).bit_length() - 1, 15)
        if last < 0:
            table[:at] = [division] * at
        table[at], last = division, at
    return tuple(table)


def _power(key: str, value: str, *, zero: bool) -> int:
    number = _number(key, value)
    if number == 0 and zero:
        return 0
    if number <= 0 or number & (number - 1):
        raise ValueError(f"{key}: {value} is no power of two")
    return number
