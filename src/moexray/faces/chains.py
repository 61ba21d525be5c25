"""The edges cause -> effect of a diagnosis joined into paths, the same for text, Markdown and report."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["paths"]

MOST = 50  # paths followed; a diagnosis has a handful


def paths(edges: Iterable[tuple[str, str]]) -> list[tuple[str, ...]]:
    """The chains from causes to effects, without those that only cut a longer one short.

    Args:
        edges: Pairs of ids (cause, effect), in the order of the findings.

    Returns:
        At most `MOST` paths of ids. A circle ends where it meets itself: ("a", "b", "a").
    """
    effects: dict[str, list[str]] = {}
    for cause, effect in dict.fromkeys(edges):
        effects.setdefault(cause, []).append(effect)
    caused = {effect for some in effects.values() for effect in some}
    found: list[tuple[str, ...]] = []
    for root in sorted(effects, key=lambda cause: cause in caused):  # causes without a cause come first
        if root not in caused or not any(root in path for path in found):
            _follow((root,), effects, found)
    return [path for path in found if not any(path != other and _within(path, other) for other in found)]


def _follow(path: tuple[str, ...], effects: dict[str, list[str]], found: list[tuple[str, ...]]) -> None:
    onward = effects.get(path[-1], ()) if path[-1] not in path[:-1] else ()
    if not onward and len(found) < MOST:
        found.append(path)
    for effect in onward:
        if len(found) < MOST:
            _follow((*path, effect), effects, found)


def _within(short: tuple[str, ...], long: tuple[str, ...]) -> bool:
    """Whether `long` holds all of `short` in its order."""
    rest = iter(long)
    return all(part in rest for part in short)
