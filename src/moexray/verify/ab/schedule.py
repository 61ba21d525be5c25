"""The order in which arms are sampled: ABBA or BAAB by a coin, and A/A quads among them as a control.

Glossary: a *turn* is one stretch of one arm; a *quad* is four turns, ABBA or BAAB. A drift that is linear
falls out of a quad; the coin makes the sign of an identical pair of arms' difference a fair one, however
the values are distributed or hang together, and that is what the sequential test stands on. In a control
quad both arms are A.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from moexray.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["WINDOW_S", "Mark", "Place", "Turn", "places"]

WINDOW_S = 0.1  # windows of 100 ms. Source: mission, row S24


@dataclass(frozen=True, slots=True)
class Place:
    """One turn of the schedule.

    Args:
        quad: Its quad, from 0.
        arm: The label under which its values count.
        control: Whether both labels of its quad stand for A.
    """

    quad: int
    arm: Literal["A", "B"]
    control: bool

    @property
    def setting(self) -> Literal["A", "B"]:
        """The setting to switch to."""
        return "A" if self.control else self.arm


@dataclass(frozen=True, slots=True)
class Mark:
    """Something else that happened: the windows it touches are set aside or shown.

    Args:
        what: "rearrangement", "compile", "snapshot", "switch", ...
        start_s: From, on the clock of the turn's `start_s`.
        end_s: To.
    """

    what: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn gave.

    Args:
        place: Where it stood in the schedule.
        start_s: When it began, on any one clock.
        at_s: [n] when each value ended, on the same clock.
        value_s: [n] latencies; each lasted from at_s - value_s to at_s.
        cpu_s: [n] processor time of each; empty where unknown.
        marks: What else happened meanwhile.
        errors: Requests that failed.
        gauges: Further numbers of this turn (largest_free_bytes, ...), to be compared as means over turns.

    Raises:
        UsageError: lengths differ, or a latency is negative or not finite: a request without an end is one
            of `errors`.
    """

    place: Place
    start_s: float
    at_s: NDArray[np.float64]
    value_s: NDArray[np.float64]
    cpu_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    marks: tuple[Mark, ...] = ()
    errors: int = 0
    gauges: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        lengths = len(self.at_s), len(self.value_s), len(self.cpu_s) or len(self.value_s)
        sound = np.isfinite(self.value_s).all() and np.isfinite(self.at_s).all() and (self.value_s >= 0).all()
        if len(set(lengths)) > 1 or not sound:
            raise UsageError(
                "the latencies of a turn are not one finite number >= 0 per time",
                where=f"quad {self.place.quad}, arm {self.place.arm}",
                hint="leave requests without an end out and count them in errors; take both times from one "
                "monotonic clock",
            )

    def clean(self) -> NDArray[np.bool_]:
        """[n] whether none of the windows of 100 ms that a value lasted through holds a mark."""
        out = np.ones(len(self.at_s), bool)
        if not self.marks:
            return out
        begin, end = (np.floor((t - self.start_s) / WINDOW_S) for t in (self.at_s - self.value_s, self.at_s))
        for mark in self.marks:
            first, last = (np.floor((t - self.start_s) / WINDOW_S) for t in (mark.start_s, mark.end_s))
            out &= (end < first) | (begin > last)
        return out

    def marked(self) -> dict[str, int]:
        """Windows that each kind of mark touches."""
        out: dict[str, int] = {}
        for m in self.marks:
            first, last = (int((t - self.start_s) // WINDOW_S) for t in (m.start_s, m.end_s))
            out[m.what] = out.get(m.what, 0) + max(0, last - max(first, 0) + 1)
        return out


def places(quads: int, seed: int = 0, control_every: int = 0) -> Iterator[Place]:
    """The turns in their order.

    Args:
        quads: Quads of A and B.
        seed: Of the coins.
        control_every: One control quad after each so many quads; 0 for none.
    """
    rng = np.random.default_rng(seed)
    at = 0
    for test in range(quads):
        kinds = [False, True] if control_every and test % control_every == control_every - 1 else [False]
        for control in kinds:
            for arm in "ABBA" if rng.random() < 0.5 else "BAAB":
                yield Place(at, "A" if arm == "A" else "B", control)
            at += 1
