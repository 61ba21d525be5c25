"""The part of JSONPath (RFC 9535) that picks one value: $, .name, ['name'], [0], [-1], [*] and .* of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["json_path"]

_STEP = re.compile(
    r"\.(?P<name>[A-Za-z_][\w-]*)|\[\s*'(?P<single>(?:[^'\\]|\\['\\])*)'\s*\]"
    r"|\[\s*\"(?P<double>(?:[^\"\\]|\\[\"\\])*)\"\s*\]|\[\s*(?P<index>-?\d{1,9})\s*\]|(?P<all>\.\*|\[\s*\*\s*\])"
)
MOST = 1_000  # values looked at for one path


def json_path(path: str) -> Callable[[Any], Any]:
    """A function that gives the first value of a document at this path, None where there is none.

    Raises:
        UsageError: filters, slices, unions, `..` and functions are not supported; names the place.
    """
    steps: list[str | int | None] = []
    at = 1
    while path.startswith("$") and at < len(path):
        found = _STEP.match(path, at)
        if not found:
            break
        if found["all"]:
            steps.append(None)
        elif found["index"]:
            steps.append(int(found["index"]))
        else:
            quoted = next((found[k] for k in ("name", "single", "double") if found[k] is not None), "")
            steps.append(re.sub(r"\\(.)", r"\1", quoted))
        at = found.end()
    if not path.startswith("$") or at != len(path):
        raise UsageError(f"{path} is no path that can be picked", where=f"column {at}",
                         hint="e.g. $.request.id, $['a b'][0], $.choices[*].index")  # fmt: skip
    return lambda document: next(_walk(document, steps, [MOST]), None)


def _walk(value: Any, steps: list[str | int | None], left: list[int]) -> Iterator[Any]:
    left[0] -= 1
    if left[0] < 0:
        return
    if not steps:
        yield value
        return
    step, rest = steps[0], steps[1:]
    if step is None:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        for one in inner:
            yield from _walk(one, rest, left)
    elif isinstance(step, str):
        if isinstance(value, dict) and step in value:
            yield from _walk(value[step], rest, left)
    elif isinstance(value, list) and -len(value) <= step < len(value):
        yield from _walk(value[step], rest, left)
