"""The compiled allocator replay against its bars and against a plain C++ replay over a std::set.

Streams: the recorded snapshots of a folder (default: ../shared/data/memory beside the checkout), each
repeated until it has 2 M steps (allocations and completed frees). Repeating: a free whose allocation
lies before the recording stays in the first repetition only; what lives at the end of one repetition is
freed at the end of the next, so that two generations overlap and the free lists grow (beyond 1,000 blocks
on some streams). One synthetic stream is always there. Figures are CPU time, warm, medians; both sides
replay the same arrays, and must agree on the peaks and on the reserved bytes after each allocation.

    python benchmarks/allocator.py [--folder FOLDER] [-n ROUNDS] [--steps N] [--strict]
"""

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from moexray.algorithms.blocks import Settings
from moexray.algorithms.simulate import ALLOC, FREE, Plan, prepare
from moexray.core.errors import MoexrayError
from moexray.kernels import allocator_arena as cells
from moexray.kernels.allocator import Arrays, arrays, simulate, simulated
from moexray.kernels.allocator_memory import ENTRIES
from moexray.readers.read_any import read_any
from moexray.whatif.recordings import recordings

HERE = Path(__file__).resolve().parent
SHARED = HERE.parents[1] / "shared" / "data" / "memory"
MIB = 1 << 20
EVERY, MEDIAN = 2.0, 5.0  # bars: million steps a second, on every stream and on the median one
SEARCH_S, SEARCH_STEPS, SEARCH_SETTINGS = 2.0, 20_000, 100  # bar of a search


def synthetic() -> Plan:
    """A server: long-lived buffers, and temporaries of sizes that vary with the batch."""
    dice = random.Random(11)  # noqa: S311  # sizes for a benchmark
    steps, live, place = [], [], 0
    for _ in range(SEARCH_STEPS):
        if live and dice.random() < 0.5:
            at = live.pop(dice.randrange(max(len(live) - 60, 0), len(live)))
            steps.append((FREE, at, 0, 0, (0, 0)))
        else:
            size = int(dice.lognormvariate(14, 3)) % (600 * MIB) + 1
            steps.append((ALLOC, place, size, 0, (0, 0)))
            live.append(place)
            place += 1
    return Plan((), 0, tuple(steps), (0, None), ())


def streams(folder: Path) -> Iterator[tuple[str, Plan]]:
    """(name, plan) of each history in the folder that can be replayed, and the synthetic one."""
    yield "synthetic", synthetic()
    for path in sorted(folder.glob("*.pickle*")):
        try:
            for recording in recordings(read_any([str(path)])):
                yield path.name.partition(".")[0], prepare(recording.history)
        except MoexrayError:
            continue


def repeated(plan: Arrays, steps: int) -> Arrays:
    """The stream, repeated to at least `steps` steps; see the head of this file."""
    alive: set[int] = set()
    inside = np.ones(len(plan.kinds), dtype=bool)  # not a free of what lived before
    for i, (kind, slot) in enumerate(zip(plan.kinds.tolist(), plan.slots.tolist(), strict=True)):
        if kind == ALLOC:
            alive.add(slot)
        elif kind == FREE:
            inside[i] = slot in alive
            alive.discard(slot)
    left = np.array(sorted(alive), dtype=np.int32)
    nothing = np.zeros(len(left), np.int64)
    frees = [np.full(len(left), FREE, np.int8), left, nothing, nothing.astype(np.int32)]
    first = [plan.kinds, plan.slots, plan.sizes, plan.places]
    later = [column[inside] for column in first]
    parts, count, slots = [first], len(plan.kinds), plan.shape.slots
    while count < steps:
        now, before = len(parts) % 2 * slots, (len(parts) + 1) % 2 * slots  # two generations of slots
        tile = [np.concatenate([a, b]) for a, b in zip(later, frees, strict=True)]
        tile[1] = np.concatenate([later[1] + np.int32(now), left + np.int32(before)])
        parts.append(tile)
        count += len(tile[0])
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    names = ("kinds", "slots", "sizes", "places")
    shape = replace(plan.shape, slots=2 * slots)
    return replace(plan, shape=shape, **dict(zip(names, columns, strict=True)))


def ours(plan: Arrays, rounds: int) -> tuple[float, int, list[int]]:
    """(median CPU seconds, free blocks at the end, figures that the peer must agree with)."""
    seconds = []
    for _ in range(rounds + 1):  # the first round compiles, or loads what was compiled
        before = time.process_time()
        m, curve = simulated(plan, Settings())
        seconds.append(time.process_time() - before)
    checksum = 0
    for reserved in curve.tolist():
        checksum = (checksum * 31 + reserved) % (1 << 64)
    figures = [int(m[i]) for i in (cells.PEAK_RESERVED, cells.PEAK_ALLOCATED, cells.RESERVED)]
    return statistics.median(seconds[1:]), int(m[ENTRIES]), [*figures, checksum]


def build_peer(folder: Path) -> Path | None:
    """The compiled peer; None where there is no g++."""
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    out = folder / "peer"
    command = [compiler, "-O2", "-std=c++17", "-o", str(out), str(HERE / "allocator_peer.cpp")]
    subprocess.run(command, check=True)
    return out


def theirs(peer: Path, plan: Arrays, rounds: int, folder: Path) -> tuple[float, list[int]]:
    """(median CPU seconds, figures) of the C++ replay."""
    shape = plan.shape
    head = [len(plan.start), len(plan.kinds), shape.slots, shape.pools, shape.streams]
    parts = [head, plan.start.ravel(), plan.kinds, plan.slots, plan.sizes, plan.places]
    path = folder / "stream"
    np.concatenate([np.asarray(p, dtype=np.int64) for p in parts]).tofile(path)
    done = subprocess.run([str(peer), str(path), str(rounds)], check=True, capture_output=True, text=True)
    *figures, seconds = done.stdout.split()
    return float(seconds), [int(x) for x in figures]


def search() -> float:
    """CPU seconds of 100 settings on a stream of 20,000 steps, each with its whole outcome."""
    plan = synthetic()
    tried = [
        Settings(max_split=split, roundup=(divisions,) * 16, expandable=expandable)
        for split in (None, *(n * MIB for n in range(20, 510, 20)))
        for divisions in (0, 4)
        for expandable in (False, True)
    ][:SEARCH_SETTINGS]
    before = time.process_time()
    made = arrays(plan)
    if made is None:
        raise AssertionError("the stream has sizes that no device has")
    for settings in tried:
        simulate(made, settings)
    return time.process_time() - before


def main() -> int:
    """Print one line a stream; with --strict, exit 1 where a bar is missed or the twins disagree."""
    parser = argparse.ArgumentParser(description="The compiled allocator replay.")
    parser.add_argument("--folder", type=Path, default=SHARED, help="snapshots with a history")
    parser.add_argument("-n", "--rounds", type=int, default=5, help="measured rounds (5)")
    parser.add_argument("--steps", type=int, default=2_000_000, help="steps of a repeated stream")
    parser.add_argument("--strict", action="store_true", help="exit 1 on a miss")
    args = parser.parse_args()
    if not args.folder.is_dir():
        print(f"no recorded streams: {args.folder} is not there; see --folder")
    good, speeds = True, []
    with tempfile.TemporaryDirectory(prefix="moexray-bench-") as name:
        folder = Path(name)
        peer = build_peer(folder)
        if peer is None:
            print("no g++: the C++ peer is left out")
        head = ("M steps/s", "bar", "free blocks", "C++ M/s", "ours / C++")
        print(f"{'allocator replay':32}" + "".join(f"{h:>12}" for h in head))
        for stream, plan in streams(args.folder):
            made = arrays(plan)
            if made is None:
                print(f"{stream}: only the plain twin takes it")
                continue
            tiled = repeated(made, args.steps)
            seconds, free, figures = ours(tiled, args.rounds)
            speed = len(tiled.kinds) / seconds / 1e6
            cells = [f"{speed:.2f}", f"{EVERY:.0f}", f"{free}"]
            good = good and speed >= EVERY
            speeds.append(speed)
            if peer is not None:
                peer_seconds, peer_figures = theirs(peer, tiled, args.rounds, folder)
                agree = figures == peer_figures
                good = good and agree
                word = f"{peer_seconds / seconds:.2f}x" if agree else "DISAGREE"
                cells += [f"{len(tiled.kinds) / peer_seconds / 1e6:.2f}", word]
            print(f"{stream:32}" + "".join(f"{c:>12}" for c in cells))
    print(f"{'median stream':32}{statistics.median(speeds):>12.2f}{MEDIAN:>12.0f}")
    seconds = search()
    print(f"{SEARCH_SETTINGS} settings, {SEARCH_STEPS} steps: {seconds:.2f} s CPU (bar {SEARCH_S:.0f} s)")
    good = good and statistics.median(speeds) >= MEDIAN and seconds <= SEARCH_S
    return 1 if args.strict and not good else 0


if __name__ == "__main__":
    sys.exit(main())
