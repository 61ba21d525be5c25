"""Shapes of parsed documents (JSON, CSV, pickle), one file a subject.

Containers list their shapes as "module:function", so that a log never imports a snapshot reader.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moexray.core.run import Reading
    from moexray.core.source import Source

__all__ = ["first_that_takes", "shape"]


def shape(name: str) -> Callable[[Any, Source, Reading], bool]:
    """The function behind "module:function"."""
    module, _, function = name.partition(":")
    found: Callable[[Any, Source, Reading], bool] = getattr(importlib.import_module(module), function)
    return found


def first_that_takes(names: Iterable[str], document: Any, source: Source, out: Reading) -> bool:
    """Offers a document to the shapes in their order; whether one took it."""
    return any(shape(name)(document, source, out) for name in names)
