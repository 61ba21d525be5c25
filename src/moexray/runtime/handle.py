"""What `attach()` gives: the list of what was replaced, and the way to put the very objects back.

Several handles may replace the same attribute, and may be detached in any order. The one on top puts back
what it found: the host's own object once no other handle is left. One from below leaves the attribute
alone and hands what it found to the one above, which puts that back in its turn. Its replacement may be
called by those above until then, so a replacement asks `handle.attached` and, if not, only passes on.
Where somebody else has replaced ours, theirs stays, that is said once, and the next `detach()` tries again;
until it succeeds the handle is not attached anew: the replacement below would run a second time.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from moexray.core.errors import UsageError
from moexray.runtime.guard import say_once

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["Handle", "Hook"]

_log = logging.getLogger(__name__)
_lock = threading.RLock()
_ABSENT: Any = object()  # the owner has no such attribute of its own; it may inherit one
_TABLES = ("_modules", "_parameters", "_buffers")  # where a torch module keeps attributes of these kinds


@dataclass(slots=True, eq=False)
class _Layer:
    """One replacement: where, what was found there, and what was put."""

    owner: Any
    key: Any
    is_item: bool
    found: Any
    new: Any

    def now(self) -> Any:
        return _own(self.owner, self.key, is_item=self.is_item)

    def put(self, value: Any) -> None:
        if self.is_item and value is _ABSENT:
            del self.owner[self.key]
        elif self.is_item:
            self.owner[self.key] = value
        elif value is _ABSENT:
            delattr(self.owner, self.key)
        else:
            setattr(self.owner, self.key, value)

    def is_at(self, other: _Layer) -> bool:
        return self.owner is other.owner and self.key == other.key and self.is_item == other.is_item

    def __str__(self) -> str:
        kind = self.owner.__name__ if isinstance(self.owner, type) else type(self.owner).__name__
        return f"{kind}[{self.key!r}]" if self.is_item else f"{kind}.{self.key}"


_layers: list[_Layer] = []  # of all handles, oldest first; a replacement lives as long as its layer


class Handle:
    """Attaches and detaches one remedy; both are safe twice, and `with handle:` does both.

    Args:
        name: Of the remedy, for messages.
        install: Called by `attach` with the handle: replaces things by `replace`, `replace_item` and
            `on_detach`. If it raises, all that it replaced is put back and the error goes on.
    """

    def __init__(self, name: str, install: Callable[[Handle], None]) -> None:
        self.name = name
        self._install = install
        self._undo: list[_Layer | Callable[[], object]] = []  # oldest first
        self._attached = False

    @property
    def attached(self) -> bool:
        """Whether the remedy is in force; replacements ask this on each call."""
        return self._attached

    @property
    def covered(self) -> tuple[str, ...]:
        """Replacements left in place, passing on: somebody else's lies on top, or putting back failed."""
        return () if self._attached else tuple(str(x) for x in self._undo)

    def attach(self) -> Self:
        """Puts the remedy in; nothing happens where it is in already.

        Raises:
            UsageError: replacements of an earlier time are still in place (`covered`).
            Exception: what installing raised; then nothing is replaced.
        """
        with _lock:
            if not self._attached:
                self._take_out()
                if self._undo:
                    raise UsageError(
                        f"{self.name}: ours still lies below somebody else's at {', '.join(self.covered)}",
                        hint="attach again once theirs is gone",
                    )
                try:
                    self._install(self)
                except BaseException:
                    self._take_out()
                    raise
                self._attached = True
        return self

    def detach(self) -> None:
        """Puts back what was there, newest first; nothing happens where it is out already. Never raises."""
        with _lock:
            self._attached = False
            self._take_out()

    def replace(self, owner: Any, name: str, new: Any) -> Any:
        """Replaces an attribute of a module, class or object.

        Args:
            owner: Whose attribute; the attribute may be inherited, detaching then deletes ours.
            name: Of the attribute.
            new: What to put there.

        Returns:
            What `owner.name` gave before: the original path.

        Raises:
            UsageError: there is no such attribute.
        """
        before = getattr(owner, name, _ABSENT)
        if before is _ABSENT:
            raise UsageError(f"{owner!r} has no {name} to replace", hint="is this version supported?")
        for table in _TABLES:
            items = getattr(owner, "__dict__", {}).get(table)
            if isinstance(items, dict) and name in items:
                self._put(items, name, new, is_item=True)
                return before
        self._put(owner, name, new, is_item=False)
        return before

    def replace_item(self, container: Any, key: Any, new: Any) -> Any:
        """Replaces an item of a dict or list.

        Returns:
            The item before; None where a dict had no such key (detaching then deletes it).
        """
        found = self._put(container, key, new, is_item=True)
        return None if found is _ABSENT else found

    def on_detach(self, undo: Callable[[], object]) -> None:
        """Has `undo` called by `detach`, once, for what is no replacement (a hook, a registration)."""
        self._undo.append(undo)

    def _put(self, owner: Any, key: Any, new: Any, *, is_item: bool) -> Any:
        with _lock:
            layer = _Layer(owner, key, is_item, _own(owner, key, is_item=is_item), new)
            layer.put(new)
            _layers.append(layer)
            self._undo.append(layer)
        return layer.found

    def _take_out(self) -> None:
        kept: list[_Layer | Callable[[], object]] = []
        for entry in reversed(self._undo):
            try:
                if not isinstance(entry, _Layer):
                    entry()
                elif not _lift(entry):
                    kept.append(entry)
                    say_once(
                        f"{self.name}: {entry} was replaced by somebody else after us and stays; ours, "
                        "below, only passes on. Detach again once theirs is gone.",
                        log=_log,
                    )
            except Exception as why:  # noqa: BLE001 - the other entries are still to be put back
                if isinstance(entry, _Layer):  # still there: the next detach tries again
                    kept.append(entry)
                say_once(f"{self.name}: {entry} could not be undone: {type(why).__name__}: {why}", log=_log)
        self._undo = kept[::-1]

    def __enter__(self) -> Self:
        return self.attach()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()


class Hook(partial[Any]):
    """A hook on a torch module of the host; copies of the module (deepcopy, pickle) are without it.

    A partial is called without a frame of its own.
    """

    __slots__ = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return _idle

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        return _nothing, ()


def _idle(*_: Any) -> None:
    """In a copy, where the hook was: changes nothing."""


def _nothing() -> Callable[..., None]:
    return _idle


def _renew() -> None:
    global _lock  # noqa: PLW0603 - see guard.renew_in_children
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew)


def _own(owner: Any, key: Any, *, is_item: bool) -> Any:
    """The very object that stands there: of an attribute the owner's own, descriptors not resolved."""
    if is_item:
        return owner.get(key, _ABSENT) if isinstance(owner, dict) else owner[key]
    if not isinstance(owner, type) and hasattr(inspect.getattr_static(type(owner), key, None), "__set__"):
        return getattr(owner, key)  # a slot or a property
    return vars(owner).get(key, _ABSENT)


def _lift(layer: _Layer) -> bool:
    """Takes a layer out of its pile; False where something foreign lies on top."""
    if layer.now() is layer.new:
        layer.put(layer.found)
    else:
        above = next((x for x in _layers if x is not layer and x.is_at(layer) and x.found is layer.new), None)
        if above is None:
            return False
        above.found = layer.found
    _layers.remove(layer)
    return True
