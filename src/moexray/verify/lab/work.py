"""One process of the lab's engine: serves requests step by step and notes what each step took.

A request is a batch of prompts; a step is one forward pass over it, the time to its first token. Requests
arrive at times that were fixed before (open loop), so a stall delays those behind it, and latency counts
from the time at which a request was meant to be sent.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moexray.verify.lab.bench import Bench

if TYPE_CHECKING:
    from pathlib import Path

    from moexray.verify.lab.pressure import PressureSpec

__all__ = ["Job", "Late", "Plan", "Steps", "Worker", "serve"]

@dataclass(frozen=True, slots=True)
class Plan:
    """What does not change while an engine runs.

    Args:
        model: See `model.load`.
        engine: "hf": all ranks in one process; "ep": a process each.
        ranks: EP ranks.
        memory: Of each rank.
        rendezvous: File that the processes of "ep" meet at.
    """

    model: str
    engine: str
    ranks: int
    memory: PressureSpec
    rendezvous: str = ""


@dataclass(frozen=True, slots=True)
class Late:
    """A rank that comes late to the exchange of one layer.

    Args:
        rank: Which.
        seconds: By how much; it computes meanwhile.
        every: In every so many steps.
    """

    rank: int
    seconds: float
    every: int


@dataclass(frozen=True, slots=True)
class Job:
    """A run of steps under one setting.

    Args:
        prompts: int64 [steps, prompts, length]; each process takes its part of the prompts.
        slots: int64 [layers, experts], the placement.
        layout: Of memory, the live mode flag.
        fill: Share of memory that keys and values take.
        calm: In so many steps at first that share is the spec's `calm`.
        arrivals: [steps] s after the start; None: one after the other.
        first: Number of the first step.
        folder: Where traces and memory are written; None: nothing is recorded.
        late: A rank that comes late, after those steps.
    """

    prompts: np.ndarray
    slots: np.ndarray
    layout: str
    fill: float
    calm: int = 0
    arrivals: np.ndarray | None = None
    first: int = 0
    folder: Path | None = None
    late: Late | None = None

    def fill_at(self, step: int, memory: PressureSpec) -> float:
        """Share of memory that keys and values take in a step of this job."""
        return memory.calm if step < self.calm else self.fill


@dataclass(frozen=True, slots=True)
class Steps:
    """What one process measured; arrays of [steps, ...].

    Args:
        begin_ns, end_ns: Unix time of each step.
        cpu_ns: CPU time of the engine's thread.
        counts: [steps, layers, experts] tokens that this process sent to each expert.
        rows: [steps, layers, ranks] rows that the ranks in this process received.
        largest: [steps, ranks] largest free block of memory at the end, bytes; -1 for ranks elsewhere.
        moves: [steps, ranks] times that everything was moved.
        due_ns: When the request was meant to be sent, Unix time.
    """

    begin_ns: np.ndarray
    end_ns: np.ndarray
    cpu_ns: np.ndarray
    counts: np.ndarray
    rows: np.ndarray
    largest: np.ndarray
    moves: np.ndarray
    due_ns: np.ndarray

    @classmethod
    def of(cls, notes: list[tuple[Any, ...]], due_ns: list[int]) -> Steps:
        """From the notes of a `Bench`."""
        columns = [np.array(column) for column in zip(*notes, strict=True)]
        return cls(*(*columns, np.array(due_ns)))


class Worker:
    """See the head of this file.

    Args:
        plan: Of the engine.
        rank: Of this process; 0 for "hf".
    """

    def __init__(self, plan: Plan, rank: int = 0) -> None:
        import torch

        from moexray.verify.lab import engine
        from moexray.verify.lab.model import load

        torch.set_num_threads(1)
        self.plan, self.rank = plan, rank
        mine = tuple(range(plan.ranks)) if plan.engine == "hf" else (rank,)
        self.model = load(plan.model)
        shape = self.model.config
        self.bench = Bench(plan.memory, (shape.num_hidden_layers, shape.num_experts), plan.ranks, mine)
        self._late: Late | None = None
        self._step = 0
        exchange = (
            engine.Local(plan.ranks) if plan.engine == "hf" else engine.Gloo(rank, plan.ranks, self._delay)
        )
        engine.fit(self.model, self.bench.state, exchange)

    def run(self, job: Job) -> Steps:
        """Serves the requests of a job."""
        import torch

        self.bench.use(job.slots, job.layout)
        with torch.inference_mode(), self.bench.recorded(job.folder):
            return self._serve(job)

    def _serve(self, job: Job) -> Steps:
        import torch

        share = job.prompts.shape[1] // (1 if self.plan.engine == "hf" else self.plan.ranks)
        tokens = torch.from_numpy(job.prompts[:, self.rank * share : (self.rank + 1) * share].copy())
        start, dues = self._start(), []
        self.bench.notes.clear()
        for i in range(len(tokens)):
            self._step = job.first + i
            self._late = job.late if i >= job.calm else None
            due = time.monotonic() if job.arrivals is None else start + float(job.arrivals[i])
            time.sleep(max(0.0, due - time.monotonic()))
            dues.append(int(due * 1e9) + time.time_ns() - time.monotonic_ns())
            with self.bench.step(self._step, job.fill_at(i, self.plan.memory)):
                self.model(input_ids=tokens[i], use_cache=False, logits_to_keep=1)
        return Steps.of(self.bench.notes, dues)

    def _start(self) -> float:
        """The same moment of the machine's monotonic clock in all processes."""
        if self.plan.engine == "hf":
            return time.monotonic()
        import torch
        import torch.distributed as dist

        moment = torch.tensor([time.monotonic() + 0.005], dtype=torch.float64)
        dist.broadcast(moment, 0)
        return float(moment[0])

    def _delay(self, layer: int) -> None:
        late = self._late
        if late is None or layer or late.rank != self.rank or self._step % late.every:
            return
        until = time.thread_time() + late.seconds
        while time.thread_time() < until:
            sum(range(1000))


def serve(plan: Plan, rank: int, pipe: Any) -> None:
    """A process: does the jobs that come through the pipe until None; sends Steps, or what went wrong."""
    os.environ.update(KINETO_LOG_LEVEL="99", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    try:
        if plan.engine == "ep":
            _join(plan, rank)
        worker = Worker(plan, rank)
        pipe.send(worker.bench.state.counts.shape)
        while (job := pipe.recv()) is not None:
            pipe.send(worker.run(job))
    except EOFError:
        return
    except Exception as why:  # noqa: BLE001  the edge of a process: the parent tells it
        pipe.send(f"{type(why).__name__}: {why}")
    finally:
        if plan.engine == "ep":
            import torch.distributed as dist

            if dist.is_initialized():
                dist.destroy_process_group()


def _join(plan: Plan, rank: int) -> None:
    from datetime import timedelta

    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{plan.rendezvous}",
        rank=rank,
        world_size=plan.ranks,
        timeout=timedelta(minutes=5),
    )
