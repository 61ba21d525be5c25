"""Shapes of parsed documents (JSON, CSV, pickle), one file a subject.

Containers list their shapes as "module:function", so that a log never imports a snapshot reader.
"""

from __future__ import annotations

import importlib
from itertools import islice
from typing import TYPE_CHECKING, Any

from moexray.core.errors import ReadError
from moexray.core.run import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from moexray.core.source import Source

__all__ = ["first_that_takes", "sample", "shape"]

# A list or object of more items than MANY is offered in part first, so that no shape walks a
# million records that are not its own.
MANY = 50_000
HEAD, PART = 1_000, 5_000  # items of the part: the first ones, then evenly spaced ones


def shape(name: str) -> Callable[[Any, Source, Reading], bool]:
    """The function behind "module:function"."""
    module, _, function = name.partition(":")
    found: Callable[[Any, Source, Reading], bool] = getattr(importlib.import_module(module), function)
    return found


def first_that_takes(names: Iterable[str], document: Any, source: Source, out: Reading) -> bool:
    """Offers a document to the shapes in their order; whether one took it."""
    part = sample(document)
    if part is not document:
        names = [name for name in names if _may_take(name, part, source)]
    return any(shape(name)(document, source, out) for name in names)


def _may_take(name: str, part: Any, source: Source) -> bool:
    try:
        return shape(name)(part, source, Reading(""))
    except ReadError:
        return True


def sample(document: Any) -> Any:
    """The document itself, or a part of it where one of its lists or objects is very long."""
    return _part(document) if _is_long(document, depth=3) else document


def _is_long(value: Any, depth: int) -> bool:
    if not isinstance(value, list | dict):
        return False
    if len(value) > MANY:
        return True
    inner = value.values() if isinstance(value, dict) else value
    return depth > 0 and any(_is_long(v, depth - 1) for v in islice(inner, 100))


def _part(value: Any) -> Any:
    if isinstance(value, dict):
        kept = value.items() if len(value) <= MANY else _spaced(value.items(), len(value) // PART)
        return {key: _part(v) for key, v in kept}
    if isinstance(value, list):
        return [_part(v) for v in (value if len(value) <= MANY else _spaced(value, len(value) // PART))]
    return value


def _spaced(items: Iterable[Any], step: int) -> Iterator[Any]:
    """The first items, then every `step`-th."""
    walk = iter(items)
    yield from islice(walk, HEAD)
    yield from islice(walk, 0, None, step)
