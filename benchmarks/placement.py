"""Placement of experts beside other planners, on the same loads, in one run: time and balance.

Each row plans all layers of a model from lognormal loads. Times are CPU time of one core (the median of
the rounds, after a warm-up), so that a busy machine hurts no side; rounds of all sides are interleaved.
Balancedness is mean / max over GPUs with an equal split, reckoned here for every side alike.

Peers are brought by path and run by a Python that has torch; without, their columns stay empty:

    MOEXRAY_EPLB=/path/to/eplb.py MOEXRAY_EPLB_PYTHON=/path/to/python python benchmarks/placement.py

Several files are separated by a colon; a file has a function `rebalance_experts`, or a class with one.

    python benchmarks/placement.py [-n ROUNDS] [--peer FILE]... [--peer-python PYTHON] [--strict]
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from moexray.algorithms.packing import rank_loads
from moexray.algorithms.placement import Shape, Tools, floor, least, place
from moexray.algorithms.replication import token_costs
from moexray.kernels import packing as kernel

TOOLS = Tools(kernel.replicate, kernel.pack)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One model on one cluster, and what is asked of it.

    Attributes:
        layers: MoE layers.
        shape: experts, slots, GPUs, nodes, groups.
        budget_ms: CPU time allowed; None: a tenth of the first peer's.
        balance: mean balancedness asked for; None: that of the first peer.
    """

    layers: int
    shape: Shape
    budget_ms: float | None = None
    balance: float | None = None

    @property
    def name(self) -> str:
        """For the table."""
        s = self.shape
        where = f"{s.nodes} nodes, {s.groups} groups" if s.groups else "global"
        return f"{self.layers}x{s.experts}->{s.slots}/{s.gpus}, {where}"


ROWS = (
    Row(58, Shape(256, 288, 32), 20.0, 0.999),
    Row(94, Shape(512, 640, 128), 150.0, 0.998),
    Row(58, Shape(256, 288, 32, 4, 8)),
    Row(94, Shape(512, 640, 128, 4, 16)),
)
SIGMAS = (0.5, 1.0)
GAP = 0.002  # mean distance from the bound of any plan that is allowed
FASTER = 10.0  # times faster than the first peer, where no time is given

PEER = r"""
import importlib.util, json, sys, time, types
import torch
torch.set_num_threads(1)
name = "peers.peer"
sys.modules["peers"] = types.ModuleType("peers"); sys.modules["peers"].__path__ = []
base = types.ModuleType("peers.abstract"); base.AbstractEplbPolicy = object
sys.modules["peers.abstract"] = base
spec = importlib.util.spec_from_file_location(name, sys.argv[1])
module = importlib.util.module_from_spec(spec); sys.modules[name] = module
spec.loader.exec_module(module)
plan = getattr(module, "rebalance_experts", None)
if plan is None:
    classes = [v for v in vars(module).values() if hasattr(v, "rebalance_experts")]
    plan = classes[-1].rebalance_experts
print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    load = torch.tensor(json.load(open(job["path"])))
    begin = time.process_time()
    out = plan(load, *job["arguments"])
    spent = time.process_time() - begin
    slots = out[0] if isinstance(out, tuple) else out
    print(json.dumps({"seconds": spent, "slots": slots.tolist()}), flush=True)
"""


@dataclasses.dataclass(slots=True)
class Side:
    """What one planner made of one row."""

    seconds: list[float] = dataclasses.field(default_factory=list)
    slots: Sequence[Sequence[int]] = ()

    def ms(self) -> float:
        """Median CPU time."""
        return statistics.median(self.seconds) * 1e3


def ours(load: np.ndarray, shape: Shape) -> tuple[float, list[np.ndarray]]:
    """CPU time in seconds, and the plan."""
    begin = time.process_time()
    slots = [place(token_costs(row, shape.most), shape, TOOLS) for row in load]
    return time.process_time() - begin, slots


@contextmanager
def peers(files: Sequence[str], python: str) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """One process per peer; those that do not start are told and left out."""
    running: dict[str, subprocess.Popen[str]] = {}
    for file in files:
        try:
            process = subprocess.Popen([python, "-W", "ignore", "-c", PEER, file], text=True,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
        except OSError as why:
            print(f"no peer {file}: {why}")
            continue
        if process.stdout is not None and process.stdout.readline().strip() == "ready":
            running[file] = process
        else:
            print(f"no peer {file}: it did not start (it needs torch: --peer-python)")
    try:
        yield running
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def ask(process: subprocess.Popen[str], path: Path, shape: Shape) -> tuple[float, list[list[int]]]:
    """CPU time in seconds, and the plan of a peer."""
    # groups that the nodes do not divide make it plan globally
    groups, nodes = (shape.groups, shape.nodes) if shape.groups else (1, 1)
    job = {"path": str(path), "arguments": [shape.slots, groups, nodes, shape.gpus]}
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("a peer has no pipes")
    process.stdin.write(json.dumps(job) + "\n")
    process.stdin.flush()
    answer = json.loads(process.stdout.readline())
    return answer["seconds"], answer["slots"]


def balance(load: np.ndarray, slots: Sequence[Sequence[int]], shape: Shape) -> np.ndarray:
    """[layers], mean / max over GPUs."""
    on = [rank_loads(row, np.asarray(plan), shape.gpus) for row, plan in zip(load, slots, strict=True)]
    return np.array([x.mean() / x.max() for x in on])


def measure(
    row: Row, load: np.ndarray, path: Path, running: dict[str, subprocess.Popen[str]], rounds: int
) -> dict[str, Side]:
    """All sides, interleaved; the first round warms up. Slow peers get fewer rounds."""
    sides = {"moexray": Side(), **{name: Side() for name in running}}
    for number in range(rounds + 1):
        seconds, plan = ours(load, row.shape)
        if number:
            sides["moexray"].seconds.append(seconds)
        sides["moexray"].slots = plan
        for name, process in running.items():
            if number < 3:
                seconds, slots = ask(process, path, row.shape)
                sides[name].seconds.append(seconds)
                sides[name].slots = slots
    return sides


def report(row: Row, sigma: float, load: np.ndarray, sides: dict[str, Side]) -> bool:
    """One line per side; True where moexray kept what was asked."""
    shape = row.shape
    bound = np.array(
        [floor(c, shape.gpus) / least(c, shape, TOOLS) for c in (token_costs(x, shape.most) for x in load)]
    )
    found = {name: balance(load, side.slots, shape) for name, side in sides.items()}
    mine, first = found["moexray"], next((n for n in sides if n != "moexray"), None)
    gap = float((1 - mine / bound).mean())
    time_ms = sides["moexray"].ms()
    allowed = row.budget_ms or (sides[first].ms() / FASTER if first else None)
    asked = row.balance or (float(found[first].mean()) if first else None)
    good = gap <= GAP and (allowed is None or time_ms <= allowed) and (asked is None or mine.mean() >= asked)
    for name, side in sides.items():
        peer = "/".join(Path(name).parts[-2:])
        label = f"{row.name}, sigma {sigma}" if name == "moexray" else f"    {peer}"
        cells = [f"{side.ms():.1f}", f"{found[name].mean():.4f}", f"{found[name].min():.4f}"]
        if name == "moexray":
            cells += [f"{bound.mean():.4f}", f"{gap:.2%}", "ok" if good else "MISSED"]
        else:
            cells += ["", "", f"{side.ms() / time_ms:.0f}x"]
        print(f"{label:48}" + "".join(f"{c:>10}" for c in cells), flush=True)
    return good


def main() -> int:
    """Run all rows; with --strict, exit 1 where one misses."""
    parser = argparse.ArgumentParser(description="Placement of experts beside other planners.")
    parser.add_argument("-n", "--rounds", type=int, default=7, help="measured rounds (7)")
    parser.add_argument("--peer", action="append", default=[], help="file of a peer; repeatable")
    parser.add_argument("--peer-python", default=os.environ.get("MOEXRAY_EPLB_PYTHON", sys.executable))
    parser.add_argument("--strict", action="store_true", help="exit 1 on a miss")
    args = parser.parse_args()
    files = args.peer or [p for p in os.environ.get("MOEXRAY_EPLB", "").split(":") if p]
    if not files:
        print("no peer given (MOEXRAY_EPLB or --peer): moexray alone")
    print(f"{args.rounds} rounds, CPU time of one core, load {os.getloadavg()[0]:.1f}")
    heads = ("CPU ms", "mean", "worst", "bound", "gap", "")
    print(f"{'placement, lognormal loads':48}" + "".join(f"{h:>10}" for h in heads))
    good = True
    with (
        tempfile.TemporaryDirectory(prefix="moexray-bench-") as folder,
        peers(files, args.peer_python) as running,
    ):
        for row in ROWS:
            for sigma in SIGMAS:
                load = np.random.default_rng(1).lognormal(0, sigma, (row.layers, row.shape.experts)) * 1000
                path = Path(folder) / "load.json"
                path.write_text(json.dumps(load.tolist()), encoding="utf-8")
                sides = measure(row, load, path, running, args.rounds)
                good = report(row, sigma, load, sides) and good
    return 1 if args.strict and not good else 0


if __name__ == "__main__":
    sys.exit(main())
