"""Two sets of results side by side: outcomes of what both hold, and a refusal where they are unlike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.core.errors import UsageError
from moexray.verify.ab import Draws, Margin, Outcome, outcome, paired_means, unpaired_outcomes
from moexray.verify.ab.stats import LEAST_PAIRS
from moexray.verify.quantities import LOAD_FIGURES, load_figure, quantities

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from moexray.core.run import Run
    from moexray.verify.quantities import Quantity

__all__ = ["Comparison", "compare", "lost", "outcomes_of"]

RESAMPLES = 500  # of a load: 2,000 would take seconds for a large model
THINNED = "steps a row"
EQUAL = 1.25  # a longer run whose tokens were thinned by less is not worth a note; project assumption
LIKE = 1.25  # answers whose median length differs by more do other work; project assumption
NOT_PAIRED = (
    "before and after were not measured together: what else changed between them cannot be told from the "
    "change itself; moexray ab measures both at once"
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Outcomes of everything that both sides hold.

    Args:
        outcomes: In the order of the first side.
        only_before: Names of what the second side lacks.
        only_after: Names of what the first side lacks.
        notes: What to mind.
    """

    outcomes: tuple[Outcome, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The document `moexray.compare/1`."""
        return {
            "schema": "moexray.compare/1",
            "outcomes": [o.to_json() for o in self.outcomes],
            "only_before": list(self.only_before),
            "only_after": list(self.only_after),
            "notes": list(self.notes),
        }


def compare(before: Run, after: Run, margin: Margin | None = None, seed: int = 0) -> Comparison:
    """Compares two runs.

    Args:
        before: The first side.
        after: The second side.
        margin: What does not matter; a time applies to durations only.
        seed: Of the bootstrap.

    Raises:
        UsageError: nothing of one kind is in both, or it is of unlike things: other experts, other layers,
            other load levels.
    """
    first, second = ({q.key: q for q in quantities(run)} for run in (before, after))
    for run, side, name in ((before, first, "before"), (after, second, "after")):
        if not side:
            raise UsageError(
                f"{name} holds nothing to compare ({run.nothing_found()})",
                hint="latencies, benchmark results, allocator snapshots or expert counts; see docs/ab.md",
            )
    _one_device_each(first, second)
    shared = [key for key in first if key in second]
    if not shared:
        raise UsageError(
            "before and after hold nothing of the same kind",
            where=f"before: {_names(first.values())}; after: {_names(second.values())}",
            hint="compare results of the same benchmark, load level, ranks and devices",
        )
    out: list[Outcome] = []
    for key in shared:
        out += outcomes_of(first[key], second[key], margin, seed)
    loads = (_thinned_note(first[key], second[key]) for key in shared if first[key].kind == "load")
    return Comparison(
        tuple(out),
        tuple(_name(q) for k, q in first.items() if k not in second),
        tuple(_name(q) for k, q in second.items() if k not in first),
        (*lost("before", before), *lost("after", after), *filter(None, loads), NOT_PAIRED),
    )


def lost(side: str, run: Run) -> list[str]:
    """What could not be read on a side, a sentence per file: figures are of the rest."""
    told = {path: p.text for path, p in reversed(run.problems) if p.lost != 0}
    named = [f"{side}: {path}: {text}" for path, text in reversed(told.items())]
    return [*named[:3], *([f"{side}: {len(named) - 3} more files lost rows"] if len(named) > 3 else [])]


def outcomes_of(
    before: Quantity, after: Quantity, margin: Margin | None = None, seed: int = 0
) -> list[Outcome]:
    """The outcomes of one quantity.

    Raises:
        UsageError: the sides count other experts or layers.
    """
    why = _unlike(before, after)
    if before.kind == "series":
        return unpaired_outcomes(
            np.concatenate(before.parts), np.concatenate(after.parts), margin=margin, seed=seed,
            suffix=f"_{before.name}_s", missing=why,
        )  # fmt: skip
    if why:
        raise UsageError(
            f"before and after count other things: {why}", where="expert counts",
            hint="compare runs of the same model; layers without counts on one side must go",
        )  # fmt: skip
    if before.kind == "load":
        return _load_outcomes(before, after, margin, seed)
    drawn = paired_means(before.parts[0], after.parts[0], seed=seed, pairs=False)
    fits = margin if margin is None or margin.is_share or before.unit == "s" else None
    few = "" if drawn.units >= LEAST_PAIRS else _few(before, drawn)
    return [
        outcome(before.name, drawn, better=before.better, unit=before.unit, margin=fits, missing=few,
                subject=before.subject)
    ]  # fmt: skip


def _few(q: Quantity, drawn: Draws) -> str:
    what = "snapshots" if q.unit in ("bytes", "ratio") else "runs"
    if drawn.n_before == drawn.n_after == 1:
        single = what.removesuffix("s")
        return f"one {single} on each side is exact for itself; how far {what} scatter is unknown"
    return f"{LEAST_PAIRS} {what} a side are wanted, there are {drawn.n_before} and {drawn.n_after}"


def _unlike(a: Quantity, b: Quantity) -> str:
    """In what the two sides differ that they must agree in; empty where in nothing."""
    told = []
    for name in [*a.shape, *(n for n in b.shape if n not in a.shape)]:
        x, y = a.shape.get(name), b.shape.get(name)
        if name == THINNED:
            told.append("the series is thinned: not every step has a row, so its quantiles mislead")
        elif (x != y) if a.kind != "series" else (x and y and max(x, y) > LIKE * min(x, y)):
            told.append(f"{x or 0:g} {name} before, {y or 0:g} after")
    return ", ".join(told)


def _thinned_note(a: Quantity, b: Quantity) -> str:
    x, y = (sum(float(p.sum()) for p in q.parts) for q in (a, b))
    if max(x, y) <= EQUAL * min(x, y):
        return ""
    more, fewer = ("after", "before") if y > x else ("before", "after")
    of = f" ({a.subject})" if a.subject else ""
    return (
        f"expert counts{of}: {more} has {max(x, y) / min(x, y):.3g} times the tokens and was thinned to as "
        f"many as {fewer} has, because fewer tokens look less even, whatever the routing"
    )


def _thinned(sides: list[NDArray[np.float64]], rng: np.random.Generator) -> list[NDArray[np.float64]]:
    """Both sides with equally many tokens: each of the larger one's is kept with the same chance.

    Deviation, Gini and maximum of counts grow with their sampling noise, and so as tokens get fewer.
    """
    total = [float(s.sum()) for s in sides]
    keep = min(total) / max(total)
    out = []
    for side, tokens in zip(sides, total, strict=True):
        whole = np.rint(side)
        larger = tokens > min(total) and np.array_equal(whole, side)  # shares are no counts
        out.append(rng.binomial(whole.astype(np.int64), keep).astype(float) if larger else side)
    return out


def _load_outcomes(a: Quantity, b: Quantity, margin: Margin | None, seed: int) -> list[Outcome]:
    rng = np.random.default_rng(seed)
    sides = _thinned([np.concatenate(q.parts) for q in (a, b)], rng)
    counts = [len(s) for s in sides]
    picks = [rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES).astype(float) for n in counts]
    units = min(counts)
    few = "" if units >= LEAST_PAIRS else (
        f"{LEAST_PAIRS} steps a side are wanted, there are {counts[0]} and {counts[1]}"
    )  # fmt: skip
    out = []
    for name, better in LOAD_FIGURES.items():
        values = [float(load_figure(name, s.sum(axis=0))) for s in sides]
        draws = [_resampled(name, s, p) for s, p in zip(sides, picks, strict=True)]
        drawn = Draws(values[0], values[1], draws[0], draws[1], counts[0], counts[1], units, 0)
        fits = margin if margin is None or margin.is_share else None
        out.append(outcome(name, drawn, better=better, unit="ratio", margin=fits, missing=few))
    return out


def _resampled(
    name: str, blocks: NDArray[np.float64], picks: NDArray[np.float64]
) -> NDArray[np.float64]:
    if len(blocks) < 2:
        return np.zeros(0)
    flat = blocks.reshape(len(blocks), -1)
    step = max(1, (1 << 22) // flat.shape[1])
    parts = [
        load_figure(name, (picks[i : i + step] @ flat).reshape(-1, *blocks.shape[1:]))
        for i in range(0, len(picks), step)
    ]
    return np.concatenate(parts)


def _one_device_each(first: dict[tuple[str, str], Quantity], second: dict[tuple[str, str], Quantity]) -> None:
    """A single device pairs with a single one of another name."""
    for name in {n for n, _ in first} & {n for n, _ in second}:
        a, b = ([k for k in side if k[0] == name] for side in (first, second))
        if len(a) == len(b) == 1 and a != b and "device" in a[0][1] and "device" in b[0][1]:
            second[a[0]] = second.pop(b[0])


def _names(side: Iterable[Quantity]) -> str:
    names: Sequence[str] = [_name(q) for q in side]
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more


def _name(q: Quantity) -> str:
    return f"{q.name} ({q.subject})" if q.subject else q.name
