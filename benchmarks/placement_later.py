"""What a placement is worth on traffic that it was not planned on: the table of docs/placement.md.

    python benchmarks/placement_later.py TASK_A TASK_B ...

Each file holds the routing of one task (anything that `moexray plan` reads) of one model. Every plan is
scored on the second half of a task: it was made on that very half (oracle), on the first half of the same
task, on the first halves of all tasks (mix), or on the first half of another task. Scores are mean / max
of tokens over GPUs, meaned over layers and tasks.

Split of an expert's tokens over its replicas: equal, as engines do it; as planned, unequal parts fitted to
the traffic of the plan; refitted, parts fitted to the scored half itself, which no dispatcher can know:
the most that a dispatcher with weights can reach. Late: the scored half in windows, parts fitted to the
window before, which a dispatcher can know; beside the equal split on the same windows.
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from moexray.algorithms.packing import balancedness, rank_loads
from moexray.algorithms.placement import Shape, place, trivial
from moexray.algorithms.replication import token_costs
from moexray.algorithms.splitting import split, split_loads
from moexray.readers.read_any import read_any
from moexray.whatif.traffic import traffic

DEFAULT = ("8:64", "8:80", "16:80", "16:96")

WINDOWS = 4  # of the scored half

Loads = np.ndarray  # [layers, experts]
Task = tuple[Loads, np.ndarray]  # first half; second half as [windows, layers, experts]


def halves(paths: Sequence[str]) -> list[Task]:
    """The first half of each task, and the windows of the second."""
    seen = [traffic(read_any([path])) for path in paths]
    experts = max(s.experts for s in seen)
    found = []
    for path, one in zip(paths, seen, strict=True):
        parts = one.halves()
        if parts is None or one.layers != seen[0].layers:
            sys.exit(f"{path}: it has one step only, or other layers than {paths[0]}")
        cubes = [np.stack([p.steps(y) for y in range(len(one.layers))], axis=1).astype(float) for p in parts]
        first, second = (np.pad(c, ((0, 0), (0, 0), (0, experts - c.shape[2]))) for c in cubes)
        windows = np.array_split(second, min(WINDOWS, len(second)))
        found.append((first.sum(axis=0), np.stack([w.sum(axis=0) for w in windows])))
    return found


def score(planned_on: Loads, new: np.ndarray, shape: Shape) -> np.ndarray:
    """[equal, as planned, refitted, equal in windows, late], mean balancedness over layers."""
    rows = []
    for y, seen in enumerate(planned_on):
        slots = place(token_costs(seen, shape.most), shape)
        load = new[:, y].sum(axis=0)
        pairs = [(seen, load), (load, load), *zip(new[:-1, y], new[1:, y], strict=True)]
        unequal = [
            balancedness(split_loads(scored, slots, split(fitted, slots, shape.gpus), shape.gpus))
            for fitted, scored in pairs
        ]
        equal = [balancedness(rank_loads(x, slots, shape.gpus)) for x in (load, *new[1:, y])]
        rows.append([equal[0], *unequal[:2], np.mean(equal[1:]), np.mean(unequal[2:])])
    return np.mean(rows, axis=0)


def start(new: np.ndarray, shape: Shape) -> float:
    """The layout that engines start with."""
    loads = new.sum(axis=0)
    return float(np.mean([balancedness(rank_loads(load, trivial(shape), shape.gpus)) for load in loads]))


def table(tasks: Sequence[Task], shape: Shape) -> None:
    """One line per kind of traffic that the plan was made on."""
    mix = np.sum([first / first.sum() for first, _ in tasks], axis=0)
    kinds = {
        "the scored half itself (oracle)": [(second.sum(axis=0), second) for _, second in tasks],
        "first half of the same task": tasks,
        "first halves of all tasks (mix)": [(mix, second) for _, second in tasks],
        "another task": [(a[0], b[1]) for a in tasks for b in tasks if a is not b],
    }
    plain = np.mean([start(second, shape) for _, second in tasks])
    bare = Shape(shape.experts, shape.experts, shape.gpus)
    linear = np.mean([start(second, bare) for _, second in tasks])
    print(f"\n**{shape.gpus} GPUs, {shape.slots} slots** ({shape.slots - shape.experts} redundant; no plan: "
          f"{linear:.3f} with one slot per expert, {plain:.3f} with so many)\n")  # fmt: skip
    print("| planned on | equal split | worst | as planned | refitted | worst | windows: equal | late |")
    print("|---|---|---|---|---|---|---|---|")
    for name, pairs in kinds.items():
        if not pairs:
            continue
        scores = np.array([score(seen, new, shape) for seen, new in pairs])
        mean, low = scores.mean(axis=0), scores.min(axis=0)
        cells = (mean[0], low[0], mean[1], mean[2], low[2], mean[3], mean[4])
        print(f"| {name} | " + " | ".join(f"{c:.3f}" for c in cells) + " |", flush=True)


def main() -> int:
    """Print the tables as Markdown."""
    parser = argparse.ArgumentParser(description="What a placement is worth on later and other traffic.")
    parser.add_argument("paths", nargs="+", metavar="TASK", help="routing of one task; one file a task")
    parser.add_argument("--shape", action="append", help=f"GPUs:slots; repeatable ({', '.join(DEFAULT)})")
    args = parser.parse_args()
    tasks = halves(args.paths)
    experts = tasks[0][0].shape[1]
    for text in args.shape or DEFAULT:
        gpus, slots = (int(n) for n in text.split(":"))
        table(tasks, Shape(experts, slots, gpus))
    return 0


if __name__ == "__main__":
    sys.exit(main())
