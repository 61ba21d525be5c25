"""Documents as JSON that every parser takes: no NaN, no Infinity."""

from __future__ import annotations

import json
import math
from typing import Any

__all__ = ["finite", "json_text"]


def finite(value: Any) -> Any:
    """The same document with null for NaN and infinity, which JSON does not know."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return value


def json_text(document: Any, indent: int | None = 1) -> str:
    """The document as JSON in ASCII."""
    try:
        return json.dumps(document, indent=indent, allow_nan=False)
    except ValueError:  # a second pass for the few that hold one
        return json.dumps(finite(document), indent=indent, allow_nan=False)
