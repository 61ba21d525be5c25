"""Static against dynamic rescheduling over a simulated day: failed requests, moves, their latency.

The memory: 80 GiB, 48 of them weights. A request brings a block of 64-512 MiB, uses it for a minute on
average, then leaves it as cache for an hour; one in three blocks is asked for once more. Arrivals follow a
day's tide with bursts. A request that does not fit waits (pending) and fails after 10 s. A block that was
moved and is asked for again must come back first: that latency is the price.

arms:
  none      nothing moves
  static    every N s all cold blocks move that bring use to `low`, needed or not
  dynamic   moexray.runtime.rescheduler with its defaults

The day is simulated second by second; a move takes its bytes over the bandwidth of a copy measured in this
run (host to host), so latencies are those of this machine's memory, not of a GPU's link.

    python benchmarks/rescheduler.py [--seeds N] [--every SECONDS]
"""

import argparse
import math
import random
import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from moexray.runtime.rescheduler import Movable, Options, Rescheduler

GIB, MIB = 1 << 30, 1 << 20
CAPACITY, WEIGHTS, DAY_S = 80 * GIB, 48 * GIB, 86_400
WAIT_S, CACHE_S, ACTIVE_S, AGAIN = 10, 3600, 60.0, 1 / 3
OPTIONS = Options()


def bandwidth() -> float:
    """Bytes per second of a copy of 64 MiB, median of 15, warm."""
    source, target = np.ones(64 * MIB, np.uint8), np.ones(64 * MIB, np.uint8)
    rows = []
    for _ in range(15):
        start = time.perf_counter()
        target[:] = source
        rows.append(time.perf_counter() - start)
    return source.size / float(np.median(rows))


def arrivals(seed: int, mean: float) -> list[list[tuple[int, float, float]]]:
    """`mean` requests/s; per second: (bytes, seconds of use, seconds until it is asked for again or 0)."""
    dice = random.Random(seed)  # noqa: S311
    burst = 0
    out = []
    for now in range(DAY_S):
        tide = 1 + 0.8 * math.sin(2 * math.pi * (now / DAY_S - 0.3))
        burst = 30 if dice.random() < 1 / 1800 else max(burst - 1, 0)
        rate = mean * tide * (4 if burst else 1)
        count = int(dice.random() < rate) + int(dice.random() < rate / 4)
        second = []
        for _ in range(count):
            again = dice.uniform(60, CACHE_S) if dice.random() < AGAIN else 0.0
            second.append((dice.randrange(64, 512) * MIB, dice.expovariate(1 / ACTIVE_S), again))
        out.append(second)
    return out


@dataclass(slots=True)
class Server:
    """The memory of one arm, and what happened to it."""

    used: int = WEIGHTS
    blocks: dict[int, Movable] = field(default_factory=dict)
    busy: dict[int, float] = field(default_factory=dict)  # key -> last second of use
    again: dict[int, list[int]] = field(default_factory=dict)  # second -> keys asked for again
    end: dict[int, list[int]] = field(default_factory=dict)  # second -> keys whose hour is over
    away: dict[int, int] = field(default_factory=dict)  # key -> bytes of moved blocks
    waiting: deque[tuple[int, int, float, float]] = field(default_factory=deque)
    requests: int = 0
    failed: int = 0
    moves: list[int] = field(default_factory=list)
    back: list[int] = field(default_factory=list)
    number: int = 0

    def move(self, key: object) -> bool:
        """Moves a block out."""
        block = self.blocks.pop(int(str(key)))
        self.away[int(str(key))] = block.size
        self.used -= block.size
        self.moves.append(block.size)
        return True

    def second(self, now: int, coming: list[tuple[int, float, float]]) -> None:
        """What the load does in one second."""
        for key in self.end.pop(now, ()):
            block = self.blocks.pop(key, None)
            self.used -= block.size if block is not None else 0
            self.away.pop(key, None)
            self.busy.pop(key, None)
        for key in self.again.pop(now, ()):
            if key in self.blocks:
                self.blocks[key] = Movable(key, self.blocks[key].size, now)
            elif key in self.away:  # it must come back: a request for room like any other
                self.back.append(self.away[key])
                self.waiting.append((now, self.away.pop(key), 30.0, 0.0))
        self.waiting.extend((now, *request) for request in coming)
        self.requests += len(coming)
        for _ in range(len(self.waiting)):
            since, size, use, again = self.waiting.popleft()
            if self.used + size <= CAPACITY:
                self.used += size
                self.number += 1
                self.blocks[self.number] = Movable(self.number, size, now + use)
                self.end.setdefault(int(now + use) + CACHE_S, []).append(self.number)
                if again:
                    self.again.setdefault(int(now + use + again), []).append(self.number)
            elif now - since >= WAIT_S:
                self.failed += 1
            else:
                self.waiting.append((since, size, use, again))


def play(arm: str, load: list[list[tuple[int, float, float]]], every: int) -> Server:
    """One arm over the day."""
    server = Server()
    control = Rescheduler(CAPACITY, server.move, OPTIONS)
    for now, coming in enumerate(load):
        server.second(now, coming)
        if arm == "dynamic":
            control.look(float(now), server.used, pending=bool(server.waiting), blocks=server.blocks.values())
        elif arm == "static" and now % every == 0:
            cold = [b for b in server.blocks.values() if now - b.used_s >= OPTIONS.cold_s]
            for block in sorted(cold, key=lambda b: b.used_s):
                if server.used > OPTIONS.low * CAPACITY:
                    server.move(block.key)
    return server


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="Static against dynamic rescheduling.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", type=float, nargs="*", default=[0.012, 0.018, 0.034], help="requests/s")
    parser.add_argument("--every", type=int, nargs="*", default=[60, 600], help="s between static moves")
    args = parser.parse_args()
    speed = bandwidth()
    for rate in args.rate:
        table(rate, args.seeds, args.every, speed)


def table(rate: float, seeds: int, times: list[int], speed: float) -> None:
    """Prints the arms under one load."""
    print(f"\n{rate} requests/s, {seeds} days, {speed / 1e9:.1f} GB/s per copy in this run")
    heads = ("requests", "failed", "failed %", "moves", "GiB moved", "ms P50", "ms P99", "came back")
    print(f"{'':14}" + "".join(f"{head:>11}" for head in heads))
    arms = [("none", 0), *(("static", every) for every in times), ("dynamic", 0)]
    days = [arrivals(seed, rate) for seed in range(seeds)]
    for arm, every in arms:
        servers = [play(arm, load, every) for load in days]
        requests, failed = sum(s.requests for s in servers), sum(s.failed for s in servers)
        moves = np.array([size for s in servers for size in s.moves] or [0]) / speed * 1e3
        count, back = sum(len(s.moves) for s in servers), sum(len(s.back) for s in servers)
        cells = [f"{requests}", f"{failed}", f"{100 * failed / requests:.2f}", f"{count}",
                 f"{sum(sum(s.moves) for s in servers) / GIB:.0f}", f"{np.percentile(moves, 50):.1f}",
                 f"{np.percentile(moves, 99):.1f}", f"{back}"]  # fmt: skip
        print(f"{arm + (f' {every} s' if every else ''):14}" + "".join(f"{cell:>11}" for cell in cells))


if __name__ == "__main__":
    main()
