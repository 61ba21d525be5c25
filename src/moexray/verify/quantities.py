"""What a run holds that can be compared with another run's: latencies, benchmark figures, memory, loads.

Glossary: a *series* is many values of one kind in the order of time (gaps between tokens); *numbers* are
single figures, one per snapshot or benchmark run; a *load* is tokens per block of steps, layer and expert.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from moexray.core.run import Row, Run

__all__ = ["LOAD_FIGURES", "Quantity", "load_figure", "quantities"]

Kind = Literal["series", "numbers", "load"]
BLOCKS = 50  # of steps, that the intervals of a load stand on, at most
# Of a table of requests: column -> what the other tables call it.
REQUESTS = {"ttft_s": "ttft", "e2e_s": "e2e", "tpot_s": "tpot"}
MEMORY: Mapping[str, tuple[str, Literal["lower", "higher"]]] = {
    "largest_free_bytes": ("bytes", "higher"),
    "stuck_bytes": ("bytes", "lower"),
    "reserved_bytes": ("bytes", "lower"),
    "fragmentation_ratio": ("ratio", "lower"),
}
LOAD_FIGURES: Mapping[str, Literal["lower", "higher"]] = {
    "expert_load_std": "lower",
    "skew_index": "lower",
    "balancedness": "higher",
}


@dataclass(frozen=True, slots=True)
class Quantity:
    """One thing that can be compared.

    Args:
        name: ttft, itl, step (series); largest_free_bytes, p99_ttft_s (numbers); load.
        subject: "rank 0, device 1", "level 8", ...; empty for the whole.
        kind: See the glossary.
        parts: One array per file: [n] values, or [blocks, layers, experts] tokens.
        unit: Of the values.
        better: Which way is good.
        shape: What must agree on both sides, by name: experts, layers, output tokens, steps a row.
    """

    name: str
    subject: str
    kind: Kind
    parts: tuple[NDArray[np.float64], ...]
    unit: str = "s"
    better: Literal["lower", "higher"] = "lower"
    shape: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """What finds its counterpart."""
        return self.name, self.subject


def quantities(run: Run) -> list[Quantity]:
    """Everything comparable in a run; a figure that also stands in it as a series is left out."""
    series = _merged(_series(run))
    told = {q.name for q in series}
    numbers = [q for q in _bench(run) if q.name.removesuffix("_s").rpartition("_")[2] not in told]
    return [*series, *numbers, *_memory(run), *_loads(run)]


def load_figure(name: str, tokens: NDArray[np.float64]) -> NDArray[np.float64]:
    """A figure of loads, mean over the layers that have tokens.

    Args:
        name: expert_load_std (standard deviation over experts / mean), skew_index (Gini coefficient),
            balancedness (mean / max over experts).
        tokens: [..., layers, experts].

    Returns:
        [...]
    """
    total = tokens.sum(axis=-1)
    mean = np.where(total > 0, total / tokens.shape[-1], 1.0)
    if name == "expert_load_std":
        each = tokens.std(axis=-1) / mean
    elif name == "balancedness":
        each = mean / np.maximum(tokens.max(axis=-1), 1e-300)
    else:
        n = tokens.shape[-1]
        rank = 2 * np.arange(1, n + 1) - n - 1
        each = (np.sort(tokens, axis=-1) * rank).sum(axis=-1) / (n * n * mean)
    held = total > 0
    out: NDArray[np.float64] = (each * held).sum(axis=-1) / np.maximum(held.sum(axis=-1), 1)
    return out


def _merged(found: Iterator[tuple[str, NDArray[np.float64], dict[str, float]]]) -> list[Quantity]:
    """One series per kind, a part per file."""
    parts: dict[str, list[NDArray[np.float64]]] = {}
    shapes: dict[str, dict[str, float]] = {}
    for name, values, shape in found:
        kept = values[np.isfinite(values)]
        if len(kept):
            parts.setdefault(name, []).append(kept)
            shapes.setdefault(name, shape)
    return [Quantity(name, "", "series", tuple(p), shape=shapes[name]) for name, p in parts.items()]


def _series(run: Run) -> Iterator[tuple[str, NDArray[np.float64], dict[str, float]]]:
    for b in run.batches("latency"):
        step = np.asarray(b.columns["step"], float)
        gaps = np.diff(step[np.isfinite(step)])
        thinned = {"steps a row": float(gaps.mean())} if len(gaps) and (gaps > 1).any() else {}
        yield str(b.attrs.get("what", "latency")), np.asarray(b.columns["value_s"], float), thinned
    for b in run.batches("steps"):
        yield "step", np.asarray(b.columns["dur_s"], float), {}
    for b in run.batches("gaps"):
        yield "itl", np.asarray(b.columns["gap_s"], float), {}
    for b in run.batches("requests"):
        rows = len(next(iter(b.columns.values())))
        order = np.argsort(np.asarray(b.columns.get("arrival_s", range(rows)), float), kind="stable")
        shape = {}
        if "output_tokens" in b.columns:
            tokens = np.asarray(b.columns["output_tokens"], float)
            tokens = tokens[np.isfinite(tokens)]
            shape = {"output tokens": float(np.median(tokens))} if len(tokens) else {}
        for column, name in REQUESTS.items():
            if column in b.columns:
                yield name, np.asarray(b.columns[column], float)[order], shape if name == "e2e" else {}


def _bench(run: Run) -> Iterator[Quantity]:
    """Figures of benchmark runs, one part per figure and load level: its repeats."""
    rows = [r for r in run.rows("bench") if r["value"] is not None]
    several = len({r["run"] for r in rows}) > 1
    found: dict[tuple[str, str], list[float]] = {}
    for r in rows:
        figure = r["figure"]
        if figure.endswith(("_s", "_per_s")) or figure in ("failed_requests", "peak_memory_bytes"):
            found.setdefault((figure, _subject(r, several=several)), []).append(float(r["value"]))
    for (figure, subject), values in found.items():
        unit = "per s" if figure.endswith("_per_s") else "s" if figure.endswith("_s") else (
            "bytes" if figure.endswith("_bytes") else "count"
        )  # fmt: skip
        better: Literal["lower", "higher"] = "higher" if unit == "per s" else "lower"
        yield Quantity(figure, subject, "numbers", (np.array(values),), unit, better)


def _subject(r: Row, *, several: bool) -> str:
    parts = [str(r["run"])] if several and r["run"] is not None else []
    parts += [f"level {r['level']:g}"] if r["level"] is not None else []
    return ", ".join([*parts, *([str(r["setting"])] if r["setting"] else [])])


def _memory(run: Run) -> Iterator[Quantity]:
    """Figures of allocator snapshots per device; several snapshots of one device are repeats."""
    if not run.rows("snapshot"):
        return
    from moexray.analyse.snapshot import figures, shots

    found: dict[tuple[str, str], list[float]] = {}
    for shot in shots(run):
        seen: Any = figures(shot, shot.sound)
        rank = "" if shot.rank is None else f"rank {shot.rank}, "
        for name in MEMORY:
            value = seen.ratio if name == "fragmentation_ratio" else getattr(seen, name)
            found.setdefault((name, f"{rank}device {shot.device}"), []).append(float(value))
    for (name, subject), values in found.items():
        unit, better = MEMORY[name]
        yield Quantity(name, subject, "numbers", (np.array(values),), unit, better)


def _loads(run: Run) -> Iterator[Quantity]:
    """The routing per axis (logical, physical, rank); of several shapes the one with most tokens."""
    if not run.present & {"counts", "routes", "series"}:
        return
    from moexray.analyse.routing import loads, over_senders
    from moexray.analyse.routing_figures import figures
    from moexray.core.limits.routing import RoutingLimits

    found: dict[str, dict[tuple[int, ...], list[NDArray[np.float64]]]] = {}
    for load in loads(run, RoutingLimits().dummy_run)[0]:
        if load.what != "routed":
            continue
        seen = figures(run, over_senders(load))
        tokens = np.asarray(seen.tokens, float)
        if tokens.sum() > 0:
            summed = np.stack([b.sum(axis=0) for b in np.array_split(tokens, min(len(tokens), BLOCKS))])
            found.setdefault(seen.axis, {}).setdefault(summed.shape[1:], []).append(summed)
    for axis, shapes in found.items():
        (layers, units), parts = max(shapes.items(), key=lambda item: sum(p.sum() for p in item[1]))
        shape = {"ranks" if axis == "rank" else f"{axis} experts": units, "layers": layers}
        yield Quantity("load", "" if axis == "logical" else axis, "load", tuple(parts), "ratio", shape=shape)
