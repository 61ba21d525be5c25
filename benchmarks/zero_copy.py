"""Handing 64 MiB to another process: parcels against a copy, in turn, in the same run.

ways:
  parcel    moexray.runtime.zero_copy: the pages change hands; the receiver maps them and signals the event
  memcpy    both map one buffer made before; the sender copies its bytes in, the receiver its own copy out
  pipe      the bytes go through a pipe, as multiprocessing would send them

A round is: from the sender's full buffer to the receiver having read one byte of each page and said so. The
content (a sum over all bytes) is checked after each round, outside the timing. Memory is the PSS of both
processes while the receiver holds the content, less that at the start, of a run with that way alone: 1 x is
the content itself, the least possible.

    python benchmarks/zero_copy.py [--mib N] [--rounds N]
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import time
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from moexray.runtime.zero_copy import Parcel, Port

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

MIB, PAGE = 1 << 20, 4096
PATTERN = np.random.default_rng(0).integers(0, 255, MIB, np.uint8)
WAYS = ("parcel", "memcpy", "pipe")


def pss() -> int:
    """Proportional memory of this process, bytes."""
    for line in Path("/proc/self/smaps_rollup").read_text("ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def receive(port: Port, orders: Connection, shared: mmap.mmap) -> None:
    """The other process: takes content until the end."""
    own = np.zeros(len(shared), np.uint8)  # untouched until used
    orders.send(pss())
    while (way := orders.recv()) != "end":
        parcel = None
        if way == "parcel":
            parcel = port.receive(60)
            view = parcel.view
        else:
            if way == "memcpy":
                own[:] = np.frombuffer(shared, np.uint8)
            else:
                orders.recv_bytes_into(own)
            view = own
        _ = view[::PAGE].max()
        if parcel is None:
            orders.send("done")
        else:
            parcel.done()
        orders.send((int(view.sum(dtype=np.uint64)), pss()))
        orders.recv()
        del view
        if parcel is not None:
            parcel.close()


class Sender:
    """This process, with another one."""

    def __init__(self, mib: int) -> None:
        self.size, self.total = mib * MIB, mib * int(PATTERN.sum(dtype=np.uint64))
        context = get_context("fork")
        self.port, theirs = Port.pair()
        self.orders, other = context.Pipe()
        self.shared = mmap.mmap(-1, self.size)
        self.child = context.Process(target=receive, args=(theirs, other, self.shared))
        self.child.start()
        theirs.close()
        self.before = self.orders.recv() + pss()
        self.data: np.ndarray | None = None

    def fill(self, view: np.ndarray) -> np.ndarray:
        """Writes the content."""
        view.reshape(-1, MIB)[:] = PATTERN
        return view

    def round(self, way: str) -> tuple[float, int]:
        """(ms, bytes of memory more than at the start)."""
        if way == "parcel":
            parcel = Parcel.make(self.size)
            self.fill(parcel.view)
        elif self.data is None:
            self.data = self.fill(np.empty(self.size, np.uint8))
        start = time.perf_counter()
        if way == "memcpy":
            np.frombuffer(self.shared, np.uint8)[:] = self.data
        self.orders.send(way)
        if way == "parcel":
            self.port.send(parcel).wait(60)
        else:
            if way == "pipe":
                self.orders.send_bytes(self.data)
            self.orders.recv()
        took = time.perf_counter() - start
        total, theirs = self.orders.recv()
        more = theirs + pss() - self.before
        self.orders.send("next")
        if total != self.total:
            raise SystemExit(f"{way}: the content differs")
        return took * 1e3, more

    def end(self) -> None:
        """Ends the other process."""
        self.orders.send("end")
        self.child.join()
        self.port.close()


def run(ways: Sequence[str], mib: int, rounds: int) -> tuple[dict[str, list[float]], int]:
    """(ms of each round, most bytes more) of the ways in turn; a first round only warms up."""
    sender = Sender(mib)
    took: dict[str, list[float]] = {way: [] for way in ways}
    most = 0
    for _ in range(rounds + 1):
        for way in ways:
            ms, more = sender.round(way)
            took[way].append(ms)
            most = max(most, more)
    sender.end()
    return {way: row[1:] for way, row in took.items()}, most


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="Parcels against copies.")
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    print(f"{args.mib} MiB, {args.rounds} rounds, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    took, _ = run(WAYS, args.mib, args.rounds)
    base = statistics.median(took["memcpy"])
    print(f"{'':10}{'median ms':>12}{'worst ms':>12}{'ratio':>10}{'memory':>9}  content checked each round")
    for way, row in took.items():
        _, more = run([way], args.mib, 1)
        middle = statistics.median(row)
        cells = f"{middle:12.2f}{max(row):12.2f}{base / middle:9.2f}x{more / args.mib / MIB:9.2f}x"
        print(f"{way:10}{cells}")


if __name__ == "__main__":
    main()
