"""Reading a diagnosis document that may lack, or hold nonsense in, any field."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from moexray.faces.report.safe import clean

__all__ = ["Fields", "each", "listed", "named", "number", "whole"]

Fields = Mapping[str, Any]


def listed(fields: Fields, key: str) -> Sequence[Any]:
    """Give the list under a key; empty when it is missing or no list."""
    value = fields.get(key)
    return value if isinstance(value, (list, tuple)) else ()


def each(fields: Fields, key: str) -> list[Fields]:
    """Give the objects in the list under a key; whatever is no object is left out."""
    return [item for item in listed(fields, key) if isinstance(item, Mapping)]


def named(fields: Fields, key: str, otherwise: str = "") -> str:
    """Give the cleaned text under a key; `otherwise` when it is missing or empty."""
    value = fields.get(key)
    return otherwise if value is None or value == "" else clean(value)


def number(value: object) -> float | None:
    """Give a finite number as it is; None for null, NaN, infinity, booleans and text."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an integer beyond what a float can hold
        return None


def whole(value: object) -> int | None:
    """Give a whole number (a rank, a layer), None for anything else."""
    known = number(value)
    return int(known) if known is not None and known == int(known) else None
