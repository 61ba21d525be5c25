"""What an arena, slots for experts and pages for KV do to the tail of a step: alone and together.

The stream: a MoE server in 192 MiB. Per step six KV blocks of 48-600 KiB with random lifetimes are asked
for; the oldest die while more than 97.5 % of what the experts leave is in use, in whole pages of 16 KiB so
that the paged arm can hold it, too: some 95 % of the bytes. Two experts of 3.8 MiB out of 64 are asked for
by Zipf; 24 have room, the one not used for longest goes, two ahead. Weights are really copied, and a small
product stands for the rest of a step. All arms see the same requests, step by step in turn, so that a noisy
machine hurts them alike. Times are CPU time of the thread; ratios are of one seed's percentiles, the range
is over the seeds.

arms:
  host             everything by the policy; where no hole fits, everything live is moved together: the fault
  slots            experts in slots of an arena; KV stays with the host's allocator and its moves: half a cure
  slots+pages      experts in slots, KV in pages
  one arena        everything in one arena of ours, which moves only the cheapest run of blocks
  slots, arena     experts in slots, KV in the rest of that arena

It then prints what buffers and the collector's window do, each against the plain way, in the same run.

    python benchmarks/arena.py [--steps N] [--seeds N] [--policy NAME ...]
"""

import argparse
import gc
import os
import random
import sys
import time
from typing import TYPE_CHECKING

import numpy as np

from moexray.runtime.arena import Arena, Block, ExpertSlots, Pages
from moexray.runtime.buffers import BufferPool
from moexray.runtime.gc_window import GcWindow

if TYPE_CHECKING:
    from collections.abc import Callable

MIB, KIB = 1 << 20, 1 << 10
TOTAL, EXPERT, ROOM, EXPERTS = 192 * MIB, 38 * MIB // 10, 24, 64
FULL, PAGE, LIFE = 0.975, 16 * KIB, 80
WEIGHTS = np.random.default_rng(0).integers(0, 255, EXPERT, np.uint8)
A, B = (np.random.default_rng(i).standard_normal((192, 192)).astype(np.float32) for i in (1, 2))
Step = list[tuple[str, int, int]]  # ("add", key, bytes), ("drop", key, 0), ("expert", which, 0)


class General:
    """Experts and KV in one arena; what does not fit moves the cheapest run of blocks."""

    whole = False  # what does not fit moves all blocks

    def __init__(self, policy: str) -> None:
        self.arena = Arena(TOTAL, policy=policy, compacting=not self.whole, spill=not self.whole)
        self.moves = self.failed = 0
        self.kv: dict[int, Block] = {}
        self.resident: dict[int, Block] = {}  # longest unused first

    def add(self, key: int, size: int) -> None:
        """A KV block."""
        self.kv[key] = self.block(size)

    def block(self, size: int) -> Block:
        """From the arena."""
        block = self.arena.allocate(size)
        if block is None:  # the host's way
            self.moves += 1
            self.arena.compact()
            block = self.arena.allocate(size)
        if block is None:
            sys.exit(f"{size} bytes do not fit into {self.arena.figures()}: the stream asks for too much")
        return block

    def drop(self, key: int, _: int) -> None:
        """A KV block dies."""
        self.arena.free(self.kv.pop(key))

    def expert(self, key: int, _: int) -> None:
        """An expert is used."""
        block = self.resident.pop(key, None)
        if block is None:
            block = self.block(EXPERT)
            with block as view:
                view[:] = WEIGHTS
        self.resident[key] = block

    def ahead(self) -> None:
        """Frees two slots ahead."""
        while len(self.resident) > ROOM - 2:
            self.arena.free(self.resident.pop(next(iter(self.resident))))

    def figures(self) -> tuple[int, int, float]:
        """(compactions, requests that did not fit, MiB moved)."""
        now = self.arena.figures()
        return self.moves or now.compactions, now.plain + self.failed, now.moved_bytes / MIB


class Host(General):
    """See the head of this file."""

    whole = True


class Slots(General):
    """Experts in slots; KV in the rest of the arena."""

    def __init__(self, policy: str) -> None:
        super().__init__(policy)
        self.slots = ExpertSlots(self.arena, slots=ROOM, slot_bytes=EXPERT)

    def expert(self, key: int, _: int) -> None:
        """See General."""
        with self.slots.lease(key, lambda view: view.__setitem__(slice(None), WEIGHTS)):
            pass

    def ahead(self) -> None:
        """See General."""
        resident = self.slots.resident()
        for key in resident[: max(len(resident) - ROOM + 2, 0)]:
            self.slots.evict(key)


class HostSlots(Slots):
    """Experts in slots; KV with the host's allocator."""

    whole = True


class SlotsAndPages(Slots):
    """Experts in slots, KV in pages."""

    def __init__(self, policy: str) -> None:
        super().__init__(policy)
        count = self.arena.figures().free_bytes // PAGE
        self.pages = Pages(self.arena, pages=count, page_bytes=PAGE, sequences=4096)
        self.rows: dict[int, int] = {}

    def add(self, key: int, size: int) -> None:
        """See General."""
        row = self.pages.open()
        self.rows[key] = row
        self.failed += not self.pages.extend(row, size)

    def drop(self, key: int, _: int) -> None:
        """See General."""
        self.pages.close(self.rows.pop(key))


ARMS = {"host": Host, "slots": HostSlots, "slots+pages": SlotsAndPages, "one arena": General,
        "slots, arena": Slots}  # fmt: skip


def stream(seed: int, steps: int) -> list[Step]:
    """The requests of all steps."""
    dice = random.Random(seed)  # noqa: S311
    zipf = [1 / (rank + 1) for rank in range(EXPERTS)]
    order = dice.sample(range(EXPERTS), EXPERTS)
    limit = FULL * ((TOTAL - ROOM * EXPERT) // PAGE)
    alive: dict[int, int] = {}  # key -> pages, oldest first
    due: dict[int, list[int]] = {}
    out: list[Step] = []
    for number in range(steps):
        step: Step = [("drop", key, 0) for key in due.pop(number, ()) if alive.pop(key, 0)]
        for i in range(6):
            key, size = number * 6 + i, dice.randrange(48 * KIB, 600 * KIB)
            while sum(alive.values()) + -(-size // PAGE) > limit:
                oldest = next(iter(alive))
                del alive[oldest]
                step.append(("drop", oldest, 0))
            alive[key] = -(-size // PAGE)
            step.append(("add", key, size))
            due.setdefault(number + 1 + int(dice.expovariate(1 / LIFE)), []).append(key)
        step += [("expert", which, 0) for which in dice.choices(order, zipf, k=2)]
        out.append(step)
    return out


def take(arm: General, step: Step) -> int:
    """One step; CPU ns."""
    start = time.thread_time_ns()
    for what, key, size in step:
        getattr(arm, what)(key, size)
    A @ B
    arm.ahead()
    return time.thread_time_ns() - start


def tail(policy: str, seeds: int, steps: int) -> None:
    """Prints the table of one policy."""
    print(f"\npolicy {policy}: {seeds} seeds x {steps} steps")
    heads = ("P50 ms", "P99 ms", "moves", "MiB moved", "no room", "host's P99 over it [range]")
    print(f"  {'':14}" + "".join(f"{head:>{10 if i < 5 else 30}}" for i, head in enumerate(heads)))
    times: dict[str, list[np.ndarray]] = {name: [] for name in ARMS}
    counts = {name: np.zeros(3) for name in ARMS}
    for seed in range(seeds):
        arms = {name: kind(policy) for name, kind in ARMS.items()}
        took: dict[str, list[int]] = {name: [] for name in ARMS}
        for number, step in enumerate(stream(seed, steps)):
            names = list(ARMS) if number % 2 else list(ARMS)[::-1]
            for name in names:
                took[name].append(take(arms[name], step))
        for name, arm in arms.items():
            times[name].append(np.array(took[name][steps // 5 :]) / 1e6)  # the memory has filled by then
            counts[name] += arm.figures()
    worst = [np.percentile(t, 99) for t in times["host"]]
    for name in ARMS:
        every = np.concatenate(times[name])
        ratio = [b / np.percentile(t, 99) for t, b in zip(times[name], worst, strict=True)]
        moves, failed, moved = counts[name]
        print(
            f"  {name:14}{np.percentile(every, 50):10.2f}{np.percentile(every, 99):10.2f}{moves:10.0f}"
            f"{moved:10.0f}{failed:10.0f}{np.median(ratio):18.1f} [{min(ratio):.1f}, {max(ratio):.1f}]"
        )


def temporaries() -> None:
    """Prints what the pool saves against `empty`, by size; both write each page once."""
    print("\ntemporaries, allocated and written one byte a page, CPU us (median of 5), pool against empty")
    makers: dict[str, Callable[[int], object]] = {"numpy": lambda n: np.empty(n, np.uint8)}
    pool = BufferPool()
    pooled: dict[str, Callable[[int], object]] = {"numpy": lambda n: pool.empty(n, np.uint8)}
    try:
        import torch
    except ImportError:
        print("  torch is not installed: numpy only")
    else:
        makers["torch"] = lambda n: torch.empty(n, dtype=torch.uint8)
        pooled["torch"] = lambda n: pool.empty(n, torch.uint8)
    for library, plain in makers.items():
        for size in (4 * KIB, 256 * KIB, 4 * MIB, 64 * MIB):
            rounds = 2000 if size <= 256 * KIB else 50
            us: list[list[float]] = [[], []]
            for _ in range(5):
                for row, make in zip(us, (plain, pooled[library]), strict=True):
                    start = time.thread_time_ns()
                    for _ in range(rounds):
                        make(size)[:: 4 * KIB] = 1
                    row.append((time.thread_time_ns() - start) / rounds / 1e3)
            one, two = (float(np.median(row)) for row in us)
            print(f"  {library:6}{size / KIB:8.0f} KiB: empty {one:9.1f}   pool {two:9.1f} {one / two:6.2f}x")


def collector(batches: int = 400) -> None:
    """Prints pauses of the collector with and without a window; 400,000 objects live since start-up."""
    model = [{"weight": [i], "name": str(i)} for i in range(400_000)]
    state = {"at": 0, "longest": 0}

    def watch(phase: str, info: dict[str, int]) -> None:
        del info
        if phase == "start":
            state["at"] = time.thread_time_ns()
        else:
            state["longest"] = max(state["longest"], time.thread_time_ns() - state["at"])

    def batch() -> None:
        for _ in range(3000):
            cycle: list[object] = []
            cycle.append(cycle)

    gc.callbacks.append(watch)
    longest: list[float] = []
    for window in (None, GcWindow()):
        if window is not None:
            window.attach()
        state["longest"] = 0
        kept = []  # some of each batch lives on, as caches do
        for _ in range(batches):
            batch()
            kept.append([[i] for i in range(1000)])
            if window is not None:
                window.between()
        longest.append(state["longest"] / 1e6)
        if window is not None:
            figures = window.figures()
            window.detach()
    gc.callbacks.remove(watch)
    print(f"\ncollector, {len(model)} objects since start-up, {batches} batches: longest collection, CPU ms")
    print(f"  as it is {longest[0]:.1f}, inside the batches")
    print(f"  window   {longest[1]:.1f}, between them ({figures.asked} asked for, {figures.unasked} not)")
    print("  (with a window each 64th walks all that came since it opened, the others the newest only)")


def main() -> None:
    """Prints all tables."""
    parser = argparse.ArgumentParser(description="Arena, slots, pages, buffers, collector.")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--policy", nargs="*", default=["first-fit", "best-fit", "tlsf"])
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for policy in args.policy:
        tail(policy, args.seeds, args.steps)
    temporaries()
    collector()


if __name__ == "__main__":
    main()
