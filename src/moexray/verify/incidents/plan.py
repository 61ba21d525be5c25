"""What an incident is: ranks, steps, planted causes, and which evidence is kept back; drawn from a seed.

Glossary: *lasting* causes (skew, drift, slow link) work in all steps from an onset; the others hit single
steps of one rank. Times in microseconds unless a name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

__all__ = ["ALWAYS", "KINDS", "PAUSES", "WITHHELD", "Cause", "Plan", "draw"]

PAUSES = ("gc", "stall", "jit", "alloc")  # what stops the host of one rank in single steps
ALWAYS = ("clear", "contention", "slow_rank")  # what holds one rank up a little in every step
KINDS = (*PAUSES, *ALWAYS, "rearrange", "skew", "drift", "slow_link", "hang", "two", "healthy")
EVENTS_MOST = 1500  # ranks x steps x layers: bounds the size of a bundle
MOST_LOAD = 2.6  # of the mean on one rank
PAIR_LOAD = 1.8  # of two ranks: twice the mean would leave nothing to the other
FREES = 3  # segments that the allocator gives back in a stall


@dataclass(frozen=True, slots=True)
class Cause:
    """One planted cause.

    Args:
        kind: One of PAUSES or ALWAYS, "rearrange" (stops all ranks), "skew", "drift", "slow_link", "hang".
        rank: Whose fault it is.
        steps: Steps that it hits; the onset alone for a lasting one.
        size: Pause in us; for lasting ones a factor (load of the rank, time of the transfers).
        layer: Layer in which the host stops; -1 between two steps. Of a hang: 1 if the rank is elsewhere.
        layers: Those with an uneven load.
    """

    kind: str
    rank: int
    steps: tuple[int, ...]
    size: float
    layer: int = 0
    layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides an incident; the same plan gives the same bytes.

    Args:
        seed, kind: Of the draw.
        ranks, steps, layers, experts: Sizes.
        causes: Planted.
        graphs: Steps are replays of a CUDA graph.
        notes: Annotation of steps: "profiler", "engine", "sglang" or "none".
        library: Names of the collectives: "deepep" or "nccl".
        metadata: NCCL kernels carry group, sequence number and sizes.
        whole_us: Old profiler: times in whole microseconds since the epoch.
        offset_us, drift_ppm: Clock of each rank's node.
        prefill: Steps with a larger batch on every rank.
        accused: Ranks of the causes as drawn; they stay when causes are taken out.
        late_start: Steps that the profiler of each rank missed.
        overlap: Shared experts run on a stream of their own beside the first collective.
        withheld: Evidence that is not in the bundle: "trace" (of the guilty rank), "rank" (all its files),
            "traces" (of all), "host" (calls of the host in traces), "frames", "lines", "counts",
            "snapshot", "stats", "dumps", "latency", "launch", "manifest", "names" (of the trace files).
        decoys: Harmless things that look alarming.
    """

    seed: int
    kind: str
    ranks: int
    steps: int
    layers: int
    experts: int
    causes: tuple[Cause, ...]
    graphs: bool
    notes: str
    library: str
    metadata: bool
    whole_us: bool
    offset_us: tuple[float, ...]
    drift_ppm: tuple[float, ...]
    prefill: tuple[int, ...]
    accused: tuple[int, ...]
    late_start: tuple[int, ...]
    overlap: bool
    withheld: frozenset[str]
    decoys: tuple[str, ...]

    @property
    def guilty(self) -> tuple[int, ...]:
        """Ranks at fault, in order of the causes."""
        return tuple(c.rank for c in self.causes)

    def without(self, *causes: Cause) -> Plan:
        """The same incident with some causes taken out."""
        return replace(self, causes=tuple(c for c in self.causes if c not in causes))


WITHHELD = {
    "gc": ("frames", "lines", "frames lines", "trace", "rank", "traces", "host"),
    "stall": ("trace", "rank", "host"),
    "jit": ("frames", "lines", "frames lines", "trace", "rank", "traces", "host"),
    "alloc": ("snapshot", "lines", "snapshot lines stats", "trace", "rank", "traces", "host"),
    "clear": ("frames", "trace", "traces", "host"),
    "contention": ("trace", "host"),
    "slow_rank": ("trace", "host"),
    "rearrange": ("frames", "lines", "frames lines", "traces", "trace", "host"),
    "skew": ("counts", "trace", "counts trace", "traces", "host", "counts host"),
    "drift": ("counts", "trace", "traces"),
    "slow_link": ("lines", "trace", "host", "traces"),
    "hang": ("dumps", "lines"),
    "two": ("lines", "frames", "trace", "counts"),
    "healthy": ("counts", "lines"),
}
SPARE = ("latency", "launch", "counts", "stats", "manifest", "names")  # roots hang on them only by WITHHELD
DECOYS = (
    "startup_malloc", "innocent_gc", "old_watchdog", "jit_before_ready", "cached_snapshot", "tiny_frees",
    "hiccup", "gc_elsewhere", "jit_thread", "quoted_watchdog", "warm_up_counts", "moves_behind",
)  # fmt: skip


def draw(seed: int, kind: str | None = None) -> Plan:
    """A random plan.

    Args:
        seed: Of everything.
        kind: One of KINDS; by the seed if None.
    """
    rng = np.random.default_rng([seed, 5])
    kind = kind or KINDS[seed % len(KINDS)]
    ranks = int(rng.choice([2, 3, 4, 4, 6, 8]))
    layers = int(rng.integers(2, 6))
    steps = min(int(rng.integers(36, 90)), EVENTS_MOST // (ranks * layers))
    causes = _causes(rng, kind, (ranks, steps, layers))
    graphs = bool(rng.random() < 0.3)
    whole_us = not graphs and bool(rng.random() < 0.15)
    library = "nccl" if rng.random() < 0.45 else "deepep"
    shifts = rng.uniform(-40_000, 40_000, ranks // 2 + 1) if rng.random() < 0.5 else np.zeros(ranks)
    drifts = rng.uniform(-30, 30, ranks // 2 + 1) if rng.random() < 0.5 else np.zeros(ranks)
    nodes = [r // 2 for r in range(ranks)]
    many = int(rng.integers(0, 4))
    hold = WITHHELD[kind]
    withheld = hold[int(rng.integers(len(hold)))].split() if rng.random() < 0.4 else []
    if kind not in ("skew", "drift", "two", "alloc"):
        withheld += [w for w in SPARE if rng.random() < 0.2]
    drawn = rng.choice(DECOYS, int(rng.integers(0, 3) + 2 * (kind == "healthy")), replace=False)
    decoys = [str(d) for d in drawn if not (d == "moves_behind" and kind == "rearrange")]
    larger = rng.choice(np.arange(5, steps - 3), many, replace=False)
    ragged = rng.random() < 0.25 and not whole_us
    return Plan(
        seed, kind, ranks, steps, layers, 8 * ranks, causes, graphs,
        str(rng.choice(["profiler", "engine", "sglang", "none"])),
        library, library == "nccl" and not whole_us and bool(rng.random() < 0.6), whole_us,
        tuple(float(shifts[n]) for n in nodes), tuple(float(drifts[n]) for n in nodes),
        _whole(np.sort(larger)), tuple(c.rank for c in causes),
        tuple(int(n) if ragged else 0 for n in rng.integers(0, 4, ranks)), bool(rng.random() < 0.3),
        frozenset(withheld),
        tuple(decoys),
    )  # fmt: skip


def _causes(rng: np.random.Generator, kind: str, sizes: tuple[int, int, int]) -> tuple[Cause, ...]:
    ranks = sizes[0]
    rank = int(rng.integers(ranks))
    if kind == "healthy":
        return ()
    if kind != "two":
        return (_cause(rng, kind, rank, sizes),)
    first = str(rng.choice(PAUSES))
    second = str(rng.choice([k for k in ("skew", "drift", *PAUSES) if k != first]))
    other = (rank + 1 + int(rng.integers(ranks - 1))) % ranks
    return _cause(rng, first, rank, sizes), _cause(rng, second, other, sizes)


def _cause(rng: np.random.Generator, kind: str, rank: int, sizes: tuple[int, int, int]) -> Cause:
    ranks, steps, layers = sizes
    if kind in PAUSES:
        count = min(int(rng.integers(4, 11)), steps // 4)
        hit = np.sort(rng.choice(np.arange(4, steps - 1), count, replace=False))
        least = 8_000 if kind == "alloc" else 60_000  # a silent host is told from five steps on
        layer = int(rng.integers(-1 if kind in ("gc", "stall") else 0, layers))
        return Cause(kind, rank, _whole(hit), float(rng.uniform(least, 160_000)), layer)
    if kind == "rearrange":
        hit = np.sort(rng.choice(np.arange(4, steps - 1), int(rng.integers(2, 6)), replace=False))
        return Cause(kind, 0, _whole(hit), float(rng.uniform(120_000, 600_000)))
    if kind in ALWAYS:  # parts of a step: enough to be told, too little for a burst
        low, high = {"clear": (0.2, 0.6), "contention": (0.2, 0.9), "slow_rank": (1.25, 1.6)}[kind]
        return Cause(kind, rank, tuple(range(2, steps)), float(rng.uniform(low, high)))
    onset = int(rng.integers(steps // 6 if kind == "slow_link" else steps // 3, steps // 2))
    if kind in ("skew", "drift"):
        many = int(rng.integers((layers + 1) // 2, layers + 1))
        uneven = _whole(np.sort(rng.choice(layers, many, replace=False)))
        size = float(rng.uniform(1.4, MOST_LOAD if ranks > 2 else PAIR_LOAD))
        return Cause(kind, rank, (onset if kind == "drift" else 0,), size, layers=uneven)
    if kind == "slow_link":
        last = min(steps, onset + int(rng.integers(steps // 5, steps)))
        return Cause(kind, rank, tuple(range(onset, last)), float(rng.uniform(4.0, 9.0)))
    return Cause(kind, rank, (steps,), 0.0, layer=int(rng.integers(2)))


def _whole(numbers: np.ndarray) -> tuple[int, ...]:
    return tuple(int(n) for n in numbers)
