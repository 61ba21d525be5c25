"""What an incident is: ranks, steps, planted causes, noise and which evidence is kept back; drawn from a seed.

Glossary: *lasting* causes (skew, drift, slow link) work in all steps from an onset; the others hit single
steps of one rank. Times in microseconds unless a name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

__all__ = ["KINDS", "PAUSES", "Cause", "Plan", "draw"]

PAUSES = ("gc", "stall", "jit", "alloc")  # what stops the host of one rank in single steps
KINDS = (*PAUSES, "skew", "drift", "slow_link", "hang", "two", "healthy")
EVENTS_MOST = 1500  # ranks x steps x layers: bounds the size of a bundle
MOST_LOAD = 1.9  # of the mean on one rank: twice the mean would leave nothing to the other of two
FREES = 3  # segments that the allocator gives back in a stall


@dataclass(frozen=True, slots=True)
class Cause:
    """One planted cause.

    Args:
        kind: One of PAUSES, "skew", "drift", "slow_link", "hang".
        rank: Whose fault it is.
        steps: Steps that it hits; the onset alone for a lasting one.
        size: Pause in us; for lasting ones a factor (load of the rank, time of the transfers).
        layer: Layer in which the host stops; -1 between two steps.
    """

    kind: str
    rank: int
    steps: tuple[int, ...]
    size: float
    layer: int = 0


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
        withheld: Evidence that is not in the bundle: "trace" (of the guilty rank), "frames", "lines",
            "counts", "snapshot", "stats", "dumps".
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
    "gc": ("frames", "lines", "frames lines", "trace"),
    "stall": ("trace",),
    "jit": ("frames", "lines", "frames lines", "trace"),
    "alloc": ("snapshot", "lines", "snapshot lines stats", "trace"),
    "skew": ("counts", "trace", "counts trace"),
    "drift": ("counts", "trace"),
    "slow_link": ("lines", "trace"),
    "hang": ("dumps", "lines"),
    "two": ("lines", "frames"),
    "healthy": ("counts", "lines"),
}
DECOYS = ("startup_malloc", "innocent_gc", "old_watchdog", "jit_before_ready", "cached_snapshot", "tiny_frees")


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
    steps = int(min(rng.integers(36, 90), EVENTS_MOST // (ranks * layers)))
    causes = _causes(rng, kind, ranks, steps, layers)
    graphs = bool(rng.random() < 0.3)
    whole_us = not graphs and bool(rng.random() < 0.15)
    library = "nccl" if rng.random() < 0.45 else "deepep"
    shifts = rng.uniform(-40_000, 40_000, ranks // 2 + 1) if rng.random() < 0.5 else np.zeros(ranks)
    drifts = rng.uniform(-30, 30, ranks // 2 + 1) if rng.random() < 0.5 else np.zeros(ranks)
    nodes = [r // 2 for r in range(ranks)]
    many = int(rng.integers(0, 4))
    hold = WITHHELD[kind]
    withheld = hold[int(rng.integers(len(hold)))].split() if rng.random() < 0.4 else []
    return Plan(
        seed, kind, ranks, steps, layers, 8 * ranks, causes, graphs,
        str(rng.choice(["profiler", "engine", "sglang", "none"])),
        library, library == "nccl" and not whole_us and bool(rng.random() < 0.6), whole_us,
        tuple(float(shifts[n]) for n in nodes), tuple(float(drifts[n]) for n in nodes),
        tuple(sorted(int(s) for s in rng.choice(np.arange(2, steps), many, replace=False))),
        frozenset(withheld),
        tuple(str(d) for d in rng.choice(DECOYS, int(rng.integers(0, 3) + (kind == "healthy")), replace=False)),
    )  # fmt: skip


def _causes(rng: np.random.Generator, kind: str, ranks: int, steps: int, layers: int) -> tuple[Cause, ...]:
    rank = int(rng.integers(ranks))
    if kind == "healthy":
        return ()
    if kind != "two":
        return (_cause(rng, kind, rank, steps, layers),)
    first = str(rng.choice(PAUSES))
    second = str(rng.choice([k for k in ("skew", *PAUSES) if k != first]))
    other = (rank + 1 + int(rng.integers(ranks - 1))) % ranks if ranks > 1 else rank
    return _cause(rng, first, rank, steps, layers), _cause(rng, second, other, steps, layers)


def _cause(rng: np.random.Generator, kind: str, rank: int, steps: int, layers: int) -> Cause:
    if kind in PAUSES:
        count = int(rng.integers(4, 9))
        hit = np.sort(rng.choice(np.arange(4, steps - 1), min(count, steps // 4), replace=False))
        layer = int(rng.integers(-1 if kind in ("gc", "stall") else 0, layers))
        return Cause(kind, rank, tuple(int(s) for s in hit), float(rng.uniform(60_000, 160_000)), layer)
    if kind == "skew":
        return Cause(kind, rank, (0,), float(rng.uniform(1.5, MOST_LOAD)))
    if kind == "drift":
        return Cause(kind, rank, (int(rng.integers(steps // 3, steps // 2)),), float(rng.uniform(1.5, MOST_LOAD)))
    if kind == "slow_link":
        onset = int(rng.integers(steps // 3, steps // 2))
        hit = tuple(range(onset, min(steps, onset + int(rng.integers(steps // 5, steps // 2)))))
        return Cause(kind, rank, hit, float(rng.uniform(4.0, 9.0)))
    return Cause(kind, rank, (steps,), 0.0, layer=int(rng.integers(2)))  # hang: 0 silent, 1 elsewhere

