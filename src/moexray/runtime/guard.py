"""The kill switch of the remedies, and the way back to the original path when one raises.

Glossary: a *remedy* is our code in the host's way; the *original path* is what the host did without it; a
*fallback* is a call that the original path answered because the remedy raised.

Switched off by the operator, for good: the environment variable MOEXRAY_OFF, "all" (or "1", "true", "yes",
"on") or names of remedies ("router,exchange"), read when a guard is made. Switched off and on while the
process runs: `switch`.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "MOST", "OTHERS", "PATIENCE", "TALLIES", "VARIABLE", "Figures", "Guard", "Tally", "renew_in_children",
    "say_once", "switch",
]  # fmt: skip

VARIABLE = "MOEXRAY_OFF"
MOST = 16  # remedies that are told apart in a process: their names become labels of a metric
OTHERS = "other"  # the name of the rest
PATIENCE = 8  # fallbacks; a fault that is still there after so many is no accident (our choice)
_ALL = {"all", "1", "true", "yes", "on"}
_ERROR_CHARS = 300  # of an error's first line: torch's are followed by a stack of C++

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_off: set[str] = set()  # names switched off while the process runs
_said: set[str] = set()
_owners: weakref.WeakSet[Any] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Figures:
    """What a guard counted.

    Args:
        calls: Calls that came to the guard.
        fallbacks: Calls in which the remedy raised and the original path answered.
        skipped: Calls that went straight to the original path: switched off, or out of patience.
        error: The last error of the remedy, type and first line; empty if there was none.
    """

    calls: int
    fallbacks: int
    skipped: int
    error: str


def switch(name: str, *, on: bool) -> None:
    """Switches one remedy ("router") or "all" off or on while the process runs.

    "all" is a switch of its own: a remedy runs if neither its own nor this one is off. What the
    environment switched off stays off.
    """
    with _lock:
        if on:
            _off.discard(name)
        else:
            _off.add(name)


def say_once(text: str, *, log: logging.Logger = _log, key: str = "") -> None:
    """Logs a warning once in this process: never again for the same key, by default the text."""
    with _lock:
        first = (key or text) not in _said
        _said.add(key or text)
    if first:
        log.warning("%s", text)


def renew_in_children(owner: Any) -> None:
    """Has `owner.renew()` called in each forked child, to make its locks anew.

    The thread that held a lock at the fork does not exist in the child, which would wait for it for ever.
    """
    _owners.add(owner)


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - see renew_in_children
    _lock = threading.Lock()
    for owner in list(_owners):
        owner.renew()


os.register_at_fork(after_in_child=_after_fork)


class Tally:
    """What the guards of one name came to in this process since its start, those that are gone included.

    A recording writes it beside its steps. A forked child counts from 0.

    Attributes:
        applied: Calls that the remedy answered.
        fallbacks: Times it raised, or went down to a lower rung.
        skipped: Calls that went straight to the original path.
        lock: To be held for a change.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Begins anew, with a lock of its own."""
        self.lock = threading.Lock()
        self.applied = self.fallbacks = self.skipped = 0


TALLIES: list[Tally] = []  # of this process, in the order of their first guards; none is ever taken out


def _tally(name: str) -> Tally:
    with _lock:
        if len(TALLIES) >= MOST - 1 and all(t.name != name for t in TALLIES):
            name = OTHERS
        for tally in TALLIES:
            if tally.name == name:
                return tally
        TALLIES.append(Tally(name))
        return TALLIES[-1]


class Guard:
    """Stands between the host and one remedy; nothing that the remedy raises reaches the host.

    After `patience` fallbacks the remedy is left alone until `reset`. Threads may share a guard; the lock of
    its tally is held for counting only.

    Args:
        name: Of the remedy: what MOEXRAY_OFF and `switch` call it.
        patience: Fallbacks before the remedy is given up.
        told: It guards a remedy: what it does is told to who reads a recording of this process.
    """

    def __init__(self, name: str, *, patience: int = PATIENCE, told: bool = True) -> None:
        words = set(re.split(r"[\s,;]+", os.environ.get(VARIABLE, "").lower()))
        self.name, self.patience = name, patience
        self._banned = bool(words & {name.lower(), *_ALL})
        self._tally = _tally(name) if told else Tally(name)
        self._calls = self._fallbacks = self._skipped = self._spent = 0
        self._error = ""

    @property
    def on(self) -> bool:
        """Whether the next call goes to the remedy."""
        return not (self._banned or self.name in _off or "all" in _off or self._spent >= self.patience)

    def run(self, remedy: Callable[P, T], original: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The remedy's result, or that of the original path where the remedy is off or raises.

        A remedy leaves its arguments as they were until it can no longer fail: the original path gets the
        same ones. What the original path raises is the host's own and passes through; so do
        KeyboardInterrupt and SystemExit.
        """
        on = self.on
        with self._tally.lock:
            self._calls += 1
        if not on:
            self.passed()
            return original(*args, **kwargs)
        try:
            result = remedy(*args, **kwargs)
        except Exception as why:  # noqa: BLE001 - the edge of a host engine
            self.failed(why)
            return original(*args, **kwargs)
        self.applied()
        return result

    def applied(self) -> None:
        """Counts what the remedy did; `run` does so itself."""
        with self._tally.lock:
            self._tally.applied += 1

    def passed(self) -> None:
        """Counts what went straight to the original path; `run` does so itself."""
        with self._tally.lock:
            self._skipped += 1
            self._tally.skipped += 1

    def went_down(self) -> None:
        """Counts a fallback that costs no patience: the remedy itself has another way."""
        with self._tally.lock:
            self._fallbacks += 1
            self._tally.fallbacks += 1

    def failed(self, why: Exception) -> None:
        """Counts a fallback and tells it; for remedies that find their own way back."""
        text = f"{type(why).__name__}: {why}".partition("\n")[0][:_ERROR_CHARS]
        with self._tally.lock:
            self._fallbacks += 1
            self._tally.fallbacks += 1
            self._spent += 1
            self._error = text
        say_once(
            f"remedy {self.name} raised {text}; the original path answers, and after {self.patience} "
            f"such calls the remedy is left alone. Off for good: {VARIABLE}={self.name}",
            key=f"{self.name} raised {type(why).__name__}",
        )

    def reset(self) -> None:
        """Gives the remedy its patience back; the counters go on."""
        with self._tally.lock:
            self._spent = 0

    def figures(self) -> Figures:
        """The counters, taken together."""
        with self._tally.lock:
            return Figures(self._calls, self._fallbacks, self._skipped, self._error)
