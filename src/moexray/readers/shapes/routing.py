"""Routing in parsed JSON, JSON lines and pickles: the entry that the container readers list."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from moexray.core.pattern import lazy
from moexray.readers.shapes.routing_words import config_key, role_of

if TYPE_CHECKING:
    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["no_layers", "read_json", "read_pickle"]

_LAYER = lazy(r"(?:.*[._/ -])?layers?[._ -]?\d{1,4}\b", re.IGNORECASE)
LOOK = 64  # keys or records looked at before a document is taken for something else


def read_json(document: Any, source: Source, out: Reading) -> bool:
    """Counts, placements, router choices or a configuration in a JSON document."""
    return _take(document, "json", source, out)


def no_layers(document: Any) -> str:
    """Why a document of counts holds none: its lists are empty; "" if that is not so."""
    named = document.items() if isinstance(document, dict) else [("the list", document)]
    for name, value in named:
        counted = name == "the list" or role_of(str(name)) == "counts"
        if counted and isinstance(value, list) and all(x == [] for x in value):
            return f"{name} holds no layers"
    return ""


def read_pickle(document: Any, source: Source, out: Reading) -> bool:
    """The same in a pickle of plain containers."""
    return _take(document, "pickle", source, out)


def _take(document: Any, layout: str, source: Source, out: Reading) -> bool:
    if not _hints(document, 0):
        return False
    from moexray.readers.shapes.routing_objects import take_document

    return take_document(document, layout, source, out)


def _hints(value: Any, depth: int) -> bool:
    """Whether any name within four levels is a word of routing; cheap, so that traces pass by."""
    if depth > 4:
        return False
    if isinstance(value, dict):
        for i, (key, inner) in enumerate(value.items()):
            if i >= LOOK:
                break
            name = str(key)
            if role_of(name) in ("counts", "placement", "inverse", "topk", "logits") or config_key(name):
                return True
            if name in ("device_list", "layer_list") or _LAYER.match(name) or _hints(inner, depth + 1):
                return True
        return False
    if isinstance(value, list | tuple):
        return any(_hints(inner, depth + 1) for inner in value[:8] if isinstance(inner, dict | list | tuple))
    return hasattr(value, "ndim")
