"""The engine as its user sees it: starts the processes, hands them jobs, joins what they measured."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from moexray.core.errors import MoexrayError
from moexray.verify.lab.work import Plan, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from types import TracebackType

    from moexray.verify.lab.work import Job, Steps

__all__ = ["Engine", "LabError", "Measured"]

START_S, JOB_S = 180.0, 600.0  # patience with a process: imports on a loaded machine, the longest job
TUNABLES = "GLIBC_TUNABLES"


class LabError(MoexrayError):
    """A process of the lab's engine failed or fell silent."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Steps of all ranks, joined; arrays of [steps, ...].

    Args:
        begin_ns, end_ns: Unix time, first begin and last end over the processes.
        wall_s: Time of a step.
        cpu_s: CPU time of the slowest process.
        latency_s: From the intended send time to the end.
        wait_s: [steps, processes] CPU-free time of each process within its step.
        counts: [steps, layers, experts] tokens of each expert.
        rows: [steps, layers, ranks] rows that each rank received.
        largest: [steps, ranks] largest free block, bytes.
        moves: [steps, ranks] times that everything was moved.
    """

    begin_ns: np.ndarray
    end_ns: np.ndarray
    wall_s: np.ndarray
    cpu_s: np.ndarray
    latency_s: np.ndarray
    wait_s: np.ndarray
    counts: np.ndarray
    rows: np.ndarray
    largest: np.ndarray
    moves: np.ndarray

    @classmethod
    def of(cls, parts: list[Steps]) -> Measured:
        """Joins the processes."""
        begin = np.min([p.begin_ns for p in parts], axis=0)
        end = np.max([p.end_ns for p in parts], axis=0)
        wait = np.stack([(p.end_ns - p.begin_ns - p.cpu_ns) / 1e9 for p in parts], axis=1)
        return cls(
            begin, end, (end - begin) / 1e9, np.max([p.cpu_ns for p in parts], axis=0) / 1e9,
            (end - parts[0].due_ns) / 1e9, wait, np.sum([p.counts for p in parts], axis=0),
            np.sum([p.rows for p in parts], axis=0), np.max([p.largest for p in parts], axis=0),
            np.sum([p.moves for p in parts], axis=0),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.begin_ns)


class Engine:
    """A running engine; a context.

    Args:
        plan: What to run.

    Raises:
        LabError: a process fails or is silent for too long; the message names it and the error.
    """

    def __init__(self, plan: Plan) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="moexray-lab-")
        self.plan = replace(plan, rendezvous=str(Path(self._folder.name) / "rendezvous"))
        spawn = multiprocessing.get_context("spawn")
        self._sizes = (0, 0)
        self._workers: list[tuple[Any, Connection]] = []
        for rank in range(1 if plan.engine == "hf" else plan.ranks):
            here, there = spawn.Pipe()
            process = spawn.Process(target=serve, args=(self.plan, rank, there), daemon=True)
            with _huge_pages():
                process.start()
            there.close()
            self._workers.append((process, here))

    def __enter__(self) -> Self:
        try:
            for at in range(len(self._workers)):
                self._sizes = self._answer(at, START_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def flat(self) -> np.ndarray:
        """[layers, experts], the placement that engines start with: neighbouring experts on a rank."""
        return np.tile(np.arange(self._sizes[1]), (self._sizes[0], 1))

    def run(self, job: Job) -> Measured:
        """Does a job on all processes."""
        for _, pipe in self._workers:
            pipe.send(job)
        return Measured.of([self._answer(at, JOB_S) for at in range(len(self._workers))])

    def close(self) -> None:
        """Ends the processes."""
        for process, pipe in self._workers:
            if process.is_alive():
                try:
                    pipe.send(None)
                except OSError:
                    process.terminate()
        for process, pipe in self._workers:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
            pipe.close()
        self._workers = []
        self._folder.cleanup()

    def _answer(self, at: int, patience_s: float) -> Any:
        _, pipe = self._workers[at]
        where, hint = (
            f"process {at} of the engine {self.plan.engine!r}",
            "run it with less load on the machine",
        )
        if not pipe.poll(patience_s):
            raise LabError(f"no answer within {patience_s:g} s", where=where, hint=hint)
        try:
            answer = pipe.recv()
        except EOFError as why:
            raise LabError("it ended without a word", where=where, hint="is there enough memory?") from why
        if isinstance(answer, str):
            raise LabError(answer, where=where)
        return answer


@contextmanager
def _huge_pages() -> Iterator[None]:
    """Processes started inside get huge pages from malloc, where the C library can.

    Where a kernel or a hypervisor watches which pages idle, the first touch of each page after a pause costs
    microseconds: with small ones a step after a long gap between arrivals takes twice its CPU time.
    """
    before = os.environ.get(TUNABLES)
    os.environ[TUNABLES] = ":".join(filter(None, (before, "glibc.malloc.hugetlb=1")))
    try:
        yield
    finally:
        if before is None:
            del os.environ[TUNABLES]
        else:
            os.environ[TUNABLES] = before
