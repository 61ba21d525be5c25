"""Turns of a trial against servers: Poisson arrivals, the same for the four turns of a quad."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moexray.verify.ab.schedule import Mark, Turn
from moexray.verify.load import arrivals, drive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from moexray.verify.ab.schedule import Place
    from moexray.verify.load import Answer, Target

__all__ = ["FIGURES", "Load", "served"]

FIGURES = ("ttft", "e2e", "itl")


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a trial.

    Args:
        prompts: Taken in turn; each request has the next one.
        rate: Requests per second, Poisson.
        turn_s: Length of a turn; all answers are awaited before the next one begins.
        settle_s: Time after a switch whose windows are marked.
        figure: ttft, e2e or itl.
        seed: Of the arrivals.
    """

    prompts: Sequence[str]
    rate: float = 8.0
    turn_s: float = 5.0
    settle_s: float = 0.5
    figure: str = "ttft"
    seed: int = 0


def served(
    targets: Mapping[str, Target], load: Load, marks: Callable[[], Iterable[Mark]] = tuple
) -> Callable[[Place], Turn]:
    """A sampler for `run_trial`.

    Args:
        targets: By setting, "A" and "B"; the same one where a switch tells them apart.
        load: What is asked of them.
        marks: What else happened since it was last asked, on time.perf_counter().
    """
    position = 0

    def sample(place: Place) -> Turn:
        nonlocal position
        due = arrivals(load.rate, load.turn_s, load.seed + place.quad)
        chosen = [load.prompts[(position + i) % len(load.prompts)] for i in range(len(due))]
        position += len(due)
        tuple(marks())
        start = time.perf_counter()
        answers = drive(targets[place.setting], chosen, due)
        settling = Mark("switch", start, start + load.settle_s)
        seen = (*marks(), *([settling] if load.settle_s else []))
        return _turn(place, start, answers, seen, load.figure)

    return sample


def _turn(
    place: Place, start: float, answers: Sequence[Answer], marks: Sequence[Mark], figure: str
) -> Turn:
    good = [a for a in answers if not a.error]
    if figure == "itl":
        value = np.array([g for a in good for g in a.gaps_s])
        at = np.array([t for a in good for t in a.due_s + a.ttft_s + np.cumsum(a.gaps_s)])
    else:
        value = np.array([getattr(a, f"{figure}_s") for a in good])
        at = np.array([a.due_s for a in good]) + value
    return Turn(place, start, at, value, marks=tuple(marks), errors=len(answers) - len(good))
